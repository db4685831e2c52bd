package server

import (
	"os/exec"
)

// Perigee is a server of this repository, in one process.
type Perigee struct {
	// Binary is the path of perigee.
	Binary string
	// Sync says that a send is acknowledged after its fsync.
	Sync bool
}

func (k Perigee) processes(s *Server) ([]command, error) {
	first, err := ports(2)
	if err != nil {
		return nil, err
	}
	s.Endpoint = address(first)
	flush := "async"
	if k.Sync {
		flush = "sync"
	}
	// The disk is shared with what else the machine has: how full it is must not matter.
	return []command{{Cmd: exec.Command(k.Binary, "standalone", "--data-dir", s.path("data"), "--flush", flush,
		"--grpc-listen", s.Endpoint, "--http-listen", address(first+1), "--log-level", "warn",
		"--retention-disk-clean", "97%", "--retention-disk-force", "98%", "--retention-disk-refuse", "99%")}}, nil
}

// Noop is a server of the protocol that keeps nothing. Its program takes its address
// after Args.
type Noop struct {
	Binary string
	Args   []string
}

func (k Noop) processes(s *Server) ([]command, error) {
	port, err := ports(1)
	if err != nil {
		return nil, err
	}
	s.Endpoint = address(port)
	return []command{{Cmd: exec.Command(k.Binary, append(k.Args[:len(k.Args):len(k.Args)], s.Endpoint)...)}}, nil
}
