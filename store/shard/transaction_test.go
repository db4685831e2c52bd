package shard_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

func TestACommittedMessageWakesAReceive(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		a := d.half("a", "m", 0)
		require.Zero(d.t, a.Offset)
		time.AfterFunc(3*time.Second, func() { require.NoError(d.t, d.end("a", "m", true)) })
		start := time.Now()
		got := receive(d.t, d.s, mq.Receive{Topic: d.topics["a"], Group: d.group, Wait: time.Minute})
		require.Equal(d.t, []string{"m"}, ids(got))
		require.Equal(d.t, 3*time.Second, time.Since(start))
		require.Equal(d.t, mq.Transaction, got[0].Type)
		require.WithinDuration(d.t, time.Now(), got[0].StoreTime, 0, "it is stored in its queue by now")
	})
}

func TestABatchOfSeveralTypesIsJudgedMessageByMessage(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		msgs := []*mq.Message{message("n", ""), message("h", ""), message("d", "")}
		msgs[1].Type = mq.Transaction
		msgs[2].Type, msgs[2].DeliverAt = mq.Delay, time.Now().Add(time.Minute)
		a, err := d.s.Append(d.t.Context(), d.topics["a"], 0, msgs)
		require.NoError(d.t, err)
		require.Equal(d.t, []bool{false, true, true}, []bool{a[0].Pending != 0, a[1].Pending != 0, a[2].Pending != 0})
		require.Equal(d.t, []string{"n"}, ids(d.receive("a", 0)))
		h := mq.PendingHandle{Shard: shardName, Topic: d.topics["a"].ID, ID: a[1].Pending, MessageID: "h"}
		require.NoError(d.t, d.s.EndTransaction(d.t.Context(), h, true))
		h.ID, h.MessageID = a[2].Pending, "d"
		require.ErrorIs(d.t, d.s.EndTransaction(d.t.Context(), h, true), mq.ErrUnknownTransaction, "a delayed message has none")
		require.Equal(d.t, []string{"h"}, ids(d.receive("a", 0)))
		require.Equal(d.t, []string{"d"}, ids(d.receive("a", 2*time.Minute)))
	})
}

func TestHandlesOfOtherTransactionsAreRefused(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		d.half("a", "m", 0)
		good := d.handles["a/m"]
		for name, change := range map[string]func(*mq.PendingHandle){
			"of another message": func(h *mq.PendingHandle) { h.MessageID = "n" },
			"of another topic":   func(h *mq.PendingHandle) { h.Topic = d.topics["b"].ID },
			"of nothing":         func(h *mq.PendingHandle) { h.ID++ },
		} {
			h := good
			change(&h)
			require.ErrorIs(d.t, d.s.EndTransaction(d.t.Context(), h, true), mq.ErrUnknownTransaction, name)
			require.ErrorIs(d.t, d.s.EndTransaction(d.t.Context(), h, false), mq.ErrUnknownTransaction, name)
		}
		require.Empty(d.t, d.receive("a", 0))
		good.MessageID = "" // an operator's
		require.NoError(d.t, d.s.EndTransaction(d.t.Context(), good, true))
		require.Equal(d.t, []string{"m"}, ids(d.receive("a", 0)))
	})
}

// Two proxies with producers of a topic wait for the same questions.
func TestEachQuestionIsHandedOutOnce(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		got := map[string]int{}
		results := make(chan []mq.Check)
		ctx, cancel := context.WithCancel(d.t.Context())
		ended := make(chan struct{}, 3)
		for range 3 {
			go func() {
				defer func() { ended <- struct{}{} }()
				for ctx.Err() == nil {
					checks, err := d.s.Checks(ctx, []mq.Resource{d.topics["a"].Resource, {Name: "none"}}, 3)
					require.NoError(d.t, err)
					results <- checks
				}
			}()
		}
		go func() {
			for checks := range results {
				for _, c := range checks {
					got[fmt.Sprint(c.MessageID, " ", c.Checks)]++
				}
			}
		}()
		for i := range 20 {
			d.half("a", fmt.Sprint("m", i), 0)
		}
		time.Sleep(40 * time.Second)
		synctest.Wait()
		require.Len(d.t, got, 40, "two questions about each")
		for which, n := range got {
			require.Equal(d.t, 1, n, which)
		}
		cancel()
		for range 3 {
			<-ended
		}
		close(results)
	})
}

