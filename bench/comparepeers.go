package main

import (
	"context"
	"io"
	"os"

	"github.com/perigee-mq/perigee/bench/peers"
	servers "github.com/perigee-mq/perigee/bench/server"
)

// comparePeers measures Perigee beside other queues. The server that does nothing is
// this program.
func comparePeers(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return peers.Run(ctx, args, servers.Noop{Binary: self, Args: []string{noopArgument}}, stdout, stderr)
}
