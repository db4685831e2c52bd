package machine_test

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// modelSent is a message that the model remembers.
type modelSent struct {
	topic   mq.TopicID
	id      string
	content uint64
	// last is the end of the minute in which it is forgotten.
	last  int64
	index uint64 // of the record
	sent  keyspace.Sent
}

// recall returns what became of a message that was sent before, inside the window: of
// several times the first.
func (m *model) recall(topic mq.TopicID, msg *mq.Message, now, window int64) (keyspace.Sent, bool) {
	for _, s := range m.sent {
		if s.topic == topic && s.id == msg.ID && s.content == msg.Content && now-s.sent.StoreTime < window {
			return s.sent, true
		}
	}
	return keyspace.Sent{}, false
}

// remember adds to what is known.
func (m *model) remember(s modelSent, window int64) {
	every := max(time.Duration(window)/6, time.Minute).Truncate(time.Minute)
	end := time.Duration(s.sent.StoreTime + window)
	s.last = int64((end.Truncate(time.Minute) + every - 1) / every * every)
	m.sent = append(m.sent, s)
}

// forget forgets what nobody may ask for any more.
func (m *model) forget(now int64) {
	m.sent = slices.DeleteFunc(m.sent, func(s modelSent) bool {
		return time.Duration(s.last) < time.Duration(now).Truncate(time.Minute)
	})
}

// send returns what each message comes to; nil when the queue does not exist.
func (m *model) send(c *command.Send, index uint64) []keyspace.Sent {
	if int(c.Queue) >= len(m.topics[c.Topic]) {
		return nil
	}
	m.forget(c.Time)
	var all []keyspace.Sent
	for i, msg := range c.Messages {
		if sent, found := m.recall(c.Topic, msg, c.Time, c.Window); found {
			all = append(all, sent)
			continue
		}
		sent := keyspace.Sent{StoreTime: c.Time, Queue: c.Queue}
		if msg.Type == mq.Transaction || msg.Type == mq.Delay && !msg.DeliverAt.IsZero() {
			sent.Pending = mq.PendingID(index<<10 + uint64(i))
		} else {
			sent.Offset = m.append(c.Topic, c.Queue, c.Time, msg)
		}
		if c.Window > 0 {
			m.remember(modelSent{topic: c.Topic, id: msg.ID, content: msg.Content, index: index, sent: sent}, c.Window)
		}
		all = append(all, sent)
	}
	return all
}

// sendKnown sends messages of which some were sent before: with the same content or
// another, to the same queue or topic or another, in one batch or in two, with the same
// window or another.
func (h *history) sendKnown(*rapid.T) {
	c := &command.Send{
		Time: h.tick(), Topic: h.drawTopic(), Queue: mq.QueueID(rapid.IntRange(0, 3).Draw(h.t, "queue")),
		Window: int64(rapid.SampledFrom([]time.Duration{
			5 * time.Minute, 5 * time.Minute, time.Hour, 30 * time.Second, time.Minute, 2*time.Minute + 1, 1, 0,
		}).Draw(h.t, "window")),
	}
	for range rapid.IntRange(1, 5).Draw(h.t, "messages") {
		msg := &mq.Message{
			ID: fmt.Sprint("again-", rapid.IntRange(0, 3).Draw(h.t, "id")), Content: rapid.SampledFrom([]uint64{1, 1, 2}).Draw(h.t, "content"),
			Type: rapid.SampledFrom([]mq.MessageType{mq.Normal, mq.Normal, mq.Delay, mq.Transaction}).Draw(h.t, "type"),
		}
		if msg.Type == mq.Delay {
			msg.DeliverAt = time.Unix(0, h.now+rapid.SampledFrom([]int64{-1, 0, 1, int64(time.Hour)}).Draw(h.t, "delay"))
		}
		c.Messages = append(c.Messages, msg)
	}
	res := h.apply(command.KindSend, c)
	want := h.model.send(c, uint64(len(h.log)))
	if want == nil {
		require.Error(h.t, res.Err)
		return
	}
	require.NoError(h.t, res.Err)
	require.Len(h.t, res.Stored, len(want))
	for i, stored := range res.Stored {
		require.Equal(h.t, want[i], stored.Sent, "message %d", i)
		require.Equal(h.t, want[i].StoreTime < c.Time || i > 0 && slices.Contains(want[:i], want[i]), stored.Repeated, "message %d", i)
	}
}

// sleep lets minutes pass, so that messages are forgotten.
func (h *history) sleep(*rapid.T) {
	h.now += int64(rapid.SampledFrom([]time.Duration{
		10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5*time.Minute - 1, 20 * time.Minute, 2 * time.Hour,
	}).Draw(h.t, "sleep"))
}

// forget forgets before its time some of what is known, or all of it.
func (h *history) forget(*rapid.T) {
	c := &command.Forget{Time: h.tick()}
	bytes, first := h.m.KnownBytes()
	require.Equal(h.t, first > 0, bytes > 0)
	c.Minute = first + uint32(rapid.SampledFrom([]int{0, 1, 3, 1000}).Draw(h.t, "minutes"))
	before := len(h.model.sent)
	res := h.apply(command.KindForget, c)
	h.model.sent = slices.DeleteFunc(h.model.sent, func(s modelSent) bool { return s.last < int64(c.Minute)*int64(time.Minute) })
	require.GreaterOrEqual(h.t, res.Forgotten, before-len(h.model.sent), "tables keep what deleted topics were sent")
	if after, next := h.m.KnownBytes(); first > 0 && c.Minute > first {
		require.Less(h.t, after, bytes)
		require.True(h.t, next == 0 || next >= c.Minute)
	}
}

// checkKnown compares what the views remember.
func (h *history) checkKnown() {
	got, want := []string{}, []string{}
	lower, upper := keyspace.RepeatKeys()
	for key, val := range h.keys(lower, upper) {
		r, err := keyspace.DecodeRepeatKey(key)
		require.NoError(h.t, err)
		sent, err := keyspace.DecodeSentMessages(val)
		require.NoError(h.t, err)
		for i := range sent.Len() {
			m := sent.At(i)
			of, found := sent.Find(m.ID, m.Content, r.Index)
			require.True(h.t, found)
			got = append(got, fmt.Sprint(int64(r.Minute)*int64(time.Minute), r.Topic, r.Index, m.Content, of))
		}
	}
	slices.SortStableFunc(h.model.sent, func(a, b modelSent) int {
		return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.topic, b.topic), cmp.Compare(a.index, b.index))
	})
	for _, s := range h.model.sent {
		want = append(want, fmt.Sprint(s.last, s.topic, s.index, s.content, s.sent))
	}
	require.Equal(h.t, want, got)
	slices.SortStableFunc(h.model.sent, func(a, b modelSent) int { return cmp.Compare(a.index, b.index) })
}

// keys yields the keys and values from lower to before upper.
func (h *history) keys(lower, upper []byte) func(yield func(key, val []byte) bool) {
	return func(yield func(key, val []byte) bool) {
		it, err := h.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
		require.NoError(h.t, err)
		defer func() { require.NoError(h.t, it.Close()) }()
		for ok := it.First(); ok; ok = it.Next() {
			if !yield(it.Key(), it.Value()) {
				return
			}
		}
	}
}
