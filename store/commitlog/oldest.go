package commitlog

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Oldest describes the oldest segment of a log that is not open, from its header alone:
// End and Sealed are not set. A log without segments is an error that wraps
// fs.ErrNotExist. Nothing is written.
func Oldest(fsys vfs.FS, dir string) (SegmentInfo, error) {
	bases, err := listSegments(fsys, dir)
	if err != nil {
		return SegmentInfo{}, err
	}
	if len(bases) == 0 {
		return SegmentInfo{}, fmt.Errorf("commit log %s has no segment: %w", dir, fs.ErrNotExist)
	}
	path := fsys.PathJoin(dir, segmentName(bases[0]))
	f, size, err := openFile(fsys, path, false)
	if err != nil {
		return SegmentInfo{}, err
	}
	h, err := readHeader(path, f, size)
	if err == nil {
		err = checkHeader(path, h, bases[0], segmentHeader{index: firstIndex}, bases[0] == 0, false)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return SegmentInfo{}, err
	}
	return SegmentInfo{File: path, Base: h.base, First: h.base + segmentHeaderSize, FirstIndex: h.index}, nil
}

// Exists reports whether dir holds a segment, whatever is in it. dir need not be there.
func Exists(fsys vfs.FS, dir string) (bool, error) {
	bases, err := listSegments(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(bases) > 0, err
}
