package config

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// The bounds of what can be configured.
const (
	maxShardName   = 127
	maxEtcdPrefix  = 255
	minSegmentSize = 64 << 10
	maxSegmentSize = 1 << 40
	maxRecvSize    = 1 << 30
	// A request holds at least one message: its body, and properties and
	// framing beside it.
	recvHeadroom = 64 << 10
	// A record of the log holds a message and does not span segments.
	segmentHeadroom = 64 << 10
	maxRenew        = mq.MaxRetryDelay
	// A third of a slice must be enough for a round of the store on a slow disk.
	minRenew       = 2 * time.Second
	maxDelay       = 10 * 365 * 24 * time.Hour
	maxCount       = 1_000_000_000
	maxConnections = 10_000_000
	// A receive may find 4 MiB, and one connection gets half.
	minDeliveryMemory = 8 << 20
	maxDeliveryMemory = 1 << 40
	// A scrape of that many takes seconds and a hundred megabytes.
	maxMetricTopics = 100_000
	minMemory       = 64 << 20
	maxMemory       = 1 << 44
)

// Validate checks c without touching the host. The error is an *mq.InvalidError
// that names the key, the value and the rule of the first thing that is wrong.
func (c Config) Validate() error {
	for _, check := range []func() error{
		c.validateTier, c.validateAddresses, c.validateListeners, c.validateTLS, c.validateStorage, c.validateRetention, c.validateSizes, c.validateTimes,
		c.validateTransactions, c.validateMetrics, c.validateTracing, c.validateLog,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) validateAddresses() error {
	if reason := checkAddress(c.GRPCListen); reason != "" {
		return invalid("grpc_listen", c.GRPCListen, reason)
	}
	if reason := checkAddress(c.HTTPListen); reason != "" {
		return invalid("http_listen", c.HTTPListen, reason)
	}
	if sameAddress(c.HTTPListen, c.GRPCListen) {
		return invalid("http_listen", c.HTTPListen, "must differ from grpc_listen")
	}
	if reason := checkAdvertise(c.Advertise); reason != "" {
		return invalid("advertise", c.Advertise, reason)
	}
	return oneOf("proxy_protocol", c.ProxyProtocol, ProxyProtocolOff, ProxyProtocolOptional, ProxyProtocolRequired)
}

func (c Config) validateListeners() error {
	for i, l := range c.Listeners {
		key := func(name string) string { return fmt.Sprintf("listeners[%d].%s", i, name) }
		if reason := checkAddress(l.Listen); reason != "" {
			return invalid(key("listen"), l.Listen, reason)
		}
		same := func(other Listener) bool { return sameAddress(l.Listen, other.Listen) }
		if same(Listener{Listen: c.GRPCListen}) || same(Listener{Listen: c.HTTPListen}) || slices.ContainsFunc(c.Listeners[:i], same) {
			return invalid(key("listen"), l.Listen, "must differ from grpc_listen, http_listen and the other listeners")
		}
		if reason := checkAdvertise(l.Advertise); reason != "" {
			return invalid(key("advertise"), l.Advertise, reason)
		}
		if l.ProxyProtocol == "" {
			continue
		}
		if err := oneOf(key("proxy_protocol"), l.ProxyProtocol, ProxyProtocolOff, ProxyProtocolOptional, ProxyProtocolRequired); err != nil {
			return err
		}
	}
	return within("max_connections", c.MaxConnections, 0, maxConnections)
}

// sameAddress reports whether two listeners cannot both have their address.
func sameAddress(a, b string) bool {
	_, port, _ := net.SplitHostPort(a)
	return a == b && port != "0"
}

func checkAdvertise(address string) string {
	if address == "" {
		return ""
	}
	if reason := checkAddress(address); reason != "" {
		return reason
	}
	host, port, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); host == "" || port == "0" || ip != nil && ip.IsUnspecified() {
		return "must name a host and a port that clients can connect to"
	}
	return ""
}

func checkAddress(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "must be host:port or :port"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "must end in a port from 0 to 65535"
	}
	return ""
}

