package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The tiers, as their commands are called.
const (
	standalone = "standalone"
	router     = "router"
	store      = "store"
	proxy      = "proxy"
)

// flagsOf are the flags of the standalone command by the beginning of their names, where
// they are not those of the proxy.
var flagsOf = []struct{ prefix, tier string }{
	{"auto-create-", router},
	{"default-queues", router},
	{"flush", store},
	{"lite-topics", store},
	{"max-waiting-receives", store},
	{"metrics-max-topics", store},
	{"retention-", store},
	{"segment-size", store},
	{"transactions-", store},
}

// anyDisk lets a server work on a disk that others fill: at its defaults it removes
// messages early, and refuses them.
var anyDisk = []string{
	"--retention-disk-clean=192MiB free", "--retention-disk-force=128MiB free", "--retention-disk-refuse=64MiB free",
}

// byTier returns which flags of the standalone command go to which tier.
func byTier(flags []string) map[string][]string {
	of, tier := map[string][]string{}, ""
	for _, flag := range flags {
		if name, ok := strings.CutPrefix(flag, "--"); ok {
			tier = proxy
			for _, f := range flagsOf {
				if strings.HasPrefix(name, f.prefix) {
					tier = f.tier
				}
			}
		}
		of[tier] = append(of[tier], flag)
	}
	return of
}

// place chooses ports, and makes the parts for them.
func (s *Server) place() error {
	ports, err := freeAddresses(2*s.opts.Stores + 4)
	if err != nil {
		return err
	}
	take := func() (address string) {
		address, ports = ports[0], ports[1:]
		return address
	}
	s.parts = nil
	add := func(tier, name string, args ...string) {
		p := &part{tier: tier, http: take()}
		p.args = append(args, "--data-dir", filepath.Join(s.opts.Dir, "data", name), "--http-listen", p.http)
		s.parts = append(s.parts, p)
	}
	s.endpoint = take()
	given := slices.Concat(anyDisk, s.opts.Flags) // what a test gives comes last, and counts
	if s.opts.Stores == 0 {
		add(standalone, "", append([]string{"--grpc-listen", s.endpoint}, given...)...)
		return nil
	}
	if h, ok := hostsHere(); ok {
		return h.place(s, given)
	}
	flags, at := byTier(given), take()
	add(router, router, append([]string{"--listen", at}, flags[router]...)...)
	for i := range s.opts.Stores {
		name := string(rune('a' + i))
		add(store, name, append([]string{"--name", name, "--router", at, "--listen", take()}, flags[store]...)...)
	}
	add(proxy, proxy, append([]string{"--router", at, "--grpc-listen", s.endpoint}, flags[proxy]...)...)
	return nil
}

// awaitShards waits until new topics are placed on every store node: a store is ready
// before the router has heard of it.
func (s *Server) awaitShards(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyLimit)
	defer cancel()
	for try := 0; s.opts.Stores > 0; try++ {
		name := "harness-" + strconv.Itoa(try)
		var made struct {
			Topic struct {
				Shards []any `json:"shards"`
			} `json:"topic"`
		}
		out, err := s.Perigee(ctx, "topic", "create", name, "--json")
		if err == nil {
			err = json.Unmarshal([]byte(out), &made)
		}
		if err == nil {
			_, err = s.Perigee(ctx, "topic", "delete", name)
		}
		if err == nil && len(made.Topic.Shards) == s.opts.Stores {
			return nil
		}
		timer := time.NewTimer(probePause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("topics are placed on %d of %d store nodes: %w", len(made.Topic.Shards), s.opts.Stores, err)
		}
	}
	return nil
}
