package server

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// RabbitMQ is a RabbitMQ server of one node without plugins, and the process by which
// Erlang nodes find each other.
type RabbitMQ struct {
	// Home is the folder that has sbin/rabbitmq-server.
	Home string
	// Epmd is the path of Erlang's port mapper.
	Epmd string
}

func (k RabbitMQ) processes(s *Server) ([]command, error) {
	first, err := ports(3)
	if err != nil {
		return nil, err
	}
	mapper, distribution := first+1, first+2
	s.Endpoint = address(first)
	if _, err := s.write(fmt.Sprintf("listeners.tcp.default = %s\nlog.console = false\n", s.Endpoint), "rabbitmq.conf"); err != nil {
		return nil, err
	}
	plugins, err := s.write("[].\n", "enabled_plugins")
	if err != nil {
		return nil, err
	}
	// What the environment says of another RabbitMQ is not for this one.
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "RABBITMQ_") && !strings.HasPrefix(entry, "HOME=") {
			env = append(env, entry)
		}
	}
	env = append(env,
		"HOME="+s.path(),
		"ERL_EPMD_ADDRESS="+host, fmt.Sprint("ERL_EPMD_PORT=", mapper),
		"RABBITMQ_NODENAME=peer@localhost", fmt.Sprint("RABBITMQ_DIST_PORT=", distribution),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-start_epmd false",
		"RABBITMQ_MNESIA_BASE="+s.path("data"), "RABBITMQ_LOG_BASE="+s.path("logs"),
		"RABBITMQ_CONFIG_FILE="+s.path("rabbitmq"), "RABBITMQ_CONF_ENV_FILE=/dev/null",
		"RABBITMQ_ENABLED_PLUGINS_FILE="+plugins,
		// The script becomes the node and does not wait for it.
		"detached=true",
	)
	epmd := exec.Command(k.Epmd)
	epmd.Env = env
	node := exec.Command(filepath.Join(k.Home, "sbin", "rabbitmq-server"))
	node.Env = env
	return []command{{Cmd: epmd}, {Cmd: node, when: func() bool { return listens(mapper) }}}, nil
}
