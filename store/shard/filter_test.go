package shard_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/filter"
	"github.com/perigee-mq/perigee/store/shard"
)

// with returns a message with the pairs of names and values as user properties.
func with(id string, pairs ...string) *mq.Message {
	m := message(id, "")
	m.Properties = properties(pairs...)
	return m
}

// properties returns pairs of names and values as a message has them.
func properties(pairs ...string) (encoded []byte) {
	values := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), values[name])
		encoded = protowire.AppendBytes(protowire.AppendTag(encoded, 2, protowire.BytesType), entry)
	}
	return encoded
}

// A countingFilter counts what it is asked.
type countingFilter struct {
	*filter.Filter
	asked atomic.Int64
}

func (f *countingFilter) Matches(properties, system []byte) bool {
	f.asked.Add(1)
	return f.Filter.Matches(properties, system)
}

func sql(t *testing.T, expression string) *countingFilter {
	t.Helper()
	f, err := filter.Compile(expression)
	require.NoError(t, err)
	return &countingFilter{Filter: f}
}

// sendNumbers sends n messages with n=0,1,... as their property, in requests of 500.
func sendNumbers(t *testing.T, s *shard.Shard, topic *mq.Topic, queue mq.QueueID, n int, pairs ...string) {
	t.Helper()
	for i := 0; i < n; {
		var msgs []*mq.Message
		for ; i < n && len(msgs) < 500; i++ {
			msgs = append(msgs, with(fmt.Sprint(queue, "-", i), append([]string{"n", fmt.Sprint(i)}, pairs...)...))
		}
		send(t, s, topic, queue, msgs...)
	}
}

func backlog(t *testing.T, s *shard.Shard, group *mq.Group) mq.Backlog {
	t.Helper()
	b, err := s.Backlogs(t.Context(), group.ID)
	require.NoError(t, err)
	require.Len(t, b, 1)
	return b[0]
}

func TestAFilterDeliversExactlyWhatItWants(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(3), groupOf(9)
		for q := range mq.QueueID(3) {
			sendNumbers(t, s, topic, q, 1000)
		}
		f := sql(t, "n BETWEEN 100 AND 300 OR n > 900 AND n NOT IN ('950')")
		got := map[string]int{}
		for {
			d := receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Invisible: time.Hour})
			if len(d) == 0 {
				break
			}
			for _, m := range d {
				got[m.ID]++
				require.Equal(t, "body of "+m.ID, string(m.Body))
			}
		}
		want := map[string]int{}
		for q := range 3 {
			for n := range 1000 {
				if n >= 100 && n <= 300 || n > 900 && n != 950 {
					want[fmt.Sprint(q, "-", n)] = 1
				}
			}
		}
		require.Equal(t, want, got)
		require.Zero(t, backlog(t, s, group).Ready)
		require.EqualValues(t, len(want), backlog(t, s, group).InFlight)
		require.EqualValues(t, 3000, f.asked.Load(), "each message is judged once")
	})
}

func TestLargeMessagesAreJudgedByTheirBeginning(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		for i := range 10 {
			m := with(fmt.Sprint(i), "n", fmt.Sprint(i), "a", fmt.Sprintf("%0*d", i*2500, 0), "z", fmt.Sprint(i%2))
			m.Body = make([]byte, 100<<10)
			send(t, s, topic, 0, m)
		}
		d := receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: sql(t, "n >= 4 AND z = 1")})
		require.Equal(t, []string{"5", "7", "9"}, ids(d))
	})
}

func TestGroupsWithDifferentFiltersGetEachTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic := topicOf(2)
		sendNumbers(t, s, topic, 0, 100)
		small, large, all := groupOf(9), groupOf(9), groupOf(9)
		large.ID, all.ID = 2, 3
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: small, Filter: sql(t, "n < 10"), Max: 100}), 10)
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: large, Filter: sql(t, "n >= 10"), Max: 100}), 90)
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: all, Max: 100}), 100)
		for _, g := range []*mq.Group{small, large, all} {
			require.Zero(t, backlog(t, s, g).Ready)
		}
	})
}

