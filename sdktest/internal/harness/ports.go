package harness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// Ports are taken from below the range that systems use for outgoing
// connections: a client that dials while the server is down could otherwise be
// given the server's port as its own.
const (
	firstPort = 20000
	lastPort  = 32000
)

// freeAddresses returns n loopback addresses that nobody listens at.
func freeAddresses(n int) ([]string, error) {
	var found []string
	for range 1000 {
		if len(found) == n {
			return found, nil
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort)))
		l, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		defer l.Close() // together, so that none comes twice
		found = append(found, address)
	}
	return nil, fmt.Errorf("%w between %d and %d", errNoPorts, firstPort, lastPort)
}

var errNoPorts = errors.New("no free ports")
