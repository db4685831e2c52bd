package commitlog

import "fmt"

// A diskLock is a lock that is held while the disk works, which may take long. Who waits for it
// waits at a channel: in a testing/synctest bubble the time goes on meanwhile, as it does not
// for a sync.Mutex. It is made with room for one.
type diskLock chan struct{}

func (l diskLock) Lock()   { l <- struct{}{} }
func (l diskLock) Unlock() { <-l }

// Sync makes everything durable that was appended before the call. Calls that
// overlap share their work: whoever comes while a sync runs waits for it, and
// then one sync serves all that waited.
func (l *Log) Sync() error {
	target := l.Appended()
	if err := l.usable(); err != nil {
		return err
	}
	if l.Flushed() >= target {
		return nil
	}
	l.sync.Lock()
	defer l.sync.Unlock()
	if err := l.usable(); err != nil {
		return err
	}
	if l.Flushed() >= target {
		return nil
	}
	return l.syncLocked()
}

// syncLocked syncs the active segment. The end is taken first: what is
// appended while the sync runs may or may not be part of it.
func (l *Log) syncLocked() error {
	end := l.appended.Load()
	seg := l.sync.active
	if err := seg.file.SyncData(); err != nil {
		return l.fail(fmt.Errorf("sync %s: %w", seg.path, err))
	}
	l.flushed.Store(end)
	return l.remember(Pos(end))
}

// remember notes beside the segments that the log is synced up to pos. The caller
// holds sync.
func (l *Log) remember(pos Pos) error {
	if err := l.synced.write(pos); err != nil {
		return l.fail(err)
	}
	return nil
}
