package transport

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A RawMessage is a response in its encoded form; a handler sends it in place
// of the generated struct.
//
// Sending hands the bytes over for good: gRPC reads them until they are written
// to the connection, which may be long after the send has returned, so nobody
// may change or reuse them. A handler that wants its buffer back in a pool
// sends a mem.BufferSlice instead.
type RawMessage []byte

// Codec is the server's codec. It does what the standard codec "proto" does
// and sends two kinds of encoded responses besides:
//
//   - RawMessage, owned by gRPC from then on;
//   - mem.BufferSlice, which may be in several pieces. One reference to each
//     buffer passes to gRPC, which frees it once the bytes are written; when
//     the send fails earlier it may be left to the garbage collector.
//
// Neither is copied or checked: the bytes must be what the client expects.
type Codec struct{ pool mem.BufferPool }

// NewCodec returns a codec that takes its buffers from pool.
func NewCodec(pool mem.BufferPool) Codec { return Codec{pool} }

var _ encoding.CodecV2 = Codec{}

// Name returns "proto", the content subtype.
func (Codec) Name() string { return "proto" }

// Marshal returns the encoding of v: a proto.Message, RawMessage or
// mem.BufferSlice.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case proto.Message:
		return c.marshal(v)
	case RawMessage:
		return mem.BufferSlice{mem.SliceBuffer(v)}, nil
	case mem.BufferSlice:
		return v, nil
	default:
		return nil, fmt.Errorf("a response of type %T cannot be encoded", v)
	}
}

func (c Codec) marshal(m proto.Message) (mem.BufferSlice, error) {
	size := proto.Size(m)
	// The size was computed on the line before and m is nobody else's.
	opts := proto.MarshalOptions{UseCachedSize: true}
	if mem.IsBelowBufferPoolingThreshold(size) {
		data, err := opts.Marshal(m)
		if err != nil {
			return nil, err
		}
		return mem.BufferSlice{mem.SliceBuffer(data)}, nil
	}
	pool := c.pool
	buf := pool.Get(size)
	if _, err := opts.MarshalAppend((*buf)[:0], m); err != nil {
		pool.Put(buf)
		return nil, err
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// Unmarshal decodes data into v, a proto.Message, which keeps no reference to
// data. Fields that this version does not know are dropped: an answer that
// repeats a part of its request would repeat them too, some once for each queue.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("a request cannot be decoded into a %T", v)
	}
	buf := data.MaterializeToBuffer(c.pool)
	defer buf.Free()
	return proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(buf.ReadOnlyData(), m)
}
