package shard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/shard"
)

// A ledger is what a client of one topic and one group knows: what it asked for
// and what was answered. After a crash it says what must, may and must not be
// there. It knows nothing of how the shard works.
//
// Everything is noted before it is asked for, so that what is under way at the
// moment of a crash counts as unknown.
type ledger struct {
	mu     sync.Mutex
	life   int // grows with every crash; answers from an earlier life are void
	lossy  bool
	sends  []*sent
	msgs   map[string]*fate
	faults []string
	counts struct{ sends, unknown, deliveries, acks, crashes int }
}

// sent is one send: a single message or a batch.
type sent struct {
	ids    []string
	queue  mq.QueueID
	offset mq.QueueOffset
	acked  bool
}

// fate is what happened to one message in the group.
type fate struct {
	acked, ackBegun bool
	forwarded       bool       // a dead letter was asked for
	attempt         mq.Attempt // of the latest delivery seen
	until           time.Time  // the lease of that delivery does not end before
}

func newLedger() *ledger { return &ledger{msgs: map[string]*fate{}} }

func (l *ledger) fault(format string, args ...any) {
	l.faults = append(l.faults, fmt.Sprintf(format, args...))
}

// beginSend notes a send that is about to be asked for.
func (l *ledger) beginSend(queue mq.QueueID, ids ...string) *sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	sn := &sent{ids: ids, queue: queue}
	l.sends = append(l.sends, sn)
	for _, id := range ids {
		l.msgs[id] = &fate{}
	}
	l.counts.sends++
	return sn
}

func (l *ledger) endSend(sn *sent, life int, offset mq.QueueOffset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life == l.life {
		sn.acked, sn.offset = true, offset
	}
}

func (l *ledger) now() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.life
}

// crash makes every answer that comes from now on void.
func (l *ledger) crash() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.life++
	l.counts.crashes++
}

// delivered judges what a receive that began at start got.
func (l *ledger) delivered(life int, start time.Time, invisible time.Duration, got []mq.Delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life != l.life {
		return
	}
	for _, d := range got {
		l.counts.deliveries++
		m := l.msgs[d.ID]
		if m == nil {
			l.fault("%s was delivered and never sent", d.ID)
			continue
		}
		if string(d.Body) != "body of "+d.ID {
			l.fault("%s has the body %q", d.ID, d.Body)
		}
		if !l.lossy {
			if m.acked {
				l.fault("%s was delivered after its ack had been answered OK", d.ID)
			}
			if d.Lease.Attempt <= m.attempt {
				l.fault("%s was delivered with attempt %d after attempt %d", d.ID, d.Lease.Attempt, m.attempt)
			}
			// Commands that come at the same moment are put a nanosecond apart.
			if time.Until(m.until) > time.Millisecond {
				l.fault("%s was delivered %v before its lease ended", d.ID, time.Until(m.until))
			}
		}
		m.attempt, m.until = d.Lease.Attempt, start.Add(invisible)
	}
}

// beginAck notes an acknowledgement, or with forward a dead letter, that is
// about to be asked for.
func (l *ledger) beginAck(id string, forward bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if forward {
		l.msgs[id].forwarded = true
	} else {
		l.msgs[id].ackBegun = true
	}
}

func (l *ledger) endAck(id string, life int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if life == l.life {
		l.msgs[id].acked = true
		l.counts.acks++
	}
}

// beginChange notes that the lease of the message may end at any time.
func (l *ledger) beginChange(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.msgs[id].until = time.Time{}
}

// drained is everything that could be read from a shard.
type drained struct {
	queues map[mq.QueueID][]string // ids in the order of their offsets
	dead   map[string]int          // copies in the dead-letter topic
}

