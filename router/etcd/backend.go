// Package etcd keeps the metadata of a router in etcd, where several routers share them: a
// router.SharedBackend of which each commit is one transaction.
//
// The entries lie below a prefix, under the keys that docs/format/metadata.md describes.
// Every commit writes the counters and compares the revision at which they were written
// before, so that of two commits behind the same one etcd makes one. The routers call it;
// it knows nothing of topics and groups.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// How long one request to etcd may take. An election of its leader takes one to two
// seconds.
const (
	readTimeout   = 2500 * time.Millisecond
	listTimeout   = 10 * time.Second
	commitTimeout = 2500 * time.Millisecond
)

// pageSize is how many entries are read at once.
const pageSize = 1000

// maxLoads is how often reading begins anew when etcd forgets the revision being read.
const maxLoads = 5

// What a cluster says of itself.
var (
	// errCompacted: the revision asked for is forgotten.
	errCompacted = errors.New("etcd has compacted the revision")
	// errRefused: etcd has answered, and has done nothing.
	errRefused = errors.New("refused by etcd")
)

// A value is one key of etcd, with the revision of etcd at which it was written; when it
// was deleted, the bytes are nil.
type value struct {
	key      string
	bytes    []byte
	revision int64
}

// A cluster is what the backend needs of etcd. All calls may overlap; close comes last.
type cluster interface {
	// get returns the value of a key as it is when the call begins, or later; one without
	// bytes when there is none.
	get(ctx context.Context, key string) (value, error)
	// list returns the values with keys from from on and below end, in their order and no
	// more than limit, and whether there are others, as they are at a revision; 0: now.
	// It returns that revision too.
	list(ctx context.Context, from, end string, limit int, at int64) (page []value, more bool, revision int64, err error)
	// swap writes all of the values in one transaction, provided that guard was written at
	// the revision named, or is not there for 0. It returns the revision of the
	// transaction, 0 when the guard is another one. Unless the error matches errRefused,
	// it may have been made, or be made yet.
	swap(ctx context.Context, guard string, at int64, writes []value) (revision int64, err error)
	// watch calls show with what is written to keys with the prefix, from a revision on,
	// in order: all that one revision has written comes at once. With what it has said, all
	// revisions up to upTo are shown. It returns the first error of show, or its own.
	watch(ctx context.Context, prefix string, from int64, show func(values []value, upTo int64) error) error
	// close ends the connections.
	close() error
}

// A Backend is a router.SharedBackend over etcd.
type Backend struct {
	cluster cluster
	name    string       // for errors
	prefix  string       // with a slash at its end
	reasons func() error // why no member answers, as far as can be told; nil: it cannot
	// shown is the revision of etcd up to which all was loaded or shown. Only Load and
	// Follow use it, of which one runs at a time.
	shown int64

	// mu has the newest commit that is known, and the revision of etcd that it has made.
	mu struct {
		sync.Mutex
		commit uint64
		at     int64
	}
}

func newBackend(c cluster, prefix, name string) *Backend {
	return &Backend{cluster: c, name: name, prefix: strings.TrimRight(prefix, "/") + "/"}
}

// String names the cluster and the prefix.
func (b *Backend) String() string { return b.name }

// learn remembers the newest commit.
func (b *Backend) learn(commit uint64, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if commit > b.mu.commit {
		b.mu.commit, b.mu.at = commit, at
	}
}

func (b *Backend) newest() (commit uint64, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mu.commit, b.mu.at
}

// entry returns a value as the router knows it.
func (b *Backend) entry(v value) router.Entry {
	return router.Entry{Key: strings.TrimPrefix(v.key, b.prefix), Value: v.bytes}
}

func (b *Backend) unavailable(err error) error {
	if denied(err) {
		return fmt.Errorf("%w: %s: %w: %w", mq.ErrUnavailable, b.name, ErrDenied, err)
	}
	return fmt.Errorf("%w: %s: %w", mq.ErrUnavailable, b.name, err)
}

