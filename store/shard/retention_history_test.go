package shard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
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

// A sieve is a history of clients at work while messages grow old, with crashes. It
// notes what it asks for before it does, and the answers of a life that is not over.
type sieve struct {
	t     *testing.T
	rng   *rand.Rand // of the goroutine that plans the crashes
	group *mq.Group
	// forever: the messages of the last topic never grow old, and so hold the log.
	forever bool

	mu     sync.Mutex
	life   int
	step   int // grows with every note
	msgs   map[string]*sifted
	faults []string
}

type sifted struct {
	topic    mq.TopicID
	begun    time.Time // of the send
	answered bool
	ackBegun bool
	acked    bool
	leased   time.Time // until when, by the latest delivery seen
	// What was answered before a purge was begun may be gone, and must be when that
	// was answered.
	purgeBegun bool
	purged     int // the step at which it was answered; 0: not
}

// sieveAges are the ages of the topics 1 to 6; the last is for ever, in every other
// history.
var sieveAges = []time.Duration{20 * time.Second, time.Minute, 5 * time.Minute, 40 * time.Second, 2 * time.Minute, 90 * time.Second}

const purgedTopic mq.TopicID = 5

func (v *sieve) age(id mq.TopicID) time.Duration {
	if v.forever && int(id) == len(sieveAges) {
		return 0
	}
	return sieveAges[id-1]
}

func (v *sieve) note(fn func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.step++
	fn()
}

func (v *sieve) open(fs vfs.FS) *shard.Shard {
	s, err := shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", SegmentSize: 16 << 10, ZeroFill: 4 << 10, CacheSize: 1 << 20,
		Retention: shard.Retention{
			Interval: 2 * time.Second, Clean: shard.Watermark{Used: 0.5},
			Of: func(id mq.TopicID) (time.Duration, bool) {
				if int(id) > len(sieveAges) {
					return 0, false
				}
				return v.age(id), true
			},
		},
	})
	require.NoError(v.t, err)
	return s
}

func (v *sieve) sender(s *shard.Shard, life int, rng *rand.Rand) {
	for n := 0; ; n++ {
		topic := numbered(mq.TopicID(1 + rng.IntN(len(sieveAges))))
		m := message(fmt.Sprintf("%d-%d-%d", life, rng.Uint32(), n), "")
		m.Body = []byte("body of " + m.ID + strings.Repeat(" ", rng.IntN(2000)))
		noted := &sifted{topic: topic.ID, begun: time.Now()}
		v.note(func() { v.msgs[m.ID] = noted })
		_, err := s.Append(context.Background(), topic, mq.QueueID(rng.IntN(2)), []*mq.Message{m})
		if err != nil {
			return
		}
		v.note(func() { noted.answered = life == v.life })
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
	}
}

func (v *sieve) consumer(s *shard.Shard, life int, rng *rand.Rand) {
	for {
		topic := numbered(mq.TopicID(1 + rng.IntN(len(sieveAges))))
		invisible := time.Duration(1+rng.IntN(60)) * time.Second
		start, step := time.Now(), 0
		v.note(func() { step = v.step })
		got, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: v.group, Max: 1 + rng.IntN(4), Invisible: invisible})
		if err != nil {
			if !errors.Is(err, mq.ErrStopped) {
				v.note(func() { v.faults = append(v.faults, err.Error()) })
			}
			return
		}
		for _, d := range got {
			v.delivered(life, step, start.Add(invisible), d)
			if rng.IntN(3) == 0 {
				continue // forgotten
			}
			v.note(func() { v.msgs[d.ID].ackBegun = true })
			ref := command.LeaseRef{Queue: d.Lease.Queue, Offset: d.Lease.Offset, PopID: d.Lease.PopID}
			res, err := s.Ack(context.Background(), topic.ID, v.group.ID, []command.LeaseRef{ref})
			v.note(func() { v.msgs[d.ID].acked = err == nil && res[0] == nil && life == v.life })
		}
		time.Sleep(time.Duration(rng.IntN(2000)) * time.Millisecond)
	}
}

// purger empties a topic now and then.
func (v *sieve) purger(s *shard.Shard, life int, rng *rand.Rand) {
	for {
		time.Sleep(time.Duration(rng.IntN(200)) * time.Second)
		var before []*sifted
		v.note(func() {
			for _, m := range v.msgs {
				if m.topic == purgedTopic && m.answered {
					m.purgeBegun = true
					before = append(before, m)
				}
			}
		})
		if err := s.PurgeTopic(context.Background(), purgedTopic); errors.Is(err, mq.ErrStopped) {
			return
		} else if err != nil {
			continue // the shard does not know the topic yet
		}
		v.note(func() {
			for _, m := range before {
				if life == v.life {
					m.purged = v.step
				}
			}
		})
	}
}

