package server

import (
	"fmt"
	"os/exec"
	"time"
)

// JetStream is a NATS server with JetStream.
type JetStream struct {
	// Binary is the path of nats-server.
	Binary string
	// Sync says that a publish is acknowledged after its fsync.
	Sync bool
}

// jetStreamSync is the time between two fsyncs that nats-server has without a setting.
const jetStreamSync = 2 * time.Minute

func (k JetStream) processes(s *Server) ([]command, error) {
	port, err := ports(1)
	if err != nil {
		return nil, err
	}
	s.Endpoint = address(port)
	interval := jetStreamSync.String()
	if k.Sync {
		interval = "always"
	}
	config, err := s.write(fmt.Sprintf(`listen: %q
jetstream: {
  store_dir: %q
  sync_interval: %q
}
`, s.Endpoint, s.path("data"), interval), "nats.conf")
	if err != nil {
		return nil, err
	}
	return []command{{Cmd: exec.Command(k.Binary, "--config", config)}}, nil
}
