//go:build unix

package commitlog

import (
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// linked reports whether a file has a name.
func linked(f vfs.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink > 0
}
