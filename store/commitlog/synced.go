package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncedFile remembers, in a file beside the segments, up to where the log has been
// synced. The frames tell the same, but none tells it of the last batch, and none is
// left to tell it when the last segment is cut short. With this file a process that is
// started again, after a stop or a kill, knows damage there from a torn tail.
//
// Its two slots are written in turn, each after the sync that it tells of, and never
// synced but at Close: after a power cut the file may lag behind, by what the system had
// not written back, but it never leads.
type syncedFile struct {
	file vfs.File
	path string
	turn int64
	buf  [syncedSlot]byte
}

const (
	syncedName    = "SYNCED"
	syncedMagic   = "PERISYNC"
	syncedVersion = 1
	// syncedSlot is the size of a slot: magic 8, version 4, zeros 4, position 8, zeros
	// 4, CRC 4 of the bytes before. The slots lie in one sector.
	syncedSlot = 32
)

func encodeSynced(b []byte, pos Pos) {
	copy(b, syncedMagic)
	binary.LittleEndian.PutUint32(b[8:], syncedVersion)
	binary.LittleEndian.PutUint64(b[16:], uint64(pos))
	binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
}

// readSynced returns the position that the file in dir remembers; 0 when there is no
// file, or a crash came while it was made. One slot may be damaged or torn: turn is that
// slot, or else the one with the lower position, to be written next.
func readSynced(fsys vfs.FS, dir string) (pos Pos, turn int64, err error) {
	path := fsys.PathJoin(dir, syncedName)
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, fmt.Errorf("open commit log: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(f, 2*syncedSlot))
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, 0, fmt.Errorf("read %s: %w", path, err)
	}
	short := len(b) < 2*syncedSlot || allZero(b)
	valid := false
	for i := int64(0); len(b) >= syncedSlot; i, b = i+1, b[syncedSlot:] {
		slot := b[:syncedSlot]
		if string(slot[:8]) != syncedMagic {
			continue
		}
		if v := binary.LittleEndian.Uint32(slot[8:]); v > syncedVersion && crc32.Checksum(slot[:28], castagnoli) == binary.LittleEndian.Uint32(slot[28:]) {
			return 0, 0, ErrVersion{File: path, Version: v, Supported: syncedVersion}
		}
		at := Pos(binary.LittleEndian.Uint64(slot[16:]))
		var want [syncedSlot]byte
		encodeSynced(want[:], at)
		if string(want[:]) == string(slot) && (!valid || at > pos) {
			pos, turn, valid = at, 1-i, true
		}
	}
	if !valid && !short {
		return 0, 0, &CorruptionError{File: path, Reason: "no slot is whole"}
	}
	return pos, turn, nil
}

// openSynced opens the file of a log in dir, which is synced up to pos, and makes it
// durable when it is new. It begins with the slot of the turn, so that a write which fails
// half done leaves the other one whole.
func openSynced(fsys vfs.FS, dir string, pos Pos, turn int64) (*syncedFile, error) {
	path := fsys.PathJoin(dir, syncedName)
	_, statErr := fsys.Stat(path)
	f, err := fsys.OpenReadWrite(path, writeCategory)
	if err != nil {
		return nil, fmt.Errorf("open commit log: %w", err)
	}
	s := &syncedFile{file: f, path: path, turn: turn}
	// Both slots: what one of them has may be damaged.
	if err = s.write(pos); err == nil {
		err = s.write(pos)
	}
	if err == nil && statErr != nil {
		err = errors.Join(f.Sync(), syncDir(fsys, dir))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// write remembers that the log is synced up to pos.
func (s *syncedFile) write(pos Pos) error {
	encodeSynced(s.buf[:], pos)
	if _, err := s.file.WriteAt(s.buf[:], s.turn*syncedSlot); err != nil {
		return fmt.Errorf("write %s: %w", s.path, err)
	}
	s.turn = 1 - s.turn
	return nil
}

// close makes what was written durable when all is well, and closes the file.
func (s *syncedFile) close(well bool) error {
	var err error
	if well {
		err = s.file.Sync()
	}
	return errors.Join(err, s.file.Close())
}
