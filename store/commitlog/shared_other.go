//go:build !unix

package commitlog

import "github.com/cockroachdb/pebble/v2/vfs"

// shared reports whether a file has more than one name; here nobody tells.
func shared(vfs.File) bool { return false }
