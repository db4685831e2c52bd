package router

import (
	"hash/maphash"
	"iter"
	"maps"
)

// fanout is how many maps a table is cut into. A change copies the fanout
// pointers and one map, so that it costs microseconds up to a million entries
// while a lookup stays one map access.
const fanout = 1024

// A table is a map that is never changed once it is published: with and without
// return a changed copy that shares all but one bucket. Two versions of one
// table can be compared by their buckets.
type table[K comparable, V any] struct {
	seed    maphash.Seed
	size    int
	buckets [fanout]*bucket[K, V] // nil: empty
}

type bucket[K comparable, V any] struct {
	entries map[K]*V
}

func newTable[K comparable, V any]() *table[K, V] {
	return &table[K, V]{seed: maphash.MakeSeed()}
}

// empty returns a table without entries that counts as a later version of t.
func (t *table[K, V]) empty() *table[K, V] { return &table[K, V]{seed: t.seed} }

func (t *table[K, V]) index(k K) uint64 {
	return maphash.Comparable(t.seed, k) % fanout
}

// get returns the value of k, nil when there is none.
func (t *table[K, V]) get(k K) *V {
	b := t.buckets[t.index(k)]
	if b == nil {
		return nil
	}
	return b.entries[k]
}

// add puts a value into a table that nobody else sees yet.
func (t *table[K, V]) add(k K, v *V) {
	i := t.index(k)
	if t.buckets[i] == nil {
		t.buckets[i] = &bucket[K, V]{entries: make(map[K]*V)}
	}
	if _, ok := t.buckets[i].entries[k]; !ok {
		t.size++
	}
	t.buckets[i].entries[k] = v
}

// with returns a copy of t in which k has the value v.
func (t *table[K, V]) with(k K, v *V) *table[K, V] {
	next := t.copyFor(k)
	next.add(k, v)
	return next
}

// without returns a copy of t in which k has no value.
func (t *table[K, V]) without(k K) *table[K, V] {
	if t.get(k) == nil {
		return t
	}
	next := t.copyFor(k)
	delete(next.buckets[t.index(k)].entries, k)
	next.size--
	return next
}

// copyFor returns a copy of t in which the bucket of k may be changed.
func (t *table[K, V]) copyFor(k K) *table[K, V] {
	next := *t
	i := t.index(k)
	if old := t.buckets[i]; old != nil {
		next.buckets[i] = &bucket[K, V]{entries: maps.Clone(old.entries)}
	}
	return &next
}

// all yields the entries in no order.
func (t *table[K, V]) all() iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for _, b := range t.buckets {
			if b == nil {
				continue
			}
			for k, v := range b.entries {
				if !yield(k, v) {
					return
				}
			}
		}
	}
}

// differences yields, in no order, every key whose value in t is another than
// in old, with its value in t: nil when t lacks it. Old must be an earlier
// version of t, or nil.
func (t *table[K, V]) differences(old *table[K, V]) iter.Seq2[K, *V] {
	if old == nil {
		return t.all()
	}
	return func(yield func(K, *V) bool) {
		for i, b := range t.buckets {
			if b == old.buckets[i] {
				continue
			}
			var now, before map[K]*V
			if b != nil {
				now = b.entries
			}
			if old.buckets[i] != nil {
				before = old.buckets[i].entries
			}
			for k, v := range now {
				if before[k] != v && !yield(k, v) {
					return
				}
			}
			for k := range before {
				if now[k] == nil && !yield(k, nil) {
					return
				}
			}
		}
	}
}
