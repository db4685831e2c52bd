package machine

import (
	"bytes"
	"math/bits"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// repeats knows which messages were sent lately: an SDK that got no answer sends its
// message again. What is known lies in the views, ordered by the minute in which it is
// forgotten, so that forgetting is one range; filters keep the messages that are
// new, which is nearly all, from being looked up.
type repeats struct {
	fresh fresh
	// slots are the minutes that have any, in their order.
	slots []slot
	key   []byte
}

// A slot is what is known until the end of a minute.
type slot struct {
	minute uint32
	filter filter
	// unread says that the views have some that are not in the filter.
	unread bool
}

// slotsPerWindow bounds how many minutes a window is spread over: each of them is asked
// about every message. Of a long one some minutes are left out, and it is known for a
// bit longer that its messages were sent; what is outside the window is no repeat nevertheless.
const slotsPerWindow = 6

// minute returns the minute of a time in Unix nanoseconds.
func minute(at int64) uint32 { return uint32(at / int64(time.Minute)) }

// lastMinute returns the minute in which is forgotten what is sent now. It is part of
// what records mean.
func lastMinute(now, window int64) uint32 {
	every := max(minute(window)/slotsPerWindow, 1)
	return (minute(int64(visibleAt(now, window))) + every - 1) / every * every
}

// maxRead bounds how many of the messages that are known go into filters when a machine
// is opened, which takes a second. The others are looked up until they are forgotten.
const maxRead = 4 << 20

func (m *Machine) loadRepeats() error {
	lower, upper := keyspace.RepeatKeys()
	it, err := m.db.NewIter(iterOptions(lower, upper))
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	read := 0
	for ok := it.First(); ok; {
		r, err := keyspace.DecodeRepeatKey(it.Key())
		if err != nil {
			return err
		}
		s := m.repeats.slot(r.Minute)
		if s.unread = read == maxRead; s.unread {
			ok = it.SeekGE(keyspace.AppendRepeatPrefix(nil, r.Minute+1))
			continue
		}
		read++
		s.filter.add(r.Content)
		ok = it.Next()
	}
	return it.Error()
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
			s.filter.expected = r.slots[i-1].filter.n
		}
		r.slots = slices.Insert(r.slots, i, s)
	}
	return &r.slots[i]
}

// forgetRepeats forgets what was to be known until before now.
func (m *Machine) forgetRepeats(now int64) error {
	r, end := &m.repeats, minute(now)
	n := 0
	for n < len(r.slots) && r.slots[n].minute < end {
		n++
	}
	if n == 0 {
		return nil
	}
	lower := keyspace.AppendRepeatPrefix(nil, r.slots[0].minute)
	r.slots = slices.Delete(r.slots, 0, n)
	return m.batch.DeleteRange(lower, keyspace.AppendRepeatPrefix(nil, end), nil)
}

// forgetRepeatsOf forgets what a topic was sent. It is not sent anything any more.
func (m *Machine) forgetRepeatsOf(topic mq.TopicID) error {
	for i := range m.repeats.slots {
		prefix := keyspace.AppendRepeatTopicPrefix(nil, m.repeats.slots[i].minute, topic)
		if err := m.delRange(prefix); err != nil {
			return err
		}
	}
	return nil
}

// repeated returns what became of the message when it was sent before, inside the
// window that ends now. It sets the minute of r.
func (m *Machine) repeated(r *keyspace.Repeat, now, window int64) (keyspace.Sent, bool, error) {
	hash := mix(r.Content)
	for i := range m.repeats.slots {
		s := &m.repeats.slots[i]
		if !s.filter.has(hash) && !s.unread {
			continue
		}
		r.Minute = s.minute
		sent, found := m.repeats.fresh.get(r)
		if !found {
			var err error
			m.repeats.key = keyspace.AppendRepeatKey(m.repeats.key[:0], r)
			if sent, found, err = get(m.db, m.repeats.key, keyspace.DecodeSent); err != nil {
				return sent, false, err
			}
		}
		if found && now-sent.StoreTime < window {
			return sent, true, nil
		}
	}
	return keyspace.Sent{}, false, nil
}