// requireKept reads everything from the shard and checks it against the ledger.
func (l *ledger) requireKept(t *testing.T, s *shard.Shard, topic *mq.Topic, group *mq.Group) {
	t.Helper()
	const invisible = 30 * time.Second
	receiveAll := func(r mq.Receive, fn func(start time.Time, got []mq.Delivery)) {
		r.Max, r.Invisible = 32, invisible
		for {
			start := time.Now()
			got, err := s.Receive(t.Context(), r)
			require.NoError(t, err)
			if len(got) == 0 {
				return
			}
			fn(start, got)
			for _, d := range got {
				if r.Group == group {
					l.beginAck(d.ID, false)
				}
				require.NoError(t, ack(t, s, d.Lease))
				if r.Group == group {
					l.endAck(d.ID, l.now())
				}
			}
		}
	}
	const beyond = time.Minute // every lease of a test ends earlier
	receiveAll(mq.Receive{Topic: topic, Group: group, Wait: beyond}, func(start time.Time, got []mq.Delivery) {
		l.delivered(l.now(), start, invisible, got)
	})
	auditor := &mq.Group{ID: 2, Resource: mq.Resource{Name: "audit"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 102, Version: 1}
	d := drained{queues: map[mq.QueueID][]string{}, dead: map[string]int{}}
	receiveAll(mq.Receive{Topic: topic, Group: auditor}, func(_ time.Time, got []mq.Delivery) {
		for _, m := range got {
			q := d.queues[m.Lease.Queue]
			require.Equal(t, mq.QueueOffset(len(q)), m.Lease.Offset, "queue %d has a hole or a repeat", m.Lease.Queue)
			d.queues[m.Lease.Queue] = append(q, m.ID)
		}
	})
	receiveAll(mq.Receive{Topic: deadLetterTopic(group), Group: auditor}, func(_ time.Time, got []mq.Delivery) {
		for _, m := range got {
			d.dead[m.ID]++
		}
	})
	l.judge(d)
	require.Empty(t, l.faults)
	for _, g := range []*mq.Group{group, auditor} {
		backlogs, err := s.Backlogs(t.Context(), g.ID)
		require.NoError(t, err)
		for _, b := range backlogs {
			require.Zero(t, b.Ready+b.InFlight+b.UsedUp, "group %s is stuck: %+v", g.Name, b)
		}
	}
	require.NoError(t, s.Err())
}

func (l *ledger) judge(d drained) {
	l.mu.Lock()
	defer l.mu.Unlock()
	present := map[string]bool{}
	for queue, ids := range d.queues {
		for _, id := range ids {
			if present[id] {
				l.fault("%s is stored twice", id)
			}
			if l.msgs[id] == nil {
				l.fault("queue %d holds %s, which was never sent", queue, id)
			}
			present[id] = true
		}
	}
	for _, sn := range l.sends {
		at := slices.Index(d.queues[sn.queue], sn.ids[0])
		there := 0
		for _, id := range sn.ids {
			if present[id] {
				there++
			}
		}
		switch {
		case there == 0 && sn.acked && !l.lossy:
			l.fault("send of %v was answered OK and is gone", sn.ids)
		case there == 0:
			l.counts.unknown++
			continue
		case at < 0 || there != len(sn.ids) || !slices.Equal(d.queues[sn.queue][at:at+len(sn.ids)], sn.ids):
			l.fault("of the send %v only %d are in their place", sn.ids, there)
		case sn.acked && mq.QueueOffset(at) != sn.offset && !l.lossy:
			l.fault("send of %v was answered with offset %d and is at %d", sn.ids, sn.offset, at)
		}
		for _, id := range sn.ids {
			m, dead := l.msgs[id], d.dead[id]
			switch {
			case dead > 1:
				l.fault("%s has %d dead-letter copies", id, dead)
			case dead == 1 && m.acked && !m.forwarded && !l.lossy:
				l.fault("%s was dead-lettered and its ack answered OK", id)
			case dead == 0 && !m.ackBegun && !l.lossy:
				l.fault("%s was neither delivered nor dead-lettered", id)
			}
		}
	}
}

// seeds returns the seeds to run: the one in PERIGEE_SEED, or n new ones.
func seeds(t *testing.T, n int) []uint64 {
	if text := os.Getenv("PERIGEE_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		return []uint64{seed}
	}
	list := make([]uint64, n)
	for i := range list {
		list[i] = rand.Uint64()
	}
	return list
}

// tick is the step of the clients' time: they often act at the same moment.
const tick = 50 * time.Millisecond

// A history is several clients at work on one shard that crashes now and then.
type history struct {
	t      *testing.T
	mode   shard.FlushMode
	seed   uint64
	rng    *rand.Rand // of the goroutine that plans the crashes
	keep   int        // percent of the unsynced data a crash keeps
	ledger *ledger
	topic  *mq.Topic
	group  *mq.Group
	nextID int // guarded by ledger.mu
}

func (h *history) newIDs(n int) []string {
	h.ledger.mu.Lock()
	defer h.ledger.mu.Unlock()
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint("m", h.nextID)
		h.nextID++
	}
	return ids
}

