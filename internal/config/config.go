// Package config holds the configuration of a Perigee process: one struct, its
// defaults, its rules, and how it is read from a file, the environment and the
// command line.
//
// It opens nothing but the configuration file, logs nothing and knows no tier.
// cmd/perigee loads it; internal/node runs what it describes.
package config

import (
	"log/slog"
	"time"
)

// Config is the whole configuration of a server. The zero value is not valid;
// begin with Default. In a file the keys are the names in the comments.
type Config struct {
	// DataDir is the folder that holds all data (data_dir). It is created when
	// it is missing, and used by one process at a time.
	DataDir string
	// GRPCListen is the host:port that serves clients (grpc_listen). An empty
	// host means all addresses, port 0 a free one.
	GRPCListen string
	// HTTPListen is the host:port for health, readiness and metrics (http_listen).
	HTTPListen string
	// Shard names the shard of this node; clients see it as the name of the
	// broker (shard). Stored data and receipt handles carry it: keep it.
	Shard string
	// Advertise is the host:port that clients are told to connect to
	// (advertise). Empty means the address each client itself has dialed.
	Advertise string
	// TLS is what the gRPC port speaks (tls).
	TLS TLS
	// Flush says when the log is synced to disk (flush).
	Flush Flush
	// SegmentSize is the size of one file of the log (segment_size).
	SegmentSize Size
	// AutoCreateTopics makes a send to a missing topic, or a question for its
	// route, create it instead of failing (auto_create_topics).
	AutoCreateTopics bool
	// AutoCreateGroups makes a receive with a missing consumer group create it
	// instead of failing (auto_create_groups).
	AutoCreateGroups bool
	// DefaultQueues is the number of queues of a topic whose creator names none
	// (default_queues).
	DefaultQueues int
	// MaxRecvSize is the largest request the gRPC port takes (max_recv_size).
	MaxRecvSize Size
	// MaxBodySize is the largest body of a message (max_body_size).
	MaxBodySize Size
	// LongPollingMax is the longest time an empty receive waits (long_polling_max).
	LongPollingMax time.Duration
	// MemoryLimit is the memory that the process should stay below; 0: that of
	// GOMEMLIMIT, or else of the container, or else none (memory_limit).
	MemoryLimit Size
	// InFlightLimit is how many messages of one queue a consumer group may have
	// under lease; 0: no limit (in_flight_limit).
	InFlightLimit int
	// MaxWaitingReceives is how many receives may wait for messages at a time,
	// fewer where the memory limit leaves no room for them; 0: no limit
	// (max_waiting_receives).
	MaxWaitingReceives int
	// SessionTimeout is how long a client counts as alive after its last sign
	// of life (session_timeout).
	SessionTimeout time.Duration
	// Renew is how the leases of a push consumer are kept alive (renew).
	Renew Renew
	// Log is what the process logs (log).
	Log Log
}

// TLS says what the gRPC port speaks.
type TLS struct {
	// Mode is permissive (TLS and cleartext on one port), required (TLS only)
	// or disabled (cleartext only) (tls.mode).
	Mode string
	// CertFile and KeyFile are PEM files with the certificate chain and its key
	// (tls.cert_file, tls.key_file). When both are empty the server makes a
	// self-signed certificate.
	CertFile string
	KeyFile  string
}

// The values of TLS.Mode.
const (
	TLSPermissive = "permissive"
	TLSRequired   = "required"
	TLSDisabled   = "disabled"
)

// Flush says when what was appended to the log is synced to disk.
type Flush struct {
	// Mode is sync (before a send is acknowledged) or async (within Interval
	// after it) (flush.mode).
	Mode string
	// Interval is the longest time between two syncs in async mode (flush.interval).
	Interval time.Duration
}

// The values of Flush.Mode.
const (
	FlushSync  = "sync"
	FlushAsync = "async"
)

// Renew says how the leases of consumers that asked for it are kept alive.
type Renew struct {
	// Slice is how far ahead a lease is renewed at a time (renew.slice); it is
	// also how long the messages of a consumer that died stay away at most.
	Slice time.Duration
	// Max is when renewing ends although the consumer lives (renew.max).
	Max time.Duration
}

// Log says what the process logs, to standard error.
type Log struct {
	// Level is the least severe level logged: debug, info, warn or error (log.level).
	Level slog.Level
	// Format is text or json (log.format).
	Format string
}

// The values of Log.Format.
const (
	LogText = "text"
	LogJSON = "json"
)

// Default returns the configuration of a server that nobody configured.
func Default() Config {
	return Config{
		DataDir:          "perigee-data",
		GRPCListen:       ":8081",
		HTTPListen:       ":8088",
		Shard:            "perigee-0",
		TLS:              TLS{Mode: TLSPermissive},
		Flush:            Flush{Mode: FlushSync, Interval: 200 * time.Millisecond},
		SegmentSize:      1 << 30,
		AutoCreateGroups: true,
		DefaultQueues:    8,
		MaxRecvSize:      64 << 20,
		MaxBodySize:      4 << 20,
		LongPollingMax:   20 * time.Second,
		SessionTimeout:   90 * time.Second,

		InFlightLimit:      20_000,
		MaxWaitingReceives: 100_000,

		Renew: Renew{Slice: time.Minute, Max: 3 * time.Hour},
		Log:   Log{Level: slog.LevelInfo, Format: LogText},
	}
}
