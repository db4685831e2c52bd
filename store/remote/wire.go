package remote

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// A builder appends protobuf fields. Fields with the zero value are left out, as
// everywhere in proto3.
type builder struct{ b []byte }

func (w *builder) uint(n protowire.Number, v uint64) {
	if v != 0 {
		w.b = protowire.AppendVarint(protowire.AppendTag(w.b, n, protowire.VarintType), v)
	}
}

func (w *builder) int(n protowire.Number, v int64) { w.uint(n, uint64(v)) }

func (w *builder) bool(n protowire.Number, v bool) {
	if v {
		w.uint(n, 1)
	}
}

func (w *builder) fixed(n protowire.Number, v uint64) {
	if v != 0 {
		w.b = protowire.AppendFixed64(protowire.AppendTag(w.b, n, protowire.Fixed64Type), v)
	}
}

func (w *builder) string(n protowire.Number, v string) {
	if v != "" {
		w.b = protowire.AppendString(protowire.AppendTag(w.b, n, protowire.BytesType), v)
	}
}

func (w *builder) bytes(n protowire.Number, v []byte) {
	if len(v) > 0 {
		w.b = protowire.AppendBytes(protowire.AppendTag(w.b, n, protowire.BytesType), v)
	}
}

// element appends an element of a list of strings, which may be empty.
func (w *builder) element(n protowire.Number, v string) {
	w.b = protowire.AppendString(protowire.AppendTag(w.b, n, protowire.BytesType), v)
}

// lengthSize is how many bytes the length of a message takes that is begun before it is
// known: a varint may be longer than it needs to be. It is enough for 256 MiB, four times
// maxCall.
const lengthSize = 4

// begin begins a message inside the message, which end ends.
func (w *builder) begin(n protowire.Number) int {
	w.b = append(protowire.AppendTag(w.b, n, protowire.BytesType), 0, 0, 0, 0)
	return len(w.b)
}

func (w *builder) end(begun int) {
	n := len(w.b) - begun
	at := w.b[begun-lengthSize : begun]
	for i := range at {
		at[i] = byte(n>>(7*i)) | 0x80
	}
	at[lengthSize-1] &= 0x7f
}

// errFrame says that the other side sent what cannot be read.
var errFrame = errors.New("a message between tiers cannot be read")

// A reader reads protobuf fields one after the other. What it returns aliases its bytes.
// A field of another wire type than the reader of it expects is damage; one that is
// not known is passed over.
type reader struct {
	b   []byte
	num protowire.Number
	typ protowire.Type
	val []byte // of a field with a length
	n   uint64 // of one with a number
	err error
}

// next goes to the next field and is false at the end, or when the bytes are damaged.
func (r *reader) next() bool {
	if len(r.b) == 0 || r.err != nil {
		return false
	}
	num, typ, n := protowire.ConsumeTag(r.b)
	if n < 0 {
		return r.bad(n)
	}
	r.b, r.num, r.typ = r.b[n:], num, typ
	switch typ {
	case protowire.VarintType:
		r.n, n = protowire.ConsumeVarint(r.b)
	case protowire.Fixed64Type:
		r.n, n = protowire.ConsumeFixed64(r.b)
	case protowire.BytesType:
		r.val, n = protowire.ConsumeBytes(r.b)
	default:
		n = protowire.ConsumeFieldValue(num, typ, r.b)
	}
	if n < 0 {
		return r.bad(n)
	}
	r.b = r.b[n:]
	return true
}

func (r *reader) bad(n int) bool {
	r.err = fmt.Errorf("%w: %w", errFrame, protowire.ParseError(n))
	return false
}

func (r *reader) is(typ protowire.Type) bool {
	if r.typ != typ && r.err == nil {
		r.err = fmt.Errorf("%w: field %d has wire type %d", errFrame, r.num, r.typ)
	}
	return r.typ == typ
}

func (r *reader) uint() uint64 {
	if !r.is(protowire.VarintType) {
		return 0
	}
	return r.n
}

// uints calls fn for each number of a list, which comes packed or one by one.
func (r *reader) uints(fn func(uint64)) {
	if r.typ != protowire.BytesType {
		fn(r.uint())
		return
	}
	for b := r.val; len(b) > 0; {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			r.bad(n)
			return
		}
		fn(v)
		b = b[n:]
	}
}

func (r *reader) int() int64 { return int64(r.uint()) }
func (r *reader) bool() bool { return r.uint() != 0 }

func (r *reader) fixed() uint64 {
	if !r.is(protowire.Fixed64Type) {
		return 0
	}
	return r.n
}

func (r *reader) bytes() []byte {
	if !r.is(protowire.BytesType) {
		return nil
	}
	return r.val
}

func (r *reader) string() string { return string(r.bytes()) }