func (c Config) validateTLS() error {
	if err := oneOf("tls.mode", c.TLS.Mode, TLSPermissive, TLSRequired, TLSDisabled); err != nil {
		return err
	}
	switch {
	case c.TLS.CertFile != "" && c.TLS.KeyFile == "":
		return invalid("tls.cert_file", c.TLS.CertFile, "needs tls.key_file beside it")
	case c.TLS.KeyFile != "" && c.TLS.CertFile == "":
		return invalid("tls.key_file", c.TLS.KeyFile, "needs tls.cert_file beside it")
	case c.TLS.CertFile != "" && c.TLS.Mode == TLSDisabled:
		return invalid("tls.cert_file", c.TLS.CertFile, "cannot be used while tls.mode is disabled")
	case c.TLS.KeyPasswordFile != "" && c.TLS.KeyFile == "":
		return invalid("tls.key_password_file", c.TLS.KeyPasswordFile, "needs tls.key_file beside it")
	case c.TLS.KeyPassword != "" && c.TLS.KeyFile == "":
		return invalid("tls.key_password", secret, "needs tls.key_file beside it")
	case c.TLS.KeyPassword != "" && c.TLS.KeyPasswordFile != "":
		return invalid("tls.key_password", secret, "cannot be used beside tls.key_password_file")
	case len(c.TLS.Certificates) > 0 && c.TLS.CertFile == "":
		return invalid("tls.certificates", len(c.TLS.Certificates), "needs tls.cert_file beside it, for all other names")
	}
	for i, cert := range c.TLS.Certificates {
		if cert.CertFile == "" {
			return invalid(fmt.Sprintf("tls.certificates[%d].cert_file", i), "", "must name a file")
		}
		if cert.KeyFile == "" {
			return invalid(fmt.Sprintf("tls.certificates[%d].key_file", i), "", "must name a file")
		}
	}
	return c.validateClientAuth()
}

// secret stands for a value that no message shows.
const secret = "(set)"

func (c Config) validateClientAuth() error {
	auth := c.TLS.ClientAuth
	if err := oneOf("tls.client_auth", auth, ClientAuthOff, ClientAuthOptional, ClientAuthRequire); err != nil {
		return err
	}
	switch {
	case auth == ClientAuthOff && c.TLS.ClientCAFile != "":
		return invalid("tls.client_ca_file", c.TLS.ClientCAFile, "needs tls.client_auth optional or require beside it")
	case auth != ClientAuthOff && c.TLS.ClientCAFile == "":
		return invalid("tls.client_auth", auth, "needs tls.client_ca_file beside it")
	case auth == ClientAuthRequire && c.TLS.Mode != TLSRequired:
		return invalid("tls.client_auth", auth, "needs tls.mode required, because cleartext clients have no certificate")
	case auth == ClientAuthOptional && c.TLS.Mode == TLSDisabled:
		return invalid("tls.client_auth", auth, "cannot be used while tls.mode is disabled")
	}
	return nil
}

func (c Config) validateStorage() error {
	if c.DataDir == "" {
		return invalid("data_dir", c.DataDir, "must name a folder")
	}
	if reason := checkShard(c.Shard); reason != "" && c.Tier != Router && c.Tier != Proxy {
		return invalid("shard", c.Shard, reason)
	}
	if err := oneOf("flush.mode", c.Flush.Mode, FlushSync, FlushAsync); err != nil {
		return err
	}
	if err := within("flush.interval", c.Flush.Interval, time.Millisecond, time.Minute); err != nil {
		return err
	}
	return within("segment_size", c.SegmentSize, minSegmentSize, maxSegmentSize)
}

func (c Config) validateRetention() error {
	r := c.Retention
	if r.Age != 0 {
		if err := within("retention.age", r.Age, mq.MinRetention, mq.MaxRetention); err != nil {
			return fmt.Errorf("%w, or be 0s for ever", err)
		}
	}
	if r.Size != 0 && r.Size < 2*c.SegmentSize {
		return invalid("retention.size", r.Size, "must be at least twice segment_size, or 0 for no bound")
	}
	type mark struct {
		key string
		at  Watermark
	}
	marks := []mark{{"retention.disk.clean", r.Disk.Clean}, {"retention.disk.force", r.Disk.Force}, {"retention.disk.refuse", r.Disk.Refuse}}
	for i, later := range marks {
		for _, earlier := range marks[:i] {
			if later.at.before(earlier.at) {
				return invalid(later.key, later.at, fmt.Sprintf("must not be reached before %s (%s)", earlier.key, earlier.at))
			}
		}
	}
	return within("retention.interval", r.Interval, time.Second, time.Hour)
}

func checkShard(name string) string {
	legal := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	switch {
	case name == "" || len(name) > maxShardName:
		return fmt.Sprintf("must have 1 to %d characters", maxShardName)
	case strings.ContainsFunc(name, func(r rune) bool { return !legal(r) }):
		return "may hold only letters, digits, and the characters - _ ."
	}
	return ""
}

