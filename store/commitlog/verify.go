package commitlog

import (
	"errors"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Verify reads all segments of a log that is not open, checks every byte the
// format fixes, and calls fn, when not nil, for every record. It writes
// nothing. What Open would cut or finish is not an error; what Open would
// refuse is the same error, and so is damage in an old segment that Open does
// not look for. A directory without segments is an empty log.
func Verify(fs vfs.FS, dir string, fn func(Record) error) error {
	bases, err := listSegments(fs, dir)
	if err != nil {
		return err
	}
	reach, _, err := readSynced(fs, dir)
	if err != nil {
		return err
	}
	if len(bases) == 0 {
		return reaches(reach, dir, 0, 0, "there is no segment")
	}
	d, err := load(fs, dir, bases, false)
	if err == nil {
		err = d.verify(fs, dir, reach, fn)
	}
	for _, s := range d.segments {
		err = errors.Join(err, s.release())
	}
	return err
}

func (d *loaded) verify(fsys vfs.FS, dir string, reach Pos, fn func(Record) error) error {
	if fn == nil {
		fn = func(Record) error { return nil }
	}
	for i, s := range d.segments {
		if i == len(d.segments)-1 && !d.unborn {
			tail, err := readTail(s, d.size, d.next, fn)
			if err != nil {
				return err
			}
			return reaches(reach, s.path, int64(tail.end-s.base), tail.end, tail.reason)
		}
		end := d.next.base
		if i+1 < len(d.segments) {
			end = d.segments[i+1].base
		}
		if err := s.verifySealed(end, fn); err != nil {
			return err
		}
	}
	return reaches(reach, fsys.PathJoin(dir, segmentName(d.next.base)), 0, d.next.base, "the segment has no header")
}

// verifySealed checks the frames of s and that nothing follows its seal.
func (s *segment) verifySealed(end Pos, fn func(Record) error) error {
	c := chain{index: s.index, term: s.term}
	if err := s.scan(s.firstRecord(), end, &c, true, true, fn); err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	_, dirty, err := s.search(end, max(end, s.base+Pos(info.Size())), c)
	if err == nil && dirty {
		err = &CorruptionError{File: s.path, Offset: int64(end - s.base), Reason: "bytes after the seal"}
	}
	return err
}
