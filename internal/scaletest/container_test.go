package scaletest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// A container is a control group for one process: what a container's limits are made of.
type container struct {
	dirs   []string // one, or one for each controller
	counts map[string]string
}

// newContainer returns a control group with so much memory, in bytes, and one processor.
func newContainer(t *testing.T, memory int64) *container {
	t.Helper()
	const root = "/sys/fs/cgroup"
	name := fmt.Sprint("perigee-scale-", os.Getpid())
	limits := map[string]string{ // version 1
		filepath.Join(root, "memory", name, "memory.limit_in_bytes"): fmt.Sprint(memory),
		filepath.Join(root, "cpu", name, "cpu.cfs_period_us"):        "100000",
		filepath.Join(root, "cpu", name, "cpu.cfs_quota_us"):         "100000",
	}
	c := &container{counts: map[string]string{
		"memory with the page cache": filepath.Join(root, "memory", name, "memory.usage_in_bytes"),
		"oom_kill":                   filepath.Join(root, "memory", name, "memory.oom_control"),
		"throttled":                  filepath.Join(root, "cpu", name, "cpu.stat"),
	}}
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		limits = map[string]string{
			filepath.Join(root, name, "memory.max"): fmt.Sprint(memory),
			filepath.Join(root, name, "cpu.max"):    "100000 100000",
		}
		c.counts = map[string]string{
			"memory with the page cache": filepath.Join(root, name, "memory.current"),
			"oom_kill":                   filepath.Join(root, name, "memory.events"),
			"throttled":                  filepath.Join(root, name, "cpu.stat"),
		}
	}
	dirs := map[string]bool{}
	for file := range limits {
		dirs[filepath.Dir(file)] = true
	}
	for dir := range maps.Keys(dirs) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("no control group can be made here: %v", err)
		}
		c.dirs = append(c.dirs, dir)
		t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
	}
	for file, limit := range limits {
		if err := os.WriteFile(file, []byte(limit), 0o644); err != nil {
			t.Skipf("no limit can be set here: %v", err)
		}
	}
	return c
}

// command runs the binary in the container.
func (c *container) command(bin string) *exec.Cmd {
	script := ""
	for _, dir := range c.dirs {
		script += "echo $$ >" + filepath.Join(dir, "cgroup.procs") + " && "
	}
	return exec.Command("/bin/sh", "-c", script+`exec "$0" "$@"`, bin)
}

