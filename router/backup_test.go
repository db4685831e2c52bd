package router

import (
	"errors"
	"io/fs"
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

func TestSavedMetadataAreThoseOfTheMoment(t *testing.T) {
	fsys := vfs.NewMem()
	r, err := Open(Options{FS: fsys, Dir: "meta", Shards: []string{"s1"}})
	require.NoError(t, err)
	_, _, err = r.CreateTopic(t.Context(), TopicSpec{Resource: mq.Resource{Namespace: "n", Name: "t"}, Queues: 3})
	require.NoError(t, err)
	_, _, err = r.CreateGroup(t.Context(), GroupSpec{Resource: mq.Resource{Name: "g"}, FIFO: true})
	require.NoError(t, err)
	_, err = r.AddShard(t.Context(), "s1")
	require.NoError(t, err)
	saved, err := r.Save(t.Context(), fsys, "saved")
	require.NoError(t, err)
	require.Equal(t, Saved{Revision: r.Revision(), Topics: 1, Groups: 1}, saved)
	_, err = r.Save(t.Context(), fsys, "saved")
	require.Error(t, err, "there is something already")
	want := r.current.Load().entries()
	_, _, err = r.CreateTopic(t.Context(), TopicSpec{Resource: mq.Resource{Name: "later"}})
	require.NoError(t, err)
	require.NoError(t, r.Close())

	var got []Entry
	require.NoError(t, Entries(fsys, "saved", func(e Entry) error { got = append(got, e); return nil }))
	require.Equal(t, want, got)
	require.ErrorIs(t, Entries(fsys, "nowhere", nil), fs.ErrNotExist)
	stop := errors.New("enough")
	require.ErrorIs(t, Entries(fsys, "saved", func(Entry) error { return stop }), stop)
}

func TestRestoredMetadataAreSafeBesideNewerNodes(t *testing.T) {
	for _, giveUp := range []bool{false, true} {
		fsys := vfs.NewMem()
		r, err := Open(Options{FS: fsys, Dir: "meta", Shards: []string{"s1"}})
		require.NoError(t, err)
		topic, _, err := r.CreateTopic(t.Context(), TopicSpec{Resource: mq.Resource{Name: "t"}})
		require.NoError(t, err)
		group, _, err := r.CreateGroup(t.Context(), GroupSpec{Resource: mq.Resource{Name: "g"}})
		require.NoError(t, err)
		_, err = r.Save(t.Context(), fsys, "copy")
		require.NoError(t, err)
		// What nodes have seen since.
		for range 10 {
			fifo := !group.FIFO
			group, err = r.UpdateGroup(t.Context(), group.Resource, GroupUpdate{FIFO: &fifo})
			require.NoError(t, err)
		}
		newer, _, err := r.CreateTopic(t.Context(), TopicSpec{Resource: mq.Resource{Name: "newer"}})
		require.NoError(t, err)
		life := r.Life()
		require.NoError(t, r.Close())

		require.NoError(t, Renew(fsys, "copy", giveUp))
		r, err = Open(Options{FS: fsys, Dir: "copy", Shards: []string{"s1"}})
		require.NoError(t, err)
		require.NotEqual(t, life, r.Life(), "nobody takes it for the original")
		again, err := r.Topic(t.Context(), topic.Resource)
		require.NoError(t, err)
		require.Equal(t, topic.ID, again.ID)
		require.Greater(t, again.Version, topic.Version)
		g, err := r.Group(t.Context(), group.Resource)
		require.NoError(t, err)
		require.Greater(t, g.Version, group.Version, "store nodes take over what is so now")
		made, _, err := r.CreateTopic(t.Context(), TopicSpec{Resource: mq.Resource{Name: "made"}})
		require.NoError(t, err)
		if giveUp {
			require.Greater(t, made.ID, newer.ID)
			_, err := r.TopicByID(newer.ID)
			require.ErrorIs(t, err, mq.ErrTopicNotFound, "it is gone for good")
		} else {
			require.Equal(t, newer.ID, made.ID, "nodes that have that id refuse to start before")
		}
		require.NoError(t, r.Close())
	}
}

func TestIDsThatAreUsedUpAreNotPassedOver(t *testing.T) {
	fsys := vfs.NewMem()
	s := newSnapshot()
	s.revision, s.life, s.lastTopic = 1, newMark(), math.MaxUint32-5
	require.NoError(t, writeEmbedded(t.Context(), fsys, "meta", s.entries()))
	require.ErrorIs(t, Renew(fsys, "meta", true), mq.ErrInvalid)
	require.NoError(t, Renew(fsys, "meta", false))
}
