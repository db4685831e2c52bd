package quirks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOnlyNodeJSNeedsItsOwnFIFOBackoff(t *testing.T) {
	for _, c := range []struct {
		language Language
		version  string
		want     FIFOBackoff
	}{
		{NodeJS, "1.0.0", ExponentialMillis},
		{NodeJS, "1.0.8", ExponentialMillis},
		{NodeJS, "1.0.9", Exponential},
		{NodeJS, "1.1.0", Exponential},
		{NodeJS, "2", Exponential},
		{Java, "1.0.8", ListedDelays},
		{Python, "5.1.1", ListedDelays},
		{"", "", ListedDelays},
	} {
		require.Equal(t, c.want, FIFOBackoffOf(c.language, c.version), "%+v", c)
	}
}

func TestWholeSecondsAreForThoseWhoReadNothingElse(t *testing.T) {
	for l, want := range map[Language]bool{NodeJS: true, Python: true, Java: false, Go: false, Rust: false, DotNet: false, CPP: false} {
		require.Equal(t, want, WholeSeconds(l), l)
	}
}

func TestSettingsComeAgainOnlyToNodeJS(t *testing.T) {
	for l, want := range map[Language]time.Duration{NodeJS: 2 * time.Second, Java: 0, Go: 0, Python: 0, Rust: 0, DotNet: 0, CPP: 0} {
		require.Equal(t, want, SettingsAgain(l), l)
	}
}
