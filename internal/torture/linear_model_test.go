package main

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// What one group may see of one message, as a sequential specification: it is sent, leased
// until the lease ends, and settled by the receipt of the delivery that was last. Concurrent
// calls must be answered as if they had been made one after the other, each at some moment
// between its beginning and its end. Messages are judged by themselves.

type leaseCall int

const (
	aSend   leaseCall = iota
	aGet              // a receive that got it
	aMiss             // one that took all there was, and did not get it
	anAck             // answered OK
	aChange           // answered OK
	noAck             // one that was refused
	noChange
)

// A leaseInput is one call. It happened at a time from lo to hi, in Unix nanoseconds.
type leaseInput struct {
	id      string
	what    leaseCall
	receipt uint64 // of a delivery: greater than those of deliveries before
	lo, hi  int64
	lasts   int64 // the lease, from then on
}

// leaseState is what is known of a message. Its lease ends between lo and hi.
type leaseState struct {
	sent, settled bool
	receipt       uint64 // of the latest delivery; 0: none
	lo, hi        int64
}

// leaseRules say how late a lease may end, and whether an ack of what is settled is OK.
type leaseRules struct {
	late    time.Duration
	repeats bool
}

func (r leaseRules) step(s leaseState, in leaseInput) (bool, leaseState) {
	mine := s.sent && s.receipt != 0 && s.receipt == in.receipt
	switch in.what {
	case aSend:
		was := s.sent
		s.sent = true
		return !was, s
	case aGet:
		ok := s.sent && !s.settled && in.receipt > s.receipt && (s.receipt == 0 || s.lo <= in.hi)
		s.receipt, s.lo, s.hi = in.receipt, in.lo+in.lasts, in.hi+in.lasts
		return ok, s
	case aMiss:
		return !s.sent || s.settled || s.receipt != 0 && s.hi+int64(r.late) > in.lo, s
	case anAck:
		ok := mine && !s.settled || s.settled && r.repeats
		s.settled = true
		return ok, s
	case aChange:
		s.lo, s.hi = in.lo+in.lasts, in.hi+in.lasts
		return mine && !s.settled, s
	case noAck:
		return s.settled && !r.repeats || !s.settled && !mine, s
	}
	return s.settled || !mine, s
}

func (r leaseRules) model() porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			of := map[string][]porcupine.Operation{}
			for _, op := range history {
				id := op.Input.(leaseInput).id
				of[id] = append(of[id], op)
			}
			list := make([][]porcupine.Operation, 0, len(of))
			for _, ops := range of {
				list = append(list, ops)
			}
			return list
		},
		Init: func() any { return leaseState{} },
		Step: func(state, input, _ any) (bool, any) { return r.step(state.(leaseState), input.(leaseInput)) },
	}
}

// A lineup collects the calls of clients in the order in which they begin and end.
type lineup struct {
	mu  sync.Mutex
	seq int64
	ops []porcupine.Operation
	ids []string // of messages whose send has begun
}

func (h *lineup) begin() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	return h.seq
}

// end notes what became of a call.
func (h *lineup) end(client int, began int64, ins ...leaseInput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seq++
	for _, in := range ins {
		h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: began, Return: h.seq})
	}
}

// sending notes that a message is about to be sent.
func (h *lineup) sending(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids = append(h.ids, id)
}

// others returns the messages that a receive did not get.
func (h *lineup) others(got []string) (list []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range h.ids {
		if !slices.Contains(got, id) {
			list = append(list, id)
		}
	}
	return list
}

// wrong returns the calls of a message whose answers are those of no order; nothing when
// there is an order of all.
func (h *lineup) wrong(r leaseRules) (lines []string) {
	m := r.model()
	for _, ops := range m.Partition(h.ops) {
		one := m
		one.Partition = nil
		if porcupine.CheckOperations(one, ops) {
			continue
		}
		for _, op := range ops {
			lines = append(lines, fmt.Sprintf("client %d, from %d to %d: %+v", op.ClientId, op.Call, op.Return, op.Input))
		}
		return lines
	}
	return nil
}

// The model must be able to find what it is there for.
func TestTheModelOfLeasesRefusesWhatMustNotBe(t *testing.T) {
	const lease = int64(10 * time.Second)
	send := leaseInput{what: aSend}
	get := func(receipt uint64, at int64) leaseInput {
		return leaseInput{what: aGet, receipt: receipt, lo: at, hi: at, lasts: lease}
	}
	call := func(what leaseCall, receipt uint64) leaseInput { return leaseInput{what: what, receipt: receipt} }
	for name, c := range map[string]struct {
		ok    bool
		calls []leaseInput
	}{
		"sent, got and settled":        {true, []leaseInput{send, get(1, 0), call(anAck, 1), {what: aMiss, lo: 3 * lease}}},
		"delivered again at the end":   {true, []leaseInput{send, get(1, 0), get(2, lease), call(anAck, 2)}},
		"acknowledged late":            {true, []leaseInput{send, get(1, 0), {what: aMiss, lo: lease - 1}, call(anAck, 1)}},
		"extended":                     {true, []leaseInput{send, get(1, 0), {what: aChange, receipt: 1, lo: 5, hi: 5, lasts: lease}, get(2, lease+5)}},
		"two holders":                  {false, []leaseInput{send, get(1, 0), get(2, lease-1)}},
		"two holders after a change":   {false, []leaseInput{send, get(1, 0), {what: aChange, receipt: 1, lo: 5, hi: 5, lasts: lease}, get(2, lease)}},
		"an old receipt":               {false, []leaseInput{send, get(1, 0), get(2, lease), call(anAck, 1)}},
		"a good receipt refused":       {false, []leaseInput{send, get(1, 0), call(noAck, 1)}},
		"delivered after an ack":       {false, []leaseInput{send, get(1, 0), call(anAck, 1), get(2, 3*lease)}},
		"answered and not there":       {false, []leaseInput{send, {what: aMiss}}},
		"ended and not there":          {false, []leaseInput{send, get(1, 0), {what: aMiss, lo: 2 * lease}}},
		"delivered and never sent":     {false, []leaseInput{get(1, 0)}},
		"a receipt that comes again":   {false, []leaseInput{send, get(2, 0), get(1, lease)}},
		"changed after it was settled": {false, []leaseInput{send, get(1, 0), call(anAck, 1), call(aChange, 1)}},
	} {
		h := &lineup{}
		for _, in := range c.calls {
			h.end(0, h.begin(), in)
		}
		require.Equal(t, c.ok, len(h.wrong(leaseRules{late: time.Second})) == 0, name)
	}
	// An answer that is right in one order of calls that overlap is right.
	h := &lineup{}
	first, second := h.begin(), h.begin()
	h.end(0, first, get(1, 0))
	h.end(1, second, send)
	require.Empty(t, h.wrong(leaseRules{}))
}
