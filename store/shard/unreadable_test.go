package shard_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// A message that cannot be read holds up those behind it in its message group, and no
// others: they are given back, as if they had not been delivered.
func TestAMessageThatCannotBeReadIsNotOvertakenInItsMessageGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := faultfs.New(vfs.NewMem())
		s := open(t, disk, shard.FlushSync)
		topic, group := topicOf(1), orderedGroup()
		for _, id := range []string{"first", "second", "third"} {
			send(t, s, topic, 0, inGroup(id, "a"))
		}
		disk.Reads(func(path string, _ int64, p []byte) {
			if at := strings.Index(string(p), "first"); strings.Contains(path, "/log/") && at >= 0 {
				p[at] ^= 1
			}
		})
		r := mq.Receive{Topic: topic, Group: group, Max: 10, Invisible: 10 * time.Second}
		got, err := s.Receive(t.Context(), r)
		require.Empty(t, got)
		require.ErrorContains(t, err, "/log/")
		got, err = s.Receive(t.Context(), r)
		require.NoError(t, err)
		require.Empty(t, got, "the first one is leased")

		disk.Reads(nil)
		r.Wait = time.Minute
		got, err = s.Receive(t.Context(), r)
		require.NoError(t, err)
		require.Len(t, got, 3)
		for i, id := range []string{"first", "second", "third"} {
			require.Equal(t, id, got[i].ID)
		}
		require.Equal(t, mq.Attempt(2), got[0].Lease.Attempt)
		require.Equal(t, mq.Attempt(1), got[1].Lease.Attempt, "it had reached nobody")
		require.NoError(t, s.Close())
	})
}

// After a failure Pebble is told that all goes well, so what is read of the views then may be
// anything: it is no answer.
func TestWhatIsReadBesideTheLoopIsRefusedAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := faultfs.New(vfs.NewMem())
		s := open(t, disk, shard.FlushSync)
		topic := topicOf(1)
		send(t, s, topic, 0, message("a", ""))
		_, err := s.Range(topic, 0)
		require.NoError(t, err)
		disk.FailFrom(0, nil)
		_, err = s.Append(t.Context(), topic, 0, []*mq.Message{message("b", "")})
		require.ErrorIs(t, err, mq.ErrStopped)
		_, err = s.Range(topic, 0)
		require.ErrorIs(t, err, mq.ErrStopped)
		_, err = s.OffsetAt(topic, 0, time.Now())
		require.ErrorIs(t, err, mq.ErrStopped)
		require.ErrorIs(t, s.EndTransaction(t.Context(), mq.PendingHandle{ID: 1}, true), mq.ErrStopped)
		require.ErrorIs(t, s.Close(), mq.ErrStopped)
	})
}
