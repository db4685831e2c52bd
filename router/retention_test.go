package router

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func TestATopicKeepsTheRetentionItWasGiven(t *testing.T) {
	fs := vfs.NewMem()
	r := mustOpen(t, fs)
	created := createTopic(t, r, TopicSpec{Resource: name("a"), Retention: 10 * time.Minute})
	require.Equal(t, 10*time.Minute, created.Retention)
	_, _, err := r.CreateTopic(t.Context(), TopicSpec{Resource: name("a"), Retention: time.Hour})
	require.ErrorIs(t, err, mq.ErrTopicExists)
	require.ErrorContains(t, err, "retention 10m0s, not 1h0m0s")
	_, again, err := r.CreateTopic(t.Context(), TopicSpec{Resource: name("a"), Retention: 10 * time.Minute})
	require.NoError(t, err)
	require.False(t, again)

	// Other changes leave it alone, and a changed one leaves the published value alone.
	updated, err := r.UpdateTopic(t.Context(), name("a"), TopicUpdate{WriteQueues: new(int32(2))})
	require.NoError(t, err)
	require.Equal(t, 10*time.Minute, updated.Retention)
	updated, err = r.UpdateTopic(t.Context(), name("a"), TopicUpdate{Retention: new(time.Hour)})
	require.NoError(t, err)
	require.Equal(t, time.Hour, updated.Retention)
	require.EqualValues(t, 3, updated.Version)
	require.Equal(t, 10*time.Minute, created.Retention)
	require.NoError(t, r.Close())

	r = mustOpen(t, fs)
	back, err := r.Topic(t.Context(), name("a"))
	require.NoError(t, err)
	require.Equal(t, updated, back)
	back, err = r.UpdateTopic(t.Context(), name("a"), TopicUpdate{Retention: new(time.Duration(0))})
	require.NoError(t, err)
	require.Zero(t, back.Retention, "back to the default of the node")
}

func TestRetentionsOutOfBoundsAreRefusedAndChangeNothing(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	createTopic(t, r, TopicSpec{Resource: name("a"), Retention: mq.MaxRetention})
	for _, d := range []time.Duration{-1, 1, mq.MinRetention - 1, mq.MaxRetention + 1} {
		_, _, err := r.CreateTopic(t.Context(), TopicSpec{Resource: name("b"), Retention: d})
		_, updateErr := r.UpdateTopic(t.Context(), name("a"), TopicUpdate{Retention: &d})
		for _, err := range []error{err, updateErr} {
			require.ErrorIs(t, err, mq.ErrInvalid)
			require.ErrorContains(t, err, `retention "`+d.String()+`": must lie between 1m0s and 87600h0m0s`)
		}
	}
	require.EqualValues(t, 2, r.Revision())
}

// TestTopicsStoredWithoutRetentionAreRead: the bytes are those that the first
// released version wrote.
func TestTopicsStoredWithoutRetentionAreRead(t *testing.T) {
	const old = `{"v":1,"id":1,"type":"FIFO","permission":4,"shards":[{"shard":"s1","read":8,"write":8}],"version":1}`
	want := &mq.Topic{
		ID: 1, Resource: name("orders"), Type: mq.TopicFIFO, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: "s1", Read: 8, Write: 8}}, Dedup: mq.DefaultDedup, Version: 1,
	}
	got, err := decodeTopic(Entry{Key: "v1/topic//orders", Value: []byte(old)})
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Equal(t, old, string(encodeTopic(want)), "without one the bytes stay the same")

	want.Retention = 90 * time.Second
	encoded := encodeTopic(want)
	require.Equal(t, `{"v":1,"id":1,"type":"FIFO","permission":4,"shards":[{"shard":"s1","read":8,"write":8}],"retention":90000000000,"version":1}`, string(encoded))
	got, err = decodeTopic(Entry{Key: "v1/topic//orders", Value: encoded})
	require.NoError(t, err)
	require.Equal(t, want, got)
}
