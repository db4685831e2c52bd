package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/router/etcd"
)

// etcdRetry is the time between two tries to open the metadata in etcd.
const etcdRetry = time.Second

// maxPassword bounds the file of a password, in bytes.
const maxPassword = 64 << 10

// openSharedRouter opens a router over etcd, and waits until that answers. A data folder
// that has metadata of its own is refused: what is in them would seem to be gone.
func (n *node) openSharedRouter(ctx context.Context, opts router.Options) (*router.Router, error) {
	if _, err := os.Stat(opts.Dir); err == nil {
		return nil, fmt.Errorf("etcd.endpoints: %s has the metadata of a router without etcd; set data_dir to another folder, or move it away", opts.Dir)
	}
	n.logger.Info("waiting for the metadata", "etcd", n.cfg.Etcd.Endpoints)
	ctx, cancel := n.untilInterrupt(ctx)
	defer cancel()
	said := ""
	for {
		r, err := n.trySharedRouter(ctx, opts)
		if err != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		}
		if !errors.Is(err, mq.ErrUnavailable) {
			return r, err
		}
		if text := err.Error(); text != said {
			said = text
			n.logger.Warn("etcd does not answer", "reason", err)
		}
		timer := time.NewTimer(etcdRetry)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

func (n *node) trySharedRouter(ctx context.Context, opts router.Options) (*router.Router, error) {
	c := n.cfg.Etcd
	dial, err := tiercreds.Client(tiercreds.Options{CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	password, err := passwordOf(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("etcd.password_file: %w", err)
	}
	backend, err := etcd.Open(etcd.Options{Endpoints: c.Endpoints, Prefix: c.Prefix, Username: c.Username, Password: password, Dial: dial})
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = backend.Close() })() // ends what waits for etcd
	opts.Backend = backend
	return router.Open(opts)
}

// passwordOf returns what a file holds, without the end of its line.
func passwordOf(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Size() > maxPassword {
		return "", fmt.Errorf("%s has %d bytes, the limit is %d", path, info.Size(), maxPassword)
	}
	data, err := os.ReadFile(path)
	return strings.TrimRight(string(data), "\r\n"), err
}
