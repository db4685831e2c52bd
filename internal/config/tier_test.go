package config

import (
	"io"
	"slices"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

func tierFlags(t *testing.T, tier Tier, args ...string) (*pflag.FlagSet, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	AddFlags(flags, tier)
	return flags, flags.Parse(args)
}

func TestEachTierHasTheFlagsItKnows(t *testing.T) {
	for _, c := range []struct {
		tier  Tier
		has   []string
		lacks []string
	}{
		{Standalone, []string{"grpc-listen", "flush", "default-queues", "shard"}, []string{"name", "router", "listen", "cluster-token-file"}},
		{Router, []string{"listen", "default-queues", "cluster-token-file", "data-dir", "etcd", "etcd-prefix"}, []string{"grpc-listen", "flush", "router", "name", "shard"}},
		{Store, []string{"listen", "name", "router", "announce", "flush", "shard"}, []string{"grpc-listen", "default-queues", "tls-mode", "etcd"}},
		{Proxy, []string{"grpc-listen", "tls-mode", "router", "renew-slice"}, []string{"listen", "flush", "shard", "default-queues"}},
	} {
		flags, err := tierFlags(t, c.tier)
		require.NoError(t, err)
		for _, name := range c.has {
			require.NotNil(t, flags.Lookup(name), "%s --%s", c.tier, name)
		}
		for _, name := range c.lacks {
			require.Nil(t, flags.Lookup(name), "%s --%s", c.tier, name)
		}
	}
}

func TestWhatATierNeedsToFindOthers(t *testing.T) {
	load := func(tier Tier, args ...string) (Config, error) {
		flags, err := tierFlags(t, tier, args...)
		require.NoError(t, err)
		return Load(Sources{Tier: tier, Flags: flags})
	}
	c, err := load(Store, "--name", "store-1", "--router", "r1, r2:99,")
	require.NoError(t, err)
	require.Equal(t, []string{"r1:8082", "r2:99"}, c.Routers)
	require.Equal(t, "store-1", c.Shard, "its one shard")
	require.Equal(t, ":8083", c.Listen)
	c, err = load(Proxy, "--router", "[::1]:7")
	require.NoError(t, err)
	require.Equal(t, []string{"[::1]:7"}, c.Routers)
	c, err = load(Router)
	require.NoError(t, err)
	require.Empty(t, c.Etcd.Endpoints)
	c, err = load(Router, "--etcd", "e1, e2:99", "--etcd-username", "u", "--etcd-password-file", "f", "--etcd-ca", "a", "--etcd-cert", "c", "--etcd-key", "k")
	require.NoError(t, err)
	require.Equal(t, Etcd{
		Endpoints: []string{"e1:2379", "e2:99"}, Prefix: "/perigee", Username: "u", PasswordFile: "f", CAFile: "a", CertFile: "c", KeyFile: "k",
	}, c.Etcd)

	for _, bad := range []struct {
		tier Tier
		args []string
		want string
	}{
		{Store, []string{"--router", "r"}, "name"},
		{Store, []string{"--name", "s"}, "router"},
		{Store, []string{"--name", "s", "--router", "r:x"}, "router"},
		{Store, []string{"--name", "s", "--router", "r", "--listen", "x"}, "listen"},
		{Store, []string{"--name", "s", "--router", "r", "--announce", ":8083"}, "announce"},
		{Router, []string{"--listen", ":8088"}, "http_listen"},
		{Router, []string{"--cluster-cert", "c"}, "cluster.cert_file"},
		{Proxy, nil, "router"},
		{Router, []string{"--etcd", "e:x"}, "etcd.endpoints"},
		{Router, []string{"--etcd", ":2379"}, "etcd.endpoints"},
		{Router, []string{"--etcd-username", "u", "--etcd-password-file", "f"}, "etcd.endpoints"},
		{Router, []string{"--etcd", "e", "--etcd-prefix", "perigee"}, "etcd.prefix"},
		{Router, []string{"--etcd", "e", "--etcd-prefix", "/a/"}, "etcd.prefix"},
		{Router, []string{"--etcd", "e", "--etcd-username", "u"}, "etcd.username"},
		{Router, []string{"--etcd", "e", "--etcd-password-file", "f"}, "etcd.password_file"},
		{Router, []string{"--etcd", "e", "--etcd-cert", "c", "--etcd-ca", "a"}, "etcd.cert_file"},
		{Router, []string{"--etcd", "e", "--etcd-key", "k", "--etcd-ca", "a"}, "etcd.key_file"},
		{Router, []string{"--etcd", "e", "--etcd-cert", "c", "--etcd-key", "k"}, "etcd.cert_file"},
	} {
		_, err := load(bad.tier, bad.args...)
		var invalid *mq.InvalidError
		require.ErrorAs(t, err, &invalid, "%s %v", bad.tier, bad.args)
		require.Equal(t, bad.want, invalid.Field)
	}
}

func TestAFileMayServeAllTiers(t *testing.T) {
	file := writeFile(t, "name: s1\nrouter: [r1, 'r2:9']\nflush: {mode: async}\ngrpc_listen: ':5'\n")
	for _, tier := range []Tier{Standalone, Router, Store, Proxy} {
		c, err := Load(Sources{Tier: tier, File: file})
		require.NoError(t, err, tier)
		require.Equal(t, tier, c.Tier)
		require.True(t, slices.Equal([]string{"r1:8082", "r2:9"}, c.Routers))
	}
}

// TestTheSegmentsOfAStoreNodeAreHeldToNoSettingThatItDoesNotHave: how large a body may be is
// the proxies' to say.
func TestTheSegmentsOfAStoreNodeAreHeldToNoSettingThatItDoesNotHave(t *testing.T) {
	for tier, fits := range map[Tier]bool{Standalone: false, Store: true} {
		c := DefaultOf(tier)
		c.DataDir, c.SegmentSize = "d", 1<<20
		if tier == Store {
			c.Name, c.Shard, c.Routers = "a", "a", []string{"r:8082"}
		}
		if err := c.Validate(); fits {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "segment_size")
		}
	}
}
