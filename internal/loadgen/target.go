// Package loadgen puts load on a server of the RocketMQ 5 protocol, Perigee or
// not, and measures what it gets: `perigee bench` and the comparison in bench/
// run it.
//
// It must be cheap itself, or it measures itself: requests are encoded once and
// patched, responses are read without being decoded into structs.
package loadgen

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
)

// callTimeout bounds a call that does not wait for messages.
const callTimeout = 30 * time.Second

// window is the flow control window, so that large batches do not wait for
// window updates.
const window = 4 << 20

// Target is a server under load, over one or more connections.
type Target struct {
	conns []*client.Conn
	ids   *client.MessageIDs
}

// Dial returns a target that spreads its calls over the given number of
// connections. It does no I/O.
func Dial(opts client.Options, connections int) (*Target, error) {
	if connections < 1 {
		return nil, fmt.Errorf("connections %d: must be 1 or more", connections)
	}
	opts.FixedHeaders = true
	opts.DialOptions = append(opts.DialOptions[:len(opts.DialOptions):len(opts.DialOptions)],
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
	)
	t := &Target{ids: client.NewMessageIDs()}
	for range connections {
		conn, err := client.Dial(opts)
		if err != nil {
			t.Close()
			return nil, err
		}
		t.conns = append(t.conns, conn)
	}
	return t, nil
}

// Join returns a target with the connections of several, which must lead to one deployment:
// workers take turns over the targets. It owns the connections from then on.
func Join(targets ...*Target) *Target {
	all := &Target{ids: client.NewMessageIDs()}
	for i, more := 0, true; more; i++ {
		more = false
		for _, t := range targets {
			if i < len(t.conns) {
				all.conns, more = append(all.conns, t.conns[i]), true
			}
		}
	}
	return all
}

// Close ends the connections.
func (t *Target) Close() {
	for _, c := range t.conns {
		c.Close()
	}
}

// conn returns the connection of the i-th worker.
func (t *Target) conn(i int) *client.Conn { return t.conns[i%len(t.conns)] }

// Limit says when a load ends: when the first of its limits that is not zero is
// reached. Calls that are under way are then waited for.
type Limit struct {
	Duration time.Duration
	Count    int64 // messages
}

// Load is what all loads have in common.
type Load struct {
	Topic       string
	Concurrency int // calls in flight
	Limit       Limit
	// Rate is the number of messages per second to aim at; 0 means as many as
	// possible. With a rate, latencies count from the time a call was due.
	Rate float64
	// Progress, when set, is called about once a second until the load ends,
	// and never concurrently.
	Progress func(Progress)
}

func (l Load) validate() error {
	switch {
	case l.Concurrency < 1:
		return fmt.Errorf("concurrency %d: must be 1 or more", l.Concurrency)
	case l.Rate < 0:
		return fmt.Errorf("rate %g: must not be negative", l.Rate)
	case l.Limit.Duration < 0 || l.Limit.Count < 0:
		return fmt.Errorf("limit: must not be negative")
	}
	return nil
}

// Progress is how far a load is.
type Progress struct {
	Elapsed  time.Duration
	Messages int64
	Bytes    int64
	Errors   int64
}

// errorName returns the name an error is counted under.
func errorName(err error) string {
	if s, ok := status.FromError(err); ok {
		return "grpc " + s.Code().String()
	}
	return err.Error()
}

// random returns n bytes that do not compress.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

func (t *Target) queues(ctx context.Context, topic string, want rmqpb.Permission) ([]*rmqpb.MessageQueue, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return t.conns[0].Queues(ctx, topic, want)
}
