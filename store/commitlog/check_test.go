package commitlog

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// checked runs Check and returns the indexes of the records and the findings.
func checked(t *testing.T, fs vfs.FS, dir string) (sum Checked, indexes []uint64, found []error) {
	t.Helper()
	sum, err := Check(fs, dir, func(r Record) error {
		indexes = append(indexes, r.Index)
		return nil
	}, func(err error) { found = append(found, err) })
	require.NoError(t, err)
	return sum, indexes, found
}

func TestCheckGoesOnBehindEachDamagedRecord(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 7, 64, 0, 33, 120)
	damaged := []int{1, 5, 6}
	files := maps.Clone(s.files)
	var want []int64
	for _, i := range damaged {
		name, base := segmentName(0), Pos(0)
		if i >= 3 { // the fourth record begins the last segment
			name = s.last
			base, _ = parseSegmentName(name)
		}
		off := s.recs[i].Pos - base
		files[name] = bytes.Clone(files[name])
		files[name][off+10] ^= 8
		want = append(want, int64(off))
	}
	sum, indexes, found := checked(t, memWith(t, "log", files), "log")
	require.Equal(t, []uint64{1, 3, 4, 5, 8, 9}, indexes)
	require.Equal(t, uint64(6), sum.Records)
	require.Equal(t, uint64(9), sum.Last)
	require.Equal(t, s.recs[8].Next, sum.End)
	// The two that follow each other are one place.
	require.Len(t, found, 2)
	for i, err := range found {
		var bad *CorruptionError
		require.ErrorAs(t, err, &bad)
		require.Equal(t, want[i], bad.Offset)
	}
	require.ErrorContains(t, found[0], "records from 2 to before 3")
	require.ErrorContains(t, found[1], "records from 6 to before 8")
}

func TestCheckNamesEachMissingSegmentAndReadsTheOthers(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 1000, 1000, 1000, 7)
	names := slices.Sorted(maps.Keys(s.files))
	require.Len(t, names, 3)
	files := maps.Clone(s.files)
	delete(files, names[1])
	_, indexes, found := checked(t, memWith(t, "log", files), "log")
	require.Equal(t, []uint64{1, 2, 3, 7, 8}, indexes)
	require.Len(t, found, 1)
	require.ErrorContains(t, found[0], "log/"+names[1])
	require.ErrorContains(t, found[0], "missing")
}

func TestCheckReadsASegmentWhoseHeaderIsDamaged(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 7)
	names := slices.Sorted(maps.Keys(s.files))
	for _, at := range []int{0, 20, 30, 61} {
		files := maps.Clone(s.files)
		files[names[0]] = bytes.Clone(files[names[0]])
		files[names[0]][at] ^= 1
		_, indexes, found := checked(t, memWith(t, "log", files), "log")
		require.Len(t, found, 1)
		require.True(t, isRefusal(found[0]))
		require.Equal(t, []uint64{1, 2, 3, 4, 5}, indexes, "byte %d", at)
	}
}

func TestCheckTellsATornTailFromDamage(t *testing.T) {
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "log", ZeroFill: -1}
	l := mustOpen(t, o)
	mustAppend(t, l, 100)
	require.NoError(t, l.Sync())
	recs := mustAppend(t, l, 100, 100, 100) // one write, torn at its first record
	require.NoError(t, l.Close())
	name := segmentName(0)
	b := readFile(t, fs, "log/"+name)
	b[recs[0].PayloadPos] ^= 1
	sum, indexes, found := checked(t, memWith(t, "log", map[string][]byte{name: b}), "log")
	require.Empty(t, found)
	require.Equal(t, []uint64{1}, indexes)
	require.Equal(t, recs[0].Pos, sum.End)
	require.Equal(t, int64(recs[2].Next-recs[0].Pos), sum.Torn)
}

func TestCheckOfAReadThatFailsNamesTheFileAndGoesOn(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 1000, 1000, 1000, 7)
	names := slices.Sorted(maps.Keys(s.files))
	fs := &unreadable{FS: memWith(t, "log", s.files), name: names[1], from: 1500}
	_, indexes, found := checked(t, fs, "log")
	require.Len(t, found, 1)
	require.ErrorIs(t, found[0], errUnreadable)
	require.ErrorContains(t, found[0], names[1])
	require.Subset(t, indexes, []uint64{1, 2, 3, 7, 8})
}

var errUnreadable = errors.New("unreadable sector")

// unreadable fails reads of one file that reach from or beyond.
type unreadable struct {
	vfs.FS
	name string
	from int64
}

func (u *unreadable) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := u.FS.Open(name, opts...)
	if err == nil && u.PathBase(name) == u.name {
		f = unreadableFile{f, u.from}
	}
	return f, err
}

type unreadableFile struct {
	vfs.File
	from int64
}

func (f unreadableFile) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > f.from {
		return 0, errUnreadable
	}
	return f.File.ReadAt(p, off)
}
