package router

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
)

// RestoredRevision says what RestoreRevision has done.
type RestoredRevision struct {
	Revision       uint64 // that the database ends at
	Topics, Groups int    // that it has
	// Aside is where the damaged guard was put, empty when there was none.
	Aside string
}

// RestoreRevision writes the guard of the metadata in dir anew when it is missing or
// damaged, and all else is sound. It says that the revision at which the database ends
// is the newest: whether later ones were lost together with the guard, nothing in dir
// can tell. So only somebody who knows may call it. The router must be stopped; nothing
// is deleted.
func RestoreRevision(fs vfs.FS, dir string) (r RestoredRevision, err error) {
	path := fs.PathJoin(dir, guardName)
	var lost, other error
	sum, err := Check(fs, dir, func(found error) {
		damage, ok := errors.AsType[*DamageError](found)
		switch {
		case ok && damage.File == path:
			lost = found
		case other == nil:
			other = found
		}
	})
	switch {
	case err != nil:
		return r, err
	case other != nil:
		return r, fmt.Errorf("%w; nothing was changed: a new %s would hide it", other, guardName)
	case lost == nil:
		return r, fmt.Errorf("%s and the metadata agree: nothing was changed", path)
	}
	r = RestoredRevision{Revision: sum.Revision, Topics: len(sum.Topics), Groups: len(sum.Groups)}
	lock, err := fs.Lock(fs.PathJoin(dir, "LOCK"))
	if err != nil {
		return r, fmt.Errorf("metadata: %s is in use, stop the server first: %w", dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	temp := path + ".new"
	g, _, err := createGuard(fs, dir, temp)
	if err != nil {
		return r, err
	}
	if err := errors.Join(g.write(r.Revision), g.close()); err != nil {
		return r, err
	}
	if _, err := fs.Stat(path); err == nil {
		aside := freeName(fs, path+".damaged-")
		if err := fs.Rename(path, aside); err != nil {
			return r, err
		}
		r.Aside = aside
	}
	if err := fs.Rename(temp, path); err != nil {
		return r, err
	}
	return r, durable.SyncDir(fs, dir)
}

// freeName returns a name that nothing has: the prefix and a number.
func freeName(fs vfs.FS, prefix string) string {
	for n := 1; ; n++ {
		name := fmt.Sprint(prefix, n)
		if _, err := fs.Stat(name); err != nil {
			return name
		}
	}
}
