package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/backup"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	routerremote "github.com/perigee-mq/perigee/router/remote"
	"github.com/perigee-mq/perigee/store"
)

// Parts are what a backup is made of; what the process does not run is nil.
type Parts struct {
	Store  *store.Store
	Router *router.Router
	// Rate is how many bytes are copied in a second at most; 0: any number.
	Rate int64
}

// Backup copies a running node into the folder target, which must not exist: the messages
// first and then the metadata, which may know more than the messages, but not less. Everything
// that was acknowledged before the call is in it. The folder has its name only when it is whole.
func Backup(ctx context.Context, fsys vfs.FS, target string, p Parts, tier config.Tier, version string) (_ backup.Manifest, linked, copied int64, err error) {
	m := backup.Manifest{Tier: string(tier), Program: version, Began: time.Now().UTC()}
	w, err := backup.Begin(fsys, target)
	if err != nil {
		return m, 0, 0, err
	}
	w.Pace(p.Rate)
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Abandon())
		}
	}()
	if p.Store != nil {
		if m.Shards, err = p.Store.Backup(ctx, w, StoreDir); err != nil {
			return m, 0, 0, err
		}
	}
	if p.Router != nil {
		saved, err := p.Router.Save(ctx, fsys, w.Path(routerDir))
		if err == nil {
			err = w.Add(routerDir)
		}
		if err != nil {
			return m, 0, 0, err
		}
		m.Metadata = &backup.Metadata{Revision: saved.Revision, Topics: saved.Topics, Groups: saved.Groups}
	}
	m.Ended = time.Now().UTC()
	if m, err = w.Finish(ctx, m); err != nil {
		return m, 0, 0, err
	}
	linked, copied = w.Totals()
	return m, linked, copied, nil
}

// Backup implements adminpb.ControlServiceServer.
func (c *control) Backup(ctx context.Context, req *adminpb.BackupRequest) (*adminpb.BackupResponse, error) {
	n := c.node
	if !filepath.IsAbs(req.GetTarget()) {
		return nil, status.Errorf(codes.InvalidArgument, "target %q: must be an absolute path", mq.Shorten(req.GetTarget()))
	}
	if req.GetRate() < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "rate %d: must not be negative", req.GetRate())
	}
	if err := c.node.failed(); err != nil {
		return nil, status.Errorf(codes.FailedPrecondition, "no backup of what has failed: %v", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })()
	began := time.Now()
	target := filepath.Clean(req.GetTarget())
	n.logger.Info("backup begins", "target", target)
	m, linked, copied, err := Backup(ctx, vfs.Default, target, Parts{Store: n.store, Router: n.ownRouter, Rate: req.GetRate()}, n.cfg.Tier, n.cfg.Version)
	if err != nil {
		n.logger.Warn("no backup was made", "target", target, "reason", err)
		code := codes.Internal
		switch {
		case errors.Is(err, backup.ErrExists):
			code = codes.AlreadyExists
		case errors.Is(err, mq.ErrUnavailable):
			code = codes.Unavailable
		case ctx.Err() != nil:
			code = codes.Canceled
		}
		return nil, status.Error(code, err.Error())
	}
	n.logger.Info("backup made", "target", target, "took", time.Since(began), "linked_bytes", linked, "copied_bytes", copied)
	resp := &adminpb.BackupResponse{
		Target: target, Tier: m.Tier, Files: int64(len(m.Files)), LinkedBytes: linked, CopiedBytes: copied,
	}
	for _, s := range m.Shards {
		resp.Shards = append(resp.Shards, &adminpb.BackedUpShard{Name: s.Name, FirstPosition: s.First, EndPosition: s.End})
	}
	if m.Metadata != nil {
		resp.Metadata = &adminpb.BackedUpMetadata{Revision: m.Metadata.Revision, Topics: int64(m.Metadata.Topics), Groups: int64(m.Metadata.Groups)}
	}
	return resp, nil
}

// Restore puts the backup in the folder from in the place of a data folder, which must be
// empty or missing; see backup.Restore. Metadata get another life, see router.Renew, which
// has giveUp too.
func Restore(ctx context.Context, fsys vfs.FS, from, dataDir string, giveUp bool) (*backup.Manifest, error) {
	var restored *backup.Manifest
	err := backup.Restore(ctx, fsys, from, dataDir, func(m *backup.Manifest) error {
		restored = m
		if m.Metadata == nil {
			return routerremote.InitCache(fsys, fsys.PathJoin(dataDir, routerDir))
		}
		return router.Renew(fsys, fsys.PathJoin(dataDir, routerDir), giveUp)
	})
	return restored, err
}

// mustBeData refuses a data folder that is none.
func mustBeData(dataDir string) error {
	if backup.Is(vfs.Default, dataDir) {
		return fmt.Errorf("data_dir %s is a backup, which stays as it is: perigee restore --from %s --data-dir FOLDER makes a data folder of it", dataDir, dataDir)
	}
	if _, err := os.Stat(filepath.Join(dataDir, backup.RestoringName)); err == nil {
		return fmt.Errorf("data_dir %s: a restore has not come to its end; empty the folder and restore again", dataDir)
	}
	return nil
}
