package quirks

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOnlyGoPushConsumersGetAnEmptyOK(t *testing.T) {
	for _, l := range []Language{Java, Go, NodeJS, Python, Rust, DotNet, CPP, "PHP", ""} {
		require.Equal(t, l == Go, EmptyReceiveOK(l, true), l)
		require.False(t, EmptyReceiveOK(l, false), l)
	}
}

func TestOnlySomeSDKsTakeSeveralAddresses(t *testing.T) {
	for l, want := range map[Language]bool{Java: true, Go: true, NodeJS: false, Python: false, Rust: true, DotNet: false, CPP: true, "PHP": false, "": false} {
		require.Equal(t, want, TakesAddresses(l), l)
	}
}

func TestOnlyOfficialSDKsAreKnownToDropACutOffReceive(t *testing.T) {
	for l, want := range map[Language]bool{Java: true, Go: true, NodeJS: true, Python: true, Rust: true, DotNet: true, CPP: true, "PHP": false, "": false} {
		require.Equal(t, want, DropsCutOffReceive(l), l)
	}
}

func TestOnlyGoAndRustPushConsumersReadOKForEndedDeliveries(t *testing.T) {
	for _, l := range []Language{Java, Go, NodeJS, Python, Rust, DotNet, CPP, "PHP", ""} {
		require.Equal(t, l == Go || l == Rust, EndedChangeOK(l, true), l)
		require.False(t, EndedChangeOK(l, false), l)
		require.Equal(t, l == Rust, EndedAckOK(l, true), l)
		require.False(t, EndedAckOK(l, false), l)
	}
}

func TestOnlyShortDelaysOfNodePushConsumersAreReplaced(t *testing.T) {
	for _, l := range []Language{Java, Go, NodeJS, Python, Rust, DotNet, CPP, "PHP", ""} {
		for d, short := range map[time.Duration]bool{0: true, time.Millisecond: true, time.Second - 1: true, time.Second: false, time.Hour: false} {
			require.Equal(t, l == NodeJS && short, RetryDelayFromPolicy(l, true, d), "%s %s", l, d)
			require.False(t, RetryDelayFromPolicy(l, false, d), "%s %s", l, d)
		}
	}
	require.True(t, RetryDelayFromPolicy(ParseLanguage("NODE_JS"), true, 0))
}

func TestOnlyTheFirstRustSDKDoesNotKnowAnEmptyBody(t *testing.T) {
	for _, c := range []struct {
		language Language
		version  string
		want     bool
	}{
		{Rust, "5.0.0", false},
		{Rust, "5.0.0-rc1", false},
		{Rust, "", false},
		{Rust, "5.0.1", true},
		{Rust, "5.1.0", true},
		{Java, "5.0.0", true},
		{"", "", true},
	} {
		require.Equal(t, c.want, KnowsEmptyBody(c.language, c.version), "%+v", c)
	}
}

func TestOnlyRustReadsOnAfterTheErrorOfAStream(t *testing.T) {
	for _, l := range []Language{Java, Go, NodeJS, Python, Rust, DotNet, CPP, "PHP", ""} {
		require.Equal(t, l == Rust, ReadsOnAfterStreamError(l), l)
	}
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	for version, want := range map[string]bool{
		"5.0.3": true, "5.0.10": true, "5.1": true, "5.1.0": true, "6": true, "10.0.0": true, "v5.0.3": true,
		"5.0.3-SNAPSHOT": true, "5.0.4-rc.1": true, " 5.2.1 ": true,
		"5.0.2": false, "5.0.2-SNAPSHOT": false, "5.0": false, "5": false, "4.9.9": false, "5.0-rc.9": false,
		"": false, "latest": false, "5.x.9": false, "99999999999999999999": false, "-5.1": false,
	} {
		require.Equal(t, want, KnowsIllegalPollingTime(version), version)
	}
}
