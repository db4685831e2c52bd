// Package config holds the configuration of a Perigee process: one struct, its
// defaults, its rules, and how it is read from a file, the environment and the
// command line.
//
// It opens nothing but the configuration file, logs nothing and knows no tier.
// cmd/perigee loads it; internal/node runs what it describes.
package config

import (
	"log/slog"
	"strings"
	"time"
)

// Config is the whole configuration of a server. The zero value is not valid;
// begin with Default. In a file the keys are the names in the comments.
type Config struct {
	// Tier is which part of a deployment the process is. It is the command, and no setting.
	Tier Tier
	// Name is that of the node among others (name). A proxy makes one up.
	Name string
	// Routers are the addresses of the routers (router).
	Routers []string
	// Listen is the host:port that serves the other tiers (listen).
	Listen string
	// Announce is the host:port at which the other tiers are told to reach the node
	// (announce). Empty: the address of this host towards a router, and the port of Listen.
	Announce string
	// Cluster says which other tiers are let in (cluster).
	Cluster Cluster
	// Etcd is where a router has its metadata instead of its data folder (etcd).
	Etcd Etcd
	// DataDir is the folder that holds all data (data_dir). It is created when
	// it is missing, and used by one process at a time.
	DataDir string
	// GRPCListen is the host:port that serves clients (grpc_listen). An empty
	// host means all addresses, port 0 a free one.
	GRPCListen string
	// HTTPListen is the host:port for health, readiness and metrics (http_listen).
	HTTPListen string
	// Profiling says whether profiles of the process are served below /debug/pprof of
	// HTTPListen (profiling). Whoever reaches that port can take them then.
	Profiling bool
	// Shard names the shard of this node; clients see it as the name of the
	// broker (shard). Stored data and receipt handles carry it: keep it.
	Shard string
	// Advertise is the host:port that clients of GRPCListen are told to connect to
	// (advertise). Empty means the address each client itself has dialed.
	Advertise string
	// ProxyProtocol says whether connections to GRPCListen begin with a header of
	// the PROXY protocol: off, optional or required (proxy_protocol).
	ProxyProtocol string
	// Listeners serve clients beside GRPCListen (listeners).
	Listeners []Listener
	// MaxConnections is the largest number of open connections of clients
	// (max_connections). 0 means three quarters of the files and connections that
	// the system lets the process open.
	MaxConnections int
	// TLS is what the gRPC port speaks (tls).
	TLS TLS
	// Flush says when the log is synced to disk (flush).
	Flush Flush
	// SegmentSize is the size of one file of the log (segment_size).
	SegmentSize Size
	// Retention is how long messages are kept, and how full the disk may be
	// (retention).
	Retention Retention
	// AutoCreateTopics makes a send to a missing topic, or a question for its
	// route, create it instead of failing (auto_create_topics).
	AutoCreateTopics bool
	// AutoCreateGroups makes a receive with a missing consumer group create it
	// instead of failing (auto_create_groups).
	AutoCreateGroups bool
	// AutoCreateLimit is with how many topics, or groups, no more of them are created
	// this way; 0: no limit (auto_create_limit).
	AutoCreateLimit int
	// DefaultQueues is the number of queues of a topic whose creator names none
	// (default_queues).
	DefaultQueues int
	// MaxRecvSize is the largest request the gRPC port takes (max_recv_size).
	MaxRecvSize Size
	// MaxBodySize is the largest body of a message (max_body_size).
	MaxBodySize Size
	// MaxDelay is how far ahead the delivery time of a message may lie (max_delay).
	MaxDelay time.Duration
	// DeliveryMemory bounds the messages that are on their way to consumers at once
	// (delivery_memory). They take up to twice as much memory.
	DeliveryMemory Size
	// LongPollingMax is the longest time an empty receive waits (long_polling_max).
	LongPollingMax time.Duration
	// MemoryLimit is the memory that the process should stay below; 0: that of
	// GOMEMLIMIT, or else of the container, or else none (memory_limit).
	MemoryLimit Size
	// InFlightLimit is how many messages of one queue a consumer group may have
	// under lease; 0: no limit (in_flight_limit).
	InFlightLimit int
	// Lite bounds lite topics.
	Lite Lite
	// MaxWaitingReceives is how many receives may wait for messages at a time,
	// fewer where the memory limit, or else the machine's memory, leaves no room for
	// them; 0: no limit (max_waiting_receives).
	MaxWaitingReceives int
	// MaxSessions is how many clients are known at a time; 0: no limit (max_sessions).
	MaxSessions int
	// SessionTimeout is how long a client counts as alive after its last sign
	// of life (session_timeout).
	SessionTimeout time.Duration
	// ShutdownTimeout is how long a stopping server waits for calls under way
	// before it cuts them off (shutdown_timeout).
	ShutdownTimeout time.Duration
	// Renew is how the leases of a push consumer are kept alive (renew).
	Renew Renew
	// Transactions say when producers are asked about half messages (transactions).
	Transactions Transactions
	// Metrics are what /metrics serves (metrics).
	Metrics Metrics
	// Tracing says where the spans of calls go (tracing).
	Tracing Tracing
	// Log is what the process logs (log).
	Log Log

	// Version is the program's own, for whoever asks. It is no setting.
	Version string
}