// count returns a number that the container counts.
func (c *container) count(t *testing.T, what string) int64 {
	t.Helper()
	content, err := os.ReadFile(c.counts[what])
	require.NoError(t, err)
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 1 || fields[0] == what || what == "throttled" && fields[0] == "nr_throttled" {
			n, err := strconv.ParseInt(fields[len(fields)-1], 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	t.Fatalf("no %s in %s", what, c.counts[what])
	return 0
}

// smallTime is how long the load of the small container goes on: PERIGEE_SMALL, or a minute.
func smallTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PERIGEE_SMALL")
	if text == "" {
		return time.Minute
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err, "PERIGEE_SMALL")
	return d
}

// TestASmallContainerBearsASteadyLoad is K8-04: 512 MiB and one processor, 1,000 messages
// of 1 KiB a second from a producer to a consumer, beside 10,000 timers that are pending
// all the time.
func TestASmallContainerBearsASteadyLoad(t *testing.T) {
	const (
		limit  = 512 << 20
		rate   = 1000
		timers = 10_000
	)
	bin, lasts := binary(t), smallTime(t)
	box := newContainer(t, limit)
	p := startAs(t, box.command(bin), t.TempDir(), nil, nil)
	idle := p.rested()
	t.Logf("start %v, idle rss %s", p.started.Round(time.Millisecond), size(idle))
	require.Less(t, p.started, 5*time.Second)
	require.Less(t, idle, int64(150<<20))
	p.run("topic", "create", "steady")
	p.run("topic", "create", "timers", "--type", "DELAY")

	load, err := loadgen.Dial(client.Options{Endpoint: p.address, Version: "5.1.4"}, 2)
	require.NoError(t, err)
	defer load.Close()
	pending := &pendingTimers{t: t, client: rmqpb.NewMessagingServiceClient(p.dial()), over: min(lasts/2, 5*time.Minute), due: map[string]time.Time{}}
	pending.send(timers)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	running.Go(func() { pending.replace(ctx) })
	began := time.Now()
	running.Go(func() {
		for next := time.Minute; next <= lasts; next += time.Minute {
			select {
			case <-ctx.Done():
				return
			case <-time.NewTimer(time.Until(began.Add(next))).C:
			}
			t.Logf("%v: rss %s (peak %s), %s with the page cache, %v of CPU time, %.0f timers pending", next, size(p.rss()), size(p.peak()),
				size(box.count(t, "memory with the page cache")), p.cpu().Round(time.Second), p.gauge("perigee_delayed_pending_messages"))
		}
	})
	sent, received, err := load.EndToEnd(t.Context(), loadgen.EndToEndLoad{
		Send: loadgen.SendLoad{Load: loadgen.Load{Topic: "steady", Concurrency: 64, Rate: rate, Limit: loadgen.Limit{Duration: lasts}}, Size: 1024, Batch: 1},
		Receive: loadgen.ReceiveLoad{
			Load: loadgen.Load{Concurrency: 4}, Group: "steady", Batch: 32, AckBatch: 32, Invisible: time.Minute, Wait: 10 * time.Second,
		},
		Drain: time.Minute,
	})
	took := time.Since(began)
	stop()
	running.Wait()
	require.NoError(t, err)
	at := func(q float64) time.Duration {
		return time.Duration(received.Latency.ValueAtQuantile(q)).Round(10 * time.Microsecond)
	}
	t.Logf("%v: %d sent, %d received, from the time a send was due to the consumer p50 %v, p99 %v, max %v", took.Round(time.Second),
		sent.Messages, received.Messages, at(50), at(99), at(100))
	t.Logf("timers: %d delivered, p50 %v, max %v after their time", len(pending.late), pending.late.at(0.5).Round(time.Millisecond), pending.late.at(1).Round(time.Millisecond))
	t.Logf("rss at the end %s, peak %s; %v of CPU time; throttled in %d of %d tenths of a second", size(p.rss()), size(p.peak()), p.cpu().Round(time.Second),
		box.count(t, "throttled"), int64(took/(100*time.Millisecond)))
	require.Empty(t, sent.Errors)
	require.Empty(t, received.Errors)
	require.Equal(t, sent.Messages, received.Messages)
	require.Greater(t, sent.Messages, int64(lasts.Seconds()*rate*0.9))
	require.Zero(t, box.count(t, "oom_kill"))
	require.Less(t, p.peak(), int64(limit))
	p.stop() // it is still there, and ends in order
}

// pendingTimers are delayed messages, so many all the time: each that comes is replaced.
type pendingTimers struct {
	t      *testing.T
	client rmqpb.MessagingServiceClient
	over   time.Duration // from now on, in which they are due
	sent   int
	due    map[string]time.Time
	late   latencies
}

// send sends n more.
func (p *pendingTimers) send(n int) {
	for n > 0 {
		req := sendRequest("timers", min(n, 32), 100)
		for _, m := range req.GetMessages() {
			id := fmt.Sprintf("%034d", p.sent)
			p.due[id] = time.Now().Add(time.Second + rand.N(p.over)).Truncate(time.Millisecond)
			m.SystemProperties.MessageId, m.SystemProperties.MessageType = id, rmqpb.MessageType_DELAY
			m.SystemProperties.DeliveryTimestamp = timestamppb.New(p.due[id])
			p.sent++
			n--
		}
		resp, err := p.client.SendMessage(context.Background(), req)
		if err != nil || resp.GetStatus().GetCode() != rmqpb.Code_OK {
			p.t.Errorf("a timer: %v %v", err, resp.GetStatus())
		}
	}
}

// replace receives those that are due until ctx ends, and sends others.
func (p *pendingTimers) replace(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.once(ctx); err != nil && ctx.Err() == nil {
			p.t.Errorf("timers: %v", err)
			return
		}
	}
}

func (p *pendingTimers) once(ctx context.Context) error {
	req := receiveRequest("timers", "timers", 32, time.Minute)
	req.LongPollingTimeout = nil
	stream, err := p.client.ReceiveMessage(ctx, req)
	if err != nil {
		return err
	}
	ack := &rmqpb.AckMessageRequest{Group: named("timers"), Topic: named("timers")}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		sys := resp.GetMessage().GetSystemProperties()
		if sys == nil {
			continue
		}
		due, known := p.due[sys.GetMessageId()]
		switch late := time.Since(due); {
		case !known:
			p.t.Errorf("timer %s came, and had not been sent, or a second time", sys.GetMessageId())
		case late < 0:
			p.t.Errorf("timer %s came %v before its time", sys.GetMessageId(), -late)
		default:
			p.late = append(p.late, late)
		}
		delete(p.due, sys.GetMessageId())
		ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{MessageId: sys.GetMessageId(), ReceiptHandle: sys.GetReceiptHandle()})
	}
	if len(ack.Entries) == 0 {
		return nil
	}
	resp, err := p.client.AckMessage(context.WithoutCancel(ctx), ack)
	if err != nil {
		return err
	}
	if resp.GetStatus().GetCode() != rmqpb.Code_OK {
		return fmt.Errorf("ack: %v", resp.GetStatus())
	}
	p.send(len(ack.Entries))
	return nil
}
