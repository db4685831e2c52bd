package config

import (
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
	AddFlags(flags)
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

	content, err := os.ReadFile(example)
	require.NoError(t, err)
	var zero Config
	for _, s := range settings(&zero) {
		last := s.key[strings.LastIndex(s.key, delimiter)+1:]
		require.Contains(t, string(content), last+":", "key %s", s.key)
	}
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
		"--segment-size=2GiB", "--auto-create-topics", "--auto-create-groups=false", "--default-queues=3",
		"--max-recv-size=16MiB", "--max-body-size=1 MiB", "--long-polling-max=5s", "--session-timeout=2m",
		"--memory-limit=1GiB", "--in-flight-limit=7", "--max-waiting-receives=8", "--renew-slice=10s", "--renew-max=1h", "--log-level=debug", "--log-format=json")})
	require.NoError(t, err)
	require.Equal(t, Config{
		DataDir: "d", GRPCListen: ":1", HTTPListen: ":2", Shard: "s", Advertise: "h:3",
		TLS:         TLS{Mode: TLSRequired, CertFile: "c", KeyFile: "k"},
		Flush:       Flush{Mode: FlushAsync, Interval: time.Second},
		SegmentSize: 2 << 30, AutoCreateTopics: true, DefaultQueues: 3,
		MaxRecvSize: 16 << 20, MaxBodySize: 1 << 20,
		LongPollingMax: 5 * time.Second, SessionTimeout: 2 * time.Minute,
		Renew: Renew{Slice: 10 * time.Second, Max: time.Hour},

		MemoryLimit: 1 << 30, InFlightLimit: 7, MaxWaitingReceives: 8,

		Log: Log{Level: slog.LevelDebug, Format: LogJSON},
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
	AddFlags(flags)
	require.ErrorContains(t, flags.Parse([]string{"--segment-size=1GB"}), "segment-size")
}

func TestForeignVariablesWithThePrefixAreLeftAlone(t *testing.T) {
	c, err := Load(Sources{Env: []string{"PERIGEE_ENDPOINT=x:1", "PERIGEE_PORT=tcp://10.0.0.1:8081"}})
	require.NoError(t, err)
	require.Equal(t, Default(), c)
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
