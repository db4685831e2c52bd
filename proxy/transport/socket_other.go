//go:build !linux

package transport

import (
	"net"
	"time"
)

// setUserTimeout does nothing: pings find peers that are gone.
func setUserTimeout(net.Conn, time.Duration) {}

// DescriptorLimit returns 0: the system is not asked.
func DescriptorLimit() int { return 0 }
