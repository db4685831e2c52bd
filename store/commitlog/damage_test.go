package commitlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// smallLog is a log of a few records: segments full, and after the last roll
// records synced one by one, the last without anything written after it.
type smallLog struct {
	opts  Options
	files map[string][]byte
	recs  []Appended
	last  string // name of the last segment
}

func newSmallLog(t *testing.T, sizes ...int) smallLog {
	t.Helper()
	fs := vfs.NewMem()
	s := smallLog{opts: Options{Dir: "log", SegmentSize: 4096, ZeroFill: -1}}
	o := s.opts
	o.FS = fs
	l := mustOpen(t, o)
	for _, n := range sizes {
		s.recs = append(s.recs, mustAppend(t, l, n)...)
		require.NoError(t, l.Sync())
	}
	require.NoError(t, l.Close())
	s.files = snapshot(t, fs, s.opts.Dir)
	s.last = slices.Max(slices.Collect(maps.Keys(s.files)))
	return s
}

// outcome opens a log of these files and returns how many records it has, all
// of them right, or the error, after checking that then nothing was written.
func (s smallLog) outcome(t *testing.T, files map[string][]byte) (uint64, error) {
	t.Helper()
	o := s.opts
	o.FS = memWith(t, o.Dir, files)
	verr := Verify(o.FS, o.Dir, nil)
	s.check(t, o.FS, verr)
	require.Equal(t, files, snapshotAll(t, o.FS, o.Dir), "Verify and Check write nothing")
	l, err := Open(o)
	if err != nil {
		require.Equal(t, files, snapshotAll(t, o.FS, o.Dir), "a failed Open changes nothing")
		require.Error(t, verr, "Verify refuses what Open refuses")
		return 0, err
	}
	defer l.Close()
	// Damage in the middle of an old segment shows when it is read.
	var n uint64
	if err := l.Scan(0, checker(1, &n)); err != nil {
		require.Error(t, verr)
		return n, err
	}
	require.NoError(t, verr)
	require.Equal(t, n, l.LastIndex())
	mustAppend(t, l, 50)
	requireRecords(t, l, n+1)
	return n, nil
}

// check compares what Check says with what Verify says: both find something or
// neither, Check's first finding is Verify's, and no whole record is wrong.
func (s smallLog) check(t *testing.T, fs vfs.FS, verr error) {
	t.Helper()
	var found []error
	last := uint64(0)
	sum, err := Check(fs, s.opts.Dir, func(r Record) error {
		if r.Index <= last || r.Kind != kindFor(r.Index) || !bytes.Equal(r.Payload, payloadFor(r.Index, len(r.Payload))) {
			return fmt.Errorf("record %d after %d is wrong", r.Index, last)
		}
		last = r.Index
		return nil
	}, func(err error) { found = append(found, err) })
	require.NoError(t, err)
	require.Equal(t, last, sum.Last)
	if verr == nil {
		require.Empty(t, found)
		require.Equal(t, sum.Last, sum.Records)
		return
	}
	require.NotEmpty(t, found, "Verify says %v", verr)
	for _, err := range found {
		require.True(t, isRefusal(err), "%v", err)
	}
}

func isDamage(err error) bool {
	var bad *CorruptionError
	return errors.As(err, &bad)
}

func isRefusal(err error) bool {
	return isDamage(err) || errors.Is(err, ErrNotALog) || errors.As(err, &ErrVersion{})
}

func TestAFlippedBitIsNeverAWrongRecordNorASilentLoss(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 7, 64, 0, 33, 120)
	require.Len(t, s.files, 2)
	total := uint64(len(s.recs))
	for name := range s.files {
		first, step := places(t)
		for i := first; i < len(s.files[name]); i += step {
			for _, bit := range []byte{1, 0x80} {
				files := maps.Clone(s.files)
				files[name] = bytes.Clone(files[name])
				files[name][i] ^= bit
				n, err := s.outcome(t, files)
				if err != nil {
					require.True(t, isRefusal(err), "%s:%d: %v", name, i, err)
					continue
				}
				// The very last record is the only one that nothing after it
				// proves to have been durable.
				require.Equal(t, s.last, name, "byte %d", i)
				require.Equal(t, total-1, n, "%s:%d", name, i)
			}
		}
	}
}

