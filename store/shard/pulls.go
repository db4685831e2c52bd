package shard

import (
	"sync"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A puller is one pull that waits. Its channel gets a token when it should look again.
//
// Unlike a receive it takes nothing from others: what arrives in its queue wakes all
// that wait there. The rule that no wake-up is lost: it registers, then looks, then
// waits; and it stays registered while it looks again.
type puller struct {
	c    chan struct{} // capacity 1
	keys []pullKey
}

// pullKey is what a message must be for a pull: of the queue, and either of the tag or,
// with any, whatever its tag.
type pullKey struct {
	queue keyspace.Queue
	any   bool
	tag   string
}

// pulls are all pulls of the shard that wait.
type pulls struct {
	mu    sync.Mutex
	of    map[pullKey]*pullList
	n     int
	call  uint64 // of arrived, for pullList.call
	woken uint64
}

type pullList struct {
	members map[*puller]struct{}
	call    uint64 // in which all of them were woken
}

func (ps *pulls) register(queue keyspace.Queue, tags []string) *puller {
	p := &puller{c: make(chan struct{}, 1)}
	if len(tags) == 0 {
		p.keys = []pullKey{{queue: queue, any: true}}
	}
	for _, tag := range tags {
		p.keys = append(p.keys, pullKey{queue: queue, tag: tag})
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.of == nil {
		ps.of = map[pullKey]*pullList{}
	}
	for _, key := range p.keys {
		l := ps.of[key]
		if l == nil {
			l = &pullList{members: map[*puller]struct{}{}}
			ps.of[key] = l
		}
		l.members[p] = struct{}{}
	}
	ps.n++
	return p
}

func (ps *pulls) unregister(p *puller) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.n--
	for _, key := range p.keys {
		l := ps.of[key]
		if delete(l.members, p); len(l.members) == 0 {
			delete(ps.of, key)
		}
	}
}

// arrived wakes the pulls that new messages are for.
func (ps *pulls) arrived(list []machine.Arrival) {
	if len(list) == 0 {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.n == 0 {
		return
	}
	ps.call++
	for _, a := range list {
		queue := keyspace.Queue{Topic: a.Topic, Queue: a.Queue}
		ps.wakeLocked(ps.of[pullKey{queue: queue, any: true}])
		ps.wakeLocked(ps.of[pullKey{queue: queue, tag: string(a.Tag)}])
	}
}

// ended wakes the pulls of topics that are gone; that may be any.
func (ps *pulls) ended() {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.call++
	for _, l := range ps.of {
		ps.wakeLocked(l)
	}
}

// wakeLocked wakes all of a list, once in a call.
func (ps *pulls) wakeLocked(l *pullList) {
	if l == nil || l.call == ps.call {
		return
	}
	l.call = ps.call
	for p := range l.members {
		select {
		case p.c <- struct{}{}:
			ps.woken++
		default: // it has one
		}
	}
}

// count returns how many pulls wait, and how often one was woken.
func (ps *pulls) count() (n int, woken uint64) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.n, ps.woken
}

// queuesOf returns how many queues of the topic the caller thinks the shard has.
func (s *Shard) queuesOf(t *mq.Topic) int32 {
	on, err := t.On(s.opts.Name)
	if err != nil {
		return 0
	}
	return on.Queues()
}
