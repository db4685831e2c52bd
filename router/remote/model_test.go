package remote

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// everything is what a view shows at one revision.
type everything struct {
	topics []*mq.Topic
	groups []*mq.Group
	shards []router.Shard
	last   string
}

type shows interface {
	ListTopics(context.Context, router.Selection) []*mq.Topic
	ListGroups(context.Context, router.Selection) []*mq.Group
	Shards() []router.Shard
	LastIDs() (mq.TopicID, mq.GroupID)
	Revision() uint64
}

func everythingOf(v shows) everything {
	all := router.Selection{AllNamespaces: true, DeadLetters: true, SystemGroups: true}
	topic, group := v.LastIDs()
	return everything{
		v.ListTopics(context.Background(), all), v.ListGroups(context.Background(), all), append([]router.Shard{}, v.Shards()...),
		fmt.Sprint(topic, group),
	}
}

// A story is one random life of a router and of a process that follows it.
type story struct {
	*world
	host    *host
	up      bool
	history map[uint64]everything // what the router has shown, by revision

	client *Client
	cable  *cable
	disk   *vfs.MemFS
	seen   uint64 // the newest revision that the client has shown
	watch  *router.Watch
	// held are the topics that a store beside the client has: it hears of them by the
	// watch, and asks about those that it has when it starts.
	held map[mq.TopicID]bool
}

// record remembers what the router shows now.
func (s *story) record() { s.history[s.host.router.Revision()] = everythingOf(s.host.router) }

func (s *story) open() {
	s.cable = &cable{network: s.network}
	opts := s.options("r1")
	s.cable.on(&opts)
	opts.FS, opts.Dir = s.disk, "data"
	var err error
	s.client, err = Open(opts)
	require.NoError(s, err)
	s.seen, s.watch = s.client.Revision(), nil
}

// missing checks what is said of an id that is not known: nil when it is gone for good.
func (s *story) missing(id mq.TopicID, err error) error {
	if errors.Is(err, mq.ErrTopicNotFound) {
		_, there := s.host.router.TopicByID(id) // also of one that is down: it would know
		require.Error(s, there, "topic %d exists, and the client says: %v", id, err)
		return nil
	}
	require.ErrorIs(s, err, mq.ErrUnavailable)
	return err
}

// look checks what the client shows.
func (s *story) look() {
	synctest.Wait()
	revision := s.client.Revision()
	require.GreaterOrEqual(s, revision, s.seen, "it has gone back")
	s.seen = revision
	if revision > 0 {
		require.Contains(s, s.history, revision, "no router has shown that")
		require.Equal(s, s.history[revision], everythingOf(s.client))
	}
	first := s.watch == nil
	switch {
	case first && revision == 0: // not ready
		return
	case first:
		s.watch = s.client.Watch()
	case s.watch.Revision() == revision:
		return
	}
	changes, err := s.watch.Next(s.Context())
	require.NoError(s, err)
	for _, c := range changes {
		switch {
		case c.TopicID == 0:
		case c.Topic != nil:
			s.held[c.TopicID] = true
		default:
			delete(s.held, c.TopicID)
		}
	}
	if !first {
		return
	}
	// What went before is asked for, behind the first look: an id that is there by then is
	// watched, and what is said of the others is final.
	for id := range s.held {
		if _, err := s.client.TopicByID(id); err != nil && s.missing(id, err) == nil {
			delete(s.held, id)
		}
	}
}

// change changes something at the router.
func (s *story) change(n int) {
	r, ctx := s.host.router, s.Context()
	name := named(string(rune('a' + n/10%3)))
	switch n % 7 {
	case 0, 1:
		_, _ = r.EnsureTopic(ctx, name)
	case 2:
		_, _ = r.DeleteTopic(ctx, name)
	case 3:
		_, _, _ = r.CreateGroup(ctx, router.GroupSpec{Resource: name})
	case 4:
		_, _ = r.DeleteGroup(ctx, name)
	case 5:
		_, _ = r.UpdateTopic(ctx, name, router.TopicUpdate{ReadQueues: new(int32(n%5 + 1))})
	default:
		_, _ = r.AddShard(ctx, "x"+name.Name)
	}
	s.record()
}

func (s *story) step(n int) {
	switch n % 10 {
	case 0, 1, 2, 3, 4:
		if s.up {
			s.change(n / 10)
		}
	case 5:
		s.settle(time.Duration(n) * 3 * time.Millisecond)
	case 6:
		if n/10%2 == 0 {
			s.cable.pull()
		} else {
			s.cable.plug()
		}
	case 7:
		if s.up {
			s.host.stop(s.network)
		} else {
			s.host.start(s.network)
			s.record()
		}
		s.up = !s.up
	case 8: // the process stops, and starts again
		s.look()
		require.NoError(s, s.client.Close())
		before := s.seen
		s.open()
		require.Equal(s, before, s.seen, "what was known is there again")
	default: // the machine loses its power
		s.look()
		crashed := s.disk.CrashClone(vfs.CrashCloneCfg{})
		require.NoError(s, s.client.Close())
		s.disk = crashed
		s.open()
	}
	s.look()
}

// TestAClientShowsOnlyWhatARouterHasShownAndLosesNoDeletion runs random lives: changes at
// the router, the client cut off, stopped, crashed and started from its cache, the router
// down and back.
func TestAClientShowsOnlyWhatARouterHasShownAndLosesNoDeletion(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 9999), 1, 50).Draw(rt, "steps")
		inWorld(t, "r1", func(w *world) {
			s := &story{
				world: w, host: w.hosts["r1"], up: true, history: map[uint64]everything{}, disk: vfs.NewCrashableMem(), held: map[mq.TopicID]bool{},
			}
			s.record()
			s.open()
			defer func() { require.NoError(w, s.client.Close()) }()
			for _, n := range steps {
				s.step(n)
			}
			s.cable.plug()
			if !s.up {
				s.host.start(w.network)
				s.record()
			}
			w.settle(20 * time.Second)
			s.look()
			require.NoError(w, s.client.Err())
			requireSame(w, s.host.router, s.client)
			exist := map[mq.TopicID]bool{}
			for _, topic := range s.host.router.ListTopics(w.Context(), router.Selection{AllNamespaces: true, DeadLetters: true}) {
				exist[topic.ID] = true
			}
			require.Equal(w, exist, s.held)
		})
	})
}
