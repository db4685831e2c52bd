package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A story is one random life of some routers over one etcd.
type story struct {
	*testing.T
	etcd  *fakeEtcd
	peers []*peer
	shown map[uint64]string // what any router has shown, by revision
	last  []uint64          // what each router has shown last
	calls sync.WaitGroup

	mu      sync.Mutex
	made    map[string]int    // by what it names: how often a change was said to be made
	doubted map[string]int    // and how often that was not known
	ids     map[string]string // the ids that were said to be given out, and for what
	under   int               // calls under way
}

// count notes how a change has ended.
func (s *story) count(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.made[what]++
	case errors.Is(err, mq.ErrOutcomeUnknown):
		s.doubted[what]++
	}
}

// give notes an id that was given out for something that is new.
func (s *story) give(id, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotContains(s, s.ids, id, "given out for %s, and again for %s", s.ids[id], what)
	s.ids[id] = what
}

func topicEntry(name string) string { return "/perigee/v1/topic//" + name }
func groupEntry(name string) string { return "/perigee/v1/group//" + name }

// change changes something by way of a router. What it does can be told from the entries
// that it writes: unique names, or one deletion of an id.
func (s *story) change(p *peer, unique, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	common := string(rune('a' + n%3))
	name := fmt.Sprint("u", unique)
	switch n / 3 % 7 {
	case 0:
		t, created, err := p.CreateTopic(ctx, router.TopicSpec{Resource: named(name)})
		s.count(topicEntry(name), err)
		if err == nil {
			require.True(s, created)
			s.give(fmt.Sprint("topic ", t.ID), name)
		}
	case 1:
		g, created, err := p.CreateGroup(ctx, router.GroupSpec{Resource: named(name)})
		s.count(groupEntry(name), err)
		if err == nil {
			require.True(s, created)
			s.give(fmt.Sprint("group ", g.ID), name)
			s.give(fmt.Sprint("topic ", g.DeadLetter), name)
		}
	case 2, 3:
		_, err := p.EnsureTopic(ctx, named(common))
		require.NotErrorIs(s, err, mq.ErrTopicNotFound)
	case 4:
		t, err := p.DeleteTopic(ctx, named(common))
		switch {
		case err == nil:
			s.count(fmt.Sprint("deleted ", common, t.ID), nil)
		case errors.Is(err, mq.ErrOutcomeUnknown):
			s.count("deleted "+common, err)
		}
	case 5:
		_, _ = p.UpdateTopic(ctx, named(common), router.TopicUpdate{ReadQueues: new(int32(n%9 + 1))})
	default:
		_, err := p.AddShard(ctx, name)
		s.count("/perigee/v1/shard/"+name, err)
	}
}

func (s *story) start(p *peer, unique, n int) {
	s.mu.Lock()
	s.under++
	s.mu.Unlock()
	s.calls.Go(func() {
		s.change(p, unique, n)
		s.mu.Lock()
		s.under--
		s.mu.Unlock()
	})
}

// look checks what all routers show.
func (s *story) look() {
	synctest.Wait()
	for i, p := range s.peers {
		revision := p.Revision()
		require.GreaterOrEqual(s, revision, s.last[i], "it has gone back")
		s.last[i] = revision
		now := show(p.Router)
		if _, known := s.shown[revision]; !known {
			s.shown[revision] = now
		}
		require.Equal(s, s.shown[revision], now, "two snapshots of one revision")
		require.NoError(s, p.Err())
	}
}

// ask looks up a name, and checks that no router says that it is missing when it is not.
func (s *story) ask(p *peer, n int) {
	s.mu.Lock()
	under := s.under
	s.mu.Unlock()
	name := string(rune('a' + n%3))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	before := s.etcd.all()
	_, err := p.Topic(ctx, named(name))
	_, there := s.etcd.all()[topicEntry(name)]
	if _, was := before[topicEntry(name)]; was && there && under == 0 {
		require.NotErrorIs(s, err, mq.ErrTopicNotFound)
	}
	if err != nil {
		require.True(s, errors.Is(err, mq.ErrTopicNotFound) || errors.Is(err, mq.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded), "%v", err)
	}
}

