package machine_test

import (
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// end ends a transaction, or what was none, or has ended.
func (h *pendingHistory) end() {
	ids := h.some("end")
	id := ids[len(ids)-1]
	c := &command.EndTransaction{ID: id, Topic: 1, Hash: hash(h.names[id]), Keep: 50e9}
	w := h.pending[id]
	if w != nil {
		c.Topic, c.Queue = w.Topic, w.Queue
	}
	if rapid.IntRange(0, 9).Draw(h.t, "with the hash of another") == 0 {
		c.Hash++
	}
	end := keyspace.RolledBack
	if rapid.Bool().Draw(h.t, "commit") {
		end, c.Message = keyspace.Committed, &mq.Message{ID: h.names[id], Type: mq.Transaction, Body: []byte("whole")}
	}
	c.Time = h.tick()
	pos, _ := h.record()
	got := h.apply(command.KindEndTransaction, c).Err
	switch {
	case w == nil || c.Hash != w.ID:
		require.ErrorIs(h.t, got, mq.ErrUnknownTransaction)
	case w.State == end:
		require.NoError(h.t, got, "asked again")
	case w.State == keyspace.Committed || w.State == keyspace.RolledBack:
		require.ErrorIs(h.t, got, mq.ErrTransactionEnded)
	case w.State == keyspace.Timed || w.State == keyspace.Recalled:
		require.ErrorIs(h.t, got, mq.ErrUnknownTransaction)
	case end == keyspace.Committed && !h.topics[w.Topic]:
		require.ErrorIs(h.t, got, mq.ErrTopicNotFound)
	default:
		require.NoError(h.t, got)
		w.State, w.At = end, c.Time+c.Keep
		if end == keyspace.RolledBack {
			return
		}
		v, err := command.ViewEndTransaction(h.log[len(h.log)-1].Payload)
		require.NoError(h.t, err)
		queue := keyspace.Queue{Topic: w.Topic, Queue: w.Queue}
		h.queues[queue] = append(h.queues[queue], pos+uint64(v.Message.Start))
	}
}

// ask notes questions to producers, some of which somebody else has noted.
func (h *pendingHistory) ask() {
	c := &command.Checked{Op: command.CheckOp(rapid.IntRange(1, 3).Draw(h.t, "op")), Max: 3}
	for _, id := range h.some("ask") {
		ref := command.CheckRef{ID: id, Hash: hash(h.names[id]), Wait: rapid.Int64Range(0, 60e9).Draw(h.t, "wait")}
		if w := h.pending[id]; w != nil {
			ref.From = w.Checks
		}
		if rapid.IntRange(0, 4).Draw(h.t, "too late") == 0 {
			ref.From++
		}
		ref.To = ref.From + 1
		if ref.From > 0 && rapid.IntRange(0, 4).Draw(h.t, "not asked after all") == 0 {
			ref.To = ref.From - 1
		}
		c.Refs = append(c.Refs, ref)
	}
	c.Time = h.tick()
	res := h.apply(command.KindChecked, c)
	for i, ref := range c.Refs {
		got, w := res.Settled[i], h.pending[ref.ID]
		if w == nil {
			require.ErrorIs(h.t, got, mq.ErrUnknownTransaction)
			continue
		}
		asking := w.State == keyspace.Half || w.State == keyspace.LastAsked
		switch {
		case c.Op == command.CheckAsked && asking && w.Checks == ref.From:
			w.Checks, w.At, w.State = ref.To, c.Time+ref.Wait, keyspace.Half
			if w.Checks >= c.Max {
				w.State = keyspace.LastAsked
			}
		case c.Op == command.CheckGiveUp && w.State == keyspace.LastAsked && w.At <= c.Time:
			w.State, w.At = keyspace.GivenUp, 1<<63-1
			require.Contains(h.t, h.m.Effects.GivenUp, ref.ID)
		case c.Op == command.CheckAgain && w.State.Open():
			w.State, w.Checks, w.At = keyspace.Half, 0, c.Time
		default:
			require.ErrorIs(h.t, got, mq.ErrNotPending)
			continue
		}
		require.NoError(h.t, got)
	}
}

// checkHalves compares the questions that are due with the model.
func (h *pendingHistory) checkHalves() {
	for id := mq.TopicID(1); id <= h.next; id++ {
		var want []machine.PendingMark
		for pending, w := range h.pending {
			if w.State == keyspace.Half && w.Topic == id {
				want = append(want, machine.PendingMark{At: w.At, ID: pending})
			}
		}
		slices.SortFunc(want, func(a, b machine.PendingMark) int {
			if a.At == b.At {
				return int(a.ID) - int(b.ID)
			}
			return int(a.At - b.At)
		})
		due, rest, _ := slicesCut(want, h.now)
		got, next, err := h.m.DueHalves(id, h.now, 2)
		require.NoError(h.t, err)
		if len(due) > 2 {
			due, rest = due[:2], due[2:]
		}
		require.Equal(h.t, due, got, "questions about messages of topic %d", id)
		if len(rest) > 0 {
			require.Equal(h.t, rest[0].At, next)
		} else {
			require.Equal(h.t, int64(1<<63-1), next)
		}
	}
}
