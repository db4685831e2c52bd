package transport

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
)

// DefaultMaxRecvMsgSize is the largest request by default: a batch of bodies of
// the largest size, and well above the 4 MiB of gRPC.
const DefaultMaxRecvMsgSize = 64 << 20

const (
	// minPing must be below the ping period of every SDK, the shortest of which
	// is 60 s; pings that come faster end the connection.
	minPing = 10 * time.Second
	// pingAfter and pingTimeout say how long a silent connection is kept before
	// it is probed, and given up: leases and sessions of a dead peer end then.
	pingAfter   = 60 * time.Second
	pingTimeout = 20 * time.Second

	// A connection carries one long poll per assigned queue.
	maxConcurrentStreams = 100_000
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
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(Codec{}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.MaxRecvMsgSize(c.MaxRecvMsgSize),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connectionWindow),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.MaxHeaderListSize(maxHeaderListSize),
		grpc.NumStreamWorkers(streamWorkers),
		experimental.BufferPool(NewBufferPool()),
		grpc.ConnectionTimeout(c.ConnectionTimeout),
	}
	if c.Credentials != nil {
		opts = append(opts, grpc.Creds(c.Credentials))
	}
	return opts
}

// NewBufferPool returns gRPC's pool with a tier for each power of two up to 4 MiB. The
// default goes from 32 KiB to 1 MiB in one step and clears a buffer whole when it
// hands it out: a request of 40 KiB would cost a megabyte of zeros.
func NewBufferPool() mem.BufferPool {
	pool, err := mem.NewBinaryTieredBufferPool(8, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22)
	if err != nil {
		panic("BUG: tiers of the buffer pool: " + err.Error())
	}
	return pool
}
