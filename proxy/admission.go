package proxy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// Admission of sends.
//
// gRPC would read a request of any size before a handler is asked, and with many
// connections that is more than there is memory. So the size of a send is read
// from its prefix first, and its bytes only when there is room for them in the
// budget. Until then the client's flow control holds back all but the first few.

// A rawStream is what gRPC's own stream offers beside its interface: the prefix
// of a message, and its bytes. Without it, sends are read as gRPC reads them.
type rawStream interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// messagingService describes the service with admission in front of SendMessage.
func (s *Server) messagingService() *grpc.ServiceDesc {
	desc := rmqpb.MessagingService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "SendMessage" {
			desc.Methods[i].Handler = s.admitSend(desc.Methods[i].Handler)
		}
	}
	return &desc
}

// slowSend is how long the bytes of a send may take to arrive before they are no
// longer counted.
const slowSend = 5 * time.Second

// admitSend lets a send into the handler when there is room for it.
func (s *Server) admitSend(next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		stream, ok := grpc.ServerTransportStreamFromContext(ctx).(rawStream)
		if !ok {
			return next(srv, ctx, decode, interceptor)
		}
		req := &unread{stream: stream, codec: transport.NewCodec(s.frames)}
		size, err := req.size()
		if err != nil {
			return nil, err
		}
		var room *claim
		if size > s.opts.MaxRequestSize {
			err = refuse(rmqpb.Code_PAYLOAD_TOO_LARGE, "the request has %d bytes, the limit is %d", size, s.opts.MaxRequestSize)
		} else {
			room, err = s.acquireSend(ctx, size)
		}
		if err != nil {
			return refuseSend(ctx, srv, interceptor, s.statusOf(ctx, err))
		}
		// A client that announces a request and does not send it holds no room: what it
		// has not sent takes none.
		var released atomic.Bool
		release := func() {
			if !released.Swap(true) {
				room.release()
			}
		}
		defer release()
		slow := time.AfterFunc(slowSend, release)
		defer slow.Stop()
		return next(srv, ctx, func(v any) error {
			defer slow.Stop()
			return req.decode(v)
		}, interceptor)
	}
}

// refuseSend answers a send that was not read, past the interceptors.
func refuseSend(ctx context.Context, srv any, interceptor grpc.UnaryServerInterceptor, st *rmqpb.Status) (any, error) {
	answer := func(context.Context, any) (any, error) { return &rmqpb.SendMessageResponse{Status: st}, nil }
	if interceptor == nil {
		return answer(ctx, nil)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: rmqpb.MessagingService_SendMessage_FullMethodName}
	return interceptor(ctx, &rmqpb.SendMessageRequest{}, info, answer)
}

// unread is a request of which nothing but the prefix is read at first: a flag for
// compression, and its size.
type unread struct {
	stream rawStream
	codec  transport.Codec
	prefix [5]byte
}

// size reads the prefix.
func (u *unread) size() (int, error) {
	switch err := u.stream.ReadMessageHeader(u.prefix[:]); {
	case errors.Is(err, io.EOF):
		return 0, grpcstatus.Error(grpccodes.Internal, "the call has no request")
	case err != nil:
		return 0, err
	case u.prefix[0] != 0:
		return 0, grpcstatus.Error(grpccodes.Unimplemented, "the request is compressed, which this server does not support")
	}
	return int(binary.BigEndian.Uint32(u.prefix[1:])), nil
}

// decode reads the rest into v, and that there is nothing behind it.
func (u *unread) decode(v any) error {
	data, err := u.stream.Read(int(binary.BigEndian.Uint32(u.prefix[1:])))
	if err != nil {
		return err
	}
	defer data.Free()
	if err := u.stream.ReadMessageHeader(u.prefix[:]); !errors.Is(err, io.EOF) {
		if err == nil {
			err = grpcstatus.Error(grpccodes.Internal, "the call has more than one request")
		}
		return err
	}
	if err := u.codec.Unmarshal(data, v); err != nil {
		return grpcstatus.Errorf(grpccodes.Internal, "the request cannot be decoded: %v", err)
	}
	return nil
}
