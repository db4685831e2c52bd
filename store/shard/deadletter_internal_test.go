package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

func TestDeadLetterWhoseEntryIsLostIsKeptAndHoldsUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := stepped(t, Retention{})
		topic := ownTopic(1)
		sendSome(t, s, topic, 3)
		r := receiveOf(topic, 3)
		for range r.Group.Retry.MaxAttempts - 1 {
			got, err := s.Receive(t.Context(), r)
			require.NoError(t, err)
			require.Len(t, got, 3)
			time.Sleep(2 * time.Minute)
		}
		got, err := s.Receive(t.Context(), r)
		require.NoError(t, err)
		require.Len(t, got, 3)
		require.NoError(t, s.db.Delete(keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 1}, 1), pebble.NoSync))
		require.ErrorContains(t, s.DeadLetter(t.Context(), got[1].Lease), "has no entry 1 (perigee restore-views")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.NoError(t, s.Err())
		require.EqualValues(t, 2, s.Stats().DeadLettered)
		require.Zero(t, s.Stats().Lost)
		list, err := s.Backlogs(t.Context(), r.Group.ID)
		require.NoError(t, err)
		require.Equal(t, []mq.Backlog{{Topic: 1, UsedUp: 1}}, list, "it is kept")
	})
}
