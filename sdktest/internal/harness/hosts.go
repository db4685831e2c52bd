package harness

import (
	"crypto/rand"
	"fmt"
	"io"
	rnd "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// With hosts, which hosts.sh makes, every process of a deployment is in a network namespace of
// its own, with an address of its own. Clients stay outside: a balancer on a loopback port
// leads them to the proxies.

// Hosts reports whether each process of a deployment has a host of its own.
func Hosts() bool {
	_, ok := hostsHere()
	return ok
}

// hosts are what the environment says of them.
type hosts struct{ prefix, net, etcd string }

// hostsHere returns the hosts; false when deployments are on this one.
func hostsHere() (h hosts, ok bool) {
	h = hosts{os.Getenv("PERIGEE_HOSTS"), os.Getenv("PERIGEE_NET"), os.Getenv("PERIGEE_ETCD")}
	return h, h.prefix != ""
}

// The last bytes of the addresses of the first host of each tier.
var firstHost = map[string]int{router: 11, store: 21, proxy: 31}

// place makes the parts of a deployment, each on its host. Ports are drawn by chance, as
// several deployments share the hosts.
func (h hosts) place(s *Server, given []string) error {
	at := func(tier string, number int) string {
		return fmt.Sprintf("%s.%d:%d", h.net, firstHost[tier]+number, firstPort+rnd.IntN(lastPort-firstPort))
	}
	add := func(tier string, number int, args ...string) {
		p := &part{
			tier: tier, http: at(tier, number),
			in: []string{"ip", "netns", "exec", fmt.Sprintf("%s%c%d", h.prefix, tier[0], number+1)},
		}
		p.args = append(args, "--data-dir", filepath.Join(s.opts.Dir, "data", fmt.Sprint(tier, number)), "--http-listen", p.http)
		s.parts = append(s.parts, p)
	}
	flags := byTier(given)
	if !slices.Contains(flags[proxy], "--tls-cert") {
		pem, err := writeCertificate(filepath.Join(s.opts.Dir, "data"))
		if err != nil {
			return err
		}
		flags[proxy] = append(flags[proxy], "--tls-cert", pem, "--tls-key", pem)
	}
	routers, shared := 1, []string(nil)
	if h.etcd != "" {
		routers, shared = 3, []string{"--etcd", h.etcd, "--etcd-prefix", "/" + rand.Text()}
	}
	var known []string
	for i := range routers {
		known = append(known, at(router, i))
		add(router, i, slices.Concat([]string{"--listen", known[i]}, shared, flags[router])...)
	}
	all := strings.Join(known, ",")
	for i := range s.opts.Stores {
		add(store, i, slices.Concat([]string{"--name", string(rune('a' + i)), "--router", all, "--listen", at(store, i)}, flags[store])...)
	}
	var proxies []string
	for i := range 2 {
		proxies = append(proxies, at(proxy, i))
		add(proxy, i, slices.Concat([]string{"--name", fmt.Sprint("p", i), "--router", all, "--grpc-listen", proxies[i]}, flags[proxy])...)
	}
	s.proxies = proxies
	return nil
}

// A balancer passes connections on to the proxies that answer, one after the other.
type balancer struct {
	listener net.Listener
	targets  []string
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

func openBalancer(address string, targets []string) (*balancer, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: l, targets: targets, conns: map[net.Conn]bool{}}
	b.running.Go(func() {
		for first := 0; ; first++ {
			client, err := l.Accept()
			if err != nil {
				return
			}
			if !b.keep(client) {
				return
			}
			b.running.Go(func() { b.join(client, first) })
		}
	})
	return b, nil
}

// keep notes a connection to be closed with the balancer.
func (b *balancer) keep(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = c.Close()
		return false
	}
	b.conns[c] = true
	return true
}

func (b *balancer) drop(c net.Conn) {
	_ = c.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

func (b *balancer) join(client net.Conn, first int) {
	defer b.drop(client)
	for i := range b.targets {
		server, err := net.DialTimeout("tcp", b.targets[(first+i)%len(b.targets)], probeLimit)
		if err != nil {
			continue
		}
		if !b.keep(server) {
			return
		}
		defer b.drop(server)
		var back sync.WaitGroup
		back.Go(func() {
			_, _ = io.Copy(client, server) // an error is the end of a connection, too
			_ = client.Close()
		})
		_, _ = io.Copy(server, client)
		_ = server.Close()
		back.Wait()
		return
	}
}

func (b *balancer) close() {
	_ = b.listener.Close() // it only refuses connections from now on
	b.mu.Lock()
	b.closed = true
	for c := range b.conns {
		_ = c.Close()
	}
	b.mu.Unlock()
	b.running.Wait()
}
