package proc

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Claim uses so many bytes of memory for a moment and gives them back, so that who needs
// memory next gets some that the machine really has. On a virtual machine whose host takes
// back what lies free, the first use of a page costs 1 to 3 us for each KiB, more than a
// server spends on the message in it, and whether a server meets such pages is chance. It
// claims less where less is free: nothing else is driven out.
func Claim(bytes int64) error {
	free, _ := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemFree"), " kB"), 10, 64) // 0: claims nothing
	bytes = min(bytes, free<<10/2)
	if bytes <= 0 {
		return nil
	}
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("claim %d bytes of memory: %w", bytes, err)
	}
	return unix.Munmap(memory)
}