// Metrics say what /metrics serves.
type Metrics struct {
	// MaxTopics is how many topics, and how many pairs of a consumer group and a
	// topic, have series of their own (metrics.max_topics).
	MaxTopics int
}

// A Listener is one more address that serves clients. What it leaves empty is not
// taken from the keys of the same name in Config.
type Listener struct {
	// Listen is the host:port (listen).
	Listen string
	// Advertise is the host:port that clients of this listener are told to connect
	// to (advertise). Empty means the address each client itself has dialed.
	Advertise string
	// ProxyProtocol is as in Config (proxy_protocol). Empty means off.
	ProxyProtocol string
}

// The values of ProxyProtocol.
const (
	ProxyProtocolOff      = "off"
	ProxyProtocolOptional = "optional"
	ProxyProtocolRequired = "required"
)

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
	// KeyPasswordFile holds the password of an encrypted key
	// (tls.key_password_file); KeyPassword is one itself (tls.key_password, or its
	// environment variable; no flag, which others could read).
	KeyPasswordFile string
	KeyPassword     string
	// Certificates are further ones, shown to clients that ask for a name in them
	// (tls.certificates). All others are shown that of CertFile.
	Certificates []Certificate
	// ClientAuth says whether clients show certificates: off, optional or require
	// (tls.client_auth).
	ClientAuth string
	// ClientCAFile is a PEM file with the authorities that have signed those
	// (tls.client_ca_file).
	ClientCAFile string
}

// A Certificate names PEM files as TLS does.
type Certificate struct {
	CertFile        string // cert_file
	KeyFile         string // key_file
	KeyPasswordFile string // key_password_file
}

// The values of TLS.ClientAuth.
const (
	ClientAuthOff      = "off"
	ClientAuthOptional = "optional"
	ClientAuthRequire  = "require"
)

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

// Retention says how long messages are kept, and what happens when the disk
// fills up.
type Retention struct {
	// Age is how long the messages of a topic without a retention of its own are
	// kept; 0: for ever (retention.age).
	Age time.Duration
	// Size is the largest log; the oldest messages go before it grows further,
	// whatever their age. 0: no bound (retention.size).
	Size Size
	// Disk is what happens as the disk fills up (retention.disk).
	Disk DiskRetention
	// Interval is the time between two looks at what is too old and at the disk
	// (retention.interval).
	Interval time.Duration
}

// DiskRetention says what happens as the disk fills up.
type DiskRetention struct {
	// Clean is when files are removed at once in which every message is past its
	// age (retention.disk.clean).
	Clean Watermark
	// Force is when the oldest files are removed whatever the age of their
	// messages (retention.disk.force).
	Force Watermark
	// Refuse is when sends are refused until there is room again
	// (retention.disk.refuse).
	Refuse Watermark
}

// Renew says how the leases of consumers that asked for it are kept alive.
type Renew struct {
	// Slice is how far ahead a lease is renewed at a time (renew.slice). It is how
	// long a handler at work may take to settle its message after the server was
	// stopped, unless another proxy goes on renewing it, and how long a message stays away
	// whose consumer died with the server;
	// those of one that dies alone come back within seconds.
	Slice time.Duration
	// Max is when renewing ends although the consumer lives (renew.max).
	Max time.Duration
}

