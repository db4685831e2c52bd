package main

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

// A book is a ledger with one group, whose store a test plays.
type book struct {
	*ledger
	g consumers
}

// sent notes a message that the store has taken, pending or at an offset of queue 0.
func (b book) sent(id string, kind mq.MessageType, a mq.Appended) *sent {
	sn := &sent{ids: []string{id}, topic: 1, kind: kind, queues: []mq.QueueID{0}}
	switch kind {
	case mq.Lite:
		sn.lite = "one"
	case mq.FIFO:
		sn.lane = "a"
	}
	b.beginSend(sn)
	b.endSend(sn, 0, []mq.Appended{a})
	return sn
}

func (b book) waits(id string, kind mq.MessageType, due time.Time) *waiting {
	b.asked(id, due)
	b.sent(id, kind, mq.Appended{Pending: 7})
	return b.waiting[id]
}

func (b book) got(id string, offset mq.QueueOffset, attempt mq.Attempt) mq.Lease {
	lease := mq.Lease{Topic: 1, Group: 1, Offset: offset, Attempt: attempt, PopID: mq.PopID(time.Now().UnixNano())}
	sn := b.msgs[id]
	d := mq.Delivery{Message: mq.Message{ID: id, Type: sn.kind, Group: sn.lane, Body: []byte(body(id))}, Lease: lease}
	b.delivered(0, b.g, time.Now(), time.Minute, []mq.Delivery{d})
	return lease
}

func (b book) ack(id string, lease mq.Lease) {
	f := b.beginAck(1, id, lease, false)
	b.endAck(0, f, id, lease, nil)
}

// move moves the group, all of it later than what was before.
func (b book) move(to mq.QueueOffset, drop bool) {
	time.Sleep(time.Second)
	m := &move{to: to, drop: drop}
	b.beginMove(moveKey{1, 1, 0}, m)
	b.endMove(0, moveKey{1, 1, 0}, m)
	time.Sleep(time.Second)
}

func (b book) end(id string, commit bool) {
	w := b.waiting[id]
	b.beginEnd(w, commit)
	b.endEnd(0, id, w, commit, nil)
}

func (b book) recall(id string, err error) {
	w := b.waiting[id]
	b.beginRecall(w)
	b.endRecall(0, id, w, err)
}

