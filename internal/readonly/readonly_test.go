package readonly_test

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/readonly"
)

func TestNothingCanBeChanged(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	require.NoError(t, os.WriteFile(name, []byte("content"), 0o600))
	for _, inner := range []vfs.FS{vfs.Default, memWith(t, dir, name)} {
		f := readonly.New(inner)
		other := filepath.Join(dir, "b")
		create := func() error { _, err := f.Create(other, "test"); return err }
		write := func() error { _, err := f.OpenReadWrite(name, "test"); return err }
		reuse := func() error { _, err := f.ReuseForWrite(name, other, "test"); return err }
		for op, err := range map[string]error{
			"create": create(), "open for writing": write(), "reuse": reuse(), "link": f.Link(name, other),
			"remove": f.Remove(name), "remove all": f.RemoveAll(dir), "rename": f.Rename(name, other),
			"make directory": f.MkdirAll(filepath.Join(dir, "d"), 0o755),
		} {
			require.ErrorIs(t, err, readonly.ErrReadOnly, op)
		}
		require.NoError(t, f.MkdirAll(dir, 0o755), "it is there already")
		lock, err := f.Lock(filepath.Join(dir, "LOCK"))
		require.NoError(t, err)
		require.NoError(t, lock.Close())

		names, err := f.List(dir)
		require.NoError(t, err)
		require.Equal(t, []string{"a"}, names)
		file, err := f.Open(name)
		require.NoError(t, err)
		b, err := io.ReadAll(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		require.Equal(t, "content", string(b))
	}
}

func memWith(t *testing.T, dir, name string) vfs.FS {
	t.Helper()
	mem := vfs.NewMem()
	require.NoError(t, mem.MkdirAll(dir, 0o755))
	f, err := mem.Create(name, "test")
	require.NoError(t, err)
	_, err = f.Write([]byte("content"))
	require.NoError(t, err)
	require.NoError(t, f.Close())
	return mem
}

func TestALockThatIsHeldIsRespected(t *testing.T) {
	name := filepath.Join(t.TempDir(), "LOCK")
	held, err := vfs.Default.Lock(name)
	require.NoError(t, err)
	f := readonly.New(vfs.Default)
	_, err = f.Lock(name)
	require.Error(t, err)
	require.NoError(t, held.Close())
	lock, err := f.Lock(name)
	require.NoError(t, err)
	require.NoError(t, lock.Close())
	_, err = os.Stat(name)
	require.NoError(t, err)
	require.NotErrorIs(t, err, fs.ErrNotExist)
}
