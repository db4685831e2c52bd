package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/backup"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

const backupsDir = "backups"

// backups are those that a history makes of its store, on the same disk.
type backups struct {
	n    int
	made []madeBackup
}

// A madeBackup is one that was answered, with what the clients knew then.
type madeBackup struct {
	dir    string
	ledger *ledger
}

// elsewhere is a file system on which backups share no files with the store.
type elsewhere struct{ vfs.FS }

func (f elsewhere) Link(string, string) error { return syscall.EXDEV }

// slowly is a file system on which a backup takes its time, so that much happens to the store
// meanwhile.
type slowly struct {
	vfs.FS
	rng *rand.Rand // of the goroutine that makes backups
}

func (f slowly) pause(name string) {
	if strings.Contains(name, "views.backup") || strings.HasPrefix(name, backupsDir) {
		time.Sleep(time.Duration(f.rng.IntN(int(tick))))
	}
}

func (f slowly) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f.pause(name)
	return f.FS.Create(name, category)
}

func (f slowly) Link(oldname, newname string) error {
	f.pause(newname)
	return f.FS.Link(oldname, newname)
}

func (f slowly) MkdirAll(dir string, perm fs.FileMode) error {
	f.pause(dir)
	return f.FS.MkdirAll(dir, perm)
}

func (f slowly) Unwrap() vfs.FS { return f.FS }

// backUp makes backups of a store at work, until ctx ends or the store stops.
func (h *history) backUp(ctx context.Context, s *store.Store, fsys vfs.FS, rng *rand.Rand) {
	target := fsys
	if rng.IntN(2) == 0 {
		target = elsewhere{fsys}
	}
	for ctx.Err() == nil && s.Err() == nil {
		timer := time.NewTimer(time.Duration(rng.IntN(20)) * tick)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		h.backups.n++
		dir := fmt.Sprintf("%s/%d", backupsDir, h.backups.n)
		life, began := h.ledger.now(), time.Now()
		_, _, _, err := node.Backup(ctx, target, dir, node.Parts{Store: s}, config.Store, "test")
		trace("backup %s: %v", dir, err)
		if err != nil || life != h.ledger.now() {
			continue // a crash came first: whoever was still answered is nobody's any more
		}
		// What was answered at the moment at which it began, or later, is in it or not.
		l := h.ledger.copy()
		l.ends(true, began.Add(flushInterval+slack-1))
		h.backups.made = append(h.backups.made, madeBackup{dir, l})
	}
}

