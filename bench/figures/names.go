package figures

// The classes of durability.
const (
	Fsync = "fsync before the answer"
	Cache = "page cache"
)

// The servers.
const (
	Perigee    = "Perigee"
	RocketMQ   = "Apache RocketMQ"
	RocketMQKV = "Apache RocketMQ, KV"
	JetStream  = "NATS JetStream"
	RabbitMQ   = "RabbitMQ, quorum"
	Noop       = "no-op gRPC"
)

// Servers are the servers in the order in which they are shown.
func Servers() []string { return []string{Perigee, RocketMQ, RocketMQKV, JetStream, RabbitMQ, Noop} }

// color returns the color of a server in pictures.
func color(server string) string {
	switch server {
	case Perigee:
		return "#d9480f"
	case RocketMQ:
		return "#1c7ed6"
	case RocketMQKV:
		return "#74c0fc"
	case JetStream:
		return "#2f9e44"
	case RabbitMQ:
		return "#ae3ec9"
	default:
		return "#adb5bd"
	}
}

// The rows.
const (
	Send    = "send 1"
	Batch   = "send 32"
	Receive = "receive and ack 32"
	Each    = "receive 32, ack each"
	Latency = "send to receive"
	Start   = "start"
	Memory  = "memory"
)

// What a record says of itself.
const (
	KeyDate     = "date"
	KeyMachine  = "machine"
	KeySystem   = "system"
	KeyCommit   = "commit"
	KeyVersions = "versions"
	KeyCommand  = "command"
	KeyBusy     = "busy"
	KeyWarmUp   = "warm-up"
	KeyRow      = "time for a row"
	KeyRate     = "rate of the open loop"
	KeyTook     = "took"
)
