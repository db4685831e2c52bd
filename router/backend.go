package router

import (
	"context"
	"errors"
)

// An Entry is one piece of metadata as a Backend keeps it. Keys are text that
// sorts bytewise; a nil Value in a commit deletes the key.
type Entry struct {
	Key   string
	Value []byte
}

// CountersKey is the key of the counters. Every commit has that entry, with a revision
// that is one above that of the commit before.
const CountersKey = countersKey

// RevisionOf returns the revision of a commit. Without counters that can be read the error
// is a *DamageError or a *VersionError.
func RevisionOf(entries []Entry) (uint64, error) {
	for _, entry := range entries {
		if entry.Key == countersKey {
			var s snapshot
			err := readCounters(entry, &s)
			return s.revision, err
		}
	}
	return 0, &DamageError{Entry: countersKey, Reason: "is missing"}
}

// A Backend keeps the entries durably. A router calls Load before
// anything else, and never calls Commit twice at the same time.
type Backend interface {
	// Load calls yield for every entry until it returns an error, and returns
	// that error. The entry's bytes belong to yield.
	Load(ctx context.Context, yield func(Entry) error) error
	// Commit makes all entries durable, or none. After an error nobody knows
	// which, so the router commits nothing more.
	Commit(ctx context.Context, entries []Entry) error
	// Err returns what stopped the backend for good, nil while it works.
	Err() error
	// Close releases what the backend holds.
	Close() error
}

// What a SharedBackend says of commits.
var (
	// ErrConflict: another commit came first, and nothing was done.
	ErrConflict = errors.New("metadata were changed by another router")
	// ErrMissed: commits are not to be had one by one any more. Load has what they led to.
	ErrMissed = errors.New("changes of metadata were missed")
)

// A SharedBackend is one to which several routers commit. Their commits have one order,
// that of their revisions.
//
// Its Load, which may be called again, sees all entries at one revision. Its Commit makes
// the entries durable only behind the commit before theirs, and its errors do not end the
// router:
//
//   - ErrConflict: the newest commit is another one; nothing was done.
//   - mq.ErrOutcomeUnknown: the entries are durable, or are not, or will be yet, as long as
//     no other commit comes first. The same entries may be committed again.
//   - mq.ErrUnavailable alone: nothing was done.
//
// Load and Follow are called by one goroutine at a time, the other methods by any.
type SharedBackend interface {
	Backend
	// Get returns the entry of a key, with a nil Value when there is none. What was
	// committed before the call is not missed. The error matches mq.ErrUnavailable.
	Get(ctx context.Context, key string) (Entry, error)
	// Follow calls show with every commit behind what Load or an earlier show has brought,
	// by whichever router, one after the other and each as a whole. It ends with the first
	// error of show, or with one of its own, and can be called again. ErrMissed asks for
	// Load before that.
	Follow(ctx context.Context, show func([]Entry) error) error
}