// judgeBackups restores what was backed up and lets the ledgers of that time judge.
func (h *history) judgeBackups(disk vfs.FS) error {
	if h.backups == nil {
		return nil
	}
	names, err := disk.List(backupsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range names {
		dir := backupsDir + "/" + name
		if strings.HasSuffix(name, ".unfinished") {
			continue
		}
		// Also one whose answer was lost: what has its name is whole.
		sum, err := node.Check(disk, dir, node.CheckOptions{DeriveLimit: 1 << 30, Found: func(f node.Finding) { h.ledger.wrong("%s: %s", dir, f) }})
		if err != nil {
			return fmt.Errorf("check of %s: %w", dir, err)
		}
		if sum.Backup == nil || len(sum.Shards) != 1 {
			h.ledger.wrong("%s is checked as %+v", dir, sum)
		}
	}
	for _, made := range h.backups.made {
		if err := h.judgeBackup(disk, made); err != nil {
			return fmt.Errorf("%s: %w", made.dir, err)
		}
	}
	return nil
}

func (h *history) judgeBackup(disk vfs.FS, made madeBackup) error {
	dir := "restored/" + made.dir
	if _, err := node.Restore(context.Background(), disk, made.dir, dir, false); err != nil {
		return err
	}
	o := h.settings
	o.onFailure = nil
	s, err := openStoreIn(disk, dir+"/store", o)
	if err != nil {
		return err
	}
	err = drain(context.Background(), s, made.ledger, h.topics, h.names, h.groups)
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	for _, f := range made.ledger.faults {
		h.ledger.wrong("%s: %s", made.dir, f)
	}
	_, err = store.Check(disk, dir+"/store", store.CheckOptions{DeriveLimit: 1 << 30, Found: func(f store.Finding) { h.ledger.wrong("%s: %s", dir, f) }})
	return err
}

// TestBackupsUnderLoadHaveAllThatWasAcknowledgedBefore makes backups of stores at work that
// meet with faults and crashes, on the same file system and on another one. Each that
// was answered is there after whatever came then, is sound, and once restored gives what
// the clients had been told until it began; nothing is stuck in it.
func TestBackupsUnderLoadHaveAllThatWasAcknowledgedBefore(t *testing.T) {
	n := min(number(t, "PERIGEE_HISTORIES", 30), 300)
	if testing.Short() {
		n = min(n, 15)
	}
	first := number(t, "PERIGEE_SEED", rand.Uint64N(1<<40))
	t.Logf("PERIGEE_SEED=%d PERIGEE_HISTORIES=%d", first, n)
	for _, flush := range []shard.FlushMode{shard.FlushSync, shard.FlushAsync} {
		for _, faults := range []bool{false, true} {
			t.Run(fmt.Sprintf("mode %d, faults %t", flush, faults), func(t *testing.T) {
				var mu sync.Mutex
				all := 0
				inParallel(t, int(n), func(t *testing.T, i int) {
					seed := first + uint64(i)
					where := fmt.Sprintf("PERIGEE_SEED=%d PERIGEE_HISTORIES=1", seed)
					bubble(t, where, func(t *testing.T) {
						h := newHistory(seed, flush, faults)
						h.backups = &backups{}
						h.jumps, h.slow, h.wall, h.ledger.slow = false, false, nil, 0 // a restored store has another past
						if err := h.run(); err != nil {
							tell(t, where, []string{err.Error()})
						}
						tell(t, where, h.ledger.faults)
						mu.Lock()
						defer mu.Unlock()
						all += len(h.backups.made)
					})
				})
				t.Logf("%d backups restored", all)
				require.Positive(t, all)
			})
		}
	}
}

// TestAFailureOrACrashDuringABackupLeavesStoreAndTargetSound fails, and crashes after, every
// operation of a backup.
func TestAFailureOrACrashDuringABackupLeavesStoreAndTargetSound(t *testing.T) {
	for _, links := range []bool{true, false} {
		for _, how := range []string{"fails", "disk is full from there on", "crash"} {
			t.Run(fmt.Sprintf("links %t, %s", links, how), func(t *testing.T) {
				for at := 0; ; at++ {
					done := false
					bubble(t, t.Name(), func(t *testing.T) { done = interruptBackup(t, at, links, how) })
					if done {
						require.Greater(t, at, 20)
						return
					}
				}
			})
		}
	}
}

// interruptBackup reports whether the backup had no such operation.
func interruptBackup(t *testing.T, at int, links bool, how string) (done bool) {
	d := newBackupDisk(t)
	var target vfs.FS = d.fs
	if !links {
		target = elsewhere{d.fs}
	}
	left := d.mem
	crashed := false
	next := d.fs.Count() + at
	var path string // that the fault has come to
	d.fs.Trace(func(op faultfs.Op) {
		if op.Index == next {
			path = op.Path
		}
	})
	switch how {
	case "fails":
		d.fs.FailAt(next, syscall.EIO)
	case "disk is full from there on":
		d.fs.FailFrom(next, syscall.ENOSPC)
	default:
		d.fs.CrashAfter(next, -1, func() {
			crashed = true
			left = d.mem.CrashClone(vfs.CrashCloneCfg{})
		})
	}
	_, _, _, err := node.Backup(t.Context(), target, "backup", node.Parts{Store: d.s}, config.Store, "test")
	fired := d.fs.Fired()
	d.fs.Heal()
	d.fs.Trace(nil)
	switch {
	case !fired:
		require.NoError(t, err)
	case how != "crash":
		if strings.HasPrefix(path, "backup") || strings.Contains(path, "views.backup") {
			require.NoError(t, d.s.Err(), "a failure at %s has stopped the store", path)
			if err != nil { // again, and it works
				_, _, _, err = node.Backup(t.Context(), target, "backup", node.Parts{Store: d.s}, config.Store, "test")
				require.NoError(t, err, "at %s", path)
			}
		}
	}
	_ = d.s.Close()
	if !crashed {
		left = d.mem
	}
	require.Empty(t, findings(left), "operation %d", at)
	if backup.Is(left, "backup") {
		_, err := node.Check(left, "backup", node.CheckOptions{DeriveLimit: 1 << 30, Found: func(f node.Finding) { t.Errorf("operation %d: %s", at, f) }})
		require.NoError(t, err)
	} else {
		_, err := left.Stat("backup")
		require.ErrorIs(t, err, fs.ErrNotExist, "operation %d: half a backup has its name", at)
	}
	s, err := openStore(left, settings{segment: 8 << 10, fill: -1})
	require.NoError(t, err, "operation %d", at)
	require.Len(t, d.drain(t, s), d.sent, "operation %d", at)
	// What was left is in nobody's way.
	_, _, _, err = node.Backup(t.Context(), left, "another/backup", node.Parts{Store: s}, config.Store, "test")
	require.NoError(t, err)
	if !backup.Is(left, "backup") {
		_, _, _, err = node.Backup(t.Context(), left, "backup", node.Parts{Store: s}, config.Store, "test")
		require.NoError(t, err)
	}
	require.NoError(t, s.Close())
	names, err := left.List("")
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, ".unfinished") }), "%v", names)
	return !fired
}

