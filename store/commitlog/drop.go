package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
)

// OldestNeeded returns the segment that must stay, with those behind it, for every
// record that begins at pos or later to stay. pos may be where a record ends. The log
// must be open.
func (l *Log) OldestNeeded(pos Pos) SegmentInfo {
	infos := l.Segments()
	i := len(infos) - 1
	// Behind the last record of a sealed segment there is only its seal.
	for i > 0 && pos < infos[i].Base-sealFrameSize {
		i--
	}
	return infos[i]
}

// Roll goes on in a new segment, so that the one that was active can be dropped. A
// segment without records stays as it is. It may be called from any goroutine. An
// error other than that of a closed log has stopped it.
func (l *Log) Roll() error {
	l.write.Lock()
	defer l.write.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.write.out == l.sync.active.firstRecord() {
		return nil
	}
	return l.roll()
}

// DropBefore removes the segments that lie wholly below pos, oldest first. The
// active segment stays, whatever pos is. Reads under way finish; later ones get
// ErrTrimmed. The first error ends the work, with what was removed until then; one that
// is not ErrNotRemoved has stopped the log, or says that it is closed.
func (l *Log) DropBefore(pos Pos) error {
	l.drop.Lock()
	defer l.drop.Unlock()
	for {
		if err := l.usable(); err != nil {
			return err
		}
		t := *l.table.Load()
		if len(t) < 2 || t[1].base > pos {
			return nil
		}
		if err := l.dropFirst(t[0]); err != nil {
			return err
		}
	}
}

// Pinned reports whether removing the segment that begins at base would make no room yet: a
// Hold or a reader has it, or its file has another name, as in a backup that links it. Of
// other names it is known where the system tells.
func (l *Log) Pinned(base Pos) bool {
	t := *l.table.Load()
	i := t.find(base)
	if i < 0 || t[i].base != base || !t[i].acquire() {
		return false
	}
	pinned := t[i].refs.Load() > 2 || shared(t[i].file) // beside the table's and this one
	_ = t[i].release()                                  // it only closes a file that was removed meanwhile
	return pinned
}

// dropFirst removes the first segment. Each removal is durable before the next
// one: after a crash an older file must not be there without a younger one, or
// the log would have a hole and not open.
func (l *Log) dropFirst(s *segment) error {
	// An earlier try may have removed it although it got an error.
	if err := l.opts.FS.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotRemoved, err)
	}
	l.tables.Lock()
	// Close may have emptied the table meanwhile, and released the segment.
	t := *l.table.Load()
	listed := len(t) > 0 && t[0] == s
	if listed {
		t = t[1:]
		l.table.Store(&t)
	}
	l.tables.Unlock()
	if err := syncDir(l.opts.FS, l.opts.Dir); err != nil {
		return l.fail(err)
	}
	l.opts.Logger.Info("commit log segment dropped", "file", s.path)
	if listed {
		return s.release()
	}
	return nil
}
