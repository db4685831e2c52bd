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
		if err := l.dropFirst(t[0], int64(t[1].base-t[0].base)); err != nil {
			return err
		}
	}
}

// A lingering segment was removed from the log and takes room yet: somebody reads it, or its
// file has another name in a backup.
type lingering struct {
	*segment
	size int64
}

// Lingering returns how many bytes of the segments that were removed take room yet: those
// that a Hold or a reader has, and those with another link. Removing more of the log would
// make no room that is not owed already. It is known of segments that were removed in this
// life of the log, and of links where the system tells.
func (l *Log) Lingering() int64 {
	l.drop.Lock()
	defer l.drop.Unlock()
	_ = l.letGo() // of files that are gone
	return l.lingers.Load()
}

// Lingered returns what Lingering has returned last, or the removal of a segment has found,
// without a look.
func (l *Log) Lingered() int64 { return l.lingers.Load() }

// letGo lets those removed segments go that nobody has any more. The caller has drop.
func (l *Log) letGo() error {
	var errs []error
	left, bytes := l.drop.lingering[:0], int64(0)
	for _, s := range l.drop.lingering {
		if s.refs.Load() == 1 && !linked(s.file) {
			errs = append(errs, s.release())
			continue
		}
		left, bytes = append(left, s), bytes+s.size
	}
	clear(l.drop.lingering[len(left):])
	l.drop.lingering = left
	l.lingers.Store(bytes)
	return errors.Join(errs...)
}

// dropFirst removes the first segment, which has so many bytes. Each removal is durable before the next
// one: after a crash an older file must not be there without a younger one, or
// the log would have a hole and not open.
func (l *Log) dropFirst(s *segment, size int64) error {
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
	if !listed {
		return nil
	}
	l.drop.lingering = append(l.drop.lingering, lingering{s, size})
	return l.letGo()
}