// What comes to a group is judged by the filter that meets it first. What that passes is
// passed for the group; what it took and did not settle waits for a filter that wants it.
func TestTwoFiltersInOneGroup(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, with("a1", "k", "a"), with("b1", "k", "b"), with("a2", "k", "a"), with("b2", "k", "b"))
		a, b := sql(t, "k = 'a'"), sql(t, "k = 'b'")
		either := sql(t, "k IN ('a', 'b')")
		require.Equal(t, []string{"a1", "a2"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: a, Invisible: 10 * time.Second})))
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: b}), "passed by the other")

		send(t, s, topic, 0, with("a3", "k", "a"), with("b3", "k", "b"))
		require.Equal(t, []string{"a3", "b3"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: either, Invisible: 10 * time.Second})))
		time.Sleep(11 * time.Second)
		d := receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: b})
		require.Equal(t, []string{"b3"}, ids(d))
		require.EqualValues(t, 2, d[0].Lease.Attempt)
		require.NoError(t, ack(t, s, d[0].Lease))
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: b}))
		asked := b.asked.Load()
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: b, Wait: time.Minute}))
		require.Equal(t, asked, b.asked.Load(), "what was judged is not judged again")
		require.EqualValues(t, 3, backlog(t, s, group).Ready, "they wait for who wants them")
		require.Equal(t, []string{"a1", "a2", "a3"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: a})))
	})
}

func TestARedeliveryWakesTheReceiveWhoseFilterWantsIt(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		send(t, s, topic, 0, with("a", "k", "a"), with("b", "k", "b"))
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: 10 * time.Second}), 2)
		start := time.Now()
		got := make(chan []mq.Delivery, 2)
		for _, f := range []mq.Filter{sql(t, "k = 'b'"), sql(t, "k = 'c'")} {
			go func() {
				got <- receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Invisible: time.Hour, Wait: time.Minute})
			}()
		}
		require.Equal(t, []string{"b"}, ids(<-got))
		require.Less(t, time.Since(start), 10*time.Second+100*time.Millisecond)
		require.Empty(t, <-got)
		require.EqualValues(t, 1, backlog(t, s, group).Ready)
	})
}

func TestTheLastAttemptOfAFilteredGroupIsDeadLettered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(2)
		other := groupOf(2)
		other.ID = 2
		send(t, s, topic, 0, with("a", "k", "a"))
		require.Empty(t, receive(t, s, mq.Receive{Topic: deadLetterTopic(group), Group: other}))
		f := sql(t, "k = 'a'")
		for range 2 {
			require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Invisible: time.Second, Wait: time.Minute}), 1)
		}
		require.Len(t, receive(t, s, mq.Receive{Topic: deadLetterTopic(group), Group: other, Wait: time.Minute}), 1)
	})
}

func TestAHundredReceivesShareOneLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(9)
		f := sql(t, "k = 'a'")
		var done sync.WaitGroup
		var got, empty atomic.Int64
		for range 100 {
			done.Go(func() {
				d, err := s.Receive(context.Background(), mq.Receive{
					Topic: topic, Group: group, Filter: f, Max: 1, Invisible: time.Hour, Wait: time.Minute,
				})
				if err != nil || len(d) == 0 {
					empty.Add(1)
				}
				got.Add(int64(len(d)))
			})
		}
		synctest.Wait()
		time.Sleep(time.Second)
		before := s.Stats()
		for i := range 5000 { // over ten seconds
			send(t, s, topic, mq.QueueID(i%2), with(fmt.Sprint(i), "k", "b"))
			time.Sleep(2 * time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 5000, f.asked.Load(), "each message is judged once")
		after := s.Stats()
		require.LessOrEqual(t, after.Records-before.Records-5000, uint64(12), "the group moves on once in a second")
		require.LessOrEqual(t, after.Woken-before.Woken, uint64(5000))
		start := time.Now()
		for i := range 50 {
			send(t, s, topic, 0, with(fmt.Sprint("a", i), "k", "a"))
		}
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		require.EqualValues(t, 50, got.Load(), "as many as there are were woken")
		require.Less(t, time.Since(start), 200*time.Millisecond)
		time.Sleep(2 * time.Second)
		require.Zero(t, backlog(t, s, group).Ready, "while receives wait")
		done.Wait()
		require.EqualValues(t, 50, empty.Load())
	})
}

func TestASparseFilterComesThroughALongBacklog(t *testing.T) {
	n := 100_000
	if testing.Short() {
		n = 20_000
	}
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(4), groupOf(9)
		for q := range mq.QueueID(4) {
			sendNumbers(t, s, topic, q, n/4)
		}
		f := sql(t, fmt.Sprintf("n = %d", n/4-1))
		before := s.Stats().Records
		var got []string
		for range 4 {
			got = append(got, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Wait: time.Second}))...)
		}
		require.Len(t, got, 4)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f}))
		require.EqualValues(t, n, f.asked.Load())
		require.Zero(t, backlog(t, s, group).Ready)
		require.Less(t, s.Stats().Records-before, uint64(40), "the group moves on in large steps")
	})
}

