package transport

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func response(body int) *rmqpb.ReceiveMessageResponse {
	return &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: &rmqpb.Message{
		Topic:            &rmqpb.Resource{Name: "orders"},
		UserProperties:   map[string]string{"a": "1", "b": "2"},
		SystemProperties: &rmqpb.SystemProperties{MessageId: "id", BornHost: "host", Keys: []string{"key"}},
		Body:             bytes.Repeat([]byte("b"), body),
	}}}
}

func TestOrdinaryClientDecodesEncodedResponses(t *testing.T) {
	want := response(5000)
	encoded, err := proto.Marshal(want)
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serve(t, lis, newCredentials(t, Disabled, io.Discard), &service{receive: func(stream grpc.ServerStream) error {
		pool := mem.DefaultBufferPool()
		pooled := pool.Get(len(encoded))
		copy(*pooled, encoded)
		return errors.Join(
			stream.SendMsg(want),
			stream.SendMsg(RawMessage(encoded)),
			stream.SendMsg(mem.BufferSlice{mem.NewBuffer(pooled, pool)}),
			stream.SendMsg(mem.BufferSlice{mem.SliceBuffer(encoded[:10]), mem.SliceBuffer(encoded[10:])}),
			stream.SendMsg(RawMessage(nil)),
		)
	}})
	stream, err := dial(t, lis.Addr().String(), cleartext()).ReceiveMessage(t.Context(), &rmqpb.ReceiveMessageRequest{})
	require.NoError(t, err)
	for i := range 4 {
		got, err := stream.Recv()
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "response %d", i)
	}
	empty, err := stream.Recv()
	require.NoError(t, err)
	require.Nil(t, empty.GetContent())
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)
}

func TestCodecRefusesWhatItCannotEncode(t *testing.T) {
	_, err := NewCodec(NewBufferPool()).Marshal([]byte("plain bytes"))
	require.ErrorContains(t, err, "[]uint8")
	require.ErrorContains(t, NewCodec(NewBufferPool()).Unmarshal(nil, new(int)), "*int")
	_, err = NewCodec(NewBufferPool()).Marshal(&rmqpb.Resource{Name: "\xff"})
	require.Error(t, err, "a string that is no UTF-8")
	require.Error(t, NewCodec(NewBufferPool()).Unmarshal(mem.BufferSlice{mem.SliceBuffer("\xff")}, &rmqpb.Resource{}))
}

func TestDecodedRequestKeepsNoReferenceToTheBuffer(t *testing.T) {
	data, err := proto.Marshal(response(2000))
	require.NoError(t, err)
	var got rmqpb.ReceiveMessageResponse
	require.NoError(t, NewCodec(NewBufferPool()).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &got))
	clear(data)
	require.True(t, proto.Equal(response(2000), &got))
}

func TestFieldsThatNobodyKnowsAreDropped(t *testing.T) {
	sent := response(10)
	newer := protowire.AppendString(protowire.AppendTag(nil, 9999, protowire.BytesType), "of a later version")
	sent.ProtoReflect().SetUnknown(newer)
	sent.GetMessage().GetTopic().ProtoReflect().SetUnknown(newer)
	data, err := proto.Marshal(sent)
	require.NoError(t, err)
	var got rmqpb.ReceiveMessageResponse
	require.NoError(t, NewCodec(NewBufferPool()).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &got))
	require.True(t, proto.Equal(response(10), &got), &got)
}

func TestRequestsAboveTheGRPCDefaultAreAccepted(t *testing.T) {
	addr := listen(t, Permissive, io.Discard)
	client := dial(t, addr, cleartext())
	_, err := client.Heartbeat(t.Context(), &rmqpb.HeartbeatRequest{
		Group: &rmqpb.Resource{Name: string(bytes.Repeat([]byte("g"), 8<<20))},
	})
	require.NoError(t, err)
}

func TestProfilesAreServedOnlyWhereTheyAreWanted(t *testing.T) {
	ok := func() error { return nil }
	plain := NewHTTPHandler(ok, ok, http.NotFoundHandler())
	code := func(handler http.Handler, path string) int {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		return rec.Code
	}
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline"} {
		require.Equal(t, 404, code(plain, path), path)
		require.Equal(t, 200, code(WithProfiles(plain), path), path)
	}
	require.Equal(t, 200, code(WithProfiles(plain), "/livez"))
}

func TestHealthEndpoints(t *testing.T) {
	var notReady error
	handler := NewHTTPHandler(func() error { return notReady }, func() error { return nil }, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "metrics here")
	}))
	get := func(method, path string) (int, string) {
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return rec.Code, rec.Body.String()
	}
	for _, tc := range []struct {
		name, method, path string
		err                error
		code               int
		body               string
	}{
		{"live", "GET", "/livez", nil, 200, "ok\n"},
		{"live while not ready", "GET", "/livez", errors.New("no store"), 200, "ok\n"},
		{"ready", "GET", "/readyz", nil, 200, "ok\n"},
		{"not ready", "GET", "/readyz", errors.New("no store"), 503, "no store\n"},
		{"metrics", "GET", "/metrics", nil, 200, "metrics here"},
		{"unknown path", "GET", "/", nil, 404, "404 page not found\n"},
		{"wrong method", "POST", "/livez", nil, 405, "Method Not Allowed\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			notReady = tc.err
			code, body := get(tc.method, tc.path)
			require.Equal(t, tc.code, code)
			require.Equal(t, tc.body, body)
		})
	}
}

func BenchmarkCodec(b *testing.B) {
	m := response(1 << 10)
	encoded, err := proto.Marshal(m)
	require.NoError(b, err)
	for name, v := range map[string]any{"struct": m, "raw": RawMessage(encoded)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				out, err := NewCodec(NewBufferPool()).Marshal(v)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
		})
	}
}
