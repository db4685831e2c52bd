package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

// A process that has data serves a socket in its data folder: whoever may use the folder may
// ask it for a backup, and nobody else, also not over the network.

// controlSocket is the name of the socket in the data folder.
const controlSocket = "control.sock"

// maxSocketPath is the longest path that every system lets a socket have.
const maxSocketPath = 103

// atSocket calls fn with a path of the socket in dataDir that is short enough for a socket.
func atSocket(dataDir string, fn func(path string) error) (err error) {
	path := filepath.Join(dataDir, controlSocket)
	if len(path) <= maxSocketPath {
		return fn(path)
	}
	dir, err := os.Open(dataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return fn(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), controlSocket))
}

// DialControl connects to the process that runs over a data folder. The error matches
// fs.ErrNotExist, or says that the connection was refused, when there is none.
func DialControl(ctx context.Context, dataDir string) (conn net.Conn, err error) {
	err = atSocket(dataDir, func(path string) error {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	return conn, err
}

// listenControl binds the socket. Whoever calls it has the data folder for himself.
func listenControl(dataDir string) (l *net.UnixListener, err error) {
	if err := os.Remove(filepath.Join(dataDir, controlSocket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	err = atSocket(dataDir, func(path string) error {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
		return err
	})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path may be one that means nothing any more
	if err := os.Chmod(filepath.Join(dataDir, controlSocket), 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serveControl begins to answer commands on the same host. A file system that has no sockets
// is no reason not to serve clients.
func (n *node) serveControl(ctx context.Context) {
	if n.cfg.Tier == config.Proxy {
		return
	}
	l, err := listenControl(n.cfg.DataDir)
	if err != nil {
		n.logger.Warn("no backup can be made while this process runs: no socket in the data folder", "reason", err)
		return
	}
	n.control = &control{node: n, server: grpc.NewServer(grpc.WaitForHandlers(true))}
	n.control.ctx, n.control.cancel = context.WithCancelCause(ctx)
	adminpb.RegisterControlServiceServer(n.control.server, n.control)
	n.serve("control", func() error { return n.control.server.Serve(l) })
}

// control serves ControlService.
type control struct {
	adminpb.UnimplementedControlServiceServer
	node   *node
	server *grpc.Server
	ctx    context.Context //nolint:containedctx // that of the service: it ends with stop
	cancel context.CancelCauseFunc
}

// stop ends what is under way, and waits for that.
func (c *control) stop(dataDir string) error {
	if c == nil {
		return nil
	}
	c.cancel(errors.New("the process stops"))
	c.server.Stop()
	if err := os.Remove(filepath.Join(dataDir, controlSocket)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
