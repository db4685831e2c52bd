package durable_test

import (
	"io/fs"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/faultfs"
)

const dir = "/srv/data/store/shards/s0"

// Whatever a first attempt has left behind, and whoever made it.
func TestADirectorySurvivesAPowerCutHoweverEarlierAttemptsEnded(t *testing.T) {
	for i := 0; ; i++ {
		mem := vfs.NewCrashableMem()
		ffs := faultfs.New(mem)
		ffs.FailAt(i, nil)
		err := durable.MakeDir(ffs, dir)
		if err != nil {
			require.NoError(t, durable.MakeDir(ffs, dir))
		}
		requireKept(t, mem)
		if !ffs.Fired() {
			require.NoError(t, err)
			require.Greater(t, i, 5)
			break
		}
		require.ErrorIs(t, err, faultfs.ErrInjected)
	}
	mem := vfs.NewCrashableMem()
	require.NoError(t, mem.MkdirAll("/srv/data", 0o755)) // and not synced
	require.NoError(t, durable.MakeDir(mem, dir))
	requireKept(t, mem)
}

func requireKept(t *testing.T, mem *vfs.MemFS) {
	t.Helper()
	info, err := mem.CrashClone(vfs.CrashCloneCfg{}).Stat(dir)
	require.NoError(t, err)
	require.True(t, info.IsDir())
}

// foreign may not open directories above /srv.
type foreign struct{ vfs.FS }

func (f foreign) OpenDir(name string) (vfs.File, error) {
	if name == "/" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return f.FS.OpenDir(name)
}

func TestADirectoryAboveThatIsNotOursIsPassedOver(t *testing.T) {
	mem := vfs.NewCrashableMem()
	require.NoError(t, durable.MakeDir(mem, "/srv"))
	require.NoError(t, durable.MakeDir(foreign{mem}, dir))
	requireKept(t, mem)
	require.ErrorIs(t, durable.MakeDir(foreign{vfs.NewMem()}, "/new/dir"), fs.ErrPermission, "its entry is new")
}
