package scaletest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func named(name string) *rmqpb.Resource { return &rmqpb.Resource{Name: name} }

// sendRequest returns a request of n messages with bodies of the size.
func sendRequest(topic string, n, size int) *rmqpb.SendMessageRequest {
	req := &rmqpb.SendMessageRequest{}
	for i := range n {
		req.Messages = append(req.Messages, &rmqpb.Message{
			Topic: named(topic), Body: make([]byte, size),
			SystemProperties: &rmqpb.SystemProperties{
				MessageId: fmt.Sprintf("%034d", i), MessageType: rmqpb.MessageType_NORMAL, BodyEncoding: rmqpb.Encoding_IDENTITY,
			},
		})
	}
	return req
}

// send sends total messages in requests of n over several connections.
func (p *process) send(topic string, total, n, size int) {
	p.t.Helper()
	var left atomic.Int64
	left.Store(int64(total))
	var running sync.WaitGroup
	for range 4 {
		conn := p.dial()
		running.Go(func() {
			req := sendRequest(topic, n, size)
			for left.Add(-int64(n)) >= 0 {
				resp, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(context.Background(), req)
				if err != nil || resp.GetStatus().GetCode() != rmqpb.Code_OK {
					p.t.Errorf("send: %v %v", err, resp.GetStatus())
					return
				}
			}
		})
	}
	running.Wait()
}

// receiveRequest is one that does not wait.
func receiveRequest(topic, group string, n int32, invisible time.Duration) *rmqpb.ReceiveMessageRequest {
	return &rmqpb.ReceiveMessageRequest{
		Group: named(group), MessageQueue: &rmqpb.MessageQueue{Topic: named(topic)}, BatchSize: n,
		InvisibleDuration: durationpb.New(invisible), LongPollingTimeout: durationpb.New(0),
	}
}

// receive returns how many messages a receive got.
func receive(ctx context.Context, c rmqpb.MessagingServiceClient, req *rmqpb.ReceiveMessageRequest) (n int, err error) {
	stream, err := c.ReceiveMessage(ctx, req)
	if err != nil {
		return 0, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if resp.GetMessage() != nil {
			n++
		}
	}
}

// lease receives total messages and settles none.
func (p *process) lease(topic, group string, total int, invisible time.Duration) {
	p.t.Helper()
	var left atomic.Int64
	left.Store(int64(total))
	var running sync.WaitGroup
	for range 4 {
		conn := p.dial()
		running.Go(func() {
			for left.Load() > 0 {
				n, err := receive(context.Background(), rmqpb.NewMessagingServiceClient(conn), receiveRequest(topic, group, 32, invisible))
				if err != nil || n == 0 {
					p.t.Errorf("received %d: %v", n, err)
					return
				}
				left.Add(-int64(n))
			}
		})
	}
	running.Wait()
}

// rested returns the resident memory after some quiet seconds, in which garbage is
// returned to the system.
func (p *process) rested() int64 {
	wait(8 * time.Second)
	return p.rss()
}

// TestSmallWhenIdle: a server that nobody uses starts at once and takes little.
func TestSmallWhenIdle(t *testing.T) {
	bin := binary(t)
	info, err := os.Stat(bin)
	require.NoError(t, err)
	t.Logf("binary %s", size(info.Size()))
	require.Less(t, info.Size(), int64(40<<20))
	var starts latencies
	for i := range 5 {
		p := start(t, bin, filepath.Join(t.TempDir(), fmt.Sprint(i)), nil, nil)
		starts = append(starts, p.started)
		p.kill()
	}
	p := start(t, bin, t.TempDir(), nil, nil)
	wait(2 * time.Second)
	cpu := p.cpu()
	wait(10 * time.Second)
	t.Logf("start on an empty directory: %v; idle: rss %s, %v of CPU time in 10 s", starts, size(p.rss()), p.cpu()-cpu)
	require.Less(t, p.rss(), int64(50<<20))
	require.LessOrEqual(t, p.cpu()-cpu, 20*time.Millisecond)
	require.Less(t, starts.at(0.5), 200*time.Millisecond)
}

// TestBacklogAndLeasesTakeDiskNotMemory, and a kill costs seconds at most.
func TestBacklogAndLeasesTakeDiskNotMemory(t *testing.T) {
	bin := binary(t)
	dir := t.TempDir()
	args := []string{"--flush", "async", "--in-flight-limit", "0"}
	p := start(t, bin, dir, args, nil)
	p.run("topic", "create", "backlog")
	report := func(what string) {
		t.Logf("%-34s rss %s (peak %s), data %s", what, size(p.rested()), size(p.peak()), size(dirSize(t, dir)))
	}
	report("new")
	const messages, leases = 10_000_000, 1_000_000
	p.send("backlog", 100_000, 100, 100)
	report("100,000 messages")
	began := time.Now()
	p.send("backlog", messages, 1000, 100)
	t.Logf("sent in %v", time.Since(began).Round(time.Second))
	report("10 million more")
	began = time.Now()
	p.lease("backlog", "group", leases, time.Hour)
	t.Logf("leased in %v", time.Since(began).Round(time.Second))
	report("1 million leases")

	for _, how := range []string{"kill", "stop"} {
		if how == "kill" {
			p.kill()
		} else {
			p.stop()
		}
		p = start(t, bin, dir, args, nil)
		t.Logf("restart after a %s: %v", how, p.started.Round(time.Millisecond))
		require.Less(t, p.started, 10*time.Second)
		report("restarted")
	}
	began = time.Now()
	p.run("group", "describe", "group")
	t.Logf("backlog of the group told in %v", time.Since(began).Round(time.Millisecond))
	began = time.Now()
	n, err := receive(t.Context(), rmqpb.NewMessagingServiceClient(p.dial()), receiveRequest("backlog", "group", 32, time.Hour))
	require.NoError(t, err)
	require.Equal(t, 32, n)
	t.Logf("receive of 32 in %v", time.Since(began).Round(10*time.Microsecond))
}
