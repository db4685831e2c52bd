package machine

import (
	"time"

	"github.com/perigee-mq/perigee/store/keyspace"
)

// repeats knows which messages were sent lately: an SDK that got no answer sends its
// message again. What is known lies in the views, ordered by the minute in which it is
// forgotten, so that forgetting is one range; filters keep the messages that are
// new, which is nearly all, from being looked up.
type repeats struct {
	// fresh are those of the batch, by their keys: they cannot be read yet.
	fresh map[string]keyspace.Sent
	// minutes are those that have any.
	minutes map[uint32]*filter
	key     []byte
}

// minute returns the minute of a time in Unix nanoseconds.
func minute(at int64) uint32 { return uint32(at / int64(time.Minute)) }

// loadRepeats finds the minutes that have any. What they have is not in memory: they
// have no filter, and are looked at until they are over.
func (m *Machine) loadRepeats() error {
	m.repeats = repeats{fresh: map[string]keyspace.Sent{}, minutes: map[uint32]*filter{}}
	lower, upper := keyspace.RepeatKeys()
	it, err := m.db.NewIter(iterOptions(lower, upper))
	if err != nil {
		return err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	for ok := it.First(); ok; {
		r, err := keyspace.DecodeRepeatKey(it.Key())
		if err != nil {
			return err
		}
		m.repeats.minutes[r.Minute] = nil
		ok = it.SeekGE(keyspace.AppendRepeatPrefix(nil, r.Minute+1))
	}
	return it.Error()
}

// forgetRepeats forgets what was to be known until before now.
func (m *Machine) forgetRepeats(now int64) error {
	over := false
	for at := range m.repeats.minutes {
		if at < minute(now) {
			over = true
			delete(m.repeats.minutes, at)
		}
	}
	if !over {
		return nil
	}
	return m.batch.DeleteRange(keyspace.AppendRepeatPrefix(nil, 0), keyspace.AppendRepeatPrefix(nil, minute(now)), nil)
}

// repeated returns what became of the message when it was sent before, inside the
// window that ends now.
func (m *Machine) repeated(r *keyspace.Repeat, now, window int64) (keyspace.Sent, bool, error) {
	for at := minute(now); at <= minute(now+window); at++ {
		f, any := m.repeats.minutes[at]
		if !any || f != nil && !f.has(r.Content) {
			continue
		}
		r.Minute = at
		m.repeats.key = keyspace.AppendRepeatKey(m.repeats.key[:0], r)
		sent, found := m.repeats.fresh[string(m.repeats.key)]
		if !found {
			var err error
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
	r.Minute = minute(now + window)
	f, any := m.repeats.minutes[r.Minute]
	if !any {
		f = &filter{}
		m.repeats.minutes[r.Minute] = f
	}
	if f != nil {
		f.add(r.Content)
	}
	m.repeats.key = keyspace.AppendRepeatKey(m.repeats.key[:0], r)
	m.repeats.fresh[string(m.repeats.key)] = sent
	m.val = keyspace.AppendSent(m.val[:0], sent)
	return m.set(m.repeats.key, m.val)
}

// A filter says of a hash that it was not added, or that it may have been. It grows by
// layers, each four times as large as the one before.
type filter struct{ layers []layer }

type layer struct {
	bits []uint64
	room int // for how many more
}

const (
	filterFirst  = 4 << 10 // hashes in the first layer
	filterBits   = 16      // for each: of 1,000 hashes that were not added one or two may have been
	filterProbes = 6
)

func (f *filter) add(hash uint64) {
	n := len(f.layers)
	if n == 0 || f.layers[n-1].room == 0 {
		room := filterFirst << (2 * n)
		f.layers = append(f.layers, layer{bits: make([]uint64, room*filterBits/64), room: room})
		n++
	}
	l := &f.layers[n-1]
	l.room--
	for i := range uint64(filterProbes) {
		bit := mix(hash+i) % uint64(len(l.bits)*64)
		l.bits[bit/64] |= 1 << (bit % 64)
	}
}

func (f *filter) has(hash uint64) bool {
	for i := range f.layers {
		if f.layers[i].has(hash) {
			return true
		}
	}
	return false
}

func (l *layer) has(hash uint64) bool {
	for i := range uint64(filterProbes) {
		bit := mix(hash+i) % uint64(len(l.bits)*64)
		if l.bits[bit/64]&(1<<(bit%64)) == 0 {
			return false
		}
	}
	return true
}