// Load implements router.SharedBackend. All entries are those of one revision of etcd.
func (b *Backend) Load(ctx context.Context, yield func(router.Entry) error) error {
	var values []value
	var revision int64
	err := errCompacted
	for tries := 0; errors.Is(err, errCompacted) && tries < maxLoads; tries++ {
		values, revision, err = b.read(ctx)
	}
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && b.reasons != nil {
		err = errors.Join(err, b.reasons())
	}
	if err != nil {
		return b.unavailable(err)
	}
	for _, v := range values {
		entry := b.entry(v)
		if err := yield(entry); err != nil {
			return err
		}
		if entry.Key != router.CountersKey {
			continue
		}
		commit, err := router.RevisionOf([]router.Entry{entry})
		if err != nil {
			return err
		}
		b.learn(commit, v.revision)
	}
	b.shown = revision
	return nil
}

// read returns all values at one revision.
func (b *Backend) read(ctx context.Context) (values []value, revision int64, err error) {
	from, end := b.prefix, behind(b.prefix)
	for {
		page, more, at, err := b.page(ctx, from, end, revision)
		if err != nil {
			return nil, 0, err
		}
		revision = at
		values = append(values, page...)
		if !more || len(page) == 0 {
			return values, revision, nil
		}
		from = page[len(page)-1].key + "\x00"
	}
}

func (b *Backend) page(ctx context.Context, from, end string, at int64) ([]value, bool, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	return b.cluster.list(ctx, from, end, pageSize, at)
}

// behind returns the first key behind all that begin with the prefix, which ends in a
// slash.
func behind(prefix string) string {
	return prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
}

// Get implements router.SharedBackend with a linearizable read.
func (b *Backend) Get(ctx context.Context, key string) (router.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	v, err := b.cluster.get(ctx, b.prefix+key)
	if err != nil {
		return router.Entry{}, b.unavailable(err)
	}
	return router.Entry{Key: key, Value: v.bytes}, nil
}

// Commit implements router.SharedBackend with one transaction.
func (b *Backend) Commit(ctx context.Context, entries []router.Entry) error {
	commit, err := router.RevisionOf(entries)
	if err != nil {
		return err
	}
	known, at := b.newest()
	if commit != known+1 {
		return fmt.Errorf("%w: revision %d is there, and %d was to be the next", router.ErrConflict, known, commit)
	}
	writes := make([]value, len(entries))
	for i, e := range entries {
		writes[i] = value{key: b.prefix + e.Key, bytes: e.Value}
	}
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	made, err := b.cluster.swap(ctx, b.prefix+router.CountersKey, at, writes)
	switch {
	case errors.Is(err, errRefused):
		return b.unavailable(err)
	case err != nil:
		return fmt.Errorf("%w: %s has not answered: %w", mq.ErrOutcomeUnknown, b.name, err)
	case made == 0:
		return fmt.Errorf("%w: %d is not the newest revision any more", router.ErrConflict, known)
	}
	b.learn(commit, made)
	return nil
}

// Follow implements router.SharedBackend with a watch.
func (b *Backend) Follow(ctx context.Context, show func([]router.Entry) error) error {
	err := b.cluster.watch(ctx, b.prefix, b.shown+1, func(values []value, upTo int64) error {
		for len(values) > 0 {
			n := 1
			for n < len(values) && values[n].revision == values[0].revision {
				n++
			}
			if err := b.show(values[:n], show); err != nil {
				return err
			}
			values = values[n:]
		}
		b.shown = max(b.shown, upTo)
		return nil
	})
	if errors.Is(err, errCompacted) {
		return fmt.Errorf("%w: %w", router.ErrMissed, err)
	}
	return err
}

// show shows what one revision of etcd has written.
func (b *Backend) show(values []value, show func([]router.Entry) error) error {
	at := values[0].revision
	if at <= b.shown {
		return nil
	}
	entries := make([]router.Entry, len(values))
	for i, v := range values {
		entries[i] = b.entry(v)
	}
	if commit, err := router.RevisionOf(entries); err == nil {
		b.learn(commit, at)
	}
	if err := show(entries); err != nil {
		return err
	}
	b.shown = at
	return nil
}

// Err implements router.Backend: nothing stops etcd for good.
func (b *Backend) Err() error { return nil }

// Close implements router.Backend.
func (b *Backend) Close() error { return b.cluster.close() }
