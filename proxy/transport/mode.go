package transport

import (
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Mode says whether the gRPC port serves TLS, cleartext or both.
type Mode uint8

const (
	// Permissive serves TLS and cleartext; the default, because half of the
	// SDKs use one and half the other when nobody configures them.
	Permissive Mode = iota
	// Required serves TLS only.
	Required
	// Disabled serves cleartext only.
	Disabled
)

var modeNames = [...]string{Permissive: "permissive", Required: "required", Disabled: "disabled"}

// String returns the name the configuration uses.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// ParseMode returns the mode the configuration calls s. The error is an
// *mq.InvalidError.
func ParseMode(s string) (Mode, error) {
	for m, name := range modeNames {
		if name == s {
			return Mode(m), nil
		}
	}
	return 0, &mq.InvalidError{
		Kind: mq.ErrInvalid, Field: "tls mode", Value: mq.Shorten(s),
		Reason: "must be one of permissive, required, disabled",
	}
}
