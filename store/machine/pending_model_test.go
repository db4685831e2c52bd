package machine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// waiting is what the model knows of one pending message.
type waiting struct {
	keyspace.Pending
	name string
}

// pendingHistory drives a machine with pending messages and a plain model of them.
type pendingHistory struct {
	history
	pending map[mq.PendingID]*waiting
	seen    []mq.PendingID // every id ever given
	names   map[mq.PendingID]string
	topics  map[mq.TopicID]bool
	next    mq.TopicID
	queues  map[keyspace.Queue][]uint64 // log positions of the messages
}

func (h *pendingHistory) record() (pos, index uint64) {
	if n := len(h.log); n > 0 {
		pos = h.log[n-1].Next
	}
	return pos, uint64(len(h.log)) + 1
}

func (h *pendingHistory) someTopic() mq.TopicID {
	var ids []mq.TopicID
	for id := range h.topics {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return rapid.SampledFrom(ids).Draw(h.t, "topic")
}

func (h *pendingHistory) send() {
	c := &command.Send{Time: h.tick(), Topic: h.someTopic(), Queue: mq.QueueID(rapid.IntRange(0, 1).Draw(h.t, "queue"))}
	for range rapid.IntRange(1, 4).Draw(h.t, "messages") {
		h.history.seen++
		m := &mq.Message{ID: fmt.Sprint("m", h.history.seen), Type: mq.Normal, Body: []byte("body")}
		switch rapid.IntRange(0, 3).Draw(h.t, "type") {
		case 0, 1: // few times, so that many messages have the same
			m.Type, m.DeliverAt = mq.Delay, time.Unix(0, h.now).Truncate(time.Second).Add(time.Duration(rapid.IntRange(1, 4).Draw(h.t, "delay"))*40*time.Second)
		case 2:
			m.Type, m.Recovery = mq.Transaction, time.Minute
		}
		c.Messages = append(c.Messages, m)
	}
	pos, index := h.record()
	res := h.apply(command.KindSend, c)
	require.NoError(h.t, res.Err)
	v, err := command.ViewSend(h.log[len(h.log)-1].Payload)
	require.NoError(h.t, err)
	for i, m := range c.Messages {
		sent := v.Next()
		at := pos + uint64(sent.Start)
		queue := keyspace.Queue{Topic: c.Topic, Queue: c.Queue}
		if m.Type == mq.Normal {
			require.Zero(h.t, res.Stored[i].Pending)
			require.Equal(h.t, mq.QueueOffset(len(h.queues[queue])), res.Stored[i].Offset)
			h.queues[queue] = append(h.queues[queue], at)
			continue
		}
		id := mq.PendingID(index<<10 | uint64(i))
		require.Equal(h.t, id, res.Stored[i].Pending)
		w := &waiting{name: m.ID, Pending: keyspace.Pending{
			State: keyspace.Timed, Topic: c.Topic, Queue: c.Queue, Pos: at, Size: uint32(sent.Size), StoreTime: c.Time, ID: hash(m.ID),
		}}
		if m.Type == mq.Delay {
			w.At = m.DeliverAt.UnixNano()
		} else {
			w.State, w.At, w.Recovery = keyspace.Half, c.Time+int64(time.Minute), int64(time.Minute)
		}
		h.pending[id] = w
		h.seen, h.names[id] = append(h.seen, id), m.ID
	}
}

func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range []byte(s) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// some returns ids that are pending, were, or never existed; one may come twice.
func (h *pendingHistory) some(what string) []mq.PendingID {
	ids := []mq.PendingID{1}
	if len(h.seen) > 0 {
		ids = append(ids, rapid.SliceOfN(rapid.SampledFrom(h.seen), 1, 5).Draw(h.t, what)...)
	}
	return ids
}

// carry returns what a fire or move says of the messages; of one that never existed
// something that is made up.
func (h *pendingHistory) carry(ids []mq.PendingID) []command.PendingMessage {
	list := make([]command.PendingMessage, len(ids))
	for i, id := range ids {
		list[i] = command.PendingMessage{ID: id, Topic: 1, Message: &mq.Message{ID: h.names[id], Type: mq.Delay, Body: []byte("again")}}
		if w := h.pending[id]; w != nil {
			list[i].Topic, list[i].Queue = w.Topic, w.Queue
		}
	}
	return list
}

func (h *pendingHistory) fire() {
	ids := h.some("fire")
	if rapid.Bool().Draw(h.t, "what is due") {
		require.NoError(h.t, h.m.Commit())
		marks, err := h.m.DuePending(keyspace.Timed, machine.PendingMark{}, h.now, 3)
		require.NoError(h.t, err)
		for _, mark := range marks {
			ids = append(ids, mark.ID)
		}
	}
	until := h.now
	c := &command.Fire{Time: h.tick(), Until: until, Messages: h.carry(ids)}
	pos, _ := h.record()
	res := h.apply(command.KindFire, c)
	v, err := command.ViewFire(h.log[len(h.log)-1].Payload)
	require.NoError(h.t, err)
	for i, id := range ids {
		m := v.Next()
		w := h.pending[id]
		if w == nil || w.State != keyspace.Timed || w.At > until {
			require.ErrorIs(h.t, res.Settled[i], mq.ErrNotPending)
			continue
		}
		delete(h.pending, id)
		if !h.topics[w.Topic] {
			require.ErrorIs(h.t, res.Settled[i], mq.ErrTopicNotFound)
			continue
		}
		require.NoError(h.t, res.Settled[i])
		queue := keyspace.Queue{Topic: w.Topic, Queue: w.Queue}
		h.queues[queue] = append(h.queues[queue], pos+uint64(m.Start))
	}
}

func (h *pendingHistory) move() {
	ids := h.some("move")
	pos, _ := h.record()
	res := h.apply(command.KindPendingMove, &command.Move{Time: h.tick(), Messages: h.carry(ids)})
	v, err := command.ViewMove(h.log[len(h.log)-1].Payload)
	require.NoError(h.t, err)
	for i, id := range ids {
		m := v.Next()
		if w := h.pending[id]; w == nil || !w.State.Holds() {
			require.ErrorIs(h.t, res.Settled[i], mq.ErrNotPending)
		} else {
			require.NoError(h.t, res.Settled[i])
			w.Pos, w.Size = pos+uint64(m.Start), uint32(m.Size)
		}
	}
}

func (h *pendingHistory) change() {
	c := &command.PendingChange{Op: command.PendingOp(rapid.IntRange(1, 3).Draw(h.t, "op")), Topic: 1, At: h.now + rapid.Int64Range(-3e9, 60e9).Draw(h.t, "at")}
	ids := h.some("change")
	if w := h.pending[ids[len(ids)-1]]; w != nil {
		c.Topic = w.Topic
	}
	if c.Op == command.DropPending {
		c.State = rapid.SampledFrom([]uint8{0, uint8(keyspace.Timed), uint8(keyspace.Recalled)}).Draw(h.t, "state")
	}
	wrong := rapid.IntRange(0, 3).Draw(h.t, "which hash is wrong") // often none
	for i, id := range ids {
		ref := command.PendingRef{ID: id}
		if rapid.Bool().Draw(h.t, "with a hash") {
			if ref.Hash = hash(h.names[id]); i == wrong {
				ref.Hash++
			}
		}
		c.Refs = append(c.Refs, ref)
	}
	c.Time = h.tick()
	res := h.apply(command.KindPendingChange, c)
	for i, ref := range c.Refs {
		got := res.Settled[i]
		w := h.pending[ref.ID]
		switch {
		case w == nil:
			require.ErrorIs(h.t, got, mq.ErrNotPending)
		case w.Topic != c.Topic || ref.Hash != 0 && ref.Hash != w.ID:
			require.ErrorIs(h.t, got, mq.ErrInvalidHandle)
		case c.Op == command.DropPending && (c.State == 0 || c.State == uint8(w.State)):
			require.NoError(h.t, got)
			delete(h.pending, ref.ID)
		case c.Op == command.RecallPending && w.State == keyspace.Recalled:
			require.NoError(h.t, got, "asked again")
		case c.Op != command.DropPending && w.State == keyspace.Timed:
			require.NoError(h.t, got)
			if c.Op == command.RecallPending {
				w.State, w.At = keyspace.Recalled, max(w.At, c.At)
			} else {
				w.At = c.At
			}
		default:
			require.ErrorIs(h.t, got, mq.ErrNotPending)
		}
	}
}

func (h *pendingHistory) deleteTopic() {
	id := h.someTopic()
	h.apply(command.KindTopicDelete, &command.TopicDelete{Time: h.tick(), ID: id})
	delete(h.topics, id)
	for q := range h.queues {
		if q.Topic == id {
			delete(h.queues, q)
		}
	}
	h.newTopic()
}

func (h *pendingHistory) newTopic() {
	h.next++
	h.apply(command.KindTopic, &command.Topic{Time: h.tick(), ID: h.next, Name: mq.Resource{Name: fmt.Sprint("t", h.next)}, Queues: 2, Version: 1})
	h.topics[h.next] = true
}

// check compares everything that the machine tells of pending messages, and every key
// about them, with the model.
func (h *pendingHistory) check() {
	require.NoError(h.t, h.m.Commit())
	for state := keyspace.Timed; state < keyspace.PendingStates; state++ {
		var want []machine.PendingMark
		of := map[mq.TopicID]int64{}
		for id, w := range h.pending {
			if w.State == state {
				want = append(want, machine.PendingMark{At: w.At, ID: id})
				of[w.Topic]++
			}
		}
		slices.SortFunc(want, func(a, b machine.PendingMark) int {
			if a.At == b.At {
				return int(a.ID) - int(b.ID)
			}
			return int(a.At - b.At)
		})
		require.Equal(h.t, int64(len(want)), h.m.PendingIn(state))
		for id := mq.TopicID(1); id <= h.next; id++ {
			require.Equal(h.t, of[id], h.m.PendingOf(id, state))
		}
		due, _, _ := slicesCut(want, h.now)
		isDue, next, err := h.m.PendingDue(state, h.now)
		require.NoError(h.t, err)
		require.Equal(h.t, len(due) > 0, isDue, "%s due at %d", state, h.now)
		if len(want) > 0 {
			require.LessOrEqual(h.t, next, want[0].At, "nobody waits beyond what is due first")
		}
		got, err := h.m.DuePending(state, machine.PendingMark{}, h.now, 2)
		require.NoError(h.t, err)
		for len(got) > 0 && len(got) < len(due) {
			more, err := h.m.DuePending(state, got[len(got)-1].Next(), h.now, 2)
			require.NoError(h.t, err)
			require.NotEmpty(h.t, more)
			got = append(got, more...)
		}
		require.Equal(h.t, due, got, "%s due at %d", state, h.now)
	}
	h.checkHalves()
	h.checkViews()
}

// slicesCut returns the marks that are due.
func slicesCut(marks []machine.PendingMark, now int64) (due, rest []machine.PendingMark, n int) {
	for n < len(marks) && marks[n].At <= now {
		n++
	}
	if n == 0 {
		return nil, marks, 0
	}
	return marks[:n], marks[n:], n
}

func (h *pendingHistory) checkViews() {
	v, err := machine.OpenView(h.db)
	require.NoError(h.t, err)
	held := uint64(0)
	last := uint64(0)
	require.NoError(h.t, v.Held(1<<62, func(m machine.HeldMessage) (bool, error) {
		held++
		require.Greater(h.t, m.Pos, last, "in the order of the log")
		last = m.Pos
		require.Equal(h.t, h.pending[m.ID].Pending, m.Pending)
		return true, nil
	}))
	holding := uint64(0)
	for id, w := range h.pending {
		p, found, err := v.Pending(id)
		require.NoError(h.t, err)
		require.True(h.t, found)
		require.Equal(h.t, w.Pending, p)
		if w.State.Holds() {
			holding++
		}
		marks, err := v.PendingOf(w.Topic, w.State, machine.PendingMark{At: w.At, ID: id}, 1)
		require.NoError(h.t, err)
		require.Equal(h.t, []machine.PendingMark{{At: w.At, ID: id}}, marks)
	}
	require.Equal(h.t, holding, held)
	for queue, want := range h.queues {
		ends, err := v.Queues(queue.Topic)
		require.NoError(h.t, err)
		require.Equal(h.t, mq.QueueOffset(len(want)), ends[queue.Queue].Next)
		for i, pos := range want {
			e, err := v.Entry(queue, mq.QueueOffset(i))
			require.NoError(h.t, err)
			require.Equal(h.t, pos, e.Pos)
		}
	}
	require.NoError(h.t, v.Close())
	keys := map[keyspace.Kind]int{}
	it, err := h.db.NewIter(nil)
	require.NoError(h.t, err)
	for ok := it.First(); ok; ok = it.Next() {
		keys[keyspace.KindOf(it.Key())]++
	}
	require.NoError(h.t, errors.Join(it.Error(), it.Close()))
	n, ending := len(h.pending), 0
	for _, w := range h.pending {
		if w.State != keyspace.GivenUp { // that waits for somebody, not for a time
			ending++
		}
	}
	require.Equal(h.t, []int{n, ending, n, int(held)}, []int{
		keys[keyspace.KindPending], keys[keyspace.KindPendingAt], keys[keyspace.KindPendingOf], keys[keyspace.KindHeld],
	}, "no key is left behind")
	orphan, orphaned := h.m.OrphanedPending()
	want := mq.TopicID(0)
	for _, w := range h.pending {
		if !h.topics[w.Topic] && (want == 0 || w.Topic < want) {
			want = w.Topic
		}
	}
	require.Equal(h.t, want > 0, orphaned)
	require.Equal(h.t, want, orphan)
}

func TestPendingMessagesFollowThePlainModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &pendingHistory{
			history: history{t: t, fs: vfs.NewCrashableMem(), now: 1_700_000_000 * int64(time.Second)},
			pending: map[mq.PendingID]*waiting{}, names: map[mq.PendingID]string{},
			topics: map[mq.TopicID]bool{}, queues: map[keyspace.Queue][]uint64{},
		}
		h.open()
		defer func() { h.close() }()
		h.newTopic()
		h.newTopic()
		t.Repeat(map[string]func(*rapid.T){
			"send":    func(*rapid.T) { h.send() },
			"send 2":  func(*rapid.T) { h.send() },
			"fire":    func(*rapid.T) { h.fire() },
			"fire 2":  func(*rapid.T) { h.fire() },
			"move":    func(*rapid.T) { h.move() },
			"end":     func(*rapid.T) { h.end() },
			"end 2":   func(*rapid.T) { h.end() },
			"ask":     func(*rapid.T) { h.ask() },
			"ask 2":   func(*rapid.T) { h.ask() },
			"change":  func(*rapid.T) { h.change() },
			"delete":  func(*rapid.T) { h.deleteTopic() },
			"wait":    func(t *rapid.T) { h.now += rapid.Int64Range(0, 100e9).Draw(t, "wait") },
			"commit":  func(*rapid.T) { require.NoError(t, h.m.Commit()) },
			"flush":   func(*rapid.T) { require.NoError(t, errors.Join(h.m.Commit(), h.db.Flush())) },
			"crash":   func(*rapid.T) { h.crash() },
			"compare": func(*rapid.T) { h.check() },
		})
		h.check()
	})
}
