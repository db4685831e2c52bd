package machine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
)

// BenchmarkMessageGroups is what it costs to deliver and acknowledge a message, in
// batches of 32, as the number of message groups grows; "unordered" is a group that is not
// FIFO. Half of the consumers are always behind by one batch, so that message groups are
// blocked now and then.
func BenchmarkMessageGroups(b *testing.B) {
	for _, groups := range []int{0, 1, 100, 100_000} {
		name := fmt.Sprint(groups)
		if groups == 0 {
			name = "unordered"
		}
		b.Run(name, func(b *testing.B) { benchmarkMessageGroups(b, groups) })
	}
}

type benchMachine struct {
	b     *testing.B
	m     *machine.Machine
	index uint64
	pos   uint64
	now   int64
	res   machine.Result
}

func (bm *benchMachine) apply(kind command.Kind, payload []byte) {
	bm.index++
	rec := machine.Record{Kind: kind, Payload: payload, PayloadPos: bm.pos, Next: bm.pos + uint64(len(payload)), Index: bm.index}
	bm.pos = rec.Next
	require.NoError(bm.b, bm.m.Apply(rec, &bm.res))
	require.NoError(bm.b, bm.m.Commit())
	bm.m.Effects.Reset()
}

func (bm *benchMachine) tick() int64 {
	bm.now += int64(time.Millisecond)
	return bm.now
}

func benchmarkMessageGroups(b *testing.B, groups int) {
	db, err := pebble.Open("views", &pebble.Options{FS: vfs.NewMem(), DisableWAL: true, Logger: quiet{}, CacheSize: 64 << 20})
	require.NoError(b, err)
	m, err := machine.Open(db)
	require.NoError(b, err)
	bm := &benchMachine{b: b, m: m, now: 1_700_000_000 * int64(time.Second)}
	defer func() {
		require.NoError(b, m.Close())
		require.NoError(b, db.Close())
	}()
	topic := command.Topic{Time: bm.tick(), ID: 1, Name: mq.Resource{Name: "t"}, Queues: 1, Version: 1}
	bm.apply(command.KindTopic, topic.Append(nil))
	group := command.Group{Time: bm.tick(), ID: 1, Name: mq.Resource{Name: "g"}, MaxAttempts: 17, Version: 1, FIFO: groups > 0}
	bm.apply(command.KindGroup, group.Append(nil))
	for sent := 0; sent < b.N; {
		c := command.Append{Time: bm.tick(), Topic: 1}
		for ; len(c.Messages) < 256 && sent < b.N; sent++ {
			c.Messages = append(c.Messages, &mq.Message{ID: fmt.Sprint("m", sent), Group: fmt.Sprint("g", sent%max(groups, 1))})
		}
		bm.apply(command.KindAppend, c.Append(nil))
	}
	b.ReportAllocs()
	b.ResetTimer()
	var late []command.LeaseRef // of the batch that is acknowledged after the next one
	for settled := 0; settled < b.N; {
		c := command.SelectPop{Order: command.GroupOrder}
		c.Pop = command.Pop{Time: bm.tick(), Topic: 1, Group: 1, Max: 32, Scan: 2048, Invisible: int64(time.Hour)}
		bm.apply(command.KindPopSelect, c.Append(nil))
		var refs []command.LeaseRef
		for _, p := range bm.res.Popped {
			refs = append(refs, command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: bm.res.PopID})
		}
		refs, late = late, refs
		if len(refs) > 0 {
			ack := command.Ack{Time: bm.tick(), Topic: 1, Group: 1, Leases: refs}
			bm.apply(command.KindAck, ack.Append(nil))
			settled += len(refs)
		}
	}
}