func (c Config) validateSizes() error {
	if err := within("default_queues", c.DefaultQueues, 1, mq.MaxQueues); err != nil {
		return err
	}
	if err := within("auto_create_limit", c.AutoCreateLimit, 0, maxCount); err != nil {
		return err
	}
	if err := within("max_sessions", c.MaxSessions, 0, maxCount); err != nil {
		return err
	}
	if c.MemoryLimit != 0 {
		if err := within("memory_limit", c.MemoryLimit, minMemory, maxMemory); err != nil {
			return err
		}
	}
	if err := within("in_flight_limit", c.InFlightLimit, 0, maxCount); err != nil {
		return err
	}
	if err := cmp.Or(
		within("lite.topics", c.Lite.Topics, 0, maxCount),
		within("lite.client_subscriptions", c.Lite.ClientSubscriptions, 1, maxCount),
		within("lite.subscriptions", c.Lite.Subscriptions, 1, maxCount),
	); err != nil {
		return err
	}
	if err := within("max_waiting_receives", c.MaxWaitingReceives, 0, maxCount); err != nil {
		return err
	}
	if err := within("max_recv_size", c.MaxRecvSize, 2*recvHeadroom, maxRecvSize); err != nil {
		return err
	}
	if err := within("max_body_size", c.MaxBodySize, 1, c.MaxRecvSize-recvHeadroom); err != nil {
		return fmt.Errorf("%w (64KiB below max_recv_size)", err)
	}
	if err := within("delivery_memory", c.DeliveryMemory, minDeliveryMemory, maxDeliveryMemory); err != nil {
		return err
	}
	// Elsewhere they are settings of two processes: the store refuses what does not fit.
	if c.Tier == Standalone && c.MaxBodySize > c.SegmentSize-segmentHeadroom {
		return invalid("segment_size", c.SegmentSize, "must be 64KiB above max_body_size or more")
	}
	return nil
}

func (c Config) validateTimes() error {
	if err := within("long_polling_max", c.LongPollingMax, time.Second, time.Hour); err != nil {
		return err
	}
	// The SDKs send a heartbeat every 10 or 30 seconds.
	if err := within("session_timeout", c.SessionTimeout, 31*time.Second, 24*time.Hour); err != nil {
		return err
	}
	if err := within("max_delay", c.MaxDelay, time.Second, maxDelay); err != nil {
		return err
	}
	if err := within("shutdown_timeout", c.ShutdownTimeout, 0, time.Hour); err != nil {
		return err
	}
	if err := within("renew.max", c.Renew.Max, minRenew, maxRenew); err != nil {
		return err
	}
	return within("renew.slice", c.Renew.Slice, minRenew, c.Renew.Max)
}

func (c Config) validateTransactions() error {
	t := c.Transactions
	if err := within("transactions.first_check", t.FirstCheck, time.Second, time.Hour); err != nil {
		return err
	}
	if err := within("transactions.max_check_interval", t.MaxCheckInterval, time.Second, 24*time.Hour); err != nil {
		return err
	}
	if err := within("transactions.check_interval", t.CheckInterval, time.Second, t.MaxCheckInterval); err != nil {
		return fmt.Errorf("%w (transactions.max_check_interval)", err)
	}
	if err := within("transactions.max_checks", t.MaxChecks, 1, 10_000); err != nil {
		return err
	}
	// A client that lost an answer asks again within a minute.
	return within("transactions.remember", t.Remember, time.Minute, 30*24*time.Hour)
}

func (c Config) validateMetrics() error {
	return within("metrics.max_topics", c.Metrics.MaxTopics, 1, maxMetricTopics)
}

func (c Config) validateTracing() error {
	if err := within("tracing.ratio", c.Tracing.Ratio, 0, 1); err != nil {
		return err
	}
	if c.Tracing.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(c.Tracing.EndpointURL())
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil || u.RawQuery != "" {
		return invalid("tracing.endpoint", c.Tracing.Endpoint, "must be host:port, http://host:port or https://host:port")
	}
	return nil
}

func (c Config) validateLog() error {
	return oneOf("log.format", c.Log.Format, LogText, LogJSON)
}

func oneOf(key, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return invalid(key, value, "must be one of "+strings.Join(allowed, ", "))
}

func within[T int | float64 | Size | time.Duration](key string, value, low, high T) error {
	if low <= value && value <= high {
		return nil
	}
	return invalid(key, value, fmt.Sprintf("must lie between %v and %v", low, high))
}

func invalid(key string, value any, reason string) error {
	return &mq.InvalidError{Kind: mq.ErrInvalid, Field: key, Value: mq.Shorten(fmt.Sprint(value)), Reason: reason}
}
