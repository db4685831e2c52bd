// Package newer makes both ends of a gRPC connection look newer than they are, for tests of
// upgrades: it stands between them and adds fields that nobody knows to every message, to each
// message in it, and to the details of errors.
//
// It works on descriptors alone, on bytes as they are on the wire, so that encodings which are
// written by hand are tested as well, and a field or a call that is added later is covered.
package newer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// unknown are fields of each type on the wire, with numbers that no message has.
var unknown = func() (b []byte) {
	b = protowire.AppendVarint(protowire.AppendTag(b, 20_000, protowire.VarintType), 1<<60)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 20_001, protowire.Fixed32Type), 7)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 20_002, protowire.Fixed64Type), 8)
	return protowire.AppendBytes(protowire.AppendTag(b, 20_003, protowire.BytesType), []byte("what the next version says"))
}()

// A Proxy stands between clients and one server.
type Proxy struct {
	server *grpc.Server
	conn   *grpc.ClientConn

	mu struct {
		sync.Mutex
		methods map[string]bool
		err     error
	}
}

// Serve begins to answer at a listener what a server answers that dial leads to.
func Serve(l net.Listener, dial func(context.Context, string) (net.Conn, error)) (*Proxy, error) {
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
	if err != nil {
		return nil, err
	}
	p := &Proxy{conn: conn}
	p.mu.methods = map[string]bool{}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.handle), grpc.WaitForHandlers(true))
	go func() { _ = p.server.Serve(l) }() // ends with Stop
	return p, nil
}

// Stop ends all connections.
func (p *Proxy) Stop() error {
	p.server.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.mu.err, p.conn.Close())
}

// Missed returns the methods of a service that nothing went through of.
func (p *Proxy) Missed(service protoreflect.ServiceDescriptor) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range service.Methods().Len() {
		m := service.Methods().Get(i)
		if !p.mu.methods[path(m)] {
			names = append(names, string(m.Name()))
		}
	}
	slices.Sort(names)
	return names
}

func path(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

// find returns the method that is called.
func find(called string) (protoreflect.MethodDescriptor, error) {
	var found protoreflect.MethodDescriptor
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				if m := methods.Get(j); path(m) == called {
					found = m
				}
			}
		}
		return found == nil
	})
	if found == nil {
		return nil, status.Error(codes.Unimplemented, called)
	}
	return found, nil
}

func (p *Proxy) handle(_ any, in grpc.ServerStream) error {
	called, _ := grpc.MethodFromServerStream(in)
	m, err := find(called)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	md, _ := metadata.FromIncomingContext(ctx)
	out, err := p.conn.NewStream(metadata.NewOutgoingContext(ctx, md.Copy()), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, called)
	if err != nil {
		return err
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			if p.pass(in, out, m.Input()) != nil {
				_ = out.CloseSend() // the answer says what is wrong
				return
			}
			p.mu.Lock()
			p.mu.methods[called] = true
			p.mu.Unlock()
		}
	})
	if header, err := out.Header(); err == nil && header != nil {
		if err := in.SendHeader(header); err != nil { // it says that the stream is there
			return err
		}
	}
	for {
		if err = p.pass(out, in, m.Output()); err != nil {
			break
		}
	}
	in.SetTrailer(out.Trailer())
	if errors.Is(err, io.EOF) {
		return nil
	}
	return p.ofStatus(err)
}

// pass carries one message over.
func (p *Proxy) pass(from interface{ RecvMsg(any) error }, to interface{ SendMsg(any) error }, kind protoreflect.MessageDescriptor) error {
	var b []byte
	if err := from.RecvMsg(&b); err != nil {
		return err
	}
	b, err := add(b, kind)
	if err != nil {
		p.mu.Lock()
		p.mu.err = errors.Join(p.mu.err, err)
		p.mu.Unlock()
		return err
	}
	return to.SendMsg(&b)
}

// ofStatus adds fields to the details of an error.
func (p *Proxy) ofStatus(err error) error {
	s := status.Convert(err)
	again := status.New(s.Code(), s.Message())
	for _, d := range s.Details() {
		m, ok := d.(proto.Message)
		if !ok {
			continue
		}
		fill(m.ProtoReflect())
		if again, err = again.WithDetails(protoadapt.MessageV1Of(m)); err != nil {
			return err
		}
	}
	return again.Err()
}

// add adds fields to an encoded message and to those in it.
func add(b []byte, kind protoreflect.MessageDescriptor) ([]byte, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(kind.FullName())
	if err != nil {
		return nil, err
	}
	m := t.New().Interface()
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("%s: %w", kind.FullName(), err)
	}
	fill(m.ProtoReflect())
	// Before the others too.
	return proto.MarshalOptions{}.MarshalAppend(slices.Clone(unknown), m)
}

func fill(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsMap():
			if f.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { fill(v.Message()); return true })
			}
		case f.IsList():
			for i := range v.List().Len() {
				fill(v.List().Get(i).Message())
			}
		default:
			fill(v.Message())
		}
		return true
	})
	m.SetUnknown(append(slices.Clone(m.GetUnknown()), unknown...))
}

// raw is a codec of bytes as they are.
type raw struct{}

// Name implements encoding.CodecV2: the content subtype is that of protobuf.
func (raw) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (raw) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

var _ encoding.CodecV2 = raw{}
