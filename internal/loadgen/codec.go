package loadgen

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// request is an encoded request. gRPC reads it until the call is answered, or
// for longer when the call fails.
type request []byte

// response reads an encoded response; it keeps no reference to data.
type response interface{ read(data []byte) error }

// codec sends requests and reads responses as they are on the wire.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(request)
	if !ok {
		return nil, fmt.Errorf("a request of type %T cannot be sent", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(r)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(response)
	if !ok {
		return fmt.Errorf("a response cannot be read into a %T", v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return r.read(buf.ReadOnlyData())
}

// call makes a unary call.
func call(ctx context.Context, conn grpc.ClientConnInterface, method string, req request, resp response) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return conn.Invoke(ctx, method, req, resp, grpc.ForceCodecV2(codec{}))
}

// stream calls a method that answers with a stream, and reads each response
// with frame.
func stream(ctx context.Context, conn grpc.ClientConnInterface, method string, req request, frame response) error {
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return err
	}
	if err := s.SendMsg(req); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	for {
		if err := s.RecvMsg(frame); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// fields calls visit with every field of the message: its number, and its
// content or number.
func fields(message []byte, visit func(field protowire.Number, content []byte, number uint64) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		var content []byte
		var number uint64
		switch kind {
		case protowire.BytesType:
			content, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(field, content, number); err != nil {
			return err
		}
	}
	return nil
}

// readCode reads the code of an encoded Status.
func readCode(status []byte) (code rmqpb.Code, err error) {
	err = fields(status, func(field protowire.Number, _ []byte, number uint64) error {
		if field == 1 {
			code = rmqpb.Code(int32(number))
		}
		return nil
	})
	return code, err
}

// results reads a response with a status in field 1 and, in field entries, one
// result per request entry whose own status is in field status: those of
// SendMessage and AckMessage.
type results struct {
	entries, status protowire.Number

	code  rmqpb.Code
	codes []rmqpb.Code // of the entries
}

func (r *results) read(data []byte) error {
	r.code, r.codes = 0, r.codes[:0]
	return fields(data, func(field protowire.Number, content []byte, _ uint64) (err error) {
		switch field {
		case 1:
			r.code, err = readCode(content)
		case r.entries:
			code := rmqpb.Code_CODE_UNSPECIFIED
			err = fields(content, func(field protowire.Number, content []byte, _ uint64) (err error) {
				if field == r.status {
					code, err = readCode(content)
				}
				return err
			})
			r.codes = append(r.codes, code)
		}
		return err
	})
}

// count adds the outcome of a request with n entries to m and returns how many
// were OK.
func (r *results) count(m *meter, n int) int {
	if r.code != rmqpb.Code_OK && r.code != rmqpb.Code_MULTIPLE_RESULTS && len(r.codes) == 0 {
		m.failed(r.code.String(), n)
		return 0
	}
	good := 0
	for _, code := range r.codes {
		if code == rmqpb.Code_OK {
			good++
		} else {
			m.failed(code.String(), 1)
		}
	}
	if missing := n - len(r.codes); missing > 0 {
		m.failed("missing result", missing)
	}
	return good
}
