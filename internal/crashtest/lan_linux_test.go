package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A lan is a network of hosts, each a network namespace with an address and a device of its
// own. This process carries the packets from one device to another, and can delay, lose and
// cut off what goes from one host to another: netem is not in every kernel, and what a cut
// link loses nobody is told of.
type lan struct {
	t      *testing.T
	prefix string // of the namespaces
	hosts  []string
	ends   map[string]*os.File
	stop   chan struct{}
	run    sync.WaitGroup

	mu    sync.Mutex
	links map[[2]int]link // by the numbers of the hosts
	rng   *rand.Rand

	carried, lost atomic.Int64
}

// A link is how packets go from one host to another.
type link struct {
	delay  time.Duration
	jitter time.Duration // up to so much more
	loss   float64       // the share of packets that are lost
	cut    bool          // all are
}

// queued is how many packets wait on one link; more are lost, as in a switch.
const queued = 4096

// newLAN makes hosts with the names, and skips the test where that is not allowed.
func newLAN(t *testing.T, seed uint64, hosts ...string) *lan {
	t.Helper()
	l := &lan{
		t: t, prefix: fmt.Sprintf("perigee-%d-", os.Getpid()), hosts: hosts, ends: map[string]*os.File{}, stop: make(chan struct{}),
		links: map[[2]int]link{}, rng: rand.New(rand.NewPCG(seed, 2)),
	}
	t.Cleanup(func() {
		close(l.stop)
		for _, end := range l.ends {
			_ = end.Close() // ends the reader
		}
		l.run.Wait()
		t.Logf("packets carried between hosts: %d, lost: %d", l.carried.Load(), l.lost.Load())
	})
	for _, host := range hosts {
		if out, err := exec.Command("ip", "netns", "add", l.prefix+host).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here: %v: %s", err, out)
		}
		t.Cleanup(func() { l.ip("netns", "delete", l.prefix+host) })
		var end *os.File
		if err := l.on(host, func() (err error) { end, err = openDevice("lan"); return err }); err != nil {
			t.Skipf("no network devices of its own for a process here (/dev/net/tun): %v", err)
		}
		l.ends[host] = end
		l.ip("-n", l.prefix+host, "link", "set", "lo", "up")
		l.ip("-n", l.prefix+host, "address", "add", l.address(host)+"/24", "dev", "lan")
		l.ip("-n", l.prefix+host, "link", "set", "lan", "up")
	}
	l.carry()
	return l
}

func (l *lan) ip(args ...string) {
	l.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	require.NoError(l.t, err, "ip %s: %s", strings.Join(args, " "), out)
}

// on calls fn with a thread that is on a host, and ends with the call.
func (l *lan) on(host string, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: nobody else gets a thread that is elsewhere
		done <- func() error {
			space, err := unix.Open(filepath.Join("/run/netns", l.prefix+host), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer func() { _ = unix.Close(space) }()
			if err := unix.Setns(space, unix.CLONE_NEWNET); err != nil {
				return err
			}
			return fn()
		}()
	}()
	return <-done
}

// openDevice makes a network device whose packets are read from and written to the file.
func openDevice(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// number is what tells hosts apart in addresses.
func (l *lan) number(host string) int {
	for i, h := range l.hosts {
		if h == host {
			return i + 1
		}
	}
	l.t.Fatalf("no host %s", host)
	return 0
}

func (l *lan) address(host string) string { return fmt.Sprint("10.251.7.", l.number(host)) }

// dial returns what connects to addresses from a host.
func (l *lan) dial(host string) func(ctx context.Context, address string) (net.Conn, error) {
	return func(ctx context.Context, address string) (conn net.Conn, err error) {
		err = l.on(host, func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, "tcp", address)
			return err
		})
		return conn, err
	}
}

// set says how packets go between each of some hosts and each of others, both ways.
func (l *lan) set(how link, some, others []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range some {
		for _, b := range others {
			l.links[[2]int{l.number(a), l.number(b)}] = how
			l.links[[2]int{l.number(b), l.number(a)}] = how
		}
	}
}

// chance decides what becomes of a packet.
func (l *lan) chance(from, to int) (arrives bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := l.links[[2]int{from, to}]
	if how.cut || how.loss > 0 && l.rng.Float64() < how.loss {
		return false, 0
	}
	if after = how.delay; how.jitter > 0 {
		after += time.Duration(l.rng.Int64N(int64(how.jitter)))
	}
	return true, after
}

// carry begins to carry packets.
func (l *lan) carry() {
	type packet struct {
		data []byte
		at   time.Time
	}
	for _, host := range l.hosts {
		from, end := l.number(host), l.ends[host]
		to := map[int]chan packet{}
		for _, other := range l.hosts {
			waiting, out := make(chan packet, queued), l.ends[other]
			to[l.number(other)] = waiting
			l.run.Go(func() {
				for p := range waiting {
					// What comes later is never faster: TCP would take it for a loss.
					timer := time.NewTimer(time.Until(p.at))
					select {
					case <-timer.C:
						_, _ = out.Write(p.data) // a device that is full loses packets too
					case <-l.stop:
					}
					timer.Stop()
				}
			})
		}
		l.run.Go(func() {
			defer func() {
				for _, waiting := range to {
					close(waiting)
				}
			}()
			buf := make([]byte, 1<<16)
			for {
				n, err := end.Read(buf)
				if err != nil {
					return
				}
				if n < 20 || buf[0]>>4 != 4 { // the system asks for IPv6 routers, too
					continue
				}
				waiting := to[int(buf[19])]
				arrives, after := l.chance(from, int(buf[19]))
				if waiting == nil || !arrives {
					l.lost.Add(1)
					continue
				}
				select {
				case waiting <- packet{append([]byte(nil), buf[:n]...), time.Now().Add(after)}:
					l.carried.Add(1)
				default:
					l.lost.Add(1)
				}
			}
		})
	}
}
