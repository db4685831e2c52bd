package machine

import (
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Many messages may have the same time of delivery, so that time alone is no place to
// begin a search at: each would walk over the deleted keys of all that were delivered.
func TestASearchForWhatIsDueBeginsBehindWhatWasDelivered(t *testing.T) {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), DisableWAL: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	m, err := Open(db)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	apply := func(kind command.Kind, c interface{ Append([]byte) []byte }) (res Result) {
		payload, at := c.Append(nil), m.Pos()
		require.NoError(t, m.Apply(Record{Kind: kind, Payload: payload, PayloadPos: at, Next: at + uint64(len(payload)), Index: m.State().Index + 1}, &res))
		require.NoError(t, errors.Join(res.Err, m.Commit()))
		return res
	}
	const at = int64(5e9)
	apply(command.KindTopic, &command.Topic{Time: 1, ID: 1, Queues: 1, Version: 1})
	send := &command.Send{Time: 2, Topic: 1}
	for range 100 {
		send.Messages = append(send.Messages, &mq.Message{ID: "m", Type: mq.Delay, DeliverAt: time.Unix(0, at)})
	}
	apply(command.KindSend, send)
	for n := range 10 {
		due, _, err := m.PendingDue(keyspace.Timed, at)
		require.NoError(t, err)
		require.True(t, due)
		marks, err := m.DuePending(keyspace.Timed, PendingMark{}, at, 10)
		require.NoError(t, err)
		require.Len(t, marks, 10)
		require.Equal(t, marks[0], m.pendings.low[keyspace.Timed])
		require.Equal(t, mq.PendingID(2<<10+10*n), marks[0].ID)
		fire := &command.Fire{Time: at + int64(n), Until: at}
		for _, mark := range marks {
			fire.Messages = append(fire.Messages, command.PendingMessage{ID: mark.ID, Topic: 1, Message: send.Messages[0]})
		}
		res := apply(command.KindFire, fire)
		require.NoError(t, errors.Join(res.Settled...))
	}
	due, _, err := m.PendingDue(keyspace.Timed, at)
	require.NoError(t, err)
	require.False(t, due)
	apply(command.KindSend, send) // late, and of a time that is behind the search
	marks, err := m.DuePending(keyspace.Timed, PendingMark{}, at, 1000)
	require.NoError(t, err)
	require.Len(t, marks, 100)
}
