package router

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A model is the plainest router: two maps, two counters, and the ids that are gone.
type model struct {
	topics    map[mq.Resource]mq.Topic
	groups    map[mq.Resource]mq.Group
	lastTopic mq.TopicID
	lastGroup mq.GroupID
}

func (m *model) check(t *rapid.T, r *Router) {
	topics := r.ListTopics(t.Context(), Selection{AllNamespaces: true})
	var want []mq.Topic
	for _, k := range slices.SortedFunc(maps.Keys(m.topics), compareResources) {
		want = append(want, m.topics[k])
	}
	var got []mq.Topic
	live := map[mq.TopicID]bool{}
	for _, topic := range topics {
		got = append(got, *topic)
		live[topic.ID] = true
	}
	require.Equal(t, want, got)

	groups := r.ListGroups(t.Context(), Selection{AllNamespaces: true})
	require.Len(t, groups, len(m.groups))
	require.True(t, slices.IsSortedFunc(groups, func(a, b *mq.Group) int { return compareResources(a.Resource, b.Resource) }))
	for _, g := range groups {
		require.Equal(t, m.groups[g.Resource], *g)
		dlq, err := r.Topic(t.Context(), g.DeadLetterTopic())
		require.NoError(t, err)
		require.Equal(t, g.DeadLetter, dlq.ID)
		require.Equal(t, g.Version, dlq.Version)
		live[dlq.ID] = true
	}
	for id := mq.TopicID(1); id <= m.lastTopic+1; id++ {
		_, err := r.TopicByID(id)
		require.Equal(t, live[id], err == nil, "topic id %d", id)
	}
}

func TestRouterBehavesLikeAPlainModelAcrossCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fs := vfs.NewCrashableMem()
		open := func() *Router {
			r, err := Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1", "s2"}})
			require.NoError(t, err)
			return r
		}
		r := open()
		defer func() { require.NoError(t, r.Close()) }()
		m := &model{topics: map[mq.Resource]mq.Topic{}, groups: map[mq.Resource]mq.Group{}}
		w := r.Watch()
		seen := map[mq.TopicID]*mq.Topic{}
		resource := rapid.Custom(func(t *rapid.T) mq.Resource {
			return mq.Resource{
				Namespace: rapid.SampledFrom([]string{"", "n"}).Draw(t, "namespace"),
				Name:      rapid.SampledFrom([]string{"a", "b", "a-b"}).Draw(t, "name"),
			}
		})
		queues := rapid.Int32Range(1, 3)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) { m.check(t, r) },
			"create topic": func(t *rapid.T) {
				spec := TopicSpec{Resource: resource.Draw(t, "topic"), Queues: queues.Draw(t, "queues")}
				old, exists := m.topics[spec.Resource]
				topic, created, err := r.CreateTopic(t.Context(), spec)
				if exists {
					same := old.Shards[0].Read == spec.Queues && old.Shards[0].Write == spec.Queues && old.Retention == 0 && old.Dedup == mq.DefaultDedup
					require.Equal(t, same, err == nil)
					require.False(t, created)
					return
				}
				require.NoError(t, err)
				require.True(t, created)
				m.lastTopic++
				q := spec.Queues
				m.topics[spec.Resource] = mq.Topic{
					ID: m.lastTopic, Resource: spec.Resource, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
					Dedup: mq.DefaultDedup, Version: 1, Shards: []mq.ShardQueues{{Shard: "s1", Read: q, Write: q}, {Shard: "s2", Read: q, Write: q}},
				}
				require.Equal(t, m.topics[spec.Resource], *topic)
			},
			"update topic": func(t *rapid.T) {
				name, write := resource.Draw(t, "topic"), queues.Draw(t, "queues")
				retention := rapid.SampledFrom([]time.Duration{0, mq.MinRetention, mq.MaxRetention}).Draw(t, "retention")
				dedup := rapid.SampledFrom([]time.Duration{0, mq.DefaultDedup, mq.MaxDedup}).Draw(t, "dedup")
				topic, err := r.UpdateTopic(t.Context(), name, TopicUpdate{WriteQueues: &write, Retention: &retention, Dedup: &dedup})
				want, exists := m.topics[name]
				if !exists {
					require.ErrorIs(t, err, mq.ErrTopicNotFound)
					return
				}
				require.NoError(t, err)
				if want.Shards[0].Write != write || want.Retention != retention || want.Dedup != dedup {
					want.Version++
					want.Retention, want.Dedup = retention, dedup
					want.Shards = slices.Clone(want.Shards)
					for i := range want.Shards {
						want.Shards[i].Write = write
					}
					m.topics[name] = want
				}
				require.Equal(t, want, *topic)
			},
			"delete topic": func(t *rapid.T) {
				name := resource.Draw(t, "topic")
				_, exists := m.topics[name]
				_, err := r.DeleteTopic(t.Context(), name)
				require.Equal(t, exists, err == nil)
				delete(m.topics, name)
			},
			"create group": func(t *rapid.T) {
				name := resource.Draw(t, "group")
				_, exists := m.groups[name]
				g, created, err := r.CreateGroup(t.Context(), GroupSpec{Resource: name})
				require.NoError(t, err)
				require.Equal(t, !exists, created)
				if created {
					m.lastTopic++
					m.lastGroup++
					require.Equal(t, m.lastGroup, g.ID)
					require.Equal(t, m.lastTopic, g.DeadLetter)
					m.groups[name] = *g
				}
			},
			"delete group": func(t *rapid.T) {
				name := resource.Draw(t, "group")
				_, exists := m.groups[name]
				_, err := r.DeleteGroup(t.Context(), name)
				require.Equal(t, exists, err == nil)
				delete(m.groups, name)
			},
			"watch": func(t *rapid.T) {
				if w.Revision() == r.Revision() {
					return
				}
				changes, err := w.Next(t.Context())
				require.NoError(t, err)
				for _, c := range changes {
					switch {
					case c.GroupID != 0:
					case c.Topic == nil:
						delete(seen, c.TopicID)
					default:
						seen[c.TopicID] = c.Topic
					}
				}
				now := maps.Collect(r.current.Load().topicIDs.all())
				require.Equal(t, now, seen)
			},
			"reopen": func(t *rapid.T) {
				revision := r.Revision()
				require.NoError(t, r.Close())
				r = open()
				require.Equal(t, revision, r.Revision())
				w, seen = r.Watch(), map[mq.TopicID]*mq.Topic{}
			},
			"crash": func(t *rapid.T) {
				clone := fs.CrashClone(vfs.CrashCloneCfg{})
				require.NoError(t, r.Close())
				fs = clone
				r = open()
				w, seen = r.Watch(), map[mq.TopicID]*mq.Topic{}
			},
		})
	})
}
