package readonly

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrManifest says that the manifest of a database is damaged.
var ErrManifest = errors.New("damaged manifest")

// CheckManifest returns an error that names the file when Pebble, which opened db in
// dir, has read too little of its manifest. Pebble takes a record that it cannot read for
// the end, as a crash would leave it. Behind the first record, which lists the tables
// that there were when the manifest was begun, there is always a second one, which says
// up to where their sequence numbers go. Without it Pebble does not see what the
// tables hold, gives new writes the same numbers again, and mixes them up with the old.
func CheckManifest(db *pebble.DB, fs vfs.FS, dir string) error {
	levels, err := db.SSTables()
	if err != nil {
		return err
	}
	tables := 0
	for _, level := range levels {
		tables += len(level)
	}
	if tables == 0 {
		return nil
	}
	name, err := currentManifest(fs, dir)
	if err != nil {
		return err
	}
	f, err := fs.Open(name)
	if err != nil {
		return err
	}
	records := record.NewReader(f, 0)
	n := 0
	var reason error
	for n < 2 {
		r, err := records.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if err != nil {
			reason = err
			break
		}
		n++
	}
	if err := f.Close(); err != nil {
		return err
	}
	if n < 2 {
		return fmt.Errorf("%w: %s: record %d cannot be read: %w", ErrManifest, name, n+1, reason)
	}
	return nil
}

// currentManifest returns the path of the manifest that the newest marker names.
func currentManifest(fs vfs.FS, dir string) (string, error) {
	names, err := fs.List(dir)
	if err != nil {
		return "", err
	}
	newest, manifest := uint64(0), ""
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, "marker.manifest.")
		if !ok {
			continue
		}
		number, value, _ := strings.Cut(rest, ".")
		n, err := strconv.ParseUint(number, 10, 64)
		if err == nil && (manifest == "" || n > newest) {
			newest, manifest = n, value
		}
	}
	if manifest == "" {
		return "", fmt.Errorf("%w: %s: no marker names one", ErrManifest, dir)
	}
	return fs.PathJoin(dir, manifest), nil
}
