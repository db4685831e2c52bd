// Package commitlog is the append-only log of a store: the only write-ahead
// log there is, and the only place that calls fsync for it.
//
// It owns the segment files of one directory and every byte in them: framing,
// checksums, rolling, zero-filling, recovery after a crash, and the removal of
// whole old segments. It knows no topic; payloads are opaque. It takes no lock
// against a second process: the caller makes sure that a directory is open
// once.
//
// The shard's goroutine is the one writer. Sync, ReadAt, Scan, Roll and DropBefore
// may be called from any goroutine at any time. All I/O goes through a vfs.FS
// whose files permit WriteAt, ReadAt and SyncData to overlap.
//
// The byte layout is described in docs/format/commitlog.md; nothing outside
// this package may depend on it.
package commitlog
