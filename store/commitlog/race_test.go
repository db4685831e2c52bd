package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
)

// place is where a reader may find a record.
type place struct {
	at   Appended
	size int
}

// readPlace reads the record and checks it; one that was dropped is fine.
func readPlace(l *Log, p place) error {
	b := make([]byte, p.size)
	err := l.ReadAt(b, p.at.PayloadPos)
	if err == nil && !bytes.Equal(b, payloadFor(p.at.Index, p.size)) {
		return fmt.Errorf("record %d read wrong", p.at.Index)
	}
	return err
}

func TestReadersSyncersAndDropsOverlapWithAppendsAndRolls(t *testing.T) {
	onEachFS(t, func(t *testing.T, fs vfs.FS, dir string) {
		l := mustOpen(t, Options{FS: fs, Dir: dir, SegmentSize: 32 << 10, ZeroFill: 8 << 10})
		var newest atomic.Pointer[place]
		var wg sync.WaitGroup
		stop := make(chan struct{})
		loop := func(fn func(i int) error) {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if err := fn(i); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 2 {
			loop(func(int) error { // the freshest record, always
				p := newest.Load()
				if p == nil {
					return nil
				}
				if err := readPlace(l, *p); !errors.Is(err, ErrTrimmed) {
					return err
				}
				return nil
			})
			loop(func(int) error {
				before := l.Appended()
				if err := l.Sync(); err != nil {
					return err
				}
				if l.Flushed() < before {
					return errors.New("sync returned before its records were flushed")
				}
				return nil
			})
		}
		loop(func(int) error {
			var n uint64
			first := l.Segments()[0]
			err := l.Scan(first.First, checker(first.FirstIndex, &n))
			if errors.Is(err, ErrTrimmed) {
				return nil
			}
			return err
		})
		loop(func(int) error {
			infos := l.Segments()
			return l.DropBefore(infos[len(infos)/2].Base)
		})
		for i := range 600 {
			sizes := []int{i % 1000, 3000, 10}
			out, err := l.Append(entriesFrom(l.LastIndex()+1, sizes...))
			require.NoError(t, err)
			newest.Store(&place{out[i%3], sizes[i%3]})
		}
		close(stop)
		wg.Wait()
		require.NoError(t, l.Close())
		require.Equal(t, l.Flushed(), l.Appended())
		require.NoError(t, Verify(fs, dir, nil))
	})
}

func TestCloseUnderLoadWaitsForEverybody(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			fs := vfs.NewMem()
			l, err := Open(Options{FS: fs, Dir: "log", SegmentSize: 16 << 10, ZeroFill: 4 << 10})
			require.NoError(t, err)
			first, err := l.Append(entriesFrom(1, 500))
			require.NoError(t, err)
			var wg sync.WaitGroup
			started := make(chan struct{}, 6)
			load := func(fn func() error) {
				wg.Go(func() {
					for i := 0; ; i++ {
						if i == 3 {
							started <- struct{}{}
						}
						if err := fn(); err != nil {
							if !errors.Is(err, mq.ErrStopped) {
								t.Error(err)
							}
							return
						}
					}
				})
			}
			load(func() error { _, err := l.Append(entriesFrom(l.LastIndex()+1, 300, 900)); return err })
			load(l.Sync)
			load(func() error { return readPlace(l, place{first[0], 500}) })
			load(func() error { return l.Scan(0, func(Record) error { return nil }) })
			load(func() error { return l.DropBefore(0) })
			load(l.Roll)
			for range 6 {
				<-started
			}
			require.NoError(t, l.Close())
			end := l.Appended()
			require.Equal(t, end, l.Flushed())
			wg.Wait()
			require.Equal(t, end, l.Appended(), "nothing after Close")
			require.NoError(t, Verify(fs, "log", nil))
		})
	}
}

// syncGate holds syncs of data until it is opened.
type syncGate struct {
	vfs.FS
	entered, open chan struct{}
	syncs         atomic.Int64
}

type gatedFile struct {
	vfs.File
	g *syncGate
}

func (g *syncGate) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	f, err := g.FS.OpenReadWrite(name, c, o...)
	return &gatedFile{f, g}, err
}

func (f *gatedFile) SyncData() error {
	f.g.syncs.Add(1)
	f.g.entered <- struct{}{}
	<-f.g.open
	return f.File.SyncData()
}

func TestAppendGoesOnDuringASyncAndWaitingSyncsShareOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &syncGate{FS: vfs.NewMem(), entered: make(chan struct{}), open: make(chan struct{})}
		l, err := Open(Options{FS: g, Dir: "log", ZeroFill: -1})
		require.NoError(t, err)
		mustAppend(t, l, 10)
		var wg sync.WaitGroup
		wg.Go(func() { require.NoError(t, l.Sync()) })
		<-g.entered
		first := l.Appended()
		mustAppend(t, l, 10)
		for range 5 {
			wg.Go(func() { require.NoError(t, l.Sync()) })
		}
		g.open <- struct{}{}
		<-g.entered
		require.Equal(t, first, l.Flushed(), "what came during the sync is not claimed")
		g.open <- struct{}{}
		wg.Wait()
		require.Equal(t, int64(2), g.syncs.Load())
		require.Equal(t, l.Appended(), l.Flushed())
		require.NoError(t, l.Close())
	})
}

func TestAnIdleLogDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ffs := faultfs.New(vfs.NewMem())
		l, err := Open(Options{FS: ffs, Dir: "log", ZeroFill: 1 << 20})
		require.NoError(t, err)
		synctest.Wait()
		opened := ffs.Count()
		info, err := ffs.Stat("log/" + segmentName(0))
		require.NoError(t, err)
		require.Equal(t, int64(segmentHeaderSize), info.Size())

		mustAppend(t, l, 100)
		synctest.Wait()
		require.Greater(t, ffs.Count(), opened+1, "the first append starts the filler")
		info, err = ffs.Stat("log/" + segmentName(0))
		require.NoError(t, err)
		require.Greater(t, info.Size(), int64(1<<19))
		require.LessOrEqual(t, info.Size(), int64(1<<20+4096))
		filled := ffs.Count()
		for range 10 {
			mustAppend(t, l, 100)
		}
		synctest.Wait()
		require.Equal(t, filled+10, ffs.Count(), "one write for each append, no more")
		require.NoError(t, l.Close())
	})
}
