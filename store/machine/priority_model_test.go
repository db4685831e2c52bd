package machine_test

import (
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// modelFairEvery is part of what records mean.
const modelFairEvery = 8

// byPriority delivers from the highest queue down, and every so often from another one
// first.
func (p *modelPopping) byPriority() {
	unordered := false
	if p.s.turn == nil {
		p.s.turn = &keyspace.Turn{}
		unordered = len(p.ready) > 0
	}
	var order []mq.QueueID // those that hold something, from the highest
	for q := mq.QueueID(len(p.queues)) - 1; q >= 0; q-- {
		at := max(p.s.progress[q], p.m.begin(p.Topic, int(q)).min)
		if !p.atLimit(q) && (at < len(p.queues[q]) || len(p.readyOf(q)) > 0) {
			order = append(order, q)
		}
	}
	first := mq.QueueID(-1)
	turn := *p.s.turn
	switch {
	case len(order) < 2:
		turn.Pops = 0
	case turn.Pops+1 < modelFairEvery:
		turn.Pops++
	default:
		// The next one below the last, of all but the highest; from the top again
		// when there is none.
		first = order[1]
		for _, q := range order[1:] {
			if q < turn.Queue {
				first = q
				break
			}
		}
		turn = keyspace.Turn{Queue: first}
	}
	p.inOrder(first, unordered)
	if len(p.res.popped) > 0 {
		*p.s.turn = turn
	}
}

func (p *modelPopping) inOrder(first mq.QueueID, unordered bool) {
	var all []mq.QueueID
	if first >= 0 {
		all = append(all, first)
	}
	for q := mq.QueueID(len(p.queues)) - 1; q >= 0; q-- {
		if q != first {
			all = append(all, q)
		}
	}
	skip := p.Scan / 2
	skipped := unordered // what was put in order just now is not read by the same pop
	if unordered {
		if p.bySequence(); p.full() || p.res.more {
			return
		}
	}
	for _, q := range all {
		for _, ref := range p.readyOf(q) {
			if skipped || p.full() || p.s.leases[ref].When <= p.After {
				continue
			}
			if skip <= 0 || p.scan <= 0 {
				skipped = true
				p.bySequence()
				continue
			}
			p.scan--
			if !p.redeliver(ref) {
				skip--
			}
			if p.res.full && p.atLimit(q) {
				break
			}
		}
		if p.full() || p.res.more || p.newOf(int(q)) {
			return
		}
	}
}

// readyOf lists the redeliveries of a queue, oldest first.
func (p *modelPopping) readyOf(queue mq.QueueID) (refs []keyspace.Ref) {
	for _, ref := range p.s.in(keyspace.Ready) {
		if ref.Queue == queue {
			refs = append(refs, ref)
		}
	}
	return refs
}

// checkPriority compares whose turn it is, and the redeliveries by queue.
func (h *history) checkPriority() {
	turns := map[keyspace.Sub]keyspace.Turn{}
	lower, upper := keyspace.TurnKeys()
	for key, val := range h.keys(lower, upper) {
		sub, err := keyspace.DecodeTurnKey(key)
		require.NoError(h.t, err)
		turns[sub], err = keyspace.DecodeTurn(val)
		require.NoError(h.t, err)
	}
	for id, s := range h.model.subs {
		ready := map[keyspace.Ref]uint64{}
		prefix := keyspace.AppendPriorityPrefix(nil, id)
		for key, val := range h.keys(prefix, keyspace.Next(keyspace.AppendPriorityPrefix(nil, id))) {
			sub, queue, seq, err := keyspace.DecodePriorityKey(key)
			require.NoError(h.t, err)
			offset, err := keyspace.DecodeOffset(val)
			require.NoError(h.t, err)
			ready[keyspace.Ref{Sub: sub, Queue: queue, Offset: offset}] = seq
		}
		want := map[keyspace.Ref]uint64{}
		if s.turn != nil {
			require.Equal(h.t, *s.turn, turns[id])
			delete(turns, id)
			for _, ref := range s.in(keyspace.Ready) {
				want[ref] = s.leases[ref].When
			}
		}
		require.Equal(h.t, want, ready)
	}
	require.Empty(h.t, turns, "of groups and topics that are gone, or that do not receive by priority")
}
