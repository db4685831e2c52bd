package transport

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

// DefaultMaxRecvMsgSize is the largest request by default: a batch of bodies of
// the largest size, and well above the 4 MiB of gRPC.
const DefaultMaxRecvMsgSize = 64 << 20

const (
	// minPing must be below the ping period of every SDK, the shortest of which
	// is 60 s; pings that come faster end the connection.
	minPing = 10 * time.Second
	// pingAfter and pingTimeout say how long a silent connection is kept before
	// it is probed, and given up: leases and sessions of a dead peer end then. The
	// kernel gives it up after pingTimeout when something was sent. A frame, or the
	// headers of a call, that has not arrived as a whole is silence too.
	pingAfter   = 30 * time.Second
	pingTimeout = 20 * time.Second
	// DeadPeerTimeout is how long a connection may last after its peer has died.
	DeadPeerTimeout = pingAfter + pingTimeout
	// idleAfter ends connections that carry no call for so long. An open stream is
	// one, and so are heartbeats, which every SDK sends more often than that.
	idleAfter = 10 * time.Minute

	// A connection carries one long poll per assigned queue, and sends. What is
	// above waits in the client.
	maxConcurrentStreams = 10_000
	// The SDKs send under 2 KiB of headers; one of them doubles them per retry.
	maxHeaderListSize = 64 << 10
	// What a stream may send before its handler reads. Fixed sizes: with those that
	// grow with the traffic, calls that are not read yet would take megabytes each.
	// A message that is being read gets room for all of it.
	streamWindow     = 64 << 10
	connectionWindow = 4 << 20
	// Workers keep their grown stacks between calls. When all are in long polls,
	// gRPC starts a goroutine per call as it would without them.
	streamWorkers = 64
)

// ServerConfig configures ServerOptions.
type ServerConfig struct {
	// Credentials are what the port serves. Nil: cleartext without a look at
	// the first bytes.
	Credentials credentials.TransportCredentials
	// MaxRecvMsgSize is the largest request in bytes. Zero: DefaultMaxRecvMsgSize.
	MaxRecvMsgSize int
	// ConnectionTimeout bounds the time from accepting a connection until it is
	// ready for calls. Zero: DefaultHandshakeTimeout.
	ConnectionTimeout time.Duration
}

// ServerOptions returns the options of the gRPC server that are about
// connections and bytes; interceptors and services are the caller's. They set
// no maximum connection age: several SDKs lose their session for minutes, or
// for ever, when a connection ends.
func ServerOptions(c ServerConfig) []grpc.ServerOption {
	if c.MaxRecvMsgSize == 0 {
		c.MaxRecvMsgSize = DefaultMaxRecvMsgSize
	}
	if c.ConnectionTimeout == 0 {
		c.ConnectionTimeout = DefaultHandshakeTimeout
	}
	pool := NewBufferPool()
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(NewCodec(pool)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout, MaxConnectionIdle: idleAfter}),
		grpc.MaxRecvMsgSize(c.MaxRecvMsgSize),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.MaxHeaderListSize(maxHeaderListSize),
		grpc.NumStreamWorkers(streamWorkers),
		experimental.BufferPool(pool),
		grpc.ConnectionTimeout(c.ConnectionTimeout),
	}
	if c.Credentials == nil {
		c.Credentials = insecure.NewCredentials()
	}
	return append(opts, grpc.Creds(tracked{c.Credentials}))
}
