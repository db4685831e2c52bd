package remote

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// A frame is a message of a stream of calls as it is received. Its bytes are nobody
// else's, and what is read from them aliases them.
type frame struct{ b []byte }

// Codec is that of a server or a connection with streams of calls. It does what the standard
// codec "proto" does, and passes encoded messages through: a mem.BufferSlice that is sent,
// a frame that is received.
type codec struct{ std encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// Name returns "proto", the content subtype.
func (codec) Name() string { return "proto" }

// Marshal passes a mem.BufferSlice through.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(mem.BufferSlice); ok {
		return b, nil
	}
	return c.std.Marshal(v)
}

// Unmarshal copies the bytes for a *frame.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *frame:
		v.b = data.Materialize()
		return nil
	case proto.Message:
		return c.std.Unmarshal(data, v)
	default:
		return fmt.Errorf("a message cannot be decoded into a %T", v)
	}
}
