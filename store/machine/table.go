package machine

import "math/bits"

// A table leads from hashes to the records they were added with. It may name records
// that a hash was not added with, one in millions, and takes 10 bytes for a hash when it
// is full. It has no order that anybody may rely on. It grows by layers, each four
// times as large as the one before, up to a bound.
type table struct {
	layers []layer
	// rest has what found its buckets full: hashes that were added again and again.
	rest     map[uint64][]uint64
	n        int // hashes in it
	expected int // how many there will be, as far as one can tell
	bytes    int64
}

// A layer is made of buckets, each as large as a line of the processor's cache. A hash is
// in one of two of them.
type layer struct {
	buckets []bucket
	room    int // for how many more
}

// A bucket has up to eight hashes, those that are there first: of each the lower 27 bits
// and a 1, and the lower 36 bits of the index of the record. 0: none.
type bucket [8]uint64

const (
	tableFirst = 16 << 10 // hashes in the first layer, at least
	// A first layer has room for what is expected, but no more than tableMost hashes; one
	// that was not expected for tableStep at most. What is known has a bound, and one
	// layer may go beyond it.
	tableMost  = 4 << 20
	tableStep  = 1 << 20
	tableIndex = 36 // bits of an index
	restBytes  = 64 // of one in rest, about
)

// of returns where a hash may be, by its upper bits.
func (l *layer) of(hash uint64) (a, b *bucket) {
	n := uint64(len(l.buckets))
	i, _ := bits.Mul64(hash, n)
	j, _ := bits.Mul64(hash<<24|hash>>40, n)
	return &l.buckets[i], &l.buckets[j]
}

func entryOf(hash, index uint64) uint64 {
	return (hash<<1|1)<<tableIndex | index&(1<<tableIndex-1)
}

// add adds a hash, whose bits must be spread evenly, with the record.
func (t *table) add(hash, index uint64) {
	t.n++
	n := len(t.layers)
	if n == 0 || t.layers[n-1].room == 0 {
		t.grow()
		n++
	}
	if t.layers[n-1].add(hash, entryOf(hash, index)) {
		return
	}
	if t.rest == nil {
		t.rest = map[uint64][]uint64{}
	}
	t.rest[hash] = append(t.rest[hash], index)
	t.bytes += restBytes
}

func (t *table) grow() {
	room := min(max(tableFirst, t.expected+t.expected/8), tableMost)
	if n := len(t.layers); n > 0 {
		room = min(4*len(t.layers[n-1].buckets)*7, tableStep)
	}
	t.layers = append(t.layers, layer{buckets: make([]bucket, (room+6)/7), room: room})
	t.bytes += int64((room + 6) / 7 * 64)
}

// add reports false when both buckets are full, which they hardly ever are.
func (l *layer) add(hash, e uint64) bool {
	a, b := l.of(hash)
	for i := range a {
		for _, in := range [...]*bucket{a, b} {
			if in[i] == 0 {
				in[i] = e
				l.room--
				return true
			}
		}
	}
	return false
}

// touch reads a little of all that find reads for the hash. The processor does not wait
// for it, as it does when find decides by what it reads: the memory brings what many hashes
// need at the same time.
func (t *table) touch(hash uint64) (sum uint64) {
	for i := range t.layers {
		a, b := t.layers[i].of(hash)
		sum += a[0] + b[0]
	}
	return sum
}

// find appends the records that the hash may have been added with, given one that is
// not older than any.
func (t *table) find(dst []uint64, hash, newest uint64) []uint64 {
	tag := entryOf(hash, 0) >> tableIndex
	for i := range t.layers {
		a, b := t.layers[i].of(hash)
		dst = a.find(dst, tag, newest)
		if a != b {
			dst = b.find(dst, tag, newest)
		}
	}
	if len(t.rest) > 0 {
		dst = append(dst, t.rest[hash]...)
	}
	return dst
}

func (b *bucket) find(dst []uint64, tag, newest uint64) []uint64 {
	// That it does not end at the first 0 lets the processor go on to the next bucket
	// before it has this one.
	for _, e := range b {
		if e>>tableIndex == tag {
			dst = append(dst, newest-(newest-e)&(1<<tableIndex-1))
		}
	}
	return dst
}
