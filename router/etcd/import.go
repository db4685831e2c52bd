package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// Bounds of one transaction of an import; etcd's own are 128 operations and 1.5 MiB.
const (
	importOps   = 100
	importBytes = 1 << 20
)

// ErrHasMetadata says that metadata are to be written where there are some.
var ErrHasMetadata = errors.New("there are metadata already")

// Import writes the metadata of a router that had them for itself: all entries, and their
// counters last. Before that no router takes what is there for metadata, and an import that
// was interrupted can be made again. It refuses to write beside metadata of others, with
// ErrHasMetadata; where the same metadata are already it changes nothing. No router may use
// the prefix meanwhile.
func (b *Backend) Import(ctx context.Context, entries []router.Entry) error {
	i := slices.IndexFunc(entries, func(e router.Entry) bool { return e.Key == router.CountersKey })
	if i < 0 {
		return &router.DamageError{Entry: router.CountersKey, Reason: "is missing"}
	}
	there, _, err := b.read(ctx)
	if err != nil {
		return b.unavailable(err)
	}
	if slices.ContainsFunc(there, func(v value) bool { return b.entry(v).Key == router.CountersKey }) {
		if b.same(there, entries) {
			return nil
		}
		return fmt.Errorf("%s: %w: nothing was changed", b.name, ErrHasMetadata)
	}
	var writes []value
	for _, v := range there { // what an import has left that did not come to its end
		writes = append(writes, value{key: v.key})
	}
	if err := b.importAll(ctx, writes); err != nil {
		return err
	}
	writes = writes[:0]
	for j, e := range entries {
		if j != i {
			writes = append(writes, value{key: b.prefix + e.Key, bytes: e.Value})
		}
	}
	if err := b.importAll(ctx, writes); err != nil {
		return err
	}
	return b.importSome(ctx, []value{{key: b.prefix + router.CountersKey, bytes: entries[i].Value}})
}

// same reports whether etcd has these entries and no others.
func (b *Backend) same(there []value, entries []router.Entry) bool {
	if len(there) != len(entries) {
		return false
	}
	wanted := map[string][]byte{}
	for _, e := range entries {
		wanted[e.Key] = e.Value
	}
	return !slices.ContainsFunc(there, func(v value) bool { return !bytes.Equal(wanted[strings.TrimPrefix(v.key, b.prefix)], v.bytes) })
}

func (b *Backend) importAll(ctx context.Context, writes []value) error {
	for len(writes) > 0 {
		n, size := 0, 0
		for n < len(writes) && n < importOps && (n == 0 || size+len(writes[n].bytes) <= importBytes) {
			size += len(writes[n].key) + len(writes[n].bytes)
			n++
		}
		if err := b.importSome(ctx, writes[:n]); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

// importSome writes some entries as long as there are no counters.
func (b *Backend) importSome(ctx context.Context, writes []value) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	made, err := b.cluster.swap(ctx, b.prefix+router.CountersKey, 0, writes)
	switch {
	case errors.Is(err, errRefused):
		return b.unavailable(err)
	case err != nil:
		return fmt.Errorf("%w: %s has not answered; import again: %w", mq.ErrOutcomeUnknown, b.name, err)
	case made == 0:
		return fmt.Errorf("%s: %w: a router has begun them meanwhile; stop it, remove the keys and import again", b.name, ErrHasMetadata)
	}
	return nil
}
