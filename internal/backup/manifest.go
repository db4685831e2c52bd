package backup

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ManifestName is the name of the manifest in the folder of a backup. docs/format/backup.md
// describes it.
const ManifestName = "BACKUP"

const (
	manifestMagic   = "perigee-backup"
	manifestVersion = 1
	// maxManifest bounds what is read of a manifest, in bytes.
	maxManifest = 1 << 30
	// maxHead bounds its first line.
	maxHead = 128
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A Manifest says what a backup has.
type Manifest struct {
	// Tier is the command of the process that it was made of.
	Tier string `json:"tier"`
	// Program is the version of that process.
	Program string `json:"program"`
	// Began is when the backup began: what was acknowledged before that is in it. Ended is
	// when all was copied.
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	// Shards are those whose messages it has.
	Shards []Shard `json:"shards,omitempty"`
	// Metadata are those it has; nil: a router in another process has them.
	Metadata *Metadata `json:"metadata,omitempty"`
	// Files are all others in the folder, in the order of their names.
	Files []File `json:"files"`
}

// A Shard says what of a shard is in a backup.
type Shard struct {
	Name string `json:"name"`
	// First is the position of the first record of the log, End that behind the last one.
	First uint64 `json:"first_position"`
	End   uint64 `json:"end_position"`
}

// Metadata says what metadata are in a backup.
type Metadata struct {
	Revision uint64 `json:"revision"`
	Topics   int    `json:"topics"`
	Groups   int    `json:"groups"`
}

// A File is one file of a backup.
type File struct {
	// Name is relative to the folder, with slashes.
	Name string `json:"name"`
	// Size is in bytes. A file that was linked may have zeros behind them.
	Size int64 `json:"size"`
	// Sum is the CRC-32C of a file that was copied. One that was linked has none: what is in
	// it has checksums of its own.
	Sum    *uint32 `json:"crc32c,omitempty"`
	Linked bool    `json:"linked,omitempty"`
}

// A DamageError says that a backup is not what was written.
type DamageError struct {
	File   string
	Reason string
}

// Error names the file and the reason.
func (e *DamageError) Error() string { return fmt.Sprintf("backup: %s: %s", e.File, e.Reason) }

// A VersionError says that a backup was made by a newer version of the program.
type VersionError struct {
	File         string
	Found, Known int
}

// Error names the file and both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("backup: %s was written by a newer version of perigee: it has version %d, this one reads up to %d", e.File, e.Found, e.Known)
}

// encode returns the manifest as it is stored: a line with magic, version, checksum and
// length of the rest, which is JSON.
func (m *Manifest) encode() ([]byte, error) {
	body, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	return append(fmt.Appendf(nil, "%s %d %08x %d\n", manifestMagic, manifestVersion, crc32.Checksum(body, castagnoli), len(body)), body...), nil
}

// decode reads a stored manifest; file is its name for errors.
func decode(file string, data []byte) (*Manifest, error) {
	damaged := func(format string, args ...any) error {
		return &DamageError{File: file, Reason: fmt.Sprintf(format, args...)}
	}
	head, body, found := bytes.Cut(data, []byte("\n"))
	if !found || len(head) > maxHead || !strings.HasPrefix(string(head), manifestMagic+" ") {
		return nil, damaged("is no manifest of a backup")
	}
	var version int
	if _, err := fmt.Sscanf(string(head), manifestMagic+" %d", &version); err != nil || version < 1 {
		return nil, damaged("has no version")
	}
	if version > manifestVersion {
		return nil, &VersionError{File: file, Found: version, Known: manifestVersion}
	}
	var sum uint32
	var length int
	if _, err := fmt.Sscanf(string(head), manifestMagic+" %d %08x %d", &version, &sum, &length); err != nil {
		return nil, damaged("has a first line that cannot be read")
	}
	if length != len(body) || sum != crc32.Checksum(body, castagnoli) {
		return nil, damaged("has other bytes than were written")
	}
	m := &Manifest{}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, damaged("%v", err)
	}
	for _, f := range m.Files {
		if !local(f.Name) || f.Size < 0 {
			return nil, damaged("names a file %q of %d bytes", f.Name, f.Size)
		}
	}
	return m, nil
}

// local reports whether a name stays in its folder.
func local(name string) bool {
	return name != "" && name == path.Clean(name) && !path.IsAbs(name) && !strings.Contains(name, "\\") &&
		!slices.Contains(strings.Split(name, "/"), "..") && name != "." && name != ManifestName
}

// Is reports whether dir is a backup: whether it has a manifest, of whatever version.
func Is(fsys vfs.FS, dir string) bool {
	_, err := fsys.Stat(fsys.PathJoin(dir, ManifestName))
	return err == nil
}

// Read reads the manifest of the backup in dir. A folder without one is no whole backup;
// damage is a *DamageError, a newer one a *VersionError.
func Read(fsys vfs.FS, dir string) (*Manifest, error) {
	file := fsys.PathJoin(dir, ManifestName)
	f, err := fsys.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &DamageError{File: dir, Reason: "has no " + ManifestName + ": it is no backup, or none that was finished"}
	}
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	return decode(file, data)
}

// Verify compares the files of the backup in dir with its manifest, and calls found for
// everything that is wrong, with a *DamageError or an error that names the file. Linked
// files are only measured: what is in them has checksums, see node.Check.
func Verify(fsys vfs.FS, dir string, m *Manifest, found func(error)) error {
	known := map[string]bool{}
	for _, f := range m.Files {
		known[f.Name] = true
		if err := verify(fsys, fsys.PathJoin(dir, f.Name), f); err != nil {
			found(err)
		}
	}
	return walk(fsys, dir, "", func(name string) {
		if name != ManifestName && !known[name] && strings.Contains(name, "/") && path.Base(name) != "LOCK" {
			found(&DamageError{File: fsys.PathJoin(dir, name), Reason: "is not in " + ManifestName})
		}
	})
}

func verify(fsys vfs.FS, file string, want File) error {
	info, err := fsys.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &DamageError{File: file, Reason: "is missing"}
	case err != nil:
		return fmt.Errorf("backup: %w", err)
	case info.Size() < want.Size || info.Size() > want.Size && !want.Linked:
		return &DamageError{File: file, Reason: fmt.Sprintf("has %d bytes, %d were written", info.Size(), want.Size)}
	case want.Sum == nil:
		return nil
	}
	f, err := fsys.Open(file)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	hash := crc32.New(castagnoli)
	_, err = io.Copy(hash, io.LimitReader(f, want.Size))
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("backup: read %s: %w", file, err)
	}
	if hash.Sum32() != *want.Sum {
		return &DamageError{File: file, Reason: "has other bytes than were written"}
	}
	return nil
}

// walk calls fn with the name of each file below dir.
func walk(fsys vfs.FS, dir, below string, fn func(name string)) error {
	names, err := fsys.List(fsys.PathJoin(dir, below))
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		name = path.Join(below, name)
		info, err := fsys.Stat(fsys.PathJoin(dir, name))
		if err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		if !info.IsDir() {
			fn(name)
			continue
		}
		if below == "" && path.Base(name) == "lost+found" {
			continue
		}
		if err := walk(fsys, dir, name, fn); err != nil {
			return err
		}
	}
	return nil
}