// Transactions say when producers are asked about half messages whose transaction they
// have not ended.
type Transactions struct {
	// FirstCheck is how long after it was stored a message is asked about for the first time,
	// unless its sender says (transactions.first_check).
	FirstCheck time.Duration
	// CheckInterval is how long a producer has to answer the first question before the
	// next one; it is doubled each time, up to MaxCheckInterval (transactions.check_interval,
	// transactions.max_check_interval).
	CheckInterval    time.Duration
	MaxCheckInterval time.Duration
	// MaxChecks is how often a producer is asked about a message before that is given up
	// (transactions.max_checks).
	MaxChecks int
	// Remember is for how long it is known how a transaction ended, so that the same
	// end again is no error (transactions.remember).
	Remember time.Duration
}

// Tracing says where the spans of calls go.
type Tracing struct {
	// Endpoint is the collector: host:port, or a URL with http or https for
	// cleartext or TLS (tracing.endpoint). It takes OTLP over gRPC. When it is set
	// nowhere, the standard variables OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
	// OTEL_EXPORTER_OTLP_ENDPOINT count. Empty: no spans are made.
	Endpoint string
	// Ratio is the share of calls that are traced of those that neither their
	// caller nor the sender of their message has decided about, from 0 to 1
	// (tracing.ratio).
	Ratio float64
}

// EndpointURL returns Endpoint as a URL.
func (t Tracing) EndpointURL() string {
	if strings.Contains(t.Endpoint, "://") {
		return t.Endpoint
	}
	return "http://" + t.Endpoint
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
		Tier:          Standalone,
		Etcd:          Etcd{Prefix: "/perigee"},
		DataDir:       "perigee-data",
		GRPCListen:    ":8081",
		HTTPListen:    ":8088",
		Shard:         "perigee-0",
		ProxyProtocol: ProxyProtocolOff,
		TLS:           TLS{Mode: TLSPermissive, ClientAuth: ClientAuthOff},
		Flush:         Flush{Mode: FlushSync, Interval: 200 * time.Millisecond},
		SegmentSize:   1 << 30,
		Retention: Retention{
			Age:      72 * time.Hour,
			Disk:     DiskRetention{Clean: Watermark{Percent: 75}, Force: Watermark{Percent: 85}, Refuse: Watermark{Percent: 90}},
			Interval: 10 * time.Second,
		},
		AutoCreateGroups: true,
		AutoCreateLimit:  10_000,
		DefaultQueues:    8,
		MaxRecvSize:      64 << 20,
		MaxBodySize:      4 << 20,
		MaxDelay:         40 * 24 * time.Hour,
		DeliveryMemory:   256 << 20,
		LongPollingMax:   20 * time.Second,
		SessionTimeout:   90 * time.Second,
		ShutdownTimeout:  30 * time.Second,

		InFlightLimit:      20_000,
		Lite:               Lite{Topics: 2_000_000, ClientSubscriptions: 2000, Subscriptions: 100_000},
		MaxWaitingReceives: 100_000,
		MaxSessions:        100_000,

		Renew: Renew{Slice: time.Minute, Max: 3 * time.Hour},
		Transactions: Transactions{
			FirstCheck: 6 * time.Second, CheckInterval: 30 * time.Second, MaxCheckInterval: 10 * time.Minute,
			MaxChecks: 15, Remember: time.Hour,
		},
		Metrics: Metrics{MaxTopics: 1000},
		Tracing: Tracing{Ratio: 0.01},
		Log:     Log{Level: slog.LevelInfo, Format: LogText},
	}
}

// Lite bounds lite topics and what clients subscribe to of them; 0: no limit.
type Lite struct {
	// Topics is how many lite topics one topic may have (lite.topics).
	Topics int
	// ClientSubscriptions is how many lite topics one client of a group may subscribe to
	// (lite.client_subscriptions), from 1: clients are told.
	ClientSubscriptions int
	// Subscriptions is how many lite topics all clients together may subscribe to, each
	// counted for each client (lite.subscriptions), from 1.
	Subscriptions int
}
