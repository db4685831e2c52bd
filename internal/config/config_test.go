package config

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

func writeFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "perigee.yaml")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

func parseFlags(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	AddFlags(flags, Standalone)
	require.NoError(t, flags.Parse(args))
	return flags
}

func TestDefaultIsValid(t *testing.T) {
	require.NoError(t, Default().Validate())
	c, err := Load(Sources{})
	require.NoError(t, err)
	require.Equal(t, Default(), c)
}

func TestExampleFileShowsEveryKeyWithItsDefault(t *testing.T) {
	const example = "../../docs/perigee.example.yaml"
	c, err := Load(Sources{File: example})
	require.NoError(t, err)
	require.Equal(t, Default(), c)

	// A key that the file leaves out would have its default as well.
	shown := koanf.New(delimiter)
	require.NoError(t, shown.Load(file.Provider(example), yaml.Parser()))
	var keys []string
	for _, s := range settings(&c) {
		keys = append(keys, s.key)
	}
	require.ElementsMatch(t, keys, shown.Keys())
}

func TestInvalidFilesAreRefusedWithKeyAndValue(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			require.NoError(t, err)
			first, _, _ := strings.Cut(string(content), "\n")
			want, ok := strings.CutPrefix(first, "# want: ")
			require.True(t, ok, "the first line says which message is expected")
			_, err = Load(Sources{File: file})
			require.Error(t, err)
			require.True(t, strings.HasSuffix(err.Error(), want), "got  %s\nwant %s at the end", err, want)
		})
	}
}

func TestLaterSourcesWin(t *testing.T) {
	file := writeFile(t, "shard: from-file\ndata_dir: from-file\ngrpc_listen: 127.0.0.1:1\nflush:\n  mode: async\n")
	c, err := Load(Sources{
		File:  file,
		Env:   []string{"PERIGEE_SHARD=from-env", "PERIGEE_DATA_DIR=from-env", "PERIGEE_FLUSH_INTERVAL=1s", "PATH=/bin"},
		Flags: parseFlags(t, "--shard", "from-flag", "--auto-create-topics", "--auto-create-groups=false"),
	})
	require.NoError(t, err)
	want := Default()
	want.Shard = "from-flag"
	want.DataDir = "from-env"
	want.GRPCListen = "127.0.0.1:1"
	want.Flush = Flush{Mode: FlushAsync, Interval: time.Second}
	want.AutoCreateTopics = true
	want.AutoCreateGroups = false
	require.Equal(t, want, c)
}

func TestFlagsSetEveryField(t *testing.T) {
	c, err := Load(Sources{Flags: parseFlags(t,
		"--data-dir=d", "--grpc-listen=:1", "--http-listen=:2", "--shard=s", "--advertise=h:3",
		"--tls-mode=required", "--tls-cert=c", "--tls-key=k", "--flush=async", "--flush-interval=1s",
		"--segment-size=2GiB", "--retention-age=1h", "--retention-size=10GiB", "--retention-disk-clean=50%",
		"--retention-disk-force=20GiB free", "--retention-disk-refuse=99.5%", "--retention-interval=1m", "--auto-create-topics", "--auto-create-groups=false", "--default-queues=3",
		"--max-recv-size=16MiB", "--max-body-size=1 MiB", "--long-polling-max=5s", "--session-timeout=2m",
		"--tls-key-password-file=p", "--tls-certificates=[{cert_file: c1, key_file: k1, key_password_file: p1}]",
		"--tls-client-auth=require", "--tls-client-ca=ca",
		"--proxy-protocol=required", "--listeners=[{listen: ':4', advertise: h:5, proxy_protocol: optional}, {listen: '[::1]:6'}]",
		"--max-connections=7", "--max-delay=5h", "--delivery-memory=8MiB", "--shutdown-timeout=8s",
		"--memory-limit=1GiB", "--in-flight-limit=7", "--lite-topics=11", "--lite-client-subscriptions=12", "--lite-subscriptions=13", "--max-waiting-receives=8", "--max-sessions=9", "--auto-create-limit=6", "--renew-slice=10s", "--renew-max=1h",
		"--transactions-first-check=7s", "--transactions-check-interval=8s", "--transactions-max-check-interval=9s", "--transactions-max-checks=3", "--transactions-remember=2h",
		"--metrics-max-topics=7",
		"--tracing-endpoint=https://c:4317", "--tracing-ratio=0.5", "--log-level=debug", "--log-format=json")})
	require.NoError(t, err)
	require.Equal(t, Config{
		Tier: Standalone, Etcd: Etcd{Prefix: Default().Etcd.Prefix}, DataDir: "d", GRPCListen: ":1", HTTPListen: ":2", Shard: "s", Advertise: "h:3",
		ProxyProtocol: ProxyProtocolRequired, MaxConnections: 7, MaxDelay: 5 * time.Hour,
		Listeners: []Listener{{Listen: ":4", Advertise: "h:5", ProxyProtocol: ProxyProtocolOptional}, {Listen: "[::1]:6"}},
		TLS: TLS{
			Mode: TLSRequired, CertFile: "c", KeyFile: "k", KeyPasswordFile: "p", ClientAuth: ClientAuthRequire, ClientCAFile: "ca",
			Certificates: []Certificate{{CertFile: "c1", KeyFile: "k1", KeyPasswordFile: "p1"}},
		},
		Flush:       Flush{Mode: FlushAsync, Interval: time.Second},
		SegmentSize: 2 << 30,
		Retention: Retention{
			Age: time.Hour, Size: 10 << 30, Interval: time.Minute,
			Disk: DiskRetention{Clean: Watermark{Percent: 50}, Force: Watermark{Free: 20 << 30}, Refuse: Watermark{Percent: 99.5}},
		},
		AutoCreateTopics: true, DefaultQueues: 3,
		MaxRecvSize: 16 << 20, MaxBodySize: 1 << 20, DeliveryMemory: 8 << 20,
		LongPollingMax: 5 * time.Second, SessionTimeout: 2 * time.Minute, ShutdownTimeout: 8 * time.Second,
		Renew: Renew{Slice: 10 * time.Second, Max: time.Hour},

		MemoryLimit: 1 << 30, InFlightLimit: 7, Lite: Lite{Topics: 11, ClientSubscriptions: 12, Subscriptions: 13}, MaxWaitingReceives: 8, MaxSessions: 9, AutoCreateLimit: 6,

		Transactions: Transactions{FirstCheck: 7 * time.Second, CheckInterval: 8 * time.Second, MaxCheckInterval: 9 * time.Second, MaxChecks: 3, Remember: 2 * time.Hour},

		Metrics: Metrics{MaxTopics: 7},
		Tracing: Tracing{Endpoint: "https://c:4317", Ratio: 0.5},
		Log:     Log{Level: slog.LevelDebug, Format: LogJSON},
	}, c)
}

