//go:build unix

package commitlog

import (
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// shared reports whether a file has more than one name.
func shared(f vfs.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink > 1
}
