package loadgen

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// EndToEndLoad sends and receives at the same time.
type EndToEndLoad struct {
	Send SendLoad
	// Receive's topic, limit and progress are those of Send.
	Receive ReceiveLoad
	// From is what the receives go to; nil: what the sends go to. A server may take a
	// connection for that of a producer or of a consumer, and not for both.
	From *Target
	// Drain is how long to go on receiving after the last send.
	Drain time.Duration
}

// drainWait is how long an empty receive waits while a backlog is drained.
const drainWait = time.Second

// EndToEnd receives what the group has left in the topic, and then runs the
// load. The first result is that of the sends; in the second one, Latency is the
// time from when a send was due to the arrival of its message at the consumer,
// and only messages of this load have one.
func (t *Target) EndToEnd(ctx context.Context, l EndToEndLoad) (sent, received Result, err error) {
	if l.Send.Size < stampSize {
		return sent, received, fmt.Errorf("size %d: must be %d or more, to hold the time of the send", l.Send.Size, stampSize)
	}
	if err := l.Receive.validate(); err != nil {
		return sent, received, err
	}
	if l.From == nil {
		l.From = t
	}
	backlog := l.Receive
	backlog.Topic, backlog.Limit, backlog.Rate, backlog.Progress = l.Send.Topic, Limit{}, 0, nil
	backlog.UntilEmpty, backlog.Wait = true, min(l.Receive.Wait, drainWait)
	if _, err := l.From.Receive(ctx, backlog); err != nil {
		return sent, received, err
	}
	mark := newStamp()
	l.Send.stamp, l.Receive.stamp = mark, mark
	l.Receive.Topic, l.Receive.Limit, l.Receive.Rate, l.Receive.Progress = l.Send.Topic, Limit{}, 0, nil
	seen := &arrivals{grew: make(chan struct{}, 1)}
	l.Receive.arrivals = seen

	receiving, stop := context.WithCancel(ctx)
	defer stop()
	var receiveErr error
	var running sync.WaitGroup
	running.Go(func() {
		received, receiveErr = l.From.Receive(receiving, l.Receive)
		if receiveErr != nil {
			stop()
		}
	})
	sent, err = t.Send(receiving, l.Send)
	if err == nil {
		seen.await(receiving, sent.Messages, l.Drain)
	}
	stop()
	running.Wait()
	if receiveErr != nil {
		err = receiveErr
	}
	return sent, received, err
}

// arrivals counts the messages of a load that have arrived.
type arrivals struct {
	count atomic.Int64
	grew  chan struct{} // holds one token when count has grown
}

func (a *arrivals) add() {
	a.count.Add(1)
	select {
	case a.grew <- struct{}{}:
	default:
	}
}

// await returns when n messages have arrived, or after limit, or when ctx ends.
func (a *arrivals) await(ctx context.Context, n int64, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for a.count.Load() < n {
		select {
		case <-a.grew:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
