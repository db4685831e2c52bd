package router

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/durable"
)

// A guard remembers, in a file of its own, the newest revision the database is
// known to hold. Pebble takes a damaged record in the last block of its log for
// the torn end of a crash and drops it with all that follows; for metadata that
// would mean topics gone in silence and ids handed out twice. The guard tells
// the two apart.
//
// The file has two slots of one line each, written in turn:
//
//	perigee-revision VERSION REVISION CRC-32C-OF-THE-LINE-BEFORE-IT, padded with spaces, newline
//
// A slot is written after the database synced the revision, and synced only at
// Close: it may lag behind the database after a power cut but never leads.
type guard struct {
	file vfs.File
}

const (
	guardName    = "REVISION"
	guardVersion = 1
	guardSlot    = 64
)

// guardHint says what helps when the guard is gone and the database is not.
const guardHint = "perigee restore-revision writes it anew, once you know that the metadata is the newest"

var guardTable = crc32.MakeTable(crc32.Castagnoli)

// openGuard opens the guard of the database in dir and returns the revision it
// remembers. A database that is new, without any entry, may lack it.
func openGuard(fs vfs.FS, dir string, isNew bool) (*guard, uint64, error) {
	path := fs.PathJoin(dir, guardName)
	revision, err := readGuard(fs, path)
	if err != nil {
		if _, damaged := errors.AsType[*DamageError](err); damaged && isNew {
			return createGuard(fs, dir, path) // a crash came between the two
		}
		return nil, 0, err
	}
	file, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, 0, err
	}
	return &guard{file: file}, revision, nil
}

func readGuard(fs vfs.FS, path string) (uint64, error) {
	file, err := fs.Open(path)
	if err != nil {
		if _, statErr := fs.Stat(path); statErr != nil {
			return 0, &DamageError{File: path, Reason: "is missing; " + guardHint}
		}
		return 0, err
	}
	data, err := io.ReadAll(io.LimitReader(file, 2*guardSlot))
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	var newest uint64
	valid := false
	for len(data) > 0 {
		slot := data[:min(guardSlot, len(data))]
		data = data[len(slot):]
		var version int
		var revision uint64
		var sum uint32
		if _, err := fmt.Sscanf(string(slot), "perigee-revision %d %d %x", &version, &revision, &sum); err != nil {
			continue
		}
		if version > guardVersion {
			return 0, &VersionError{File: path, Entry: guardName, Found: version, Known: guardVersion}
		}
		if string(guardLine(revision)) == string(slot) {
			newest, valid = max(newest, revision), true
		}
	}
	if !valid {
		return 0, &DamageError{File: path, Reason: "holds no whole line; " + guardHint}
	}
	return newest, nil
}

func createGuard(fs vfs.FS, dir, path string) (*guard, uint64, error) {
	file, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, 0, err
	}
	g := &guard{file: file}
	if err := errors.Join(g.write(0), file.Sync(), durable.SyncDir(fs, dir)); err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return g, 0, nil
}

func guardLine(revision uint64) []byte {
	text := fmt.Sprintf("perigee-revision %d %d", guardVersion, revision)
	text = fmt.Sprintf("%s %08x", text, crc32.Checksum([]byte(text), guardTable))
	return fmt.Appendf(nil, "%-*s\n", guardSlot-1, text)
}

// write remembers a revision that the database has synced.
func (g *guard) write(revision uint64) error {
	_, err := g.file.WriteAt(guardLine(revision), int64(revision%2)*guardSlot)
	return err
}

func (g *guard) close() error {
	return errors.Join(g.file.Sync(), g.file.Close())
}
