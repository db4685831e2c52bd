//go:build unix

package commitlog

import (
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// names returns how many names a file has, 0 when that is not known.
func names(f vfs.File) uint64 {
	info, err := f.Stat()
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint64(stat.Nlink)
}