// A backupDisk has a store with messages in several segments.
type backupDisk struct {
	mem   *vfs.MemFS
	fs    *faultfs.FS
	s     *store.Store
	topic *mq.Topic
	sent  int // and not acknowledged
}

func newBackupDisk(t *testing.T) *backupDisk {
	d := &backupDisk{mem: vfs.NewCrashableMem()}
	d.fs = faultfs.New(d.mem)
	d.topic = &mq.Topic{
		ID: 1, Resource: mq.Resource{Name: "t"}, Type: mq.TopicNormal, Permission: mq.PermReadWrite, Version: 1,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: 1, Write: 1}},
	}
	var err error
	d.s, err = openStore(d.fs, settings{segment: 8 << 10, fill: -1})
	require.NoError(t, err)
	n := 0
	for _, id := range newIDs(&n, 30) {
		m := message(id, "")
		m.Properties = make([]byte, 900)
		_, err := d.s.Append(t.Context(), shardName, d.topic, 0, []*mq.Message{m})
		require.NoError(t, err)
	}
	got, err := d.s.Receive(t.Context(), shardName, mq.Receive{Topic: d.topic, Group: backupReaders(), Max: 5, Invisible: time.Minute})
	require.NoError(t, err)
	for _, m := range got {
		require.NoError(t, errors.Join(d.s.Ack(t.Context(), []mq.Lease{m.Lease})...))
	}
	d.sent = 30 - len(got)
	return d
}

func backupReaders() *mq.Group {
	return &mq.Group{ID: 1, Resource: mq.Resource{Name: "readers"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 100, Version: 1}
}

// drain returns the messages that there are.
func (d *backupDisk) drain(t *testing.T, s *store.Store) (ids []string) {
	for {
		got, err := s.Receive(t.Context(), shardName, mq.Receive{Topic: d.topic, Group: backupReaders(), Max: 32, Invisible: time.Hour})
		require.NoError(t, err)
		if len(got) == 0 {
			return ids
		}
		for _, m := range got {
			ids = append(ids, m.ID)
		}
	}
}
