package scaletest

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

// TestDeliveryStateFollowsWhatIsInFlight sends, receives and settles many messages
// with few in flight: what a delivery leaves behind must neither fill the disk nor
// slow the next one down. One in a hundred comes back first.
func TestDeliveryStateFollowsWhatIsInFlight(t *testing.T) {
	cycles, inFlight := number(3_000_000, 30_000), number(10_000, 1_000)
	const batch = 500
	dir := t.TempDir()
	s := openShard(t, dir, shard.FlushAsync)
	topic, group := topicOf(1, 8), groupOf(1)
	msgs := messages(batch, 20, "tag")
	var held []mq.Delivery
	receive := func(max int, invisible time.Duration) []mq.Delivery {
		got, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: max, Invisible: invisible})
		require.NoError(t, err)
		return got
	}
	var pops, acks, backs latencies
	report := func(done int) {
		t.Logf("%9d: views %s; pop of %d %v; ack %v; end of a lease %v; %v",
			done, size(dirSize(t, filepath.Join(dir, "views"))), batch, pops, acks, backs, measure())
		pops, acks, backs = nil, nil, nil
	}
	for done := 0; done < cycles; done += batch {
		_, err := s.Append(t.Context(), topic, mq.QueueID(done/batch%8), msgs)
		require.NoError(t, err)
		start := time.Now()
		got := receive(batch, time.Hour)
		pops = append(pops, time.Since(start))
		for i := range got {
			if i%100 != 0 { // those come back at once
				held = append(held, got[i])
			}
		}

		start = time.Now()
		refs := make([]command.LeaseChange, batch/100)
		for i := range refs {
			l := got[i*100].Lease
			refs[i] = command.LeaseChange{LeaseRef: command.LeaseRef{Queue: l.Queue, Offset: l.Offset, PopID: l.PopID}, Invisible: 1}
		}
		_, err = s.Change(t.Context(), topic.ID, group.ID, refs)
		require.NoError(t, err)
		for back := 0; back < len(refs); {
			again := receive(batch, time.Hour)
			back += len(again)
			held = append(held, again...)
		}
		backs = append(backs, time.Since(start))

		start = time.Now()
		for len(held) > inFlight {
			leases := make([]command.LeaseRef, min(batch, len(held)-inFlight))
			for i := range leases {
				l := held[i].Lease
				leases[i] = command.LeaseRef{Queue: l.Queue, Offset: l.Offset, PopID: l.PopID}
			}
			held = held[len(leases):]
			_, err := s.Ack(t.Context(), topic.ID, group.ID, leases)
			require.NoError(t, err)
		}
		acks = append(acks, time.Since(start))
		if (done+batch)%(cycles/10/batch*batch) == 0 {
			report(done + batch)
		}
	}
	list, err := s.Backlogs(t.Context(), group.ID)
	require.NoError(t, err)
	require.Equal(t, int64(len(held)), list[0].InFlight)
	require.NoError(t, s.Close())

	// What is left of it: a record and an index key for each lease, the rest of the
	// keys are as many as topics, groups and queues.
	db, err := shard.ReadViews(vfs.Default, dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	keys := map[string]int{}
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	for ok := it.First(); ok; ok = it.Next() {
		keys[string(it.Key()[:1])]++
	}
	require.NoError(t, it.Close())
	entries, err := db.EstimateDiskUsage([]byte("c"), []byte("d"))
	require.NoError(t, err)
	t.Logf("keys by prefix %v; views %s, of them queue entries %s", keys, size(dirSize(t, filepath.Join(dir, "views"))), size(int64(entries)))
	require.Equal(t, cycles, keys["c"])
	delete(keys, "c")
	rest := 0
	for _, n := range keys {
		rest += n
	}
	require.LessOrEqual(t, rest, 2*len(held)+20)
}