func TestAGroupIsCarriedPastWhatItsFilterDoesNotWant(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewMem()
		s := open(t, fs, mode)
		topic, group := topicOf(2), groupOf(9)
		sendNumbers(t, s, topic, 1, 3000)
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: sql(t, "n < 0")}))
		require.Zero(t, backlog(t, s, group).Ready)
		// While a receive waits, too.
		done := make(chan []mq.Delivery)
		go func() {
			done <- receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: sql(t, "n < 0"), Wait: time.Minute})
		}()
		synctest.Wait()
		sendNumbers(t, s, topic, 0, 3000)
		time.Sleep(2 * time.Second)
		require.Zero(t, backlog(t, s, group).Ready)
		require.Empty(t, <-done)
		require.NoError(t, s.Close())
		// And does not begin again.
		s = open(t, fs, mode)
		defer func() { require.NoError(t, s.Close()) }()
		f := sql(t, "n >= 0")
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f}))
		require.Zero(t, f.asked.Load())
	})
}

func TestAFilterKeepsTheInFlightLimit(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendNumbers(t, s, topic, 0, 1000)
		f := sql(t, "n >= 100")
		r := mq.Receive{Topic: topic, Group: group, Filter: f, InFlight: 10, Max: 7, Invisible: time.Hour}
		first := receive(t, s, r)
		require.Len(t, first, 7)
		second := receive(t, s, r)
		require.Len(t, second, 3)
		_, err := s.Receive(t.Context(), r)
		require.ErrorIs(t, err, mq.ErrTooManyInFlight)
		require.EqualValues(t, 890, backlog(t, s, group).Ready)
		got := make(chan []mq.Delivery)
		r.Wait = 900 * time.Millisecond
		go func() { got <- receive(t, s, r) }()
		synctest.Wait()
		require.NoError(t, ack(t, s, second[0].Lease))
		require.Equal(t, []string{"0-110"}, ids(<-got))
	})
}

func TestWhatLeavesWhileItIsJudgedDoesNotStopAFilter(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(9)
		f := sql(t, "n < 100")
		sendNumbers(t, s, topic, 0, 1000)
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Max: 10, Invisible: time.Second}), 10)
		require.NoError(t, s.PurgeTopic(t.Context(), topic.ID)) // 90 more were judged to be wanted
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Wait: 10 * time.Second}))
		sendNumbers(t, s, topic, 0, 50)
		require.Len(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f, Max: 100}), 50)

		got := make(chan error)
		go func() {
			_, err := s.Receive(context.Background(), mq.Receive{Topic: topic, Group: group, Filter: f, Max: 1, Invisible: time.Hour, Wait: time.Hour})
			got <- err
		}()
		synctest.Wait()
		require.NoError(t, s.DeleteTopic(t.Context(), topic.ID))
		require.ErrorIs(t, <-got, mq.ErrTopicNotFound)
	})
}

func TestAFilterStartsWhereTheGroupStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(2), groupOf(9)
		group.Start.Policy = mq.StartLatest
		sendNumbers(t, s, topic, 0, 10)
		f := sql(t, "n >= 0")
		require.Empty(t, receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f}))
		send(t, s, topic, 0, with("new", "n", "1"))
		require.Equal(t, []string{"new"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f})))
		require.EqualValues(t, 1, f.asked.Load())
	})
}

func TestReceivesWithTagsAndAFilterAreRefused(t *testing.T) {
	s := open(t, vfs.NewMem(), shard.FlushSync)
	defer func() { require.NoError(t, s.Close()) }()
	_, err := s.Receive(t.Context(), mq.Receive{
		Topic: topicOf(1), Group: groupOf(1), Max: 1, Invisible: time.Second, Tags: []string{"a"}, Filter: sql(t, "a = 1"),
	})
	require.ErrorIs(t, err, mq.ErrInvalid)
}

