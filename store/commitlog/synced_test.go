package commitlog

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
)

// killedLog is a small log as a killed process leaves it: the last records are synced,
// and only the file beside the segments tells of it.
func killedLog(t *testing.T) (s smallLog, all map[string][]byte) {
	t.Helper()
	s = newSmallLog(t, 1000, 1000, 1000, 900, 7, 64, 0, 33, 120)
	fs := memWith(t, s.opts.Dir, s.files)
	o := s.opts
	o.FS = fs
	l := mustOpen(t, o) // it makes the file
	all = snapshotAll(t, fs, s.opts.Dir)
	require.Contains(t, all, syncedName)
	require.NoError(t, l.Close())
	return s, all
}

func TestDamageOfTheLastRecordIsNotTakenForATornTail(t *testing.T) {
	s, all := killedLog(t)
	base, _ := parseSegmentName(s.last)
	last := s.recs[len(s.recs)-1]
	refused := func(name string, b []byte) {
		files := maps.Clone(all)
		files[name] = b
		_, err := s.outcome(t, files)
		require.True(t, isDamage(err), "%v", err)
		require.ErrorContains(t, err, "log/"+s.last)
	}
	for at := last.Pos - base; at < last.Next-base; at++ {
		b := bytes.Clone(all[s.last])
		b[at] ^= 1
		refused(s.last, b)
	}
	for size := range int(last.Next - base) {
		refused(s.last, all[s.last][:size])
	}
}

func TestDamageOfTheFileThatRemembersSyncsIsNamedOrHarmless(t *testing.T) {
	s, all := killedLog(t)
	total := uint64(len(s.recs))
	harmless := func(what string, b []byte) {
		files := maps.Clone(all)
		files[syncedName] = b
		if b == nil {
			delete(files, syncedName)
		}
		n, err := s.outcome(t, files)
		require.NoError(t, err, what)
		require.Equal(t, total, n, what)
	}
	harmless("missing", nil)
	harmless("zeros", make([]byte, 2*syncedSlot))
	for size := range 2 * syncedSlot {
		harmless("cut", all[syncedName][:size])
	}
	for at := range 2 * syncedSlot {
		b := bytes.Clone(all[syncedName])
		b[at] ^= 0x10
		harmless("one slot damaged", b)
		b[(at+syncedSlot)%(2*syncedSlot)] ^= 1
		files := maps.Clone(all)
		files[syncedName] = b
		_, err := s.outcome(t, files)
		require.True(t, isDamage(err), "%v", err)
		require.ErrorContains(t, err, syncedName)
	}
	newer := bytes.Clone(all[syncedName])
	binary.LittleEndian.PutUint32(newer[8:], syncedVersion+1)
	binary.LittleEndian.PutUint32(newer[28:], crc32.Checksum(newer[:28], castagnoli))
	files := maps.Clone(all)
	files[syncedName] = newer
	_, err := s.outcome(t, files)
	var version ErrVersion
	require.ErrorAs(t, err, &version)
	require.Equal(t, ErrVersion{File: "log/" + syncedName, Version: 2, Supported: 1}, version)
}

// The last segment, or all of them, is missed as well.
func TestSegmentsThatAreGoneFromTheEndAreMissed(t *testing.T) {
	s, all := killedLog(t)
	files := maps.Clone(all)
	delete(files, s.last)
	_, err := s.outcome(t, files)
	require.True(t, isDamage(err), "%v", err)
	_, err = s.outcome(t, map[string][]byte{syncedName: all[syncedName]})
	require.True(t, isDamage(err), "%v", err)
	require.ErrorContains(t, err, "there is no segment")
}

func TestRememberingASyncAllocatesNothing(t *testing.T) {
	l := mustOpen(t, Options{FS: vfs.NewMem(), Dir: "log", ZeroFill: -1})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l.sync.Lock()
		defer l.sync.Unlock()
		if err := l.remember(l.Flushed()); err != nil {
			t.Error(err)
		}
	}))
}

// A write that fails half done may come at one start after the other, and never leaves both
// slots torn.
func TestWritesThatFailHalfDoneLeaveOneSlotWhole(t *testing.T) {
	s, all := killedLog(t)
	o := s.opts
	for first := range 16 {
		for second := range 16 {
			mem := memWith(t, o.Dir, all)
			for _, at := range []int{first, second} {
				fs := faultfs.New(mem)
				fs.FailFor(at, 2, 20, nil) // with a new position, and an old checksum
				o.FS = fs
				if l, err := Open(o); err == nil {
					for range 3 {
						_, _ = l.Append([]Entry{{Kind: 1, Payload: []byte("more")}})
						_ = l.Sync()
					}
					_ = l.Close()
				}
			}
			o.FS = mem
			require.NoError(t, mustOpen(t, o).Close(), "%d, then %d", first, second)
		}
	}
}
