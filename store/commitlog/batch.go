package commitlog

import "slices"

// maxIdleBatch is the largest buffer that Reset keeps.
const maxIdleBatch = 8 << 20

// Batch collects records for one AppendBatch. The zero value is ready; Reset
// makes it ready again and keeps its buffer, so that a caller that reuses a
// batch allocates nothing per record. A Batch is not safe for concurrent use,
// but needs no log to be filled, so the next one may be filled while the last
// one is synced.
type Batch struct {
	// buf holds the frames as they will be written: room for a header, the
	// payload, zero padding. The headers are filled by AppendBatch.
	buf  []byte
	recs []batchRecord
	out  []Appended
}

type batchRecord struct {
	start, length int // of the frame in buf; of the payload
	kind          Kind
}

// Reset empties the batch. Results of its last AppendBatch are void.
func (b *Batch) Reset() {
	if cap(b.buf) > maxIdleBatch {
		b.buf = nil
	}
	b.buf, b.recs, b.out = b.buf[:0], b.recs[:0], b.out[:0]
}

// Len is the number of records.
func (b *Batch) Len() int { return len(b.recs) }

// Size is the number of bytes the records will take in the log.
func (b *Batch) Size() int { return len(b.buf) }

// Add adds a record whose payload is the parts, one after the other. They are
// copied; the caller keeps them.
func (b *Batch) Add(kind Kind, parts ...[]byte) {
	start := b.begin()
	for _, p := range parts {
		b.buf = append(b.buf, p...)
	}
	b.end(start, kind)
}

// AddFunc adds a record whose payload is what fn appends to dst, which it must
// return; protobuf's MarshalAppend fits. When fn fails the batch stays as it
// was and its error is returned.
func (b *Batch) AddFunc(kind Kind, fn func(dst []byte) ([]byte, error)) error {
	start := b.begin()
	buf, err := fn(b.buf)
	if err != nil {
		b.buf = b.buf[:start]
		return err
	}
	b.extend(buf)
	b.end(start, kind)
	return nil
}

// An Encoder appends its encoding to dst and returns the result.
type Encoder interface{ Append(dst []byte) []byte }

// AddEncoder adds a record whose payload is the encoding of e.
func (b *Batch) AddEncoder(kind Kind, e Encoder) {
	start := b.begin()
	b.extend(e.Append(b.buf))
	b.end(start, kind)
}

// Kind returns the kind of record i.
func (b *Batch) Kind(i int) Kind { return b.recs[i].kind }

// Payload returns the payload of record i. It is valid until the next Add,
// AddFunc, AddEncoder or Reset.
func (b *Batch) Payload(i int) []byte {
	r := b.recs[i]
	start := r.start + frameHeaderSize
	return b.buf[start : start+r.length : start+r.length]
}

// extend takes over buf, which must be what was there and more.
func (b *Batch) extend(buf []byte) {
	if len(buf) < len(b.buf) {
		panic("BUG: commitlog: a payload was encoded into less than was there")
	}
	b.buf = buf
}

func (b *Batch) begin() int {
	start := len(b.buf)
	b.buf = append(b.buf, make([]byte, frameHeaderSize)...)
	return start
}

func (b *Batch) end(start int, kind Kind) {
	length := len(b.buf) - start - frameHeaderSize
	size := int(frameSize(length))
	pad := size - frameHeaderSize - length
	b.buf = append(b.buf, make([]byte, pad)...)
	b.recs = append(b.recs, batchRecord{start: start, length: length, kind: kind})
}

// results returns room for the results of all records.
func (b *Batch) results() []Appended {
	b.out = slices.Grow(b.out[:0], len(b.recs))
	return b.out
}