func TestEmptyFilesAndSectionsChangeNothing(t *testing.T) {
	for _, content := range []string{"", "# nothing\n", "tls:\nflush: {}\n"} {
		c, err := Load(Sources{File: writeFile(t, content)})
		require.NoError(t, err, content)
		require.Equal(t, Default(), c)
	}
}

func TestKeysWithDotsMeanSections(t *testing.T) {
	c, err := Load(Sources{File: writeFile(t, "tls.mode: required\n")})
	require.NoError(t, err)
	require.Equal(t, TLSRequired, c.TLS.Mode)
}

func TestErrorsNameTheirSource(t *testing.T) {
	_, err := Load(Sources{File: "no-such.yaml"})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "no-such.yaml")

	_, err = Load(Sources{Env: []string{"PERIGEE_DEFAULT_QUEUES=x"}})
	require.ErrorContains(t, err, `environment: default_queues "x"`)

	_, err = Load(Sources{Flags: parseFlags(t, "--default-queues=0")})
	require.ErrorIs(t, err, mq.ErrInvalid)
	require.ErrorContains(t, err, `default_queues "0"`)

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags, Standalone)
	require.ErrorContains(t, flags.Parse([]string{"--segment-size=1GB"}), "segment-size")
}

func TestForeignVariablesWithThePrefixAreLeftAlone(t *testing.T) {
	c, err := Load(Sources{Env: []string{"PERIGEE_ENDPOINT=x:1", "PERIGEE_PORT=tcp://10.0.0.1:8081"}})
	require.NoError(t, err)
	require.Equal(t, Default(), c)
}

func TestLevelsOfTheDiskThatAreOffOrOfTwoKindsAreNotCompared(t *testing.T) {
	for _, flags := range [][]string{
		{"--retention-disk-clean=100%"},
		{"--retention-disk-force=100%"},
		{"--retention-disk-refuse=100%"},
		{"--retention-disk-clean=10GiB free"},
		{"--retention-disk-force=1B free", "--retention-disk-refuse=75%"},
		{"--retention-disk-force=75%"},
	} {
		_, err := Load(Sources{Flags: parseFlags(t, flags...)})
		require.NoError(t, err, flags)
	}
}

