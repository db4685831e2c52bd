package commitlog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const segmentSuffix = ".log"

// writeCategory labels the log's writes for the file system's statistics.
const writeCategory vfs.DiskWriteCategory = "commitlog"

// segmentName is the file name of the segment at base: 20 digits keep the
// order of names and of positions the same.
func segmentName(base Pos) string { return fmt.Sprintf("%020d%s", uint64(base), segmentSuffix) }

// parseSegmentName is the inverse of segmentName; other files are not the log's.
func parseSegmentName(name string) (Pos, bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || segmentName(Pos(n)) != name {
		return 0, false
	}
	return Pos(n), true
}

// listSegments returns the bases of the segments in dir, ascending.
func listSegments(fs vfs.FS, dir string) ([]Pos, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list commit log: %w", err)
	}
	var bases []Pos
	for _, name := range names {
		if base, ok := parseSegmentName(name); ok {
			bases = append(bases, base)
		}
	}
	slices.Sort(bases)
	return bases, nil
}

// segment is one open file of the log. It counts references: one of the table
// that lists it, one per operation under way. The last to go closes the file,
// so a segment may be dropped while it is read.
type segment struct {
	segmentHeader
	path string
	crc  uint32 // seed of its frames
	file vfs.File
	refs atomic.Int64
}

func newSegment(path string, file vfs.File, h segmentHeader) *segment {
	s := &segment{segmentHeader: h, path: path, crc: h.seed(), file: file}
	s.refs.Store(1)
	return s
}

// acquire takes a reference; false means that the segment is gone.
func (s *segment) acquire() bool {
	for {
		n := s.refs.Load()
		if n == 0 {
			return false
		}
		if s.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (s *segment) release() error {
	if s.refs.Add(-1) == 0 {
		return s.file.Close()
	}
	return nil
}

// firstRecord is where the frames begin.
func (s *segment) firstRecord() Pos { return s.base + segmentHeaderSize }

// table lists the segments of a log, ascending, the last being the active one.
// A table is never changed, only replaced: readers take no lock.
type table []*segment

// find returns the number of the segment that holds pos, or -1 when pos is
// below the first.
func (t table) find(pos Pos) int {
	i, found := slices.BinarySearchFunc(t, pos, func(s *segment, p Pos) int {
		switch {
		case s.base < p:
			return -1
		case s.base > p:
			return 1
		}
		return 0
	})
	if found {
		return i
	}
	return i - 1
}

// end is where the bytes of segment i end, when the log ends at appended.
func (t table) end(i int, appended Pos) Pos {
	if i+1 < len(t) {
		return t[i+1].base
	}
	return appended
}

// SegmentInfo describes one segment file.
type SegmentInfo struct {
	File       string // path
	Base       Pos    // position of the file's first byte
	First      Pos    // position of its first record
	End        Pos    // first position after its last frame
	FirstIndex uint64 // index of its first record
	Sealed     bool   // nothing will be added; DropBefore may remove it
}
