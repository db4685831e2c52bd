package session

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// queueLength is how many commands a stream may be behind, and queueBytes how
// many bytes, unless it is one command alone. Settings are answered one for one,
// and the server itself sends few commands.
const (
	queueLength = 16
	queueBytes  = 256 << 10
)

// A Stream is the outgoing side of one Telemetry call. Commands wait in a short
// queue and are dropped when it is full: some SDKs stop reading theirs.
type Stream struct {
	queue chan *rmqpb.TelemetryCommand
	room  chan struct{} // capacity 1: something was taken, or the stream has ended

	mu struct {
		sync.Mutex
		bytes int64 // of what is queued
		ended bool
	}
}

// NewStream returns a stream whose queue the Telemetry handler empties.
func NewStream() *Stream {
	return &Stream{queue: make(chan *rmqpb.TelemetryCommand, queueLength), room: make(chan struct{}, 1)}
}

// Send queues a command, or reports false when the queue is full or the stream has
// ended. The command must not be changed afterwards.
func (st *Stream) Send(cmd *rmqpb.TelemetryCommand) bool {
	sent, _ := st.send(cmd)
	return sent
}

func (st *Stream) send(cmd *rmqpb.TelemetryCommand) (sent, ended bool) {
	size := int64(proto.Size(cmd))
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.ended {
		return false, true
	}
	if st.mu.bytes > 0 && st.mu.bytes+size > queueBytes {
		return false, false
	}
	select {
	case st.queue <- cmd:
		st.mu.bytes += size
		return true, false
	default:
		return false, false
	}
}

// SendWait is Send, but waits for room until ctx ends.
func (st *Stream) SendWait(ctx context.Context, cmd *rmqpb.TelemetryCommand) bool {
	for {
		if sent, ended := st.send(cmd); sent || ended {
			st.signal() // there may be more room, and others who wait for it
			return sent
		}
		select {
		case <-st.room:
		case <-ctx.Done():
			return false
		}
	}
}

// Commands is where the handler takes the commands from. It tells Took of each.
func (st *Stream) Commands() <-chan *rmqpb.TelemetryCommand { return st.queue }

// Took notes that cmd is no longer queued.
func (st *Stream) Took(cmd *rmqpb.TelemetryCommand) {
	st.mu.Lock()
	st.mu.bytes -= int64(proto.Size(cmd))
	st.mu.Unlock()
	st.signal()
}

// End ends the stream: nothing is queued any more. It returns what nobody has taken.
func (st *Stream) End() (left []*rmqpb.TelemetryCommand) {
	st.mu.Lock()
	st.mu.ended = true
	st.mu.Unlock()
	st.signal()
	for {
		select {
		case cmd := <-st.queue:
			left = append(left, cmd)
		default:
			return left
		}
	}
}

func (st *Stream) signal() {
	select {
	case st.room <- struct{}{}:
	default:
	}
}
