package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// A setting binds one key to its place in a Config. Every source - file,
// environment, command line - sets it from text, by the same rules.
type setting struct {
	tiers tiers  // that know it
	key   string // the path in a file, with dots
	flag  string // empty: the command line cannot set it
	usage string
	value pflag.Value
}

// variable returns the environment variable of the setting.
func (s setting) variable() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(s.key, ".", "_"))
}

// settings lists everything that can be configured, bound to c.
func settings(c *Config) []setting {
	return []setting{
		{storeNode | proxyNode, "name", "name", "`name` of the node, unlike that of any other one", text(&c.Name)},
		{storeNode | proxyNode, "router", "router", "`addresses` of the routers, separated by commas", names(&c.Routers)},
		{routerNode | storeNode, "listen", "listen", "`address` that serves the other tiers", text(&c.Listen)},
		{storeNode | proxyNode, "announce", "announce", "`host:port` the other tiers are told to reach the node at; empty: an address of this host", text(&c.Announce)},
		{cluster, "cluster.token_file", "cluster-token-file", "`file` with the secret that the tiers show each other", text(&c.Cluster.TokenFile)},
		{cluster, "cluster.cert_file", "cluster-cert", "PEM `file` with the certificate that the node shows other tiers", text(&c.Cluster.CertFile)},
		{cluster, "cluster.key_file", "cluster-key", "PEM `file` with its key", text(&c.Cluster.KeyFile)},
		{cluster, "cluster.ca_file", "cluster-ca", "PEM `file` with the authorities that sign the certificates of other tiers", text(&c.Cluster.CAFile)},
		{routerNode, "etcd.endpoints", "etcd", "`addresses` of an etcd in which routers share their metadata, separated by commas; empty: the data folder", names(&c.Etcd.Endpoints)},
		{routerNode, "etcd.prefix", "etcd-prefix", "`text` that the keys in etcd begin with", text(&c.Etcd.Prefix)},
		{routerNode, "etcd.username", "etcd-username", "`name` of a user of etcd", text(&c.Etcd.Username)},
		{routerNode, "etcd.password_file", "etcd-password-file", "`file` with the user's password", text(&c.Etcd.PasswordFile)},
		{routerNode, "etcd.cert_file", "etcd-cert", "PEM `file` with the certificate that the router shows etcd", text(&c.Etcd.CertFile)},
		{routerNode, "etcd.key_file", "etcd-key", "PEM `file` with its key", text(&c.Etcd.KeyFile)},
		{routerNode, "etcd.ca_file", "etcd-ca", "PEM `file` with the authorities that sign the certificates of etcd; empty: cleartext", text(&c.Etcd.CAFile)},
		{everywhere, "data_dir", "data-dir", "`folder` that holds all data", text(&c.DataDir)},
		{standalone | proxyNode, "grpc_listen", "grpc-listen", "`address` that serves clients", text(&c.GRPCListen)},
		{everywhere, "http_listen", "http-listen", "`address` for health, readiness and metrics", text(&c.HTTPListen)},
		{everywhere, "profiling", "profiling", "serve profiles of the process below /debug/pprof of http_listen", boolean(&c.Profiling)},
		{standalone | storeNode, "shard", "shard", "`name` of the shard, the broker name clients see", text(&c.Shard)},
		{standalone | proxyNode, "advertise", "advertise", "`host:port` clients are told to connect to; empty: what they dialed", text(&c.Advertise)},
		{standalone | proxyNode, "proxy_protocol", "proxy-protocol", "`mode`: off, optional or required, a PROXY protocol header in front of each connection", text(&c.ProxyProtocol)},
		{standalone | proxyNode, "listeners", "listeners", "further listeners, as `YAML`: [{listen: HOST:PORT, advertise: HOST:PORT, proxy_protocol: MODE}]", list(&c.Listeners, listenerKeys)},
		{standalone | proxyNode, "max_connections", "max-connections", "largest `number` of open connections; 0: what the system allows, less a quarter", integer(&c.MaxConnections)},
		{standalone | proxyNode, "tls.mode", "tls-mode", "`mode`: permissive, required or disabled", text(&c.TLS.Mode)},
		{standalone | proxyNode, "tls.cert_file", "tls-cert", "PEM `file` with the certificate chain; empty: self-signed", text(&c.TLS.CertFile)},
		{standalone | proxyNode, "tls.key_file", "tls-key", "PEM `file` with the certificate's key", text(&c.TLS.KeyFile)},
		{standalone | proxyNode, "tls.key_password_file", "tls-key-password-file", "`file` with the password of an encrypted key", text(&c.TLS.KeyPasswordFile)},
		{standalone | proxyNode, "tls.key_password", "", "", text(&c.TLS.KeyPassword)},
		{standalone | proxyNode, "tls.certificates", "tls-certificates", "certificates for single names, as `YAML`: [{cert_file: FILE, key_file: FILE, key_password_file: FILE}]", list(&c.TLS.Certificates, certificateKeys)},
		{standalone | proxyNode, "tls.client_auth", "tls-client-auth", "`mode`: off, optional or require, a certificate of each client", text(&c.TLS.ClientAuth)},
		{standalone | proxyNode, "tls.client_ca_file", "tls-client-ca", "PEM `file` with the authorities that sign clients' certificates", text(&c.TLS.ClientCAFile)},
		{standalone | storeNode, "flush.mode", "flush", "`mode`: sync or async, an fsync before or after a send is acknowledged", text(&c.Flush.Mode)},
		{standalone | storeNode, "flush.interval", "flush-interval", "longest `time` between two fsyncs in async mode", span(&c.Flush.Interval)},
		{standalone | storeNode, "segment_size", "segment-size", "`size` of one log file", size(&c.SegmentSize)},
		{standalone | storeNode, "retention.age", "retention-age", "`time` to keep messages for; 0: for ever", span(&c.Retention.Age)},
		{standalone | storeNode, "retention.size", "retention-size", "largest `size` of the log; 0: no bound", size(&c.Retention.Size)},
		{standalone | storeNode, "retention.disk.clean", "retention-disk-clean", "`use` of the disk, such as 75% or \"50GiB free\", that removes old files at once", watermark(&c.Retention.Disk.Clean)},
		{standalone | storeNode, "retention.disk.force", "retention-disk-force", "`use` of the disk that removes the oldest files whatever their age", watermark(&c.Retention.Disk.Force)},
		{standalone | storeNode, "retention.disk.refuse", "retention-disk-refuse", "`use` of the disk that refuses sends", watermark(&c.Retention.Disk.Refuse)},
		{standalone | storeNode, "retention.interval", "retention-interval", "`time` between two looks at ages and at the disk", span(&c.Retention.Interval)},
		{standalone | routerNode, "auto_create_topics", "auto-create-topics", "create a missing topic on send or when its route is asked for", boolean(&c.AutoCreateTopics)},
		{standalone | routerNode, "auto_create_groups", "auto-create-groups", "create a missing consumer group on receive", boolean(&c.AutoCreateGroups)},
		{standalone | routerNode, "auto_create_limit", "auto-create-limit", "`number` of topics, and of consumer groups, from which on no more are created on use; 0: no limit", integer(&c.AutoCreateLimit)},
		{standalone | routerNode, "default_queues", "default-queues", "`number` of queues of a topic whose creator names none", integer(&c.DefaultQueues)},
		{standalone | proxyNode, "max_recv_size", "max-recv-size", "largest `size` of a request", size(&c.MaxRecvSize)},
		{standalone | proxyNode, "max_body_size", "max-body-size", "largest `size` of a message body", size(&c.MaxBodySize)},
		{standalone | proxyNode, "max_delay", "max-delay", "longest `time` ahead that a message may be delivered at", span(&c.MaxDelay)},
		{standalone | storeNode | proxyNode, "delivery_memory", "delivery-memory", "largest `size` of all messages on their way to consumers", size(&c.DeliveryMemory)},
		{standalone | proxyNode, "long_polling_max", "long-polling-max", "longest `time` an empty receive waits", span(&c.LongPollingMax)},
		{everywhere, "memory_limit", "memory-limit", "`size` of memory to stay below; 0: GOMEMLIMIT, or the container's", size(&c.MemoryLimit)},
		{standalone | proxyNode, "in_flight_limit", "in-flight-limit", "`number` of messages of a queue a group may have under lease; 0: no limit", integer(&c.InFlightLimit)},
		{standalone | storeNode, "lite.topics", "lite-topics", "`number` of lite topics that one topic may have; 0: no limit", integer(&c.Lite.Topics)},
		{standalone | proxyNode, "lite.client_subscriptions", "lite-client-subscriptions", "`number` of lite topics that one client may subscribe to", integer(&c.Lite.ClientSubscriptions)},
		{standalone | proxyNode, "lite.subscriptions", "lite-subscriptions", "`number` of lite topics that all clients together may subscribe to", integer(&c.Lite.Subscriptions)},
		{standalone | storeNode, "max_waiting_receives", "max-waiting-receives", "`number` of receives that may wait for messages; 0: no limit", integer(&c.MaxWaitingReceives)},
		{standalone | proxyNode, "max_sessions", "max-sessions", "`number` of clients that are known at a time; 0: no limit", integer(&c.MaxSessions)},
		{standalone | proxyNode, "session_timeout", "session-timeout", "`time` a client counts as alive after its last call", span(&c.SessionTimeout)},
		{everywhere, "shutdown_timeout", "shutdown-timeout", "`time` that calls under way get when the server stops", span(&c.ShutdownTimeout)},
		{standalone | proxyNode, "renew.slice", "renew-slice", "`time` a push consumer's lease is extended by", span(&c.Renew.Slice)},
		{standalone | proxyNode, "renew.max", "renew-max", "`time` after which a lease is not extended any more", span(&c.Renew.Max)},
		{standalone | storeNode, "transactions.first_check", "transactions-first-check", "`time` from a half message to the first question to its producer, unless that says", span(&c.Transactions.FirstCheck)},
		{standalone | storeNode, "transactions.check_interval", "transactions-check-interval", "`time` a producer has to answer before it is asked again, twice as long each time", span(&c.Transactions.CheckInterval)},
		{standalone | storeNode, "transactions.max_check_interval", "transactions-max-check-interval", "longest such `time`", span(&c.Transactions.MaxCheckInterval)},
		{standalone | storeNode, "transactions.max_checks", "transactions-max-checks", "`number` of questions about a half message before it is given up", integer(&c.Transactions.MaxChecks)},
		{standalone | storeNode, "transactions.remember", "transactions-remember", "`time` for which it is known how a transaction ended", span(&c.Transactions.Remember)},
		{standalone | storeNode, "metrics.max_topics", "metrics-max-topics", "`number` of topics, and of pairs of group and topic, with series of their own", integer(&c.Metrics.MaxTopics)},
		{standalone | proxyNode, "tracing.endpoint", "tracing-endpoint", "`address` of the collector that takes the spans of calls; empty: none are made", text(&c.Tracing.Endpoint)},
		{standalone | proxyNode, "tracing.ratio", "tracing-ratio", "`share` of the calls traced that nobody has decided about", fraction(&c.Tracing.Ratio)},
		{everywhere, "log.level", "log-level", "`level`: debug, info, warn or error", level(&c.Log.Level)},
		{everywhere, "log.format", "log-format", "`format`: text or json", text(&c.Log.Format)},
	}
}

