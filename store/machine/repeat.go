package machine

import (
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// repeats knows which messages were sent lately: an SDK that got no answer sends its
// message again. What is known lies in the views, one value for each send, ordered by
// the minute in which it is forgotten: writing and forgetting are cheap there, finding is
// not possible. That takes tables in memory which lead from a message to its send.
type repeats struct {
	// slots are the minutes that have any, in their order.
	slots []slot
	// fresh are the sends of the batch, which cannot be read yet, in their order; vals
	// has their values. Of the first ones the batch has the keys already.
	fresh   []freshSend
	written int
	vals    []byte
	found   []uint64 // scratch
	touched uint64   // keeps the compiler from leaving out what touch reads
}

// A slot is what is known until the end of a minute.
type slot struct {
	minute uint32
	table  table
}

type freshSend struct {
	keyspace.Repeat
	start, end int // in vals
}

// slotsPerWindow bounds how many minutes a window is spread over: each of them is asked
// about every message. Of a long one some minutes are left out, and what lies in it
// is kept for a bit longer; what is outside the window is no repeat nevertheless.
const slotsPerWindow = 6

// minute returns the minute of a time in Unix nanoseconds.
func minute(at int64) uint32 { return uint32(at / int64(time.Minute)) }

// lastMinute returns the minute in which is forgotten what is sent now. It is part of
// what records mean.
func lastMinute(now, window int64) uint32 {
	every := max(minute(window)/slotsPerWindow, 1)
	return (minute(int64(visibleAt(now, window))) + every - 1) / every * every
}

// sentHash is what tables know a message by.
func sentHash(topic mq.TopicID, content uint64) uint64 { return mix(content ^ uint64(topic)<<32) }

func (m *Machine) loadRepeats() error {
	lower, upper := keyspace.RepeatKeys()
	return m.scan(lower, upper, func(key, val []byte) error {
		r, err := keyspace.DecodeRepeatKey(key)
		if err != nil {
			return err
		}
		sent, err := keyspace.DecodeSentMessages(val)
		if err != nil {
			return err
		}
		s := m.repeats.slot(r.Minute)
		for i := range sent.Len() {
			s.table.add(sentHash(r.Topic, sent.At(i).Content), r.Index)
		}
		return nil
	})
}

// slot returns the slot of a minute, a new one if there is none.
func (r *repeats) slot(minute uint32) *slot {
	// Nearly always it is the last one.
	i := len(r.slots)
	for i > 0 && r.slots[i-1].minute >= minute {
		i--
	}
	if i == len(r.slots) || r.slots[i].minute != minute {
		s := slot{minute: minute}
		if i > 0 {
			s.table.expected = r.slots[i-1].table.n
		}
		r.slots = slices.Insert(r.slots, i, s)
	}
	return &r.slots[i]
}

// forgetRepeats forgets what was to be known until before now.
func (m *Machine) forgetRepeats(now int64) error { return m.forgetBefore(minute(now)) }

// forgetBefore forgets what was to be known until before the minute.
func (m *Machine) forgetBefore(end uint32) error {
	r := &m.repeats
	n := 0
	for n < len(r.slots) && r.slots[n].minute < end {
		n++
	}
	if n == 0 {
		return nil
	}
	if err := m.writeRepeats(); err != nil { // the batch may hold some that are forgotten
		return err
	}
	lower := keyspace.AppendRepeatPrefix(nil, r.slots[0].minute)
	r.slots = slices.Delete(r.slots, 0, n)
	return m.batch.DeleteRange(lower, keyspace.AppendRepeatPrefix(nil, end), nil)
}

// applyForget forgets before its time what takes too much memory.
func (m *Machine) applyForget(rec Record, res *Result) error {
	c, err := command.DecodeForget(rec.Payload)
	if err != nil {
		return err
	}
	for i := range m.repeats.slots {
		if s := &m.repeats.slots[i]; s.minute < c.Minute {
			res.Forgotten += s.table.n
		}
	}
	return m.forgetBefore(c.Minute)
}

// KnownBytes returns how much memory the messages take that are known to have been sent,
// and the first minute that would have to be forgotten to have less.
func (m *Machine) KnownBytes() (bytes int64, first uint32) {
	for i := range m.repeats.slots {
		bytes += m.repeats.slots[i].table.bytes
	}
	if len(m.repeats.slots) > 0 {
		first = m.repeats.slots[0].minute
	}
	return bytes, first
}

// forgetRepeatsOf forgets what a topic was sent. It is not sent anything any more.
func (m *Machine) forgetRepeatsOf(topic mq.TopicID) error {
	if err := m.writeRepeats(); err != nil {
		return err
	}
	for i := range m.repeats.slots {
		prefix := keyspace.AppendRepeatTopicPrefix(nil, m.repeats.slots[i].minute, topic)
		if err := m.delRange(prefix); err != nil {
			return err
		}
	}
	return nil
}

// touch prepares for the messages of a send, which it is given a copy of.
func (r *repeats) touch(v command.SendView) {
	if v.Window == 0 || v.Count == 1 {
		return
	}
	for range v.Count {
		msg := v.Next()
		hash := sentHash(v.Topic, msg.Content)
		for i := range r.slots {
			r.touched += r.slots[i].table.touch(hash)
		}
	}
}

// repeated returns what became of the message when it was sent before, inside the
// window that ends now: of several times, as windows can be changed, the first. index is
// that of the record that is carried out.
func (m *Machine) repeated(topic mq.TopicID, id []byte, content, index uint64, now, window int64) (first keyspace.Sent, known bool, err error) {
	r := &m.repeats
	hash := sentHash(topic, content)
	for i := range r.slots {
		r.found = r.slots[i].table.find(r.found[:0], hash, index)
		slices.Sort(r.found)
		for _, at := range slices.Backward(r.found) {
			sent, found, err := m.sentIn(keyspace.Repeat{Minute: r.slots[i].minute, Topic: topic, Index: at}, mq.HashName(id), content)
			if err != nil {
				return first, false, err
			}
			if found && now-sent.StoreTime >= window {
				break // and so are those before
			}
			if found && (!known || sent.StoreTime < first.StoreTime) {
				first, known = sent, true
			}
		}
	}
	return first, known, nil
}

// sentIn looks for a message in what a send has stored.
func (m *Machine) sentIn(r keyspace.Repeat, id, content uint64) (sent keyspace.Sent, found bool, err error) {
	decode := func(b []byte) (keyspace.Sent, error) {
		all, err := keyspace.DecodeSentMessages(b)
		if err == nil {
			sent, found = all.Find(id, content, r.Index)
		}
		return sent, err
	}
	i, ok := slices.BinarySearchFunc(m.repeats.fresh, r.Index, func(f freshSend, index uint64) int {
		return int(int64(f.Index - index))
	})
	if ok {
		if f := m.repeats.fresh[i]; f.Repeat == r {
			_, err = decode(m.repeats.vals[f.start:f.end])
		}
		return sent, found, err
	}
	_, _, err = get(m.db, keyspace.AppendRepeatKey(nil, r), decode)
	return sent, found, err
}

// remember makes a message known that the send has stored, the next one of it; next was
// the end of its queue before.
func (m *Machine) remember(r keyspace.Repeat, msg keyspace.SentMessage, v *command.SendView, next mq.QueueOffset) {
	p := &m.repeats
	n := len(p.fresh)
	if n == 0 || p.fresh[n-1].Index != r.Index {
		p.fresh = append(p.fresh, freshSend{Repeat: r, start: len(p.vals)})
		n++
		p.vals = keyspace.AppendSentHead(p.vals, v.Time, v.Queue, next)
	}
	p.vals = keyspace.AppendSentMessage(p.vals, msg)
	p.fresh[n-1].end = len(p.vals)
	p.slot(r.Minute).table.add(sentHash(r.Topic, msg.Content), r.Index)
}

// writeRepeats puts what was remembered into the batch. It is called when there is more
// of it: one such key after the other is inserted at half the price.
func (m *Machine) writeRepeats() error {
	r := &m.repeats
	for ; r.written < len(r.fresh); r.written++ {
		f := &r.fresh[r.written]
		m.key = keyspace.AppendRepeatKey(m.key[:0], f.Repeat)
		if err := m.set(m.key, r.vals[f.start:f.end]); err != nil {
			return err
		}
	}
	return nil
}

// committed is called when the batch can be read.
func (r *repeats) committed() { r.fresh, r.vals, r.written = r.fresh[:0], r.vals[:0], 0 }
