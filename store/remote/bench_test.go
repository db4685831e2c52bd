package remote_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

// at is a directory with one node.
type at string

func (a at) NodeOf(string) (string, error) { return string(a), nil }
func (a at) Nodes() []string               { return []string{string(a)} }

// BenchmarkHop is what the way to a store node and back costs, both ends together, over a
// real connection: 64 callers at a time, the store itself does nothing. An iteration is
// one message.
func BenchmarkHop(b *testing.B) {
	body := make([]byte, 1024)
	message := &mq.Message{ID: "01020304050607080900010203040506070809", Type: mq.Normal, Tag: "tag", System: make([]byte, 120), Body: body}
	batch := make([]mq.Delivery, 32)
	for i := range batch {
		batch[i] = mq.Delivery{Message: *message, StoreTime: time.Unix(1, 1), Lease: mq.Lease{Queue: 1, Offset: 1 << 20, PopID: 1 << 60, Attempt: 1}}
	}
	h := &hooked{
		append:  func(context.Context) ([]mq.Appended, error) { return stored(), nil },
		receive: func(context.Context) ([]mq.Delivery, error) { return batch, nil },
		ack:     func() []error { return []error{nil} },
		change:  func(c []mq.LeaseChange) []error { return make([]error, len(c)) },
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	server := grpc.NewServer(remote.GRPCOptions()...)
	remote.NewServer(remote.ServerOptions{Store: h}).Register(server)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	client := remote.NewClient(remote.Options{
		Directory: at(listener.Addr().String()), Dial: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())},
	})
	defer func() { require.NoError(b, client.Close()) }()
	t, g := topic(), group()
	ctx := context.Background()
	for _, bc := range []struct {
		name     string
		messages int
		call     func() error
	}{
		{"send", 1, func() error { _, err := client.Append(ctx, "s", t, 1, []*mq.Message{message}); return err }},
		{"receive-32", 32, func() error {
			_, err := client.Receive(ctx, "s", mq.Receive{Topic: t, Group: g, Max: 32, Invisible: time.Minute})
			return err
		}},
		{"ack", 1, func() error {
			return client.Ack(ctx, []mq.Lease{{Shard: "s", Topic: 7, Group: 9, Offset: 1 << 20, PopID: 1 << 60}})[0]
		}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			require.NoError(b, bc.call())
			b.ReportAllocs()
			var left atomic.Int64
			left.Store(int64(b.N))
			before := used(b)
			b.ResetTimer()
			var callers sync.WaitGroup
			for range 64 {
				callers.Go(func() {
					for left.Add(-int64(bc.messages)) > -int64(bc.messages) {
						if err := bc.call(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			callers.Wait()
			b.StopTimer()
			b.ReportMetric(float64((used(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// used returns the processor time of the process.
func used(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
