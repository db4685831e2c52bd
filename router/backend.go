package router

import "context"

// An Entry is one piece of metadata as a Backend keeps it. Keys are text that
// sorts bytewise; a nil Value in a commit deletes the key.
type Entry struct {
	Key   string
	Value []byte
}

// A Backend keeps the entries durably. A router calls Load once, before
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
