package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/router"
)

// A fleet is what a number of consumers do to one topic, over the restarts of the
// server.
type fleet struct {
	t testing.TB

	mu       sync.Mutex
	server   *testServer // nil: it is down
	acked    map[string]bool
	seen     map[string]int
	repeated []string // delivered again, before their ack was answered
	working  int
}

func (f *fleet) up() *testServer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.server
}

func (f *fleet) set(s *testServer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.server = s
}

// delivered notes a delivery. A message whose ack was answered must not come again.
func (f *fleet) delivered(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.acked[id] {
		f.t.Errorf("message %s came again after its ack was answered", id)
	}
	if f.seen[id]++; f.seen[id] > 1 {
		f.repeated = append(f.repeated, id)
	}
	f.working++
}

func (f *fleet) settled(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acked[id] = true
	f.working--
}

// work receives until ctx ends, and handles each message for a random time up to
// longest, beside the others, in whatever order they end.
func (f *fleet) work(ctx context.Context, name string, push bool, longest time.Duration, random *rand.Rand) {
	handlers := make(chan struct{}, 500)
	var running sync.WaitGroup
	defer running.Wait()
	for ctx.Err() == nil {
		s := f.up()
		if s == nil {
			pause(ctx, time.Second)
			continue
		}
		c := s.consumer("a", "g")
		c.id = name
		req := c.simple(32, longest+100*time.Millisecond, 10*time.Second)
		if push {
			req = c.push(32, 10*time.Second)
		}
		stream := &frameStream{ctx: c.ctx(f.t), t: f.t}
		if s.ReceiveMessage(req, stream) != nil || stream.answer.code != rmqpb.Code_OK && stream.answer.code != rmqpb.Code_MESSAGE_NOT_FOUND {
			pause(ctx, time.Second)
			continue
		}
		a := &stream.answer
		for i, id := range a.ids() {
			f.delivered(id)
			// A third takes until the last moment.
			d := time.Duration(random.Int64N(int64(longest)))
			if random.IntN(3) == 0 {
				d = longest - time.Duration(random.Int64N(int64(time.Second)))
			}
			handlers <- struct{}{}
			running.Go(func() {
				time.Sleep(d)
				f.ack(name, id, a.handle(i))
				<-handlers
			})
		}
	}
}

// ack repeats an ack every second until it is answered, as SDKs do.
func (f *fleet) ack(name, id, handle string) {
	for {
		if s := f.up(); s != nil {
			c := s.consumer("a", "g")
			c.id = name
			switch code := c.ack(f.t, handle).GetStatus().GetCode(); code {
			case rmqpb.Code_OK, rmqpb.Code_INVALID_RECEIPT_HANDLE: // and gives up
				f.settled(id)
				return
			}
		}
		time.Sleep(time.Second)
	}
}

func (f *fleet) beat(ctx context.Context, name string) {
	for pause(ctx, 10*time.Second) {
		if s := f.up(); s != nil {
			c := s.consumer("a", "g")
			c.id = name
			c.heartbeat(f.t)
		}
	}
}

// Every message is handled once, and acknowledged while its lease lasts: it never
// comes again, for two hours. A server that is stopped and started again in between
// changes nothing; one that crashes may repeat what was at work.
func TestAHandlerThatSucceedsSeesItsMessageOnce(t *testing.T) {
	const stop, crash = 1, 2
	for name, event := range map[string]int{"undisturbed": 0, "across a restart": stop, "across a crash": crash} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				duration, longest := 2*time.Hour, 3*time.Minute // two renewals
				if event != 0 {
					longest = time.Minute // nobody renews what was at work then
				}
				if event != 0 || testing.Short() {
					duration = 20 * time.Minute
				}
				disk := vfs.NewCrashableMem()
				opts := Options{MaxPolling: 10 * time.Second}
				s, end := openOn(t, disk, opts)
				s.topic(t, "a", router.TopicSpec{Queues: 8})
				f := &fleet{t: t, server: s, acked: map[string]bool{}, seen: map[string]int{}}
				ctx, cancel := context.WithCancel(context.Background())
				var running sync.WaitGroup
				for i := range 4 {
					random := rand.New(rand.NewPCG(uint64(i), 1))
					running.Go(func() { f.work(ctx, fmt.Sprint("push-", i), true, longest, random) })
					running.Go(func() { f.beat(ctx, fmt.Sprint("push-", i)) })
				}
				running.Go(func() { f.work(ctx, "simple", false, time.Minute, rand.New(rand.NewPCG(9, 1))) })

				sent := 0
				for start := time.Now(); time.Since(start) < duration; time.Sleep(time.Second) {
					if event != 0 && time.Since(start) > duration/2 {
						f.set(nil)
						synctest.Wait() // what was asked is answered by the life that promised it
						left := disk
						if event == crash {
							left = disk.CrashClone(vfs.CrashCloneCfg{})
						}
						require.NoError(t, end())
						time.Sleep(3 * time.Second)
						disk = left
						s, end = openOn(t, disk, opts)
						f.set(s)
						event = 0
					}
					s.send(t, message("a", fmt.Sprint(sent), "x"))
					sent++
				}
				for start := time.Now(); ; time.Sleep(time.Second) {
					f.mu.Lock()
					done := len(f.acked) == sent && f.working == 0
					f.mu.Unlock()
					if done {
						break
					}
					require.Less(t, time.Since(start), 10*time.Minute)
				}
				time.Sleep(10 * time.Minute) // nothing comes late
				cancel()
				running.Wait()
				if name != "across a crash" {
					require.Empty(t, f.repeated)
				}
				require.Less(t, len(f.repeated), 400, "what was at work at one moment at most")
				require.Zero(t, s.renewals.len())
				require.NoError(t, end())
			})
		})
	}
}
