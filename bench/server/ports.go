package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// host is where all servers listen.
const host = "127.0.0.1"

// The ports that are chosen from. The system gives none of them to connections: whoever
// tries again and again to connect to a server that starts would take its port.
const (
	firstPort = 20000
	lastPort  = 32000
)

func address(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// ports returns n free ports that follow each other. Somebody else may take them before
// they are used; the server then fails to start.
func ports(n int) (first int, err error) {
	const tries = 50
	for range tries {
		first = firstPort + rand.IntN(lastPort-firstPort-n)
		if err = free(first, n); err == nil {
			return first, nil
		}
	}
	return 0, fmt.Errorf("no %d free ports in a row: %w", n, err)
}

func free(first, n int) (err error) {
	for port := first; port < first+n; port++ {
		// Some servers listen at every address.
		l, listenErr := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
		if listenErr != nil {
			return listenErr
		}
		defer func() { err = errors.Join(err, l.Close()) }()
	}
	return nil
}

// listens says whether somebody listens at a port.
func listens(port int) bool {
	conn, err := net.Dial("tcp", address(port))
	if err != nil {
		return false
	}
	return conn.Close() == nil
}