// value is a pflag.Value over a variable of type T.
type value[T any] struct {
	target *T
	name   string
	parse  func(string) (T, error)
	format func(T) string
}

func (v value[T]) String() string {
	if v.target == nil { // pflag asks a zero value for its text
		return ""
	}
	return v.format(*v.target)
}

func (v value[T]) Set(s string) error {
	parsed, err := v.parse(s)
	if err != nil {
		return err
	}
	*v.target = parsed
	return nil
}

func (v value[T]) Type() string { return v.name }

func text(target *string) pflag.Value {
	same := func(s string) string { return s }
	return value[string]{target, "string", func(s string) (string, error) { return s, nil }, same}
}

func boolean(target *bool) pflag.Value {
	parse := func(s string) (bool, error) {
		if b, err := strconv.ParseBool(s); err == nil {
			return b, nil
		}
		return false, errors.New("must be true or false")
	}
	return value[bool]{target, "bool", parse, strconv.FormatBool}
}

func integer(target *int) pflag.Value {
	parse := func(s string) (int, error) {
		if n, err := strconv.Atoi(s); err == nil {
			return n, nil
		}
		return 0, errors.New("must be a whole number")
	}
	return value[int]{target, "int", parse, strconv.Itoa}
}

func fraction(target *float64) pflag.Value {
	parse := func(s string) (float64, error) {
		if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsNaN(f) {
			return f, nil
		}
		return 0, errors.New("must be a number such as 0.25")
	}
	format := func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }
	return value[float64]{target, "float", parse, format}
}

func span(target *time.Duration) pflag.Value {
	parse := func(s string) (time.Duration, error) {
		if d, err := time.ParseDuration(s); err == nil {
			return d, nil
		}
		return 0, errors.New("must be a time with its unit, such as 200ms, 90s or 3h")
	}
	return value[time.Duration]{target, "duration", parse, time.Duration.String}
}

func size(target *Size) pflag.Value {
	return value[Size]{target, "size", ParseSize, Size.String}
}

func watermark(target *Watermark) pflag.Value {
	return value[Watermark]{target, "use", ParseWatermark, Watermark.String}
}

func level(target *slog.Level) pflag.Value {
	parse := func(s string) (slog.Level, error) {
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			if strings.EqualFold(l.String(), s) {
				return l, nil
			}
		}
		return 0, fmt.Errorf("must be one of debug, info, warn, error")
	}
	format := func(l slog.Level) string { return strings.ToLower(l.String()) }
	return value[slog.Level]{target, "level", parse, format}
}
