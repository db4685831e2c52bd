package commitlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// places returns which operations or bytes to try: from the first on, a step apart. In
// the short form these are one in five, others each time.
func places(t *testing.T) (first, step int) {
	t.Helper()
	if !testing.Short() {
		return 0, 1
	}
	first, step = rand.IntN(5), 5
	t.Logf("from %d on, %d apart; all without -short", first, step)
	return first, step
}

// payloadFor is the payload that tests give to the record with this index, so
// that a record read back proves itself.
func payloadFor(index uint64, n int) []byte {
	p := make([]byte, n)
	r := rand.New(rand.NewPCG(index, uint64(n)))
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	if n >= 8 {
		binary.LittleEndian.PutUint64(p, index)
	}
	return p
}

// kindFor is the kind that tests give to the record with this index.
func kindFor(index uint64) Kind { return Kind(index%200 + 1) }

// entriesFrom makes entries with the given payload sizes, the first with index.
func entriesFrom(index uint64, sizes ...int) []Entry {
	var out []Entry
	for i, n := range sizes {
		at := index + uint64(i)
		out = append(out, Entry{Kind: kindFor(at), Payload: payloadFor(at, n)})
	}
	return out
}

func mustOpen(t testing.TB, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustAppend(t testing.TB, l *Log, sizes ...int) []Appended {
	t.Helper()
	out, err := l.Append(entriesFrom(l.LastIndex()+1, sizes...))
	require.NoError(t, err)
	require.Len(t, out, len(sizes))
	return out
}

// checker returns a Scan callback that fails on anything but the records that
// payloadFor makes, from index first on, and counts them.
func checker(first uint64, n *uint64) func(Record) error {
	next, at := first, Pos(0)
	return func(r Record) error {
		if r.Index != next {
			return fmt.Errorf("index %d, want %d", r.Index, next)
		}
		if r.Kind != kindFor(r.Index) || !bytes.Equal(r.Payload, payloadFor(r.Index, len(r.Payload))) {
			return fmt.Errorf("record %d has a wrong payload", r.Index)
		}
		if r.Pos < at || r.PayloadPos <= r.Pos || r.Next < r.PayloadPos+Pos(len(r.Payload)) {
			return fmt.Errorf("record %d: positions %d %d %d", r.Index, r.Pos, r.PayloadPos, r.Next)
		}
		next, at = next+1, r.Next
		*n++
		return nil
	}
}

// requireRecords checks that l holds exactly records 1 to want.
func requireRecords(t testing.TB, l *Log, want uint64) {
	t.Helper()
	var n uint64
	require.NoError(t, l.Scan(l.First(), checker(1, &n)))
	require.Equal(t, want, n)
	require.Equal(t, want, l.LastIndex())
}

// onEachFS runs fn on memory and on disk.
func onEachFS(t *testing.T, fn func(t *testing.T, fs vfs.FS, dir string)) {
	t.Run("mem", func(t *testing.T) { fn(t, vfs.NewCrashableMem(), "store/log") })
	t.Run("disk", func(t *testing.T) { fn(t, vfs.Default, t.TempDir()+"/store/log") })
}

func readFile(t testing.TB, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return b
}

func writeFile(t testing.TB, fs vfs.FS, path string, b []byte) {
	t.Helper()
	f, err := fs.Create(path, writeCategory)
	require.NoError(t, err)
	_, err = f.Write(bytes.Clone(b))
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, f.Close())
}

// memWith is a memory file system with these files in dir, all synced.
func memWith(t testing.TB, dir string, files map[string][]byte) *vfs.MemFS {
	t.Helper()
	fs := vfs.NewCrashableMem()
	require.NoError(t, fs.MkdirAll(dir, 0o755))
	for name, b := range files {
		writeFile(t, fs, fs.PathJoin(dir, name), b)
	}
	require.NoError(t, syncDir(fs, dir))
	require.NoError(t, syncDir(fs, fs.PathDir(dir)))
	return fs
}

// snapshot returns all segments of dir, as they are after a power cut that came before
// anything else was written back.
func snapshot(t testing.TB, fs vfs.FS, dir string) map[string][]byte {
	t.Helper()
	files := snapshotAll(t, fs, dir)
	delete(files, syncedName)
	return files
}

// snapshotAll returns all files of dir.
func snapshotAll(t testing.TB, fs vfs.FS, dir string) map[string][]byte {
	t.Helper()
	names, err := fs.List(dir)
	require.NoError(t, err)
	files := map[string][]byte{}
	for _, name := range names {
		files[name] = readFile(t, fs, fs.PathJoin(dir, name))
	}
	return files
}