// A question may be due sooner than whoever waits was going to look.
func TestAQuestionThatIsDueSoonerWakesWhoWaits(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		d.half("a", "late", time.Hour)
		time.AfterFunc(time.Second, func() { d.half("a", "soon", time.Second) })
		start := time.Now()
		checks := d.checks(time.Minute, "b", "a")
		require.Len(d.t, checks, 1)
		require.Equal(d.t, "soon", checks[0].MessageID)
		require.Equal(d.t, 2*time.Second, time.Since(start).Truncate(time.Millisecond))
	})
}

// What is due and has nobody who could be asked costs nothing.
func TestQuestionsWithoutAProducerLetTheShardRest(t *testing.T) {
	inBubble(t, shard.Options{}, func(d *delayed) {
		for i := range 50 {
			d.half("a", fmt.Sprint("m", i), 0)
		}
		synctest.Wait()
		before := d.s.Stats()
		require.Empty(d.t, d.checks(240*time.Hour, "b"))
		after := d.s.Stats()
		require.Equal(d.t, before.Records, after.Records)
		require.Equal(d.t, int64(50), after.Half)
		require.Len(d.t, d.checks(time.Minute, "a"), 10, "as many as were asked for")
	})
}

func TestHalfMessagesOutliveTheSegmentsTheyWereWrittenIn(t *testing.T) {
	inBubble(t, shard.Options{
		SegmentSize: 64 << 10,
		Retention:   shard.Retention{Age: time.Minute, Interval: time.Second},
	}, func(d *delayed) {
		d.half("a", "m", 0)
		d.half("a", "n", 0)
		for range 40 {
			m := message("x", "")
			m.Body = make([]byte, 16<<10)
			_, err := d.s.Append(d.t.Context(), d.topics["b"], 0, []*mq.Message{m})
			require.NoError(d.t, err)
			time.Sleep(30 * time.Second)
		}
		require.Positive(d.t, d.s.Stats().LogFirst)
		require.Positive(d.t, d.s.Stats().Moved)
		checks := d.checks(time.Second, "a")
		require.Len(d.t, checks, 2)
		require.Equal(d.t, message("m", "").Body, checks[0].Message.Body)
		require.NoError(d.t, d.end("a", "m", true))
		require.Equal(d.t, []string{"m"}, ids(d.receive("a", 0)))
	})
}

// transactionScript sends half messages and ends their transactions, and knows what must
// be after any fault.
type transactionScript struct {
	t     *testing.T
	topic *mq.Topic
	s     *shard.Shard
	n     int
	half  map[string]mq.PendingHandle // those that are stored for sure
	ended map[string]bool             // whether it was committed
	open  map[string]bool             // perhaps ended
	// mu guards what clone reads: files are written by other goroutines, too.
	mu *sync.Mutex
}

func newTransactionScript(t *testing.T) *transactionScript {
	return &transactionScript{t: t, topic: numbered(1), half: map[string]mq.PendingHandle{}, ended: map[string]bool{}, open: map[string]bool{}, mu: &sync.Mutex{}}
}

func (c *transactionScript) clone() *transactionScript {
	c.mu.Lock()
	defer c.mu.Unlock()
	then := *c
	then.mu = &sync.Mutex{}
	then.half, then.ended, then.open = maps.Clone(c.half), maps.Clone(c.ended), maps.Clone(c.open)
	return &then
}

func (c *transactionScript) openShard(fs vfs.FS) error {
	s, err := shard.Open(shard.Options{
		Name: shardName, FS: fs, Dir: "shard", SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20,
		Transactions: shard.Transactions{MaxChecks: 2},
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s = s
	return err
}

func (c *transactionScript) send(n int) ([]string, error) {
	var msgs []*mq.Message
	var names []string
	c.mu.Lock()
	first := c.n
	c.n += n
	c.mu.Unlock()
	for i := range n {
		m := message(fmt.Sprint("m", first+1+i), "")
		m.Type, m.Properties = mq.Transaction, make([]byte, 300)
		msgs, names = append(msgs, m), append(names, m.ID)
	}
	a, err := c.s.Append(c.t.Context(), c.topic, 0, msgs)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range names {
		c.half[id] = mq.PendingHandle{Shard: shardName, Topic: c.topic.ID, ID: a[i].Pending, MessageID: id}
	}
	return names, nil
}

func (c *transactionScript) end(id string, commit bool) error {
	c.mu.Lock()
	c.open[id] = commit
	handle := c.half[id]
	c.mu.Unlock()
	err := c.s.EndTransaction(c.t.Context(), handle, commit)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.open, id)
		c.ended[id] = commit
	}
	return err
}