func TestWatermarksReadWhatTheyPrint(t *testing.T) {
	for text, want := range map[string]Watermark{
		"85%": {Percent: 85}, "99.5%": {Percent: 99.5}, "100%": {Percent: 100}, "0.01%": {Percent: 0.01},
		"10GiB free": {Free: 10 << 30}, "1B free": {Free: 1}, "512MiB free": {Free: 512 << 20},
	} {
		got, err := ParseWatermark(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		require.Equal(t, text, got.String())
	}
	require.InDelta(t, 0.29, Watermark{Percent: 29}.Fraction(), 1e-12)
	require.Zero(t, Watermark{Free: 1}.Fraction())
	for _, text := range []string{"", "%", "85", "0.85", "0%", "-1%", "NaN%", "+Inf%", "100.1%", "free", " free", "10 free GiB", "-1B free", "10GiBfree", "10GiB"} {
		_, err := ParseWatermark(text)
		require.Error(t, err, text)
	}
}

func TestSizesReadWhatTheyPrint(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "17B": 17, "1KiB": 1024, "64 MiB": 64 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40,
	} {
		got, err := ParseSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
		again, err := ParseSize(got.String())
		require.NoError(t, err)
		require.Equal(t, want, again)
	}
	for _, text := range []string{"", "MiB", "-1", "1.5GiB", "1GB", "9000000TiB", "99999999999999999999"} {
		_, err := ParseSize(text)
		require.Error(t, err, text)
	}
}

func TestPasswordsAreNotFlagsAndNotShown(t *testing.T) {
	c, err := Load(Sources{Env: []string{"PERIGEE_TLS_KEY_PASSWORD=hush", "PERIGEE_TLS_CERT_FILE=c", "PERIGEE_TLS_KEY_FILE=k"}})
	require.NoError(t, err)
	require.Equal(t, "hush", c.TLS.KeyPassword)
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags, Standalone)
	require.NotContains(t, flags.FlagUsages(), "key-password ")
	require.Nil(t, flags.Lookup("tls-key-password"))
	_, err = Load(Sources{Env: []string{"PERIGEE_TLS_KEY_PASSWORD=hush"}})
	require.ErrorContains(t, err, `tls.key_password "(set)": needs tls.key_file beside it`)
	require.NotContains(t, err.Error(), "hush")
}

func TestListsReadAlikeFromEverySource(t *testing.T) {
	want := []Listener{{Listen: "[::]:1", Advertise: "a.example:2"}, {Listen: ":3", ProxyProtocol: ProxyProtocolRequired}}
	const (
		file = "listeners:\n  - listen: \"[::]:1\"\n    advertise: a.example:2\n  - {listen: \":3\", proxy_protocol: required}\n"
		flow = `[{listen: "[::]:1", advertise: "a.example:2"}, {listen: ":3", proxy_protocol: required}]`
		json = `[{"listen":"[::]:1","advertise":"a.example:2"},{"listen":":3","proxy_protocol":"required"}]`
	)
	for _, src := range []Sources{
		{File: writeFile(t, file)},
		{Env: []string{"PERIGEE_LISTENERS=" + flow}},
		{Env: []string{"PERIGEE_LISTENERS=" + json}},
		{Flags: parseFlags(t, "--listeners", flow)},
		{Flags: parseFlags(t, "--listeners", json)},
		{File: writeFile(t, "listeners: [{listen: \":9\"}]\n"), Flags: parseFlags(t, "--listeners", flow)},
	} {
		c, err := Load(src)
		require.NoError(t, err)
		require.Equal(t, want, c.Listeners)
	}
	c, err := Load(Sources{File: writeFile(t, file), Flags: parseFlags(t, "--listeners=[]")})
	require.NoError(t, err)
	require.Empty(t, c.Listeners)
	for _, bad := range []string{"[", "a: b: c", "{}", "1"} {
		_, err := Load(Sources{Env: []string{"PERIGEE_LISTENERS=" + bad}})
		require.ErrorContains(t, err, "must be a list of entries", bad)
	}
}

func TestTheStandardVariablesNameTheCollectorOfTraces(t *testing.T) {
	standard := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://all:4317"}
	own := append(standard, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://traces:4317")
	for _, tc := range []struct {
		src  Sources
		want string
	}{
		{Sources{}, ""},
		{Sources{Env: standard}, "http://all:4317"},
		{Sources{Env: own}, "https://traces:4317"},
		{Sources{Env: own, Flags: parseFlags(t, "--tracing-endpoint=flag:1")}, "flag:1"},
		{Sources{Env: own, File: writeFile(t, "tracing: {endpoint: 'file:1'}")}, "file:1"},
	} {
		c, err := Load(tc.src)
		require.NoError(t, err)
		require.Equal(t, tc.want, c.Tracing.Endpoint)
	}
	require.Equal(t, "http://flag:1", Tracing{Endpoint: "flag:1"}.EndpointURL())
	_, err := Load(Sources{Env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=ftp://all:1"}})
	require.ErrorContains(t, err, `tracing.endpoint "ftp://all:1"`)
}