func TestATruncatedLastSegmentKeepsAllWholeRecords(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 7, 64, 0, 33, 120)
	base, _ := parseSegmentName(s.last)
	full := s.files[s.last]
	first, step := places(t)
	for size := first; size < len(full); size += step {
		want := uint64(0)
		for _, r := range s.recs {
			if r.Next <= base+Pos(size) {
				want++
			}
		}
		// The bytes may be gone, or the file may have its size and hold zeros.
		for _, b := range [][]byte{full[:size], append(bytes.Clone(full[:size]), make([]byte, len(full)-size)...)} {
			files := maps.Clone(s.files)
			files[s.last] = b
			n, err := s.outcome(t, files)
			require.NoError(t, err, "size %d", size)
			require.GreaterOrEqual(t, n, want, "size %d", size) // zeros cut may have been zeros written
			if len(b) == size {
				require.Equal(t, want, n, "size %d", size)
			}
		}
	}
}

func TestATruncatedSealedSegmentIsCorrupt(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 7)
	first := slices.Min(slices.Collect(maps.Keys(s.files)))
	for size := range len(s.files[first]) {
		files := maps.Clone(s.files)
		files[first] = files[first][:size]
		_, err := s.outcome(t, files)
		require.True(t, isRefusal(err), "size %d: %v", size, err)
	}
}

func TestAnOverwrittenDurableRecordIsNamedByFileAndOffset(t *testing.T) {
	s := newSmallLog(t, 100, 200, 300)
	for i, r := range s.recs[:2] {
		files := maps.Clone(s.files)
		b := bytes.Clone(files[s.last])
		clear(b[r.Pos:r.Next])
		files[s.last] = b
		_, err := s.outcome(t, files)
		var bad *CorruptionError
		require.ErrorAs(t, err, &bad, "record %d", i)
		require.Equal(t, "log/"+s.last, bad.File)
		require.Equal(t, int64(r.Pos), bad.Offset)
		require.ErrorContains(t, err, bad.File)
	}
}

func TestTornTailWithWholeFramesBehindItIsCutForGood(t *testing.T) {
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
	fs = memWith(t, "log", map[string][]byte{name: b})
	o.FS = fs
	l = mustOpen(t, o)
	requireRecords(t, l, 1)
	require.Equal(t, recs[0].Pos, l.Appended())
	require.True(t, allZero(readFile(t, fs, "log/"+name)[recs[0].Pos:]), "no stale frame stays")
	// A record of the same size in the gap must not bring the old ones back.
	mustAppend(t, l, 100)
	require.NoError(t, l.Close())
	l = mustOpen(t, o)
	requireRecords(t, l, 2)
}

func TestPayloadThatLooksLikeFramesIsNotTakenForOne(t *testing.T) {
	s := newSmallLog(t, 100, 200, 300)
	body := s.files[s.last][segmentHeaderSize:]
	fs := vfs.NewMem()
	o := Options{FS: fs, Dir: "log", ZeroFill: -1}
	l := mustOpen(t, o)
	out, err := l.Append([]Entry{{Kind: 1, Payload: []byte("a")}, {Kind: 1, Payload: body}})
	require.NoError(t, err)
	require.NoError(t, l.Close())
	b := readFile(t, fs, "log/"+segmentName(0))
	b[out[1].Pos] ^= 1
	o.FS = memWith(t, "log", map[string][]byte{segmentName(0): b})
	l = mustOpen(t, o)
	require.Equal(t, uint64(1), l.LastIndex(), "the torn record is cut, its payload proves nothing")
}