func (h *history) open(fs vfs.FS) *shard.Shard {
	s, err := shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", Flush: h.mode, SegmentSize: 64 << 10, ZeroFill: 8 << 10, CacheSize: 1 << 20,
	})
	require.NoError(h.t, err, "seed %d", h.seed)
	return s
}

// sender sends until the shard stops.
func (h *history) sender(s *shard.Shard, life int, rng *rand.Rand) {
	for {
		ids := h.newIDs(1 + rng.IntN(5)*rng.IntN(2))
		msgs := make([]*mq.Message, len(ids))
		for i, id := range ids {
			msgs[i] = message(id, "")
		}
		queue := mq.QueueID(rng.IntN(3))
		sn := h.ledger.beginSend(queue, ids...)
		a, err := s.Append(context.Background(), h.topic, queue, msgs)
		if err != nil {
			return
		}
		h.ledger.endSend(sn, life, a[0].Offset)
		time.Sleep(time.Duration(rng.IntN(5)) * tick)
	}
}

// consumer receives until the shard stops, and treats each message in one of
// the ways consumers do.
func (h *history) consumer(s *shard.Shard, life int, rng *rand.Rand) {
	for {
		invisible := time.Duration(1+rng.IntN(10)) * time.Second
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(40))*tick)
		got, err := s.Receive(ctx, mq.Receive{
			Topic: h.topic, Group: h.group, Max: 1 + rng.IntN(8), Invisible: invisible, Wait: time.Second,
			InFlight: 5 * rng.IntN(3),
		})
		cancel()
		if errors.Is(err, mq.ErrStopped) {
			return
		}
		h.ledger.delivered(life, start, invisible, got)
		for _, d := range got {
			h.treat(s, life, rng, d)
		}
		time.Sleep(time.Duration(rng.IntN(6)) * tick)
	}
}

func (h *history) treat(s *shard.Shard, life int, rng *rand.Rand, d mq.Delivery) {
	ref := command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID}
	ctx := context.Background()
	switch n := rng.IntN(100); {
	case n < 60:
		h.ledger.beginAck(d.ID, false)
		if res, err := s.Ack(ctx, d.Lease.Topic, d.Lease.Group, []command.LeaseRef{ref}); err == nil && res[0] == nil {
			h.ledger.endAck(d.ID, life)
		}
	case n < 65:
		h.ledger.beginAck(d.ID, true)
		if s.DeadLetter(ctx, d.Lease) == nil {
			h.ledger.endAck(d.ID, life)
		}
	case n < 85:
		h.ledger.beginChange(d.ID)
		after := []time.Duration{0, time.Second, 5 * time.Second}[rng.IntN(3)]
		reason := []mq.ChangeReason{mq.Extend, mq.Renew, mq.Nack}[rng.IntN(3)]
		_, _ = s.Change(ctx, d.Lease.Topic, d.Lease.Group, []command.LeaseChange{{LeaseRef: ref, Invisible: int64(after), Reason: reason}})
	}
}

