package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/durable"
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
		return nil, fmt.Errorf("etcd.endpoints: %s has the metadata of a router without etcd; perigee router import carries them into an etcd without any; else set data_dir to another folder, or move it away", opts.Dir)
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
		if !errors.Is(err, mq.ErrUnavailable) || errors.Is(err, etcd.ErrDenied) {
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
	backend, err := openEtcd(n.cfg.Etcd)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = backend.Close() })() // ends what waits for etcd
	opts.Backend = backend
	return router.Open(opts)
}

func openEtcd(c config.Etcd) (*etcd.Backend, error) {
	dial, err := tiercreds.Client(tiercreds.Options{CertFile: c.CertFile, KeyFile: c.KeyFile, CAFile: c.CAFile})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	password, err := passwordOf(c.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("etcd.password_file: %w", err)
	}
	return etcd.Open(etcd.Options{Endpoints: c.Endpoints, Prefix: c.Prefix, Username: c.Username, Password: password, Dial: dial})
}

// Imported says what ImportIntoEtcd has done.
type Imported struct {
	Entries int
	// Aside is where the metadata of the data folder are now.
	Aside string
}

// ImportIntoEtcd carries the metadata in the data folder of a stopped router into an etcd that
// has none below the prefix, and puts them aside, so that nobody goes on with both. It may be
// repeated after any failure.
func ImportIntoEtcd(ctx context.Context, cfg config.Config) (done Imported, err error) {
	if len(cfg.Etcd.Endpoints) == 0 {
		return done, errors.New("etcd.endpoints: must name at least one")
	}
	dir := filepath.Join(cfg.DataDir, routerDir)
	var entries []router.Entry
	err = router.Entries(vfs.Default, dir, func(e router.Entry) error {
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return done, err
	}
	if len(entries) == 0 {
		return done, fmt.Errorf("%s has no metadata", dir)
	}
	backend, err := openEtcd(cfg.Etcd)
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	if err := backend.Import(ctx, entries); err != nil {
		return done, err
	}
	done.Entries = len(entries)
	for n := 1; done.Aside == "" || exists(vfs.Default, done.Aside); n++ {
		done.Aside = fmt.Sprint(dir, ".imported-", n)
	}
	return done, errors.Join(os.Rename(dir, done.Aside), durable.SyncDir(vfs.Default, cfg.DataDir))
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
