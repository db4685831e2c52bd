package session

import (
	"sync/atomic"

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
	bytes atomic.Int64 // of what is queued
}

// NewStream returns a stream whose queue the Telemetry handler empties.
func NewStream() *Stream { return &Stream{queue: make(chan *rmqpb.TelemetryCommand, queueLength)} }

// Send queues a command, or reports false when the queue is full. The command
// must not be changed afterwards.
func (st *Stream) Send(cmd *rmqpb.TelemetryCommand) bool {
	size := int64(proto.Size(cmd))
	if queued := st.bytes.Add(size); queued > queueBytes && queued > size {
		st.bytes.Add(-size)
		return false
	}
	select {
	case st.queue <- cmd:
		return true
	default:
		st.bytes.Add(-size)
		return false
	}
}

// Commands is where the handler takes the commands from. It tells Took of each.
func (st *Stream) Commands() <-chan *rmqpb.TelemetryCommand { return st.queue }

// Took notes that cmd is no longer queued.
func (st *Stream) Took(cmd *rmqpb.TelemetryCommand) { st.bytes.Add(-int64(proto.Size(cmd))) }