func (s *story) step(i, n int) {
	p := s.peers[n%len(s.peers)]
	n /= len(s.peers)
	l, kind, n := p.line, n%16, n/16
	switch kind {
	case 0, 1, 2, 3, 4, 5, 6:
		s.start(p, i, n)
	case 7:
		l.set(func(l *line) { l.mu.lostReplies++ })
	case 8:
		if n%2 == 0 {
			l.set(func(l *line) { l.mu.lostCalls++ })
		} else {
			l.set(func(l *line) { l.mu.sentTwice++ })
		}
	case 9:
		l.set(func(l *line) { l.mu.lateCalls, l.mu.lateBy = l.mu.lateCalls+1, time.Duration(n)*10*time.Millisecond })
	case 10:
		l.set(func(l *line) { l.mu.state = state(n % 3) })
	case 11:
		l.set(func(l *line) { l.mu.lag = time.Duration(n%50) * 20 * time.Millisecond })
	case 12:
		l.set(func(l *line) { l.mu.deaf = true })
	case 13:
		s.etcd.compact()
	case 14:
		if n%4 > 0 {
			s.ask(p, n)
			break
		}
		// The router stops, and another takes its place.
		l.heal()
		require.NoError(s, p.Close())
		s.look()
		at := slices.Index(s.peers, p)
		fresh, err := openPeer(s.etcd)
		require.NoError(s, err)
		s.peers[at] = fresh
	default:
		time.Sleep(time.Duration(n) * 5 * time.Millisecond)
	}
	s.look()
}

// judge checks what was said of the changes by what was ever written to etcd.
func (s *story) judge() {
	written, deleted, ids := map[string]int{}, map[string]int{}, map[string]string{}
	for _, v := range s.etcd.past() {
		if v.bytes == nil {
			name, _ := strings.CutPrefix(v.key, topicEntry(""))
			deleted[name]++
			continue
		}
		written[v.key]++
		var record struct {
			ID         int `json:"id"`
			DeadLetter int `json:"deadLetter"`
			Version    int `json:"version"`
		}
		require.NoError(s, json.Unmarshal(v.bytes, &record))
		if record.Version != 1 {
			continue
		}
		kind := strings.Split(v.key, "/")[3]
		for _, id := range []string{fmt.Sprint(kind, " ", record.ID), fmt.Sprint("topic ", record.DeadLetter)} {
			if !strings.HasSuffix(id, " 0") {
				require.NotContains(s, ids, id, "given out twice")
				ids[id] = v.key
			}
		}
	}
	for what, times := range s.made {
		require.Equal(s, 1, times, what)
		if strings.HasPrefix(what, "/") {
			require.Equal(s, 1, written[what], what)
		}
	}
	for what := range s.doubted {
		require.LessOrEqual(s, written[what], 1, what)
	}
	for key, times := range written {
		if name := key[strings.LastIndex(key, "/")+1:]; name[0] == 'u' {
			require.Equal(s, 1, times, key)
			require.Equal(s, 1, s.made[key]+s.doubted[key], "%s was written and is not answered for", key)
		}
	}
	for _, common := range []string{"a", "b", "c"} {
		sure := 0
		for what := range s.made {
			if strings.HasPrefix(what, "deleted "+common) {
				sure++
			}
		}
		require.GreaterOrEqual(s, deleted[common], sure)
		require.LessOrEqual(s, deleted[common], sure+s.doubted["deleted "+common])
	}
}

// TestRoutersOverOneEtcdAgreeAndMakeEachChangeOnce runs random lives: changes through all
// routers at once, answers and calls that are lost or late, watches that lag or hang, an
// etcd that is away for one of them, compactions, restarts.
func TestRoutersOverOneEtcdAgreeAndMakeEachChangeOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 3).Draw(rt, "routers")
		steps := rapid.SliceOfN(rapid.IntRange(0, 99_999), 1, 60).Draw(rt, "steps")
		inBubble(t, n, func(t *testing.T, etcd *fakeEtcd, peers []*peer) {
			s := &story{
				T: t, etcd: etcd, peers: peers, shown: map[uint64]string{}, last: make([]uint64, n),
				made: map[string]int{}, doubted: map[string]int{}, ids: map[string]string{},
			}
			for i, step := range steps {
				s.step(i, step)
			}
			for _, p := range s.peers {
				p.line.heal()
			}
			s.calls.Wait()
			etcd.late.Wait()
			time.Sleep(20 * time.Second)
			s.look()
			for _, p := range s.peers {
				require.NoError(t, p.Degraded())
			}
			requireAgreement(t, etcd, s.peers)
			s.judge()
		})
	})
}
