package faultfs

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

func workload(fs vfs.FS) error {
	if err := fs.MkdirAll("d", 0o755); err != nil {
		return err
	}
	f, err := fs.OpenReadWrite("d/a", "test")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("hello"), 3); err != nil {
		return err
	}
	if err := f.SyncData(); err != nil {
		return err
	}
	d, err := fs.OpenDir("d")
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return err
	}
	return fs.Rename("d/a", "d/b")
}

func TestTraceShowsMutatingOperationsInOrder(t *testing.T) {
	f := New(vfs.NewMem())
	var lines []string
	f.Trace(func(op Op) { lines = append(lines, op.String()) })
	require.NoError(t, workload(f))
	require.Equal(t, []string{
		"mkdir-all d", "create d/a", "write d/a [3,8)", "sync-data d/a", "sync-dir d", "rename d/b",
	}, lines)
	require.Equal(t, len(lines), f.Count())
	_, err := f.OpenReadWrite("d/b", "test")
	require.NoError(t, err)
	require.Equal(t, len(lines), f.Count(), "opening what exists changes nothing")
}

func TestEachOperationFailsOnceUntilARunIsClean(t *testing.T) {
	for i := 0; ; i++ {
		f := New(vfs.NewMem())
		f.FailAt(i, nil)
		err := workload(f)
		if !f.Fired() {
			require.NoError(t, err)
			require.Equal(t, 6, i)
			return
		}
		require.ErrorIs(t, err, ErrInjected)
		require.NoError(t, f.MkdirAll("later", 0o755))
	}
}

func TestADiskThatIsGoneFailsEveryOperationUntilItIsHealed(t *testing.T) {
	f := New(vfs.NewMem())
	f.FailFrom(2, nil)
	require.ErrorIs(t, workload(f), ErrInjected)
	require.ErrorIs(t, f.MkdirAll("later", 0o755), ErrInjected)
	require.True(t, f.Fired())
	f.Heal()
	require.NoError(t, f.MkdirAll("later", 0o755))
}

func TestCrashKeepsOnlyTheCutOfTheLastWrite(t *testing.T) {
	mem := vfs.NewCrashableMem()
	f := New(mem)
	var size int64
	f.CrashAfter(2, 2, func() {
		info, err := mem.Stat("d/a")
		require.NoError(t, err)
		size = info.Size()
	})
	require.ErrorIs(t, workload(f), ErrCrashed)
	require.Equal(t, int64(5), size)
	require.True(t, f.Fired())
	require.ErrorIs(t, f.Remove("d/a"), ErrCrashed)
	require.Equal(t, 3, f.Count())
}

func TestADiskThatIsFullForAWhileTakesAPartOfOneWrite(t *testing.T) {
	mem := vfs.NewMem()
	f := New(mem)
	f.FailFor(2, 2, 3, nil)
	require.ErrorIs(t, workload(f), ErrInjected)
	info, err := mem.Stat("d/a")
	require.NoError(t, err)
	require.Equal(t, int64(6), info.Size(), "three of five bytes at offset 3")
	require.ErrorIs(t, f.MkdirAll("later", 0o755), ErrInjected)
	require.NoError(t, f.MkdirAll("later", 0o755))
}

func TestSlowOperationsAndWrongReads(t *testing.T) {
	f := New(vfs.NewMem())
	var slow []string
	f.Slow(func(op Op) { slow = append(slow, string(op.Kind)) })
	f.Reads(func(_ string, _ int64, p []byte) { p[0] ^= 1 })
	require.NoError(t, workload(f))
	require.Equal(t, []string{"mkdir-all", "create", "write", "sync-data", "sync-dir", "rename"}, slow)
	file, err := f.Open("d/b")
	require.NoError(t, err)
	p := make([]byte, 5)
	_, err = file.ReadAt(p, 3)
	require.NoError(t, err)
	require.Equal(t, "iello", string(p))
	require.NoError(t, file.Close())
}

func TestASyncThatDropsWhatItShouldHaveMadeDurableFailsOnce(t *testing.T) {
	mem := vfs.NewCrashableMem()
	f := New(mem)
	a, err := f.OpenReadWrite("a", "test")
	require.NoError(t, err)
	other, err := f.OpenReadWrite("a", "test")
	require.NoError(t, err)
	f.DropAt(3, nil)
	write := func(text string, at int64) {
		_, err := a.WriteAt([]byte(text), at)
		require.NoError(t, err)
	}
	read := func() string {
		b := make([]byte, 8)
		_, err := a.ReadAt(b, 0)
		require.NoError(t, err)
		return string(b)
	}
	write("durable!", 0)
	require.NoError(t, a.SyncData())
	write("gone", 0)
	write("too", 2)
	require.Equal(t, "gotoole!", read())
	require.ErrorIs(t, a.SyncData(), ErrInjected)
	require.True(t, f.Fired())
	require.Equal(t, "durable!", read())
	require.NoError(t, a.SyncData(), "the next one knows nothing of it")
	require.ErrorIs(t, other.Sync(), ErrInjected, "every handle hears of it")
	require.NoError(t, other.Sync())
	later, err := f.OpenReadWrite("a", "test")
	require.NoError(t, err)
	require.NoError(t, later.Sync(), "whoever comes later does not")
	write("new", 0)
	require.NoError(t, a.SyncData())
	require.Equal(t, "newable!", read())
}
