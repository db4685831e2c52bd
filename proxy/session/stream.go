package session

import rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"

// queueLength is how many commands a stream may be behind. Settings are
// answered one for one, and the server itself sends few commands.
const queueLength = 16

// A Stream is the outgoing side of one Telemetry call. Commands wait in a short
// queue and are dropped when it is full: some SDKs stop reading theirs.
type Stream struct {
	queue chan *rmqpb.TelemetryCommand
}

// NewStream returns a stream whose queue the Telemetry handler empties.
func NewStream() *Stream { return &Stream{queue: make(chan *rmqpb.TelemetryCommand, queueLength)} }

// Send queues a command, or reports false when the queue is full. The command
// must not be changed afterwards.
func (st *Stream) Send(cmd *rmqpb.TelemetryCommand) bool {
	select {
	case st.queue <- cmd:
		return true
	default:
		return false
	}
}

// Commands is where the handler takes the commands from.
func (st *Stream) Commands() <-chan *rmqpb.TelemetryCommand { return st.queue }
