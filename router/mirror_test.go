package router

import (
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
)

// TestAMirrorShowsWhatTheRouterHasShown: fed with states and changes at any time, it
// equals the router at the moment it was fed, and its watches see every deletion.
func TestAMirrorShowsWhatTheRouterHasShown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := Open(Options{FS: vfs.NewMem(), Dir: "meta", AutoCreateTopics: true})
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		_, err = r.AddShard(t.Context(), "s0")
		require.NoError(t, err)
		m := NewMirror()
		at := r.Snapshot()
		require.NoError(t, m.Replace(at.State()))
		w := m.Watch()
		seen := map[mq.TopicID]*mq.Topic{}
		follow := func(t *rapid.T) {
			if w.Revision() == m.Revision() {
				return
			}
			changes, err := w.Next(t.Context())
			require.NoError(t, err)
			for _, c := range changes {
				if c.TopicID != 0 && c.Topic != nil {
					seen[c.TopicID] = c.Topic
				} else if c.TopicID != 0 {
					delete(seen, c.TopicID)
				}
			}
			require.Len(t, seen, m.current.Load().topicIDs.size)
			for id, topic := range seen {
				require.Same(t, m.current.Load().topicIDs.get(id), topic)
				now, err := m.TopicByID(id)
				require.NoError(t, err)
				require.Equal(t, topic.Resource, now.Resource)
			}
		}
		names := rapid.SampledFrom([]string{"a", "b", "c"})
		t.Repeat(map[string]func(*rapid.T){
			"topic": func(t *rapid.T) {
				_, err := r.EnsureTopic(t.Context(), name(names.Draw(t, "name")))
				require.NoError(t, err)
			},
			"update topic": func(t *rapid.T) {
				_, _ = r.UpdateTopic(t.Context(), name(names.Draw(t, "name")), TopicUpdate{ReadQueues: new(rapid.Int32Range(1, 3).Draw(t, "read"))})
			},
			"delete topic": func(t *rapid.T) { _, _ = r.DeleteTopic(t.Context(), name(names.Draw(t, "name"))) },
			"group": func(t *rapid.T) {
				_, _, err := r.CreateGroup(t.Context(), GroupSpec{Resource: name(names.Draw(t, "name"))})
				if err != nil {
					require.ErrorIs(t, err, mq.ErrGroupExists)
				}
			},
			"update group": func(t *rapid.T) {
				_, _ = r.UpdateGroup(t.Context(), name(names.Draw(t, "name")), GroupUpdate{FIFO: new(rapid.Bool().Draw(t, "fifo"))})
			},
			"delete group": func(t *rapid.T) { _, _ = r.DeleteGroup(t.Context(), name(names.Draw(t, "name"))) },
			"shard": func(t *rapid.T) {
				_, err := r.AddShard(t.Context(), "s"+names.Draw(t, "name"))
				require.NoError(t, err)
			},
			"drain": func(t *rapid.T) { _, _ = r.SetShard(t.Context(), "s"+names.Draw(t, "name"), ShardDraining) },
			"feed the changes": func(t *rapid.T) {
				now := r.Snapshot()
				if now.Revision() > at.Revision() {
					require.NoError(t, m.Apply(now.Since(at)))
					at = now
				}
				require.Equal(t, contentsOf(r), contentsOfView(&m.View))
			},
			"feed everything": func(t *rapid.T) {
				at = r.Snapshot()
				require.NoError(t, m.Replace(at.State()))
				require.Equal(t, contentsOf(r), contentsOfView(&m.View))
			},
			"feed what is older": func(t *rapid.T) {
				old, before := at.State(), contentsOfView(&m.View)
				old.Revision--
				require.ErrorIs(t, m.Replace(old), ErrOlder)
				require.Equal(t, before, contentsOfView(&m.View))
			},
			"watch": follow,
		})
	})
}

func TestAMirrorTakesOnlyWhatFits(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	createTopic(t, r, TopicSpec{Resource: name("a")})
	g := createGroup(t, r, GroupSpec{Resource: name("g")})
	m := NewMirror()
	require.NoError(t, m.Fits("any", 0))
	require.NoError(t, m.Replace(r.Snapshot().State()))
	before := contentsOfView(&m.View)
	a, err := m.Topic(t.Context(), name("a"))
	require.NoError(t, err)

	other := r.Snapshot().State()
	other.Life, other.Revision = "other", 100
	require.ErrorIs(t, m.Replace(other), ErrOtherLife)

	state := func(edit func(*State)) State {
		s := r.Snapshot().State()
		s.Revision++
		s.Topics, s.Groups = slices.Clone(s.Topics), slices.Clone(s.Groups)
		edit(&s)
		return s
	}
	for _, s := range []State{
		state(func(s *State) { s.Topics = append(s.Topics, a) }),
		state(func(s *State) { s.Groups = append(s.Groups, g) }),
		state(func(s *State) { s.Topics[0] = new(*a); s.Topics[0].ID = g.DeadLetter }),
		state(func(s *State) { s.LastTopic = 1 }),
	} {
		require.ErrorIs(t, m.Replace(s), ErrNotNext)
	}
	delta := func(edit func(*Delta)) Delta {
		d := Delta{From: m.Revision(), To: m.Revision() + 1, LastTopic: before.last(0), LastGroup: mq.GroupID(before.Last[1])}
		edit(&d)
		return d
	}
	namesake := func(id mq.TopicID) *mq.Topic { t := *a; t.ID = id; return &t }
	for _, d := range []Delta{
		delta(func(d *Delta) { d.From-- }),
		delta(func(d *Delta) { d.To = d.From }),
		delta(func(d *Delta) { d.LastTopic-- }),
		delta(func(d *Delta) { d.LastGroup-- }),
		delta(func(d *Delta) { d.GoneTopics = []mq.TopicID{77} }),
		delta(func(d *Delta) { d.GoneTopics = []mq.TopicID{g.DeadLetter} }),
		delta(func(d *Delta) { d.GoneGroups = []mq.GroupID{77} }),
		delta(func(d *Delta) { d.Topics, d.LastTopic = []*mq.Topic{namesake(9)}, 9 }),
		delta(func(d *Delta) { d.Topics = []*mq.Topic{namesake(g.DeadLetter)} }),
		delta(func(d *Delta) { d.Groups = []*mq.Group{{ID: 9, Resource: g.Resource, DeadLetter: g.DeadLetter}} }),
	} {
		require.ErrorIs(t, m.Apply(d), ErrNotNext)
	}
	require.Equal(t, before, contentsOfView(&m.View), "nothing has changed")
	require.NoError(t, m.Apply(delta(func(d *Delta) { d.GoneTopics, d.Topics, d.LastTopic = []mq.TopicID{a.ID}, []*mq.Topic{namesake(9)}, 9 })))
}

func (c contents) last(i int) mq.TopicID { return mq.TopicID(c.Last[i]) }

func TestWatchesOfAMirrorEndWithIt(t *testing.T) {
	m := NewMirror()
	w := m.Watch()
	require.Empty(t, next(t, w))
	m.Close()
	_, err := w.Next(t.Context())
	require.ErrorIs(t, err, mq.ErrStopped)
}