// live runs the clients on mem for a while and then crashes it: what is left is
// returned. A crash comes in the middle of some operation of the file system,
// between two of them at a time when many clients act, or after a clean close.
func (h *history) live(mem *vfs.MemFS) *vfs.MemFS {
	fs := faultfs.New(mem)
	var left *vfs.MemFS
	crashed := make(chan struct{})
	rng := rand.New(rand.NewPCG(h.rng.Uint64(), 3)) // of the goroutine that crashes
	crash := func() {
		h.ledger.crash()
		left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: h.keep, RNG: rng})
		close(crashed)
	}
	s := h.open(fs)
	planned := h.rng.IntN(3) // 0: at an operation
	if planned == 0 {
		at := fs.Count() + h.rng.IntN(400)
		fs.Trace(func(op faultfs.Op) {
			if op.Index == at {
				crash()
			}
		})
	}
	// Clients of a shard that has crashed go on for a moment: what it answers
	// them belongs to the life that is over.
	life := h.ledger.now()
	var clients sync.WaitGroup
	for range 3 {
		sends, receives := rand.New(rand.NewPCG(h.rng.Uint64(), 1)), rand.New(rand.NewPCG(h.rng.Uint64(), 2))
		clients.Go(func() { h.sender(s, life, sends) })
		clients.Go(func() { h.consumer(s, life, receives) })
	}
	switch planned {
	case 0:
		<-crashed
	case 1:
		time.Sleep(time.Duration(1+h.rng.IntN(100)) * tick)
		crash()
	case 2:
		time.Sleep(time.Duration(1+h.rng.IntN(100)) * tick)
		require.NoError(h.t, s.Close())
		clients.Wait()
		crash()
	}
	require.NoError(h.t, s.Close()) // whoever still runs is nobody's any more
	clients.Wait()
	return left
}

func TestRandomHistoriesWithCrashesKeepWhatWasAcknowledged(t *testing.T) {
	type kind struct {
		name string
		mode shard.FlushMode
		keep []int
		lose bool
	}
	for _, k := range []kind{
		{"sync", shard.FlushSync, []int{0, 30, 70, 100}, false},
		{"async, process killed", shard.FlushAsync, []int{100}, false},
		{"async, machine crashed", shard.FlushAsync, []int{0, 50}, true},
	} {
		t.Run(k.name, func(t *testing.T) {
			n := 12
			if testing.Short() {
				n = 3
			}
			for _, seed := range seeds(t, n) {
				t.Logf("PERIGEE_SEED=%d", seed)
				synctest.Test(t, func(t *testing.T) {
					rng := rand.New(rand.NewPCG(seed, 0))
					h := &history{
						t: t, mode: k.mode, seed: seed, rng: rng, keep: k.keep[rng.IntN(len(k.keep))],
						ledger: newLedger(), topic: topicOf(3), group: groupOf(3),
					}
					h.ledger.lossy = k.lose
					fs := vfs.NewCrashableMem()
					for range 4 {
						fs = h.live(fs)
					}
					s := h.open(fs)
					defer s.Close() // also after a failed check, so that the bubble ends
					h.ledger.requireKept(t, s, h.topic, h.group)
					require.NoError(t, s.Close())
					t.Logf("%+v, %d messages, crashes keep %d%%", h.ledger.counts, len(h.ledger.msgs), h.keep)
				})
			}
		})
	}
}

func TestMessagesOnBothSidesOfASegmentsEndAreReceivedTogether(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s, err := shard.Open(shard.Options{Name: shardName, FS: vfs.NewMem(), Dir: "shard", Flush: mode, SegmentSize: 4 << 10, ZeroFill: -1})
		require.NoError(t, err)
		defer s.Close() // also after a failed check, so that the bubble ends
		topic, group := topicOf(1), groupOf(2)
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprint("m", i))
			send(t, s, topic, 0, message(want[i], ""))
		}
		got := receive(t, s, mq.Receive{Topic: topic, Group: group, Max: 100})
		require.Equal(t, want, ids(got))
		require.Zero(t, s.Stats().Unreadable)
	})
}
