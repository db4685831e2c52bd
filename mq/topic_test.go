package mq_test

import (
	"testing"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func TestTopicTypesReadBackFromTheirNames(t *testing.T) {
	for _, typ := range []mq.TopicType{mq.TopicNormal, mq.TopicFIFO, mq.TopicDelay, mq.TopicTransaction, mq.TopicLite, mq.TopicPriority, mq.TopicMixed} {
		got, err := mq.ParseTopicType(typ.String())
		require.NoError(t, err)
		require.Equal(t, typ, got)
	}
	got, err := mq.ParseTopicType("mIxEd")
	require.NoError(t, err)
	require.Equal(t, mq.TopicMixed, got)
	for _, bad := range []string{"", "UNSPECIFIED", "NORMAL "} {
		_, err := mq.ParseTopicType(bad)
		require.ErrorIs(t, err, mq.ErrInvalid)
	}
	require.Equal(t, "MessageType(9)", mq.MessageType(9).String())
	require.Equal(t, "StartPolicy(3)", mq.StartPolicy(3).String())
}

func TestATopicAcceptsItsOwnTypeAndAMixedOneFour(t *testing.T) {
	for m := mq.Unspecified; m <= mq.Priority; m++ {
		require.Equal(t, m == mq.FIFO, mq.TopicFIFO.Accepts(m), m)
		require.Equal(t, m >= mq.Normal && m <= mq.Transaction, mq.TopicMixed.Accepts(m), m)
	}
}

func TestPermissionsSplitIntoReadingAndWriting(t *testing.T) {
	for _, c := range []struct {
		p           mq.Permission
		read, write bool
	}{{0, false, false}, {mq.PermNone, false, false}, {mq.PermRead, true, false}, {mq.PermWrite, false, true}, {mq.PermReadWrite, true, true}} {
		require.Equal(t, c.read, c.p.CanRead(), c.p)
		require.Equal(t, c.write, c.p.CanWrite(), c.p)
	}
}

func TestQueuesOfAShard(t *testing.T) {
	topic := &mq.Topic{Resource: mq.Resource{Name: "a"}, Shards: []mq.ShardQueues{{Shard: "s1", Read: 4, Write: 2}, {Shard: "s2", Read: 1, Write: 3}}}
	for shard, want := range map[string]int32{"s1": 4, "s2": 3} {
		q, err := topic.On(shard)
		require.NoError(t, err)
		require.Equal(t, want, q.Queues())
	}
	_, err := topic.On("s3")
	require.ErrorIs(t, err, mq.ErrQueueNotFound)
	require.ErrorContains(t, err, `topic a on shard "s3"`)
}

func TestARetentionIsTheDefaultOrWithinItsBounds(t *testing.T) {
	for _, d := range []time.Duration{0, mq.MinRetention, time.Hour, mq.MaxRetention} {
		require.NoError(t, mq.ValidateRetention(d))
	}
	for _, d := range []time.Duration{-time.Hour, 1, mq.MinRetention - 1, mq.MaxRetention + 1} {
		err := mq.ValidateRetention(d)
		require.ErrorIs(t, err, mq.ErrInvalid)
		require.ErrorContains(t, err, `retention "`+d.String()+`": must lie between 1m0s and 87600h0m0s (10 years)`)
	}
}

func TestDedupIsOffOrLiesBetweenItsBounds(t *testing.T) {
	for _, d := range []time.Duration{0, mq.MinDedup, mq.DefaultDedup, mq.MaxDedup} {
		require.NoError(t, mq.ValidateDedup(d))
	}
	for _, d := range []time.Duration{-1, 1, mq.MinDedup - 1, mq.MaxDedup + 1} {
		err := mq.ValidateDedup(d)
		require.ErrorIs(t, err, mq.ErrInvalid)
		require.ErrorContains(t, err, "1s and 1h0m0s")
		require.ErrorContains(t, err, d.String())
	}
}
