package router

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

// cluster opens a router whose shards are those that stores register.
func cluster(t *testing.T, fs vfs.FS, shards ...string) *Router {
	t.Helper()
	r := mustOpen(t, fs, func(o *Options) { o.Shards = nil })
	for _, s := range shards {
		_, err := r.AddShard(t.Context(), s)
		require.NoError(t, err)
	}
	return r
}

func shardsOf(topic *mq.Topic) []string {
	var names []string
	for _, s := range topic.Shards {
		names = append(names, s.Shard)
	}
	return names
}

func TestNewTopicsArePlacedOnTheActiveShards(t *testing.T) {
	r := cluster(t, vfs.NewMem())
	_, _, err := r.CreateTopic(t.Context(), TopicSpec{Resource: name("a")})
	require.ErrorIs(t, err, mq.ErrUnavailable)
	_, _, err = r.CreateGroup(t.Context(), GroupSpec{Resource: name("g")})
	require.ErrorIs(t, err, mq.ErrUnavailable)
	require.EqualValues(t, 1, r.Revision(), "a refusal changes nothing")

	for _, s := range []string{"s2", "s1", "s3"} {
		shard, err := r.AddShard(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, Shard{s, ShardActive}, shard)
	}
	require.Equal(t, []Shard{{"s1", ShardActive}, {"s2", ShardActive}, {"s3", ShardActive}}, r.Shards())
	require.Equal(t, []string{"s1", "s2", "s3"}, shardsOf(createTopic(t, r, TopicSpec{Resource: name("a")})))

	_, err = r.SetShard(t.Context(), "s2", ShardDraining)
	require.NoError(t, err)
	require.Equal(t, []string{"s1", "s3"}, shardsOf(createTopic(t, r, TopicSpec{Resource: name("b")})))
	for i := range 6 {
		g := createGroup(t, r, GroupSpec{Resource: name(string(rune('g' + i)))})
		require.NotEqual(t, "s2", g.DeadLetterShard)
	}
	a, err := r.Topic(t.Context(), name("a"))
	require.NoError(t, err)
	require.Equal(t, []string{"s1", "s2", "s3"}, shardsOf(a), "where a topic is never changes by itself")

	_, err = r.SetShard(t.Context(), "s2", ShardActive)
	require.NoError(t, err)
	require.Equal(t, []string{"s1", "s2", "s3"}, shardsOf(createTopic(t, r, TopicSpec{Resource: name("c")})))
}

func TestAKnownShardKeepsItsStateWhenItRegistersAgain(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "s1")
	_, err := r.SetShard(t.Context(), "s1", ShardDraining)
	require.NoError(t, err)
	revision := r.Revision()
	shard, err := r.AddShard(t.Context(), "s1")
	require.NoError(t, err)
	require.Equal(t, Shard{"s1", ShardDraining}, shard)
	require.Equal(t, revision, r.Revision())
}

func TestAShardIsRemovedOnlyWithoutTopics(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "s1", "s2")
	createTopic(t, r, TopicSpec{Resource: name("b")})
	createTopic(t, r, TopicSpec{Resource: name("a")})
	g := createGroup(t, r, GroupSpec{Resource: name("g")})
	require.Equal(t, 3, r.TopicsOn(g.DeadLetterShard))
	_, err := r.RemoveShard(t.Context(), g.DeadLetterShard, false)
	require.ErrorIs(t, err, mq.ErrInvalid)
	require.ErrorContains(t, err, "2 are on it, a among them")
	for _, topic := range []string{"a", "b"} {
		_, err = r.DeleteTopic(t.Context(), name(topic))
		require.NoError(t, err)
	}
	shard, err := r.RemoveShard(t.Context(), g.DeadLetterShard, false)
	require.NoError(t, err, "the dead letters of a group get another home")
	require.Equal(t, ShardRemoved, shard.State)
	other, err := r.Group(t.Context(), name("g"))
	require.NoError(t, err)
	require.NotEqual(t, g.DeadLetterShard, other.DeadLetterShard)

	shard, err = r.AddShard(t.Context(), g.DeadLetterShard)
	require.NoError(t, err)
	require.Equal(t, ShardRemoved, shard.State, "its name is kept")
	require.Len(t, shardsOf(createTopic(t, r, TopicSpec{Resource: name("c")})), 1)
}

