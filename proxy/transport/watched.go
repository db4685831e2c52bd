package transport

import "log/slog"

// watched is something read from files that may change. It belongs to one
// goroutine.
type watched[T any] struct {
	file  string // what the log calls it
	value T      // the last good one
	// look reads the files. The fingerprint tells one content from another, also
	// when there is an error.
	look func() (T, fingerprint, error)

	current fingerprint // of value
	failing fingerprint // of what could not be used last time; zero: nothing
	told    bool        // the log has failing
}

func (w *watched[T]) open() (err error) {
	w.value, w.current, err = w.look()
	return err
}

// again looks once more. What cannot be used counts as failed when it is there the
// second time: files are not always replaced at once.
func (w *watched[T]) again(log *slog.Logger) (changed, failed bool) {
	value, seen, err := w.look()
	switch {
	case seen == w.current:
		// The one in use may have expired meanwhile; there is no better.
		w.failing, w.told = fingerprint{}, false
		return false, false
	case err == nil:
		w.value, w.current = value, seen
		w.failing, w.told = fingerprint{}, false
		log.Info("certificate reloaded", "file", w.file)
		return true, false
	case seen != w.failing:
		w.failing, w.told = seen, false
		return false, false
	case !w.told:
		w.told = true
		log.Warn("certificate not reloaded; the last good one stays", "file", w.file, "error", err)
	}
	return false, true
}