// delivered judges a delivery of a receive that was begun at the step.
func (v *sieve) delivered(life, step int, until time.Time, d mq.Delivery) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if life != v.life {
		return
	}
	m := v.msgs[d.ID]
	if m.acked || m.purged > 0 && m.purged < step || !strings.HasPrefix(string(d.Body), "body of "+d.ID) {
		v.faults = append(v.faults, fmt.Sprintf("%s was delivered: %+v", d.ID, m))
	}
	m.leased = until
}

// live lets the clients work on mem until it crashes, between two operations of the file
// system or at one, and returns what is left and when that was.
func (v *sieve) live(mem *vfs.MemFS) (*vfs.MemFS, time.Time) {
	fs := faultfs.New(mem)
	var left *vfs.MemFS
	var at time.Time
	rng := rand.New(rand.NewPCG(v.rng.Uint64(), 3))
	keep := []int{0, 50, 100}[v.rng.IntN(3)]
	crash := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.life++
		left, at = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: keep, RNG: rng}), time.Now()
	}
	disk := &smallDisk{FS: fs, capacity: 1 << 30} // from the Clean level on nothing is put off
	if v.rng.IntN(2) == 0 {
		disk.others.Store(1 << 29)
	}
	s := v.open(disk)
	life := v.life
	crashed := make(chan struct{})
	if v.rng.IntN(2) == 0 { // in the middle of a drop, if there is one
		skip := v.rng.IntN(12)
		fs.Trace(func(op faultfs.Op) {
			dropping := strings.Contains(op.Path, "base") || op.Kind == faultfs.Remove && strings.HasSuffix(op.Path, ".log")
			if !dropping || left != nil {
				return
			}
			if skip--; skip < 0 {
				crash()
				close(crashed)
			}
		})
	}
	var clients sync.WaitGroup
	for range 3 {
		sends, receives := rand.New(rand.NewPCG(v.rng.Uint64(), 1)), rand.New(rand.NewPCG(v.rng.Uint64(), 2))
		clients.Go(func() { v.sender(s, life, sends) })
		clients.Go(func() { v.consumer(s, life, receives) })
	}
	purges := rand.New(rand.NewPCG(v.rng.Uint64(), 4))
	clients.Go(func() { v.purger(s, life, purges) })
	select {
	case <-crashed:
	case <-time.After(time.Duration(60+v.rng.IntN(240)) * time.Second):
		fs.Trace(nil)
		if left == nil {
			crash()
		}
	}
	v.note(func() {
		if st := s.Stats(); st.Lost+st.Unreadable+st.Evicted > 0 {
			v.faults = append(v.faults, fmt.Sprintf("%+v", st))
		}
	})
	require.NoError(v.t, s.Close()) // whoever still runs is nobody's any more
	clients.Wait()
	return left, at
}

// requireSifted checks that all is there that must be at the moment of the crash.
func (v *sieve) requireSifted(fs vfs.FS, crash time.Time) {
	s, err := shard.Open(shard.Options{Name: shardName, FS: fs, Dir: "shard", SegmentSize: 16 << 10, ZeroFill: -1})
	require.NoError(v.t, err)
	defer s.Close() // also after a failed check, so that the bubble ends
	delivered := map[string]bool{}
	for id := range sieveAges {
		for {
			got, err := s.Receive(v.t.Context(), mq.Receive{
				Topic: numbered(mq.TopicID(id + 1)), Group: v.group, Max: 32, Invisible: time.Hour, Wait: 2 * time.Minute,
			})
			require.NoError(v.t, err)
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				v.delivered(v.life, v.step+1, time.Time{}, d)
				delivered[d.ID] = true
				require.NoError(v.t, ack(v.t, s, d.Lease))
			}
		}
	}
	for id, m := range v.msgs {
		age := v.age(m.topic)
		young := age == 0 || crash.Sub(m.begun) < age
		if must := m.answered && !m.purgeBegun && (young || m.leased.After(crash)); must && !m.ackBegun && !delivered[id] {
			v.faults = append(v.faults, fmt.Sprintf("%s is gone, %v old at the crash: %+v", id, crash.Sub(m.begun), m))
		}
	}
	require.Empty(v.t, v.faults)
	require.Zero(v.t, s.Stats().Lost+s.Stats().Unreadable)
	require.NoError(v.t, s.Close())
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

func TestRandomHistoriesWithRetentionKeepWhatIsYoungOrUnderDelivery(t *testing.T) {
	n := 8
	if testing.Short() {
		n = 1
	}
	for _, seed := range seeds(t, n) {
		t.Logf("PERIGEE_SEED=%d", seed)
		synctest.Test(t, func(t *testing.T) {
			v := &sieve{t: t, rng: rand.New(rand.NewPCG(seed, 0)), group: groupOf(100), forever: seed%2 == 0, msgs: map[string]*sifted{}}
			fs, at := vfs.NewCrashableMem(), time.Time{}
			dropped := false
			for range 5 {
				fs, at = v.live(fs)
				names, err := fs.List("shard")
				dropped = dropped || err == nil && strings.Contains(strings.Join(names, " "), "base")
			}
			t.Logf("%d messages, log dropped: %v", len(v.msgs), dropped)
			v.requireSifted(fs, at)
		})
	}
}
