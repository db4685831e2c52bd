package machine

import (
	"container/heap"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/store/keyspace"
)

// due knows when the next lease ends, without a seek over the index keys of
// leases that were acknowledged in time: a million such tombstones cost tens of
// milliseconds. It counts the leases per span of their visible-at time, a second for
// instance, which takes memory for spans, not for leases. So it does for other things
// that end at a time.
type due struct {
	span   int64
	counts map[int64]int64 // span -> leases; an entry may be stale high, never low
	spans  spanHeap        // every span in counts, smallest first
	next   int64           // no lease ends before; Unix nanoseconds
	low    uint64          // no index key is before
}

func newDue(span time.Duration) due {
	return due{span: int64(span), counts: map[int64]int64{}, next: never}
}

func (d *due) add(when uint64) {
	s := int64(when / uint64(d.span))
	if _, ok := d.counts[s]; !ok {
		heap.Push(&d.spans, s)
	}
	d.counts[s]++
	d.next = min(d.next, int64(when))
	d.low = min(d.low, when)
}

func (d *due) remove(when uint64) {
	s := int64(when / uint64(d.span))
	if n, ok := d.counts[s]; ok && n > 0 {
		d.counts[s] = n - 1
	}
}

// first returns the smallest span that has leases.
func (d *due) first() (int64, bool) {
	for len(d.spans) > 0 {
		s := d.spans[0]
		if d.counts[s] > 0 {
			return s, true
		}
		d.forget(s)
	}
	return 0, false
}

// forget drops the smallest span.
func (d *due) forget(s int64) {
	delete(d.counts, s)
	heap.Pop(&d.spans)
}

// look reports whether one has ended at now, and makes next exact enough to wait for.
// It asks for the time of the first one from one time to before another.
func (d *due) look(now int64, firstDue func(from, to uint64) (uint64, bool, error)) (bool, error) {
	if now < d.next {
		return false, nil
	}
	for {
		s, ok := d.first()
		if !ok {
			d.next = never
			return false, nil
		}
		start := s * d.span
		if start > now {
			d.next = start
			return false, nil
		}
		when, ok, err := firstDue(max(uint64(start), d.low), uint64(start+d.span))
		if err != nil {
			return false, err
		}
		if !ok {
			d.forget(s)
			continue
		}
		d.next = int64(when)
		// The spans before have none, and none that begins from now on ends before
		// now: what lies below are the keys of those that were settled.
		d.low = max(d.low, min(when, uint64(now)))
		return int64(when) <= now, nil
	}
}

// loadDue counts the keys of the due index, and not the leases: what was deleted under its
// lease has left keys that are ended as leases are. Whoever went past them would end
// other leases with the next command than its replay does.
func (m *Machine) loadDue() error {
	lower, upper := keyspace.DueKeys()
	return m.scan(lower, upper, func(k, _ []byte) error {
		when, _, err := keyspace.DecodeDueKey(k)
		if err == nil {
			m.due.add(when)
		}
		return err
	})
}

// NextDue returns a time before which no lease ends, in Unix nanoseconds, or
// the greatest number when there is none. It is cheap; when that time has come,
// Due says exactly.
func (m *Machine) NextDue() int64 { return m.due.next }

// Due reports whether a lease has ended at now, and makes NextDue exact enough
// to wait for. It reads what was committed, so it is called after Commit.
func (m *Machine) Due(now int64) (bool, error) { return m.due.look(now, m.firstDue) }

// firstDue returns the time of the first due key from start to before end.
func (m *Machine) firstDue(start, end uint64) (when uint64, ok bool, err error) {
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendDuePrefix(nil, start),
		UpperBound: keyspace.AppendDuePrefix(nil, end),
	})
	if err != nil {
		return 0, false, err
	}
	if it.First() {
		when, _, err = keyspace.DecodeDueKey(it.Key())
		ok = err == nil
	}
	if closeErr := it.Close(); err == nil {
		err = closeErr
	}
	return when, ok, err
}

// spanHeap orders spans.
type spanHeap []int64

func (h spanHeap) Len() int           { return len(h) }
func (h spanHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h spanHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *spanHeap) Push(x any)        { *h = append(*h, x.(int64)) }
func (h *spanHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// dueUntil lists up to limit leases whose time is not after now, oldest first,
// and whether there are more.
func (m *Machine) dueUntil(now int64, limit int) (refs []keyspace.Ref, times []uint64, more bool, err error) {
	it, err := m.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendDuePrefix(nil, m.due.low),
		UpperBound: keyspace.AppendDuePrefix(nil, uint64(now)+1),
	})
	if err != nil {
		return nil, nil, false, err
	}
	defer func() { _ = it.Close() }() // read errors are in it.Error
	for ok := it.First(); ok; ok = it.Next() {
		if len(refs) == limit {
			return refs, times, true, nil
		}
		when, ref, err := keyspace.DecodeDueKey(it.Key())
		if err != nil {
			return nil, nil, false, err
		}
		refs, times = append(refs, ref), append(times, when)
	}
	return refs, times, false, it.Error()
}
