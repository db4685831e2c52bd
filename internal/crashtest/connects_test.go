package crashtest

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// connectRounds are long enough for what a connection leaves behind to show.
const connectRounds = 30

// TestBareConnectionsLeaveTheProcessAsItWas is K8-01: probes, port scanners and load
// balancers connect, say nothing or nonsense, and are gone again, in order or not.
func TestBareConnectionsLeaveTheProcessAsItWas(t *testing.T) {
	each := int(number(t, "PERIGEE_CONNECTS", 6000)) / connectRounds
	c := startChurn(t, binary(t)) // TLS and plaintext on one port: it waits for the first bytes
	var made atomic.Int64
	c.staysAsItWas(connectRounds, func(round int) string {
		began := time.Now()
		var connecting sync.WaitGroup
		var failed atomic.Pointer[error]
		for worker := range churnAtOnce {
			connecting.Go(func() {
				for i := worker; i < each; i += churnAtOnce {
					if err := c.connect(made.Add(1)); err != nil {
						failed.Store(&err)
						return
					}
				}
			})
		}
		connecting.Wait()
		if err := failed.Load(); err != nil {
			require.NoError(t, *err)
		}
		return fmt.Sprintf("%d connections in %v, %d in all", each, time.Since(began).Round(time.Millisecond), made.Load())
	})
	require.EqualValues(t, each*connectRounds, made.Load())
}

// connect makes a connection to one of the ports and leaves it. Each has another address
// from time to time: one address has ports for some ten thousand in a minute.
func (c *churn) connect(n int64) error {
	const fromOne = 10_000
	host := n / fromOne
	from := &net.TCPAddr{IP: net.IPv4(127, 1, byte(host/250), byte(1+host%250))}
	to := c.grpc
	if n%5 == 0 {
		to = c.http
	}
	conn, err := (&net.Dialer{LocalAddr: from}).DialContext(c.t.Context(), "tcp", to)
	if err != nil {
		return err
	}
	switch n / 5 % 4 {
	case 0: // closes, having said nothing
	case 1: // is gone: the server sees a reset
		err = conn.(*net.TCPConn).SetLinger(0)
	case 2:
		_, err = conn.Write([]byte{0x16}) // the first byte of TLS, and of nothing else
	case 3:
		_, err = conn.Write([]byte("PRI * HTTP/2.0\r\n")) // half of what HTTP/2 begins with
	}
	if closing := conn.Close(); err == nil {
		err = closing
	}
	return err
}
