package commitlog

import (
	"errors"
	"slices"
)

// A Hold keeps segments readable, for a copy of a log in use: those that were there when it
// began, and those made until it was frozen, also when they are dropped from the log
// meanwhile. It delays nothing; a segment that is dropped takes room until its copy is
// done. One goroutine uses a Hold, and calls Release.
type Hold struct {
	log      *Log
	segments []*segment // guarded by Log.tables until Freeze
	end      Pos
}

// A HeldSegment is one segment of a frozen Hold.
type HeldSegment struct {
	// Name is that of the file in the directory of the log, File its path; it may be gone.
	Name, File string
	// Size is how many of its bytes belong to the copy.
	Size int64
	// Sealed says that nothing will be added: the file is the copy, but for zeros behind Size.
	Sealed bool

	segment *segment
}

// Hold begins to hold the segments of the log.
func (l *Log) Hold() (*Hold, error) {
	h := &Hold{log: l}
	l.tables.Lock()
	defer l.tables.Unlock()
	if err := l.usable(); err != nil {
		return nil, err
	}
	for _, s := range *l.table.Load() {
		if s.acquire() { // what is in the table has a reference
			h.segments = append(h.segments, s)
		}
	}
	l.holds = append(l.holds, h)
	return h, nil
}

// hold gives a new segment to those who hold segments. The caller has tables.
func (l *Log) hold(s *segment) {
	for _, h := range l.holds {
		if s.acquire() {
			h.segments = append(h.segments, s)
		}
	}
}

// Freeze makes everything durable that was appended before the call, and ends the copy
// there or later: at the end of a frame, which End returns from then on.
func (h *Hold) Freeze() error {
	if err := h.log.Sync(); err != nil {
		return err
	}
	h.log.tables.Lock()
	defer h.log.tables.Unlock()
	h.end = h.log.Flushed()
	h.log.unhold(h)
	return nil
}

// unhold ends the growth of a hold. The caller has tables.
func (l *Log) unhold(h *Hold) {
	l.holds = slices.DeleteFunc(l.holds, func(other *Hold) bool { return other == h })
}

// First is the position of the first record held, End where the copy ends.
func (h *Hold) First() Pos { return h.segments[0].firstRecord() }

// End is the position at which the copy ends; see Freeze.
func (h *Hold) End() Pos { return h.end }

// Segments returns what the copy consists of, oldest first. The Hold must be frozen.
func (h *Hold) Segments() []HeldSegment {
	var list []HeldSegment
	for i, s := range h.segments {
		if s == nil || s.base >= h.end {
			continue
		}
		end, sealed := h.end, false
		if i+1 < len(h.segments) && h.segments[i+1].base <= h.end {
			end, sealed = h.segments[i+1].base, true
		}
		list = append(list, HeldSegment{Name: segmentName(s.base), File: s.path, Size: int64(end - s.base), Sealed: sealed, segment: s})
	}
	return list
}

// ReadAt implements io.ReaderAt until the segment is let go.
func (s HeldSegment) ReadAt(p []byte, off int64) (int, error) { return s.segment.file.ReadAt(p, off) }

// Let lets one segment go.
func (h *Hold) Let(s HeldSegment) error {
	i := slices.Index(h.segments, s.segment)
	if i < 0 {
		return nil
	}
	h.segments[i] = nil
	return s.segment.release()
}

// Release lets all segments go that are held yet.
func (h *Hold) Release() error {
	h.log.tables.Lock()
	h.log.unhold(h)
	h.log.tables.Unlock()
	var errs []error
	for _, s := range h.segments {
		if s != nil {
			errs = append(errs, s.release())
		}
	}
	h.segments = nil
	return errors.Join(errs...)
}

// SyncedName is the name of the file beside the segments of a log, and EncodeSynced what is
// in it when the log is synced up to pos.
const SyncedName = syncedName

// EncodeSynced returns the file SyncedName of a log that is synced up to pos.
func EncodeSynced(pos Pos) []byte {
	b := make([]byte, 2*syncedSlot)
	encodeSynced(b[:syncedSlot], pos)
	encodeSynced(b[syncedSlot:], pos)
	return b
}