// remember makes the message known for the window that begins now.
func (m *Machine) remember(r *keyspace.Repeat, now, window int64, sent keyspace.Sent) error {
	r.Minute = lastMinute(now, window)
	m.repeats.slot(r.Minute).filter.add(r.Content)
	m.repeats.fresh.add(r, sent)
	m.repeats.key = keyspace.AppendRepeatKey(m.repeats.key[:0], r)
	m.val = keyspace.AppendSent(m.val[:0], sent)
	return m.set(m.repeats.key, m.val)
}

// fresh has what the batch holds: it cannot be read yet.
type fresh struct {
	list []freshSend
	last map[uint64]int // by content: the last one with it in list, from 1
	ids  []byte
}

type freshSend struct {
	keyspace.Sent
	topic    mq.TopicID
	minute   uint32
	id, size int // in ids
	before   int // with the same content, from 1; 0: none
}

func (f *fresh) add(r *keyspace.Repeat, sent keyspace.Sent) {
	if f.last == nil {
		f.last = map[uint64]int{}
	}
	f.list = append(f.list, freshSend{
		Sent: sent, topic: r.Topic, minute: r.Minute, id: len(f.ids), size: len(r.ID), before: f.last[r.Content],
	})
	f.last[r.Content] = len(f.list)
	f.ids = append(f.ids, r.ID...)
}

func (f *fresh) get(r *keyspace.Repeat) (keyspace.Sent, bool) {
	for at := f.last[r.Content]; at > 0; {
		s := &f.list[at-1]
		if s.topic == r.Topic && s.minute == r.Minute && bytes.Equal(f.ids[s.id:s.id+s.size], r.ID) {
			return s.Sent, true
		}
		at = s.before
	}
	return keyspace.Sent{}, false
}

// maxFresh bounds what fresh keeps of its memory: it is as slow to empty as it was large.
const maxFresh = 4 << 10

// reset empties f, once its contents can be read.
func (f *fresh) reset() {
	switch {
	case len(f.list) > maxFresh:
		*f = fresh{}
	case len(f.list) > 0:
		clear(f.last)
		f.list, f.ids = f.list[:0], f.ids[:0]
	}
}

// A filter says of a hash that it was not added, or that it may have been. It grows by
// layers, each four times as large as the one before.
type filter struct {
	layers   []layer
	n        int // hashes in it
	expected int // how many there will be, as far as one can tell
}

// A layer is made of blocks, each as large as a line of the processor's cache: a hash
// has all its bits in one of them.
type layer struct {
	blocks []block
	room   int // for how many more
}

type block [8]uint64

const (
	filterFirst  = 4 << 10 // hashes in the first layer, at least
	filterBits   = 16      // for each: of 1,000 hashes that were not added one or two may have been
	filterProbes = 6
)

// add adds a hash that is spread evenly only when mixed.
func (f *filter) add(hash uint64) {
	n := len(f.layers)
	if n == 0 || f.layers[n-1].room == 0 {
		room := max(filterFirst, f.expected+f.expected/4)
		if n > 0 {
			room = 4 * len(f.layers[n-1].blocks) * 512 / filterBits
		}
		blocks := (room*filterBits + 511) / 512
		f.layers = append(f.layers, layer{blocks: make([]block, blocks), room: room})
		n++
	}
	l := &f.layers[n-1]
	l.room--
	f.n++
	hash = mix(hash)
	b := l.block(hash)
	for range filterProbes {
		b[hash>>6&7] |= 1 << (hash & 63)
		hash >>= 9
	}
}

// has takes the mixed hash.
func (f *filter) has(hash uint64) bool {
	for i := range f.layers {
		if f.layers[i].has(hash) {
			return true
		}
	}
	return false
}

// block returns the block of a hash, which is mixed once more: all but 10 of its bits
// say which bits of the block are set.
func (l *layer) block(hash uint64) *block {
	hi, _ := bits.Mul64(hash*0x9e3779b97f4a7c15, uint64(len(l.blocks)))
	return &l.blocks[hi]
}

func (l *layer) has(hash uint64) bool {
	b := l.block(hash)
	for range filterProbes {
		if b[hash>>6&7]&(1<<(hash&63)) == 0 {
			return false
		}
		hash >>= 9
	}
	return true
}
