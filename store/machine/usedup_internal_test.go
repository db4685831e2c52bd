package machine

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// What is counted and never found would be looked for with every dead letter of the
// shard, from the first offset on, until the next start.
func TestPurgeForgetsWhereUsedUpMessagesWere(t *testing.T) {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), DisableWAL: true})
	require.NoError(t, err)
	m, err := Open(db)
	require.NoError(t, err)
	index := uint64(0)
	apply := func(kind command.Kind, c interface{ Append([]byte) []byte }) {
		index++
		var res Result
		require.NoError(t, m.Apply(Record{Kind: kind, Payload: c.Append(nil), Next: index, Index: index}, &res))
		require.NoError(t, res.Err)
	}
	apply(command.KindTopic, &command.Topic{Time: 1, ID: 1, Name: mq.Resource{Name: "t"}, Queues: 1, Version: 1})
	apply(command.KindGroup, &command.Group{Time: 2, ID: 1, Name: mq.Resource{Name: "g"}, MaxAttempts: 1, Version: 1})
	apply(command.KindAppend, &command.Append{Time: 3, Topic: 1, Messages: []*mq.Message{{ID: "a"}, {ID: "b"}}})
	apply(command.KindPop, &command.Pop{Time: 4, Topic: 1, Group: 1, Max: 2, Invisible: 10, Scan: 10})
	apply(command.KindExpire, &command.Expire{Time: 20, Limit: 10})
	require.Len(t, m.withUsedUp, 1)
	apply(command.KindTrim, &command.Trim{Time: 21, Topic: 1, Purge: true})
	require.Empty(t, m.withUsedUp)
	require.Empty(t, m.subs[keyspace.Sub{Group: 1, Topic: 1}].usedUpIn)
	require.NoError(t, m.Close())
	require.NoError(t, db.Close())
}