func TestForeignNewerAndMissingFilesAreToldApart(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900, 1000, 1000, 1000, 7)
	require.Len(t, s.files, 3)
	names := slices.Sorted(maps.Keys(s.files))
	edit := func(name string, fn func(b []byte) []byte) error {
		files := maps.Clone(s.files)
		files[name] = fn(bytes.Clone(files[name]))
		if files[name] == nil {
			delete(files, name)
		}
		_, err := s.outcome(t, files)
		return err
	}
	for _, name := range names {
		require.ErrorIs(t, edit(name, func(b []byte) []byte { copy(b, "#!/bin/sh"); return b }), ErrNotALog)
		var version ErrVersion
		require.ErrorAs(t, edit(name, func(b []byte) []byte { b[8] = 2; return b }), &version)
		require.Equal(t, ErrVersion{File: "log/" + name, Version: 2, Supported: 1}, version)
	}
	require.True(t, isDamage(edit(names[1], func([]byte) []byte { return nil })), "a hole")

	other := newSmallLog(t, 1000, 1000, 1000, 900, 1000, 1000, 1000, 7)
	_, err := s.outcome(t, map[string][]byte{
		names[0]: s.files[names[0]], names[1]: other.files[names[0]], names[2]: s.files[names[2]],
	})
	require.True(t, isDamage(err), "a segment under another's name: %v", err)

	files := maps.Clone(s.files)
	files["LOCK"], files["00000000000000000001.tmp"], files["1.log"] = nil, []byte("x"), []byte("y")
	files["LOCK"] = []byte{}
	n, err := s.outcome(t, files)
	require.NoError(t, err)
	require.Equal(t, uint64(8), n, "other files are not the log's")
}

func TestCrashWhileTheNextSegmentIsCreated(t *testing.T) {
	s := newSmallLog(t, 1000, 1000, 1000, 900)
	require.Len(t, s.files, 2)
	for _, tc := range []struct {
		name string
		head []byte
	}{
		{"no bytes", nil},
		{"zeros", make([]byte, 64)},
		{"more zeros", make([]byte, 9000)},
		{"half a header", append(bytes.Clone(s.files[s.last][:30]), make([]byte, 34)...)},
		{"header without checksum", append(bytes.Clone(s.files[s.last][:60]), make([]byte, 4)...)},
		{"short header", bytes.Clone(s.files[s.last][:11])},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := maps.Clone(s.files)
			files[s.last] = bytes.Clone(tc.head)
			if tc.head == nil {
				files[s.last] = []byte{}
			}
			n, err := s.outcome(t, files)
			require.NoError(t, err)
			require.Equal(t, uint64(3), n)
		})
	}
	t.Run("no file", func(t *testing.T) {
		files := maps.Clone(s.files)
		delete(files, s.last)
		n, err := s.outcome(t, files)
		require.NoError(t, err)
		require.Equal(t, uint64(3), n)
	})
	t.Run("torn header with records behind it is damage", func(t *testing.T) {
		files := maps.Clone(s.files)
		files[s.last] = bytes.Clone(files[s.last])
		files[s.last][60] ^= 1
		_, err := s.outcome(t, files)
		require.True(t, isDamage(err), "%v", err)
	})
}

// Whatever a crash leaves of the header of the very first segment, or of one that begins a
// later term, the log goes on there.
func TestAHeaderThatIsCutAnywhereIsWrittenAgain(t *testing.T) {
	for name, sizes := range map[string][]int{"first segment": nil, "next segment": {1000, 1000, 1000, 900}} {
		t.Run(name, func(t *testing.T) {
			s := newSmallLog(t, sizes...)
			s.opts.Term = 2
			header := bytes.Clone(s.files[s.last][:segmentHeaderSize])
			header[32] = 2
			want := uint64(max(len(sizes)-1, 0))
			for cut := range segmentHeaderSize {
				for _, behind := range []int{0, segmentHeaderSize - cut, 5000} {
					files := maps.Clone(s.files)
					files[s.last] = append(bytes.Clone(header[:cut]), make([]byte, behind)...)
					n, err := s.outcome(t, files)
					require.NoError(t, err, "cut at %d, %d zeros behind", cut, behind)
					require.Equal(t, want, n)
				}
			}
		})
	}
}

func TestProofIsFoundAcrossTheWindowsOfTheSearch(t *testing.T) {
	for _, shift := range []int{-40, -32, -8, 0, 8} {
		fs := vfs.NewMem()
		o := Options{FS: fs, Dir: "log", ZeroFill: -1}
		l := mustOpen(t, o)
		out := mustAppend(t, l, searchStep-frameHeaderSize+shift)
		require.NoError(t, l.Sync())
		mustAppend(t, l, 1)
		require.NoError(t, l.Close())
		b := readFile(t, fs, "log/"+segmentName(0))
		b[out[0].Pos] ^= 1
		o.FS = memWith(t, "log", map[string][]byte{segmentName(0): b})
		_, err := Open(o)
		require.True(t, isDamage(err), "shift %d: %v", shift, err)
	}
}