// Consumers of two groups with filters, some of which leave or give back, a power cut in
// between: every message comes to each group whose filter wants it, and no other does.
func TestFilteredMessagesSurviveCrashes(t *testing.T) {
	rounds := 6
	if testing.Short() {
		rounds = 2
	}
	for seed := range uint64(rounds) {
		modes(t, func(t *testing.T, mode shard.FlushMode) {
			rng := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewCrashableMem()
			s := open(t, fs, mode)
			topic := topicOf(3)
			first, second := groupOf(100), groupOf(100)
			second.ID = 2
			filters := map[*mq.Group]mq.Filter{first: sql(t, "n < 40 OR n > 160"), second: sql(t, "NOT n BETWEEN 20 AND 180")}
			settled := map[*mq.Group]map[string]bool{first: {}, second: {}}
			take := func(wait time.Duration, settle bool) (n int) {
				for g, f := range filters {
					d := receive(t, s, mq.Receive{Topic: topic, Group: g, Filter: f, Max: 1 + rng.IntN(32), Invisible: 10 * time.Second, Wait: wait})
					n += len(d)
					for _, m := range d {
						if settle || rng.IntN(2) == 0 {
							require.NoError(t, ack(t, s, m.Lease))
							settled[g][m.ID] = true
						}
					}
				}
				return n
			}
			for q := range mq.QueueID(3) {
				sendNumbers(t, s, topic, q, 200)
			}
			time.Sleep(time.Second) // async mode has flushed
			for range 4 {
				for range rng.IntN(8) {
					take(0, false)
				}
				crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
				require.NoError(t, s.Close())
				fs = crashed
				s = open(t, fs, mode)
			}
			for empty := 0; empty < 3; {
				if time.Sleep(11 * time.Second); take(time.Second, true) == 0 {
					empty++
				} else {
					empty = 0
				}
			}
			for q := range 3 {
				for n := range 200 {
					id := fmt.Sprint(q, "-", n)
					require.Equal(t, n < 40 || n > 160, settled[first][id], id)
					require.Equal(t, n < 20 || n > 180, settled[second][id], id)
				}
			}
			require.Zero(t, backlog(t, s, first).Ready)
			require.NoError(t, s.Close())
		})
	}
}

func TestAReceiveDoesNotLookThroughEverythingToFillItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, vfs.NewMem(), shard.FlushSync)
		defer func() { require.NoError(t, s.Close()) }()
		topic, group := topicOf(1), groupOf(9)
		sendNumbers(t, s, topic, 0, 60_000)
		f := sql(t, "n IN ('5', '59999')")
		require.Equal(t, []string{"0-5"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f})))
		require.Less(t, f.asked.Load(), int64(20_000))
		require.Equal(t, []string{"0-59999"}, ids(receive(t, s, mq.Receive{Topic: topic, Group: group, Filter: f})))
		require.EqualValues(t, 60_000, f.asked.Load())
	})
}

// What a group has passed it has passed: after a restart nobody looks at it again, in a group
// that is FIFO neither.
func TestAGroupThatWantedNothingOfABacklogIsPastItAfterARestart(t *testing.T) {
	for _, fifo := range []bool{false, true} {
		modes(t, func(t *testing.T, mode shard.FlushMode) {
			const n = 20_000
			fs := vfs.NewMem()
			s := open(t, fs, mode)
			topic := topicOf(2)
			topic.Type = mq.TopicFIFO
			for i := 0; i < n; {
				var msgs []*mq.Message
				for range 500 {
					m := with(fmt.Sprint(i), "n", fmt.Sprint(i))
					m.Tag, m.Group, m.Type = "B", fmt.Sprint(i%7), mq.FIFO
					msgs = append(msgs, m)
					i++
				}
				send(t, s, topic, mq.QueueID(i/500%2), msgs...)
			}
			groups := map[string]*mq.Group{"tags": groupOf(9), "sql": groupOf(9)}
			groups["sql"].ID = 2
			for _, g := range groups {
				g.FIFO = fifo
			}
			wanted := func(name string, wait time.Duration) (mq.Receive, *countingFilter) {
				r := mq.Receive{Topic: topic, Group: groups[name], Wait: wait}
				if name == "tags" {
					r.Tags = []string{"A"}
					return r, nil
				}
				f := sql(t, "n < 0")
				r.Filter = f
				return r, f
			}
			for name := range groups {
				r, _ := wanted(name, 5*time.Second)
				require.Empty(t, receive(t, s, r))
				require.Equal(t, mq.Backlog{Topic: topic.ID}, backlog(t, s, groups[name]), name)
			}
			require.NoError(t, s.Close())

			s = open(t, fs, mode)
			defer func() { require.NoError(t, s.Close()) }()
			for name := range groups {
				records := s.Stats().Records
				r, f := wanted(name, 0)
				start := time.Now()
				require.Empty(t, receive(t, s, r))
				require.Zero(t, time.Since(start))
				require.Equal(t, records, s.Stats().Records, "there is nothing to pass")
				if f != nil {
					require.Zero(t, f.asked.Load(), "none is judged again")
				}
			}
			got := make(chan []mq.Delivery)
			for name := range groups {
				go func() {
					r, _ := wanted(name, time.Minute)
					got <- receive(t, s, r)
				}()
			}
			time.Sleep(time.Second)
			m := with("wanted", "n", "-1")
			m.Tag, m.Group, m.Type = "A", "0", mq.FIFO
			start := time.Now()
			send(t, s, topic, 0, m)
			for range groups {
				require.Equal(t, []string{"wanted"}, ids(<-got))
				require.Less(t, time.Since(start), time.Second)
			}
		})
	}
}