// The ledger must be able to find every kind of fault of each type of messages.
func TestTheLedgerFindsEachKindOfFault(t *testing.T) {
	for name, c := range map[string]struct {
		fault  string
		stored string // ids in queue 0
		story  func(b book)
	}{
		"none": {"", "a c d e", func(b book) {
			b.waits("a", mq.Delay, time.Now().Add(time.Second))
			b.waits("b", mq.Delay, time.Now().Add(time.Second))
			b.recall("b", nil)
			b.sent("c", mq.FIFO, mq.Appended{Offset: 1})
			b.sent("d", mq.FIFO, mq.Appended{Offset: 2})
			b.waits("e", mq.Transaction, time.Time{})
			b.end("e", true)
			time.Sleep(time.Second)
			for i, id := range []string{"a", "c", "d", "e"} {
				b.ack(id, b.got(id, mq.QueueOffset(i), 1))
			}
			b.move(3, true)
			b.ack("e", b.got("e", 3, 1))
		}},
		"delivered early": {"early", "a", func(b book) {
			b.waits("a", mq.Delay, time.Now().Add(time.Second))
			b.ack("a", b.got("a", 0, 1))
		}},
		"delayed and lost": {"answered OK and is gone", "", func(b book) { b.waits("a", mq.Delay, time.Now()) }},
		"lost after a refused recall": {"answered OK and is gone", "", func(b book) {
			b.waits("a", mq.Delay, time.Now())
			b.recall("a", mq.ErrNotPending)
		}},
		"delivered after a recall": {"after it had been recalled", "a", func(b book) {
			b.waits("a", mq.Delay, time.Now())
			b.recall("a", nil)
			b.ack("a", b.got("a", 0, 1))
		}},
		"recalled after a delivery": {"was recalled when it had been delivered", "a", func(b book) {
			b.waits("a", mq.Delay, time.Now())
			b.ack("a", b.got("a", 0, 1))
			b.recall("a", nil)
		}},
		"due and not delivered": {"waits at", "a", func(b book) {
			b.waits("a", mq.Delay, time.Now())
			time.Sleep(time.Second)
			b.listedTimers(0, []mq.PendingMessage{{PendingHandle: mq.PendingHandle{MessageID: "a"}, At: time.Now().Add(-time.Second)}})
			b.ack("a", b.got("a", 0, 1))
		}},
		"half message seen":   {"nobody committed it", "a", func(b book) { b.waits("a", mq.Transaction, time.Time{}); b.ack("a", b.got("a", 0, 1)) }},
		"half message stored": {"must never be seen", "a", func(b book) { b.waits("a", mq.Transaction, time.Time{}) }},
		"half message lost":   {"it is not listed", "", func(b book) { b.waits("a", mq.Transaction, time.Time{}) }},
		"committed and lost":  {"answered OK and is gone", "", func(b book) { b.waits("a", mq.Transaction, time.Time{}); b.end("a", true) }},
		"rolled back and stored": {"must never be seen", "a", func(b book) {
			b.waits("a", mq.Transaction, time.Time{})
			b.end("a", false)
		}},
		"ended both ways": {"committed and rolled back", "", func(b book) {
			b.waits("a", mq.Transaction, time.Time{})
			b.end("a", false)
			b.end("a", true)
		}},
		"stored twice": {"sent again", "a", func(b book) {
			sn := b.sent("a", mq.Normal, mq.Appended{})
			b.endSend(sn, 0, []mq.Appended{{Offset: 1}})
			b.ack("a", b.got("a", 0, 1))
		}},
		"out of order": {"was not settled", "a b", func(b book) {
			b.sent("a", mq.FIFO, mq.Appended{})
			b.sent("b", mq.FIFO, mq.Appended{Offset: 1})
			first := b.got("a", 0, 1)
			time.Sleep(time.Second)
			b.ack("b", b.got("b", 1, 1))
			b.ack("a", first)
		}},
		"acknowledged before a move that may be undone": {"", "a", func(b book) {
			b.sent("a", mq.Normal, mq.Appended{})
			b.ack("a", b.got("a", 0, 1))
			time.Sleep(2 * flushInterval)
			m := &move{drop: true}
			b.beginMove(moveKey{1, 1, 0}, m)
			b.endMove(0, moveKey{1, 1, 0}, m)
			b.got("a", 0, 1) // perhaps from before
			time.Sleep(flushInterval / 2)
			b.got("a", 0, 2)
			b.ends(true, time.Now())
		}},
		"not delivered after a move": {"neither delivered", "a", func(b book) {
			b.sent("a", mq.Normal, mq.Appended{})
			b.ack("a", b.got("a", 0, 1))
			b.move(0, true)
		}},
		"delivered from before a move": {"after its place had been moved", "a b", func(b book) {
			b.sent("a", mq.Normal, mq.Appended{})
			b.sent("b", mq.Normal, mq.Appended{Offset: 1})
			b.move(1, true)
			b.ack("a", b.got("a", 0, 1))
			b.ack("b", b.got("b", 1, 1))
		}},
		"receipt from before a move": {"from before the group's place was moved was taken", "a", func(b book) {
			b.sent("a", mq.Normal, mq.Appended{})
			old := b.got("a", 0, 1)
			b.move(0, true)
			b.ack("a", old)
			b.ack("a", b.got("a", 0, 1))
		}},
		"lite message lost to its subscriber": {"neither delivered", "a", func(b book) {
			b.beginSync(1, 1, []string{"one"})
			b.endSync(0, 1, 1, []string{"one"})
			b.sent("a", mq.Lite, mq.Appended{})
		}},
		"lite message from before the subscription": {"sent before it subscribed", "a", func(b book) {
			b.sent("a", mq.Lite, mq.Appended{})
			b.beginSync(1, 1, []string{"one"})
			b.endSync(0, 1, 1, []string{"one"})
			b.ack("a", b.got("a", 0, 1))
		}},
		"offset of a time": {"is said to be", "a", func(b book) {
			b.ack("a", func() mq.Lease { b.sent("a", mq.Normal, mq.Appended{StoreTime: time.Now()}); return b.got("a", 0, 1) }())
			b.offsetAt(0, moveKey{1, 1, 0}, time.Now().Add(time.Second), 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := book{newLedger(), consumers{Group: &mq.Group{ID: 1, FIFO: true}}}
				b.limits[1] = 5
				b.opened()
				c.story(b)
				b.judge([]consumers{b.g}, stored{queues: map[queueKey][]string{{topic: 1}: strings.Fields(c.stored)}})
				if c.fault == "" {
					require.Empty(t, b.faults)
					return
				}
				require.Contains(t, strings.Join(b.faults, "\n"), c.fault)
			})
		})
	}
}
