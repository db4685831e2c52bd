package failstop_test

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/failstop"
	"github.com/perigee-mq/perigee/internal/faultfs"
)

func TestNothingReachesTheDiskAfterTheFirstFailure(t *testing.T) {
	mem := vfs.NewMem()
	disk := faultfs.New(mem)
	var reported []error
	fs := failstop.New(disk, func(err error) { reported = append(reported, err) })
	require.NoError(t, fs.MkdirAll("d", 0o755))
	f, err := fs.Create("d/a", "test")
	require.NoError(t, err)
	_, err = f.Write([]byte("one"))
	require.NoError(t, err)
	require.False(t, fs.Stopped())

	disk.FailAt(disk.Count(), syscall.ENOSPC)
	n, err := f.Write([]byte("two"))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	require.Len(t, reported, 1)
	require.ErrorIs(t, reported[0], syscall.ENOSPC)
	require.True(t, fs.Stopped())

	// Everything that follows would work, and is not done.
	count := disk.Count()
	_, err = f.Write([]byte("three"))
	require.NoError(t, errors.Join(err, f.Sync(), f.SyncData(), f.Close()))
	g, err := fs.Create("d/b", "test")
	require.NoError(t, err)
	n, err = g.Write([]byte("four"))
	require.Equal(t, 4, n)
	require.NoError(t, errors.Join(err, g.Sync(), g.Close()))
	dir, err := fs.OpenDir("d")
	require.NoError(t, err)
	require.NoError(t, errors.Join(dir.Sync(), dir.Close(), fs.Remove("d/a"), fs.Rename("d/a", "d/c"), fs.MkdirAll("e", 0o755)))
	require.Equal(t, count, disk.Count())
	names, err := fs.List("d")
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, names)
	f, err = fs.Open("d/a")
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	require.Equal(t, "one", string(b))
	require.Len(t, reported, 1)
}

// Another goroutine may ask its owner right after an operation that was not carried out
// any more: an answer without a failure must not be a lie.
func TestTheOwnerKnowsOfAFailureBeforeAnythingIsPassedOver(t *testing.T) {
	disk := faultfs.New(vfs.NewMem())
	var fs *failstop.FS
	var stopped []bool
	fs = failstop.New(disk, func(error) { stopped = append(stopped, fs.Stopped()) })
	disk.FailAt(disk.Count(), syscall.EIO)
	require.NoError(t, fs.MkdirAll("d", 0o755))
	require.Equal(t, []bool{false}, stopped)
	require.True(t, fs.Stopped())
}

// From operation i on every operation fails, for every i: Pebble opens, works and
// closes without an error, a panic, an endless loop or a goroutine left behind, the
// failure is told before its effect, and what is on the disk opens again.
func TestPebbleEndsInOrderWhateverFails(t *testing.T) {
	for i, clean := 0, false; !clean; i++ {
		synctest.Test(t, func(t *testing.T) {
			mem := vfs.NewMem()
			disk := faultfs.New(mem)
			disk.FailFrom(i, syscall.EIO)
			var failures atomic.Int64
			fs := failstop.New(disk, func(error) { failures.Add(1) })
			compactions := failstop.NewCompactions(func() bool { return failures.Load() > 0 })
			opts := &pebble.Options{FS: fs, Logger: owner{failures: &failures}, MemTableSize: 256 << 10, FormatMajorVersion: pebble.FormatNewest}
			opts.Experimental.CompactionScheduler = compactions
			db, err := pebble.Open("db", opts)
			if err != nil { // a directory that is not there cannot be opened
				require.Positive(t, failures.Load(), "%v", err)
				return
			}
			compactions.Allow()
			value := make([]byte, 4<<10)
			for n := range 400 {
				if err := db.Set(fmt.Appendf(nil, "%d", n%97), value, pebble.NoSync); err != nil || failures.Load() > 0 {
					break
				}
			}
			done, err := db.AsyncFlush()
			require.NoError(t, err)
			<-done
			require.NoError(t, db.Close())
			if clean = failures.Load() == 0; clean {
				require.Greater(t, i, 50)
				return
			}
			db, err = pebble.Open("db", &pebble.Options{FS: mem, Logger: quiet{}})
			require.NoError(t, err, "operation %d", i)
			require.NoError(t, db.Close())
		})
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// An owner takes no notice of what Pebble finds fatal after a failure: a table that was
// passed over cannot be read, for a compaction that was allowed just before.
type owner struct {
	quiet
	failures *atomic.Int64
}

func (o owner) Fatalf(f string, args ...any) {
	if o.failures.Load() == 0 {
		o.quiet.Fatalf(f, args...)
	}
}
