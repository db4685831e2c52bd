package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/stretchr/testify/require"
)

// A service is one of a compose file.
type service struct {
	name    string
	command []string
	health  []string
	ours    bool // it runs this program
}

// services reads a compose file.
func services(t *testing.T, file string) (list []service) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", file))
	require.NoError(t, err)
	doc, err := yaml.Parser().Unmarshal(text)
	require.NoError(t, err)
	words := func(v any) (list []string) {
		entries, _ := v.([]any)
		for _, e := range entries {
			list = append(list, e.(string))
		}
		return list
	}
	for name, v := range doc["services"].(map[string]any) {
		fields := v.(map[string]any)
		s := service{name: name, command: words(fields["command"]), ours: fields["image"] == "perigee"}
		if check, ok := fields["healthcheck"].(map[string]any); ok {
			s.health = words(check["test"])
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b service) int { return strings.Compare(a.name, b.name) })
	return list
}

// TestComposeFilesStartWhatTheySay runs the commands of the services as they are, each at an address
// of its own for its host name: all of them at once, for they may start in any order. Their health
// checks pass then, and a deployment serves messages.
func TestComposeFilesStartWhatTheySay(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	for file, client := range map[string]string{"docker-compose.yml": "perigee", "docker-compose.cluster.yml": "proxy-1"} {
		t.Run(file, func(t *testing.T) {
			list := services(t, file)
			hosts := map[string]string{}
			for _, s := range list {
				hosts[s.name] = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), 1+rand.IntN(254), 1+rand.IntN(254))
			}
			l, err := net.Listen("tcp", hosts[client]+":0")
			if err != nil {
				t.Skipf("this system has one loopback address only: %v", err)
			}
			require.NoError(t, l.Close())
			ctx, stop := context.WithCancel(t.Context())
			var running []*exec.Cmd
			defer func() {
				stop() // kills what is left
				for _, cmd := range running {
					_ = cmd.Wait()
				}
			}()
			for _, s := range list {
				cmd := composed(ctx, t, s, hosts)
				require.NoError(t, cmd.Start(), s.name)
				running = append(running, cmd)
			}
			endpoint := hosts[client] + ":8081"
			for _, s := range list {
				if !s.ours {
					continue
				}
				require.Equal(t, []string{"CMD", "/usr/local/bin/perigee"}, s.health[:2], s.name)
				require.Eventually(t, func() bool {
					return perigee(t, nil, "", at(s.health[2:], "127.0.0.1:", hosts[s.name]+":")...).code == exitOK
				}, time.Minute, 100*time.Millisecond, s.name)
			}
			if file != "docker-compose.yml" {
				require.Eventually(t, func() bool {
					o := perigee(t, nil, "", "cluster", "status", "--json", "--endpoint", endpoint)
					var status struct{ Stores, Proxies []any }
					return o.code == exitOK && json.Unmarshal([]byte(o.stdout), &status) == nil && len(status.Stores) == 3 && len(status.Proxies) == 2
				}, time.Minute, 100*time.Millisecond)
			}
			o := perigee(t, nil, "", "topic", "create", "orders", "--endpoint", endpoint)
			require.Zero(t, o.code, o.stderr)
			o = perigee(t, nil, "", "send", "orders", "x", "--endpoint", endpoint)
			require.Zero(t, o.code, o.stderr)
			require.Equal(t, []string{"x"}, bodies(t, perigee(t, nil, "", "receive", "orders", "--group", "g", "--json", "--endpoint", endpoint)))
		})
	}
}

// at replaces one text by another in words.
func at(words []string, from, to string) (list []string) {
	for _, w := range words {
		list = append(list, strings.ReplaceAll(w, from, to))
	}
	return list
}

// composed returns the command of a service, with addresses for host names and a folder of the
// test for its volume.
func composed(ctx context.Context, t *testing.T, s service, hosts map[string]string) *exec.Cmd {
	t.Helper()
	words := slices.Clone(s.command)
	for name, host := range hosts {
		for i, w := range words {
			if i == 0 || w == s.name && words[i-1] == "--name" {
				continue
			}
			parts := strings.Split(w, ",")
			for j, part := range parts {
				if part == name || strings.HasPrefix(part, name+":") {
					parts[j] = host + strings.TrimPrefix(part, name)
				}
			}
			words[i] = strings.ReplaceAll(strings.Join(parts, ","), "//"+name+":", "//"+host+":")
		}
	}
	host := hosts[s.name]
	if !s.ours {
		binary, err := exec.LookPath(words[0])
		if err != nil {
			t.Skipf("no %s in PATH", words[0])
		}
		words = at(at(words, "//0.0.0.0:", "//"+host+":"), "/etcd-data", t.TempDir())
		peer := "http://" + host + ":2380"
		cmd := exec.CommandContext(ctx, binary, append(words[1:], "--log-level", "error", "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)...)
		return cmd
	}
	executable, err := os.Executable()
	require.NoError(t, err)
	args := append(at(words, "/data", t.TempDir()), "--http-listen", host+":8088")
	for tier, flag := range map[string]string{
		"standalone": "--grpc-listen=" + host + ":8081", "proxy": "--grpc-listen=" + host + ":8081", "router": "--listen=" + host + ":8082", "store": "--listen=" + host + ":8083",
	} {
		if args[0] == tier {
			args = append(args, flag)
		}
	}
	if args[0] == "standalone" || args[0] == "store" { // however full the disk of the test is
		args = append(args, "--retention-disk-clean", "100%", "--retention-disk-force", "100%", "--retention-disk-refuse", "100%")
	}
	cmd := exec.CommandContext(ctx, executable, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	go func() {
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if strings.Contains(lines.Text(), "level=ERROR") {
				fmt.Fprintln(os.Stderr, s.name, lines.Text())
			}
		}
	}()
	return cmd
}
