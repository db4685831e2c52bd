package commitlog

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
)

// goldenLog writes the log of testdata/v1: two segments with known salts.
func goldenLog(t *testing.T) map[string][]byte {
	t.Helper()
	o := Options{Dir: "log", SegmentSize: 4096, ZeroFill: -1, Term: 1}
	h := segmentHeader{base: 0, index: firstIndex, term: 1, salt: 0x0123456789abcdef}
	fs := memWith(t, "log", map[string][]byte{segmentName(0): h.encode()})
	o.FS = fs
	l := mustOpen(t, o)
	mustAppend(t, l, 0, 1, 8, 13)
	require.NoError(t, l.Sync())
	mustAppend(t, l, 3500)
	mustAppend(t, l, 600) // rolls
	require.NoError(t, l.Close())

	files := snapshot(t, fs, "log")
	first := files[segmentName(0)]
	h2 := segmentHeader{base: Pos(len(first)), index: 6, term: 1, salt: 0xfedcba9876543210}
	fs = memWith(t, "log", map[string][]byte{segmentName(0): first, segmentName(h2.base): h2.encode()})
	o.FS, o.Term = fs, 2
	l = mustOpen(t, o)
	mustAppend(t, l, 5, 16)
	require.NoError(t, l.Close())
	return snapshot(t, fs, "log")
}

// The files of a released version are never regenerated: a log written then
// must open for ever.
func TestVersion1IsWrittenAndReadAsReleased(t *testing.T) {
	files := goldenLog(t)
	released, err := os.ReadDir("testdata/v1")
	require.NoError(t, err)
	require.Len(t, released, len(files))
	for name, b := range files {
		want, err := os.ReadFile("testdata/v1/" + name)
		require.NoError(t, err)
		require.Equal(t, want, b, name)
	}
	var n uint64
	require.NoError(t, Verify(vfs.Default, "testdata/v1", checker(1, &n)))
	require.Equal(t, uint64(7), n)
}

// The order of writes and syncs is what recovery relies on.
func TestOrderOfSyncs(t *testing.T) {
	var ffs *faultfs.FS
	var l *Log
	torn := false
	var trace strings.Builder
	o := Options{Dir: "data/shard/log", SegmentSize: 4096, ZeroFill: -1}
	datadriven.RunTest(t, "testdata/sync-order", func(t *testing.T, d *datadriven.TestData) string {
		trace.Reset()
		switch d.Cmd {
		case "new":
			ffs = faultfs.New(vfs.NewCrashableMem())
			ffs.Trace(func(op faultfs.Op) { fmt.Fprintln(&trace, op) })
			o.FS = ffs
			return ""
		case "open":
			if torn { // by a power cut, which took what tells of the last syncs
				require.NoError(t, ffs.FS.Remove("data/shard/log/"+syncedName))
				torn = false
			}
			l = mustOpen(t, o)
		case "append":
			var n, size int
			d.ScanArgs(t, "records", &n)
			d.ScanArgs(t, "size", &size)
			sizes := make([]int, n)
			for i := range sizes {
				sizes[i] = size
			}
			mustAppend(t, l, sizes...)
		case "sync":
			require.NoError(t, l.Sync())
		case "drop-all":
			require.NoError(t, l.DropBefore(l.Appended()))
		case "close":
			require.NoError(t, l.Close())
		case "tear":
			// Damages the last record, as a torn write would.
			torn = true
			infos := l.Segments()
			last := infos[len(infos)-1]
			f, err := ffs.FS.OpenReadWrite(last.File, writeCategory)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte{0xff}, int64(last.End-last.Base)-1)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		if trace.Len() == 0 {
			return "nothing\n"
		}
		return trace.String()
	})
}
