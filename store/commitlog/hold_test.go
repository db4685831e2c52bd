package commitlog

import (
	"fmt"
	"io"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// copyOf writes what is held into a folder of its own.
func copyOf(t *testing.T, fsys vfs.FS, h *Hold, dir string) {
	t.Helper()
	require.NoError(t, fsys.MkdirAll(dir, 0o755))
	write := func(name string, data []byte) {
		f, err := fsys.Create(fsys.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.Write(data)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	for _, s := range h.Segments() {
		data, err := io.ReadAll(io.NewSectionReader(s, 0, s.Size))
		require.NoError(t, err)
		require.Len(t, data, int(s.Size))
		write(s.Name, data)
		require.NoError(t, h.Let(s))
	}
	write(SyncedName, EncodeSynced(h.End()))
}

// payloads returns the payloads of a log that is not open.
func payloads(t *testing.T, fsys vfs.FS, dir string) (list []string) {
	t.Helper()
	require.NoError(t, Verify(fsys, dir, func(r Record) error {
		list = append(list, string(r.Payload))
		return nil
	}))
	return list
}

func TestWhatIsHeldIsCopiedAlsoWhenItIsDropped(t *testing.T) {
	fsys := vfs.NewMem()
	l, err := Open(Options{FS: fsys, Dir: "log", SegmentSize: 4 << 10, ZeroFill: -1})
	require.NoError(t, err)
	n := 0
	var want []string
	write := func(count int) {
		for range count {
			n++
			text := fmt.Sprintf("record %d %0500d", n, 0)
			want = append(want, text)
			_, err := l.Append([]Entry{{Kind: 1, Payload: []byte(text)}})
			require.NoError(t, err)
		}
	}
	write(20)
	h, err := l.Hold()
	require.NoError(t, err)
	held := len(l.Segments())
	require.True(t, l.Pinned(l.Segments()[0].Base))
	write(20)
	require.Greater(t, len(l.Segments()), held)
	require.NoError(t, h.Freeze())
	require.Equal(t, l.Flushed(), h.End(), "all that was appended is in it")
	in := want
	write(20)
	require.NoError(t, l.Roll())
	require.NoError(t, l.DropBefore(l.Appended()))
	require.Len(t, l.Segments(), 1, "a hold delays nothing")
	copyOf(t, fsys, h, "copy")
	require.NoError(t, h.Release())
	require.False(t, l.Pinned(l.Segments()[0].Base))
	require.Equal(t, in, payloads(t, fsys, "copy"))
	require.NoError(t, l.Close())

	again, err := Open(Options{FS: fsys, Dir: "copy", SegmentSize: 4 << 10, ZeroFill: -1})
	require.NoError(t, err)
	require.Equal(t, h.End(), again.Appended())
	require.NoError(t, again.Close())
}

// TestACopyMayEndAnywhereALogCan freezes after every append, at the end of segments and at
// their beginnings too.
func TestACopyMayEndAnywhereALogCan(t *testing.T) {
	fsys := vfs.NewMem()
	l, err := Open(Options{FS: fsys, Dir: "log", SegmentSize: 4 << 10, ZeroFill: -1})
	require.NoError(t, err)
	var want []string
	for i := range 40 {
		h, err := l.Hold()
		require.NoError(t, err)
		if i%5 == 4 {
			require.NoError(t, l.Roll())
		} else {
			text := fmt.Sprintf("record %d %0300d", i, 0)
			want = append(want, text)
			_, err := l.Append([]Entry{{Kind: 1, Payload: []byte(text)}})
			require.NoError(t, err)
		}
		require.NoError(t, h.Freeze())
		dir := fmt.Sprint("copy", i)
		copyOf(t, fsys, h, dir)
		require.NoError(t, h.Release())
		require.Equal(t, want, payloads(t, fsys, dir))
		again, err := Open(Options{FS: fsys, Dir: dir, SegmentSize: 4 << 10, ZeroFill: -1})
		require.NoError(t, err)
		require.Equal(t, h.End(), again.Appended())
		require.NoError(t, again.Close())
	}
	require.NoError(t, l.Close())
	_, err = l.Hold()
	require.Error(t, err, "of a closed log")
}