func (c *transactionScript) run(fs vfs.FS) error {
	for range 2 {
		if err := c.openShard(fs); err != nil {
			return err
		}
		err := c.part()
		if closeErr := c.s.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *transactionScript) part() error {
	names, err := c.send(5)
	if err != nil {
		return err
	}
	for i, id := range names[:3] {
		if err := c.end(id, i != 1); err != nil {
			return err
		}
	}
	for range 2 { // asked twice, and given up
		ctx, cancel := context.WithTimeout(c.t.Context(), 40*time.Second)
		checks, err := c.s.Checks(ctx, []mq.Resource{c.topic.Resource}, 10)
		cancel()
		if err != nil {
			return err
		}
		if len(checks) > 1 {
			if err := c.s.Unasked(c.t.Context(), checks[1:]); err != nil {
				return err
			}
		}
	}
	time.Sleep(2 * time.Minute)
	if err := c.s.Err(); err != nil {
		return err
	}
	return c.end(names[3], true)
}

// requireKept opens what is left: what was committed comes once, what was rolled back or
// has not ended never, and what has not ended can be.
func (c *transactionScript) requireKept(fs vfs.FS) {
	c.t.Helper()
	require.NoError(c.t, c.openShard(fs))
	defer c.s.Close()
	group := groupOf(16)
	got := map[string]int{}
	take := func() {
		synctest.Wait()
		for _, id := range receiveAll(c.t, c.s, c.topic, group) {
			got[id]++
		}
	}
	take()
	for id := range c.half {
		commit, ended := c.ended[id]
		_, perhaps := c.open[id]
		switch {
		case ended && commit:
			require.Equal(c.t, 1, got[id], "%s was committed", id)
		case perhaps && c.open[id]:
			require.LessOrEqual(c.t, got[id], 1)
		default:
			require.Zero(c.t, got[id], "%s was not committed", id)
		}
	}
	listed := map[string]bool{}
	for _, state := range []keyspace.PendingState{keyspace.Half, keyspace.LastAsked, keyspace.GivenUp} {
		list, _, err := c.s.Pending(c.t.Context(), c.topic.ID, state, machine.PendingMark{}, 100, nil)
		require.NoError(c.t, err)
		for _, m := range list {
			listed[m.MessageID] = true
		}
	}
	for id, h := range c.half {
		commit, ended := c.ended[id]
		_, perhaps := c.open[id]
		if perhaps {
			continue
		}
		require.Equal(c.t, !ended, listed[id], "%s: what has not ended is listed", id)
		if ended {
			require.NoError(c.t, c.s.EndTransaction(c.t.Context(), h, commit), "the same end again")
			require.ErrorIs(c.t, c.s.EndTransaction(c.t.Context(), h, !commit), mq.ErrTransactionEnded)
		} else {
			require.NoError(c.t, c.s.EndTransaction(c.t.Context(), h, true))
		}
	}
	take()
	for id := range c.half {
		commit, ended := c.ended[id]
		if _, perhaps := c.open[id]; !perhaps && (!ended || commit) {
			require.Equal(c.t, 1, got[id], "%s comes once", id)
		}
	}
	require.NoError(c.t, c.s.Close())
}

func TestNoFailedOperationLosesOrDoublesATransaction(t *testing.T) {
	for i, done := 0, false; !done; i++ {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fs := faultfs.New(mem)
			fs.FailAt(i, faultfs.ErrInjected)
			c := newTransactionScript(t)
			err := c.run(fs)
			if !fs.Fired() {
				require.NoError(t, err)
				require.Greater(t, i, 60)
				done = true
			}
			if err != nil {
				require.ErrorContains(t, err, faultfs.ErrInjected.Error(), "operation %d", i)
			}
			rng := rand.New(rand.NewPCG(uint64(i), 3))
			c.requireKept(mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (i % 2), RNG: rng}))
		})
	}
}

func TestNoCrashLosesOrDoublesATransaction(t *testing.T) {
	step := 1
	if testing.Short() {
		step = 3
	}
	for k, done := 0, false; !done; k += step {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			fs := faultfs.New(mem)
			c := newTransactionScript(t)
			var left *vfs.MemFS
			var then *transactionScript
			fs.Trace(func(op faultfs.Op) {
				if op.Index == k {
					then = c.clone()
					left = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50 * (k % 3), RNG: rand.New(rand.NewPCG(uint64(k), 4))})
				}
			})
			require.NoError(t, c.run(fs))
			if left == nil {
				require.Greater(t, k, 60)
				done = true
				return
			}
			then.requireKept(left)
		})
	}
}
