package commitlog

import (
	"errors"
	"fmt"
)

var (
	// ErrNotALog is a segment file that does not begin with the log's magic:
	// it was never written by this package.
	ErrNotALog = errors.New("not a commit log segment")
	// ErrTrimmed is a position below the first segment: the records there have
	// been dropped.
	ErrTrimmed = errors.New("position below the start of the log")
	// ErrNotRemoved is a segment that could not be removed. Nothing is lost by that:
	// the log goes on, and DropBefore may be called again.
	ErrNotRemoved = errors.New("segment of the log not removed")
	// ErrOutOfRange is a position, or a range, that ends beyond what has been
	// appended or crosses the end of a segment.
	ErrOutOfRange = errors.New("position outside the log")
)

// ErrVersion is a segment written by a newer version of the format. The file
// may be perfectly good; this program cannot read it and does not touch it.
type ErrVersion struct {
	File      string
	Version   uint32
	Supported uint32
}

// Error names the file and both versions.
func (e ErrVersion) Error() string {
	return fmt.Sprintf("%s was written by a newer version of perigee: it has version %d, this one reads up to %d", e.File, e.Version, e.Supported)
}

// CorruptionError says that bytes which had been durable are not what was
// written. A torn tail after a crash is not corruption. The log repairs
// nothing: it refuses to open.
type CorruptionError struct {
	File   string // path of the segment file
	Offset int64  // offset in the file
	Reason string
}

// Error names the file, the offset and what is wrong there.
func (e *CorruptionError) Error() string {
	return fmt.Sprintf("%s:%d: corrupt commit log: %s", e.File, e.Offset, e.Reason)
}
