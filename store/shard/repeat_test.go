package shard_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

func knowing(queues int32) *mq.Topic {
	t := topicOf(queues)
	t.Dedup = mq.DefaultDedup
	return t
}

// An SDK that got no answer sends the message again: after a crash too it is stored
// once, whether or not the first send had come through, and answered as the first time.
func TestMessageSentAgainAfterACrashIsStoredOnce(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		fs := vfs.NewCrashableMem()
		rng := rand.New(rand.NewPCG(1, uint64(mode)))
		topic, group := knowing(3), groupOf(16)
		s := open(t, fs, mode)
		first := map[string]mq.Appended{}
		var batches [][]string
		put := func(names []string) []mq.Appended {
			var msgs []*mq.Message
			for _, id := range names {
				msgs = append(msgs, message(id, ""))
			}
			a, err := s.Append(t.Context(), topic, mq.QueueID(rng.IntN(3)), msgs)
			require.NoError(t, err)
			return a
		}
		for life := range 20 {
			for i := range 5 {
				var names []string
				for j := range 1 + rng.IntN(4) {
					names = append(names, fmt.Sprint(life, "-", i, "-", j))
				}
				batches = append(batches, names)
				for j, a := range put(names) {
					require.False(t, a.Repeated)
					first[names[j]] = a
				}
			}
			time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
			lost := mode == shard.FlushAsync && rng.IntN(2) == 0
			if lost { // power, with what was not flushed
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(100), RNG: rng})
				_ = s.Close() // of the world that ended
			} else {
				require.NoError(t, s.Close())
			}
			s = open(t, fs, mode)
			for _, names := range batches {
				again := put(names)
				for j, a := range again {
					if !lost {
						require.True(t, a.Repeated, names[j])
					}
					if a.Repeated {
						was := first[names[j]]
						was.Repeated = true
						require.Equal(t, was, a, names[j])
					}
					a.Repeated = false
					first[names[j]] = a
				}
			}
		}
		got := map[string]int{}
		for range len(first) {
			for _, d := range receive(t, s, mq.Receive{Topic: topic, Group: group, Invisible: time.Hour}) {
				got[d.ID]++
			}
		}
		require.Len(t, got, len(first))
		for id, n := range got {
			require.Equal(t, 1, n, id)
		}
		require.NoError(t, s.Close())
	})
}

func TestWhatAnSDKMakesAnewForEachTryDoesNotTellMessagesApart(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		topic := knowing(1)
		full := func() *mq.Message {
			return &mq.Message{
				ID: "id", Tag: "tag", Type: mq.Delay, Group: "group", Properties: []byte("properties"), Body: []byte("body"),
				System: []byte("born at one time"), DeliverAt: time.Unix(1, 0),
			}
		}
		put := func(change func(*mq.Message)) bool {
			m := full()
			change(m)
			a, err := s.Append(t.Context(), topic, 0, []*mq.Message{m})
			require.NoError(t, err)
			return a[0].Repeated
		}
		require.False(t, put(func(*mq.Message) {}))
		require.True(t, put(func(m *mq.Message) { m.System = []byte("born at another, in another trace") }))
		for name, change := range map[string]func(*mq.Message){
			"id": func(m *mq.Message) { m.ID = "other" }, "tag": func(m *mq.Message) { m.Tag = "" },
			"type": func(m *mq.Message) { m.Type = mq.Normal }, "group": func(m *mq.Message) { m.Group = "other" },
			"properties": func(m *mq.Message) { m.Properties = nil }, "body": func(m *mq.Message) { m.Body = nil },
			"time":             func(m *mq.Message) { m.DeliverAt = time.Unix(2, 0) },
			"where parts end":  func(m *mq.Message) { m.ID, m.Tag = "idt", "ag" },
			"properties, body": func(m *mq.Message) { m.Properties, m.Body = []byte("propertiesb"), []byte("ody") },
		} {
			require.False(t, put(change), name)
			require.True(t, put(change), name)
		}
		require.EqualValues(t, 10, s.Stats().Appended)
		require.EqualValues(t, 10, s.Stats().Repeated)
	})
}