func TestShardsThatNobodyKnowsAndStatesThatAreNoneAreRefused(t *testing.T) {
	r := cluster(t, vfs.NewMem())
	_, err := r.SetShard(t.Context(), "s1", ShardDraining)
	require.ErrorIs(t, err, mq.ErrShardNotFound)
	_, err = r.RemoveShard(t.Context(), "s1", false)
	require.ErrorIs(t, err, mq.ErrShardNotFound)
	_, err = r.AddShard(t.Context(), "a/b")
	require.ErrorIs(t, err, mq.ErrInvalid)
	for _, state := range []ShardState{0, ShardRemoved, 9} {
		_, err = r.SetShard(t.Context(), "s1", state)
		require.ErrorIs(t, err, mq.ErrInvalid)
	}
}

func TestShardsAndLifeOutliveARestart(t *testing.T) {
	fs := vfs.NewMem()
	r := cluster(t, fs, "s1", "s2")
	_, err := r.SetShard(t.Context(), "s1", ShardDraining)
	require.NoError(t, err)
	before, life := contentsOf(r), r.Life()
	require.NotEmpty(t, life)
	require.NoError(t, r.Close())
	r = cluster(t, fs)
	require.Equal(t, before, contentsOf(r))
	require.Equal(t, life, r.Life())
	require.NotEqual(t, life, cluster(t, vfs.NewMem()).Life())
}

func TestMetadataFromBeforeThereWereLivesAndShardsOpen(t *testing.T) {
	backend := &fakeBackend{entries: map[string][]byte{
		"v1/counters": []byte(`{"v":1,"revision":7,"lastTopic":3,"lastGroup":1}`),
		"v1/topic//a": []byte(`{"v":1,"id":3,"type":"NORMAL","permission":4,"shards":[{"shard":"s1","read":1,"write":1}],"version":1}`),
	}}
	r, err := Open(Options{Backend: backend})
	require.NoError(t, err)
	defer r.Close()
	require.Empty(t, r.Life())
	require.Empty(t, r.Shards())
	require.EqualValues(t, 7, r.Revision(), "opening changes nothing")
	life, err := r.EnsureLife(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, life)
	again, err := r.EnsureLife(context.Background())
	require.NoError(t, err)
	require.Equal(t, life, again)
	require.EqualValues(t, 8, r.Revision())
}

func TestTheShardsOfTheOptionsAreWhereNewTopicsGo(t *testing.T) {
	fs := vfs.NewMem()
	r := cluster(t, fs, "s1", "s2", "s3")
	_, err := r.SetShard(t.Context(), "s2", ShardDraining)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	fixed := mustOpen(t, fs, func(o *Options) { o.Shards = []string{"s1", "s2", "new"} })
	require.Equal(t, []string{"new", "s1"}, shardsOf(createTopic(t, fixed, TopicSpec{Resource: name("a")})))
}

func TestAWatchReportsShards(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "s2", "s1")
	w := r.Watch()
	require.Equal(t, []Change{{Shard: &Shard{"s1", ShardActive}}, {Shard: &Shard{"s2", ShardActive}}}, next(t, w))
	a := createTopic(t, r, TopicSpec{Resource: name("a")})
	_, err := r.SetShard(t.Context(), "s2", ShardDraining)
	require.NoError(t, err)
	leaving, err := r.Topic(t.Context(), a.Resource)
	require.NoError(t, err)
	require.Equal(t, []Change{{Shard: &Shard{"s2", ShardDraining}}, {TopicID: a.ID, Topic: leaving}}, next(t, w))
}

// TestDeadLettersAreReadWhereTheyDied: each shard copies those of its own messages.
func TestDeadLettersAreReadWhereTheyDied(t *testing.T) {
	r, err := Open(Options{FS: vfs.NewMem(), Dir: "meta"})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	for _, name := range []string{"b", "a"} {
		_, err := r.AddShard(t.Context(), name)
		require.NoError(t, err)
	}
	g, _, err := r.CreateGroup(t.Context(), GroupSpec{Resource: mq.Resource{Name: "g"}})
	require.NoError(t, err)
	want := []mq.ShardQueues{{Shard: "a", Read: 1, Write: 1}, {Shard: "b", Read: 1, Write: 1}}
	byName, err := r.Topic(t.Context(), g.Resource.DeadLetterTopic())
	require.NoError(t, err)
	require.Equal(t, want, byName.Shards)
	byID, err := r.TopicByID(g.DeadLetter)
	require.NoError(t, err)
	require.Equal(t, want, byID.Shards)
	_, err = r.AddShard(t.Context(), "c")
	require.NoError(t, err)
	list := r.ListTopics(t.Context(), Selection{DeadLetters: true})
	require.Len(t, list, 1)
	require.Len(t, list[0].Shards, 3)
}
