package proxy

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/session"
)

// producers are the producers that have a Telemetry stream here, by the topics of which
// they said that they send to them. Only they can be asked about half messages.
type producers struct {
	// changed has a token when a topic has got its first producer, or lost its last, or can be tried again.
	changed chan struct{} // capacity 1
	mu      struct {
		sync.Mutex
		of     map[mq.Resource]*producersOf
		topics map[*session.Session][]mq.Resource // of each producer
	}
}

// producersOf are those of one topic.
type producersOf struct {
	sessions []*session.Session
	turn     int
	// resting until then: none of them reads what it is sent.
	resting time.Time
}

func newProducers() *producers {
	p := &producers{changed: make(chan struct{}, 1)}
	p.mu.of = map[mq.Resource]*producersOf{}
	p.mu.topics = map[*session.Session][]mq.Resource{}
	return p
}

func (p *producers) signal() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// set notes the topics of a client, all of them: settings are a full snapshot. A client
// without a stream has none.
func (p *producers) set(s *session.Session, topics []mq.Resource) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.Connected() {
		return
	}
	p.removeLocked(s)
	if len(topics) == 0 {
		return
	}
	p.mu.topics[s] = topics
	for _, topic := range topics {
		of := p.mu.of[topic]
		if of == nil {
			of = &producersOf{}
			p.mu.of[topic] = of
			p.signal()
		}
		if !slices.Contains(of.sessions, s) { // a client may name a topic twice
			of.sessions = append(of.sessions, s)
		}
	}
}

// disconnected forgets a client that has lost its last stream.
func (p *producers) disconnected(s *session.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !s.Connected() {
		p.removeLocked(s)
	}
}

// left forgets a client that said goodbye.
func (p *producers) left(s *session.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeLocked(s)
}

func (p *producers) removeLocked(s *session.Session) {
	for _, topic := range p.mu.topics[s] {
		of := p.mu.of[topic]
		if of == nil {
			continue
		}
		of.sessions = slices.DeleteFunc(of.sessions, func(other *session.Session) bool { return other == s })
		if len(of.sessions) == 0 {
			delete(p.mu.of, topic)
			p.signal()
		}
	}
	delete(p.mu.topics, s)
}

// topics returns the topics that have producers who may be asked now, sorted.
func (p *producers) topics() (topics []mq.Resource) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, of := range p.mu.of {
		if now.Before(of.resting) {
			continue
		}
		topics = append(topics, topic)
	}
	slices.SortFunc(topics, func(a, b mq.Resource) int { return strings.Compare(a.String(), b.String()) })
	return topics
}

// rest makes a topic be left out for a while: its producers do not read.
func (p *producers) rest(topic mq.Resource, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of := p.mu.of[topic]; of != nil {
		of.resting = time.Now().Add(d)
		time.AfterFunc(d, p.signal)
	}
}

// of returns the producers of a topic in the order in which one should be asked about the
// message: the one that sent it if it can be told, then one of its host, and the
// others in turns.
func (p *producers) ofMessage(topic mq.Resource, m *rmqpb.Message) []*session.Session {
	p.mu.Lock()
	of := p.mu.of[topic]
	if of == nil {
		p.mu.Unlock()
		return nil
	}
	n := len(of.sessions)
	of.turn = (of.turn + 1) % n
	list := slices.Concat(of.sessions[of.turn:], of.sessions[:of.turn])
	p.mu.Unlock()
	sys := m.GetSystemProperties()
	slices.SortStableFunc(list, func(a, b *session.Session) int {
		return likeness(b.ID, sys) - likeness(a.ID, sys)
	})
	return list
}

// likeness says how likely a client has sent a message. SDKs make client ids of their
// host, their process id and other parts, with @ between them; they send the host as
// born_host, and the last 16 bits of the process id are in every message id: of its 34
// hex digits those after the version and the hardware address. A message without
// these could be of any client.
func likeness(client string, sys *rmqpb.SystemProperties) int {
	rest, same := strings.CutPrefix(client, sys.GetBornHost()+"@")
	if !same || sys.GetBornHost() == "" {
		return 0
	}
	process, _, _ := strings.Cut(rest, "@")
	id := sys.GetMessageId()
	if pid, err := strconv.ParseUint(process, 10, 64); err == nil && len(id) == 34 {
		if sent, err := strconv.ParseUint(id[14:18], 16, 16); err == nil && sent == pid&0xffff {
			return 2
		}
	}
	return 1
}
