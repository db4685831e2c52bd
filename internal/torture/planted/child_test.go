package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A child that hangs, with a processor or without, or goes on behind what it has found is
// ended, and why is told; one that ends by itself is not.
func TestAChildIsWatchedUntilItEndsOrHangs(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		child  child
		failed bool
		said   string
		hangs  string
	}{
		"passes":                   {"echo PASS", child{bound: time.Minute, idle: time.Minute}, false, "PASS", ""},
		"fails":                    {"echo '--- FAIL: TestX'; exit 1", child{bound: time.Minute}, true, "--- FAIL: TestX", ""},
		"goes round":               {"while :; do :; done", child{bound: 300 * time.Millisecond}, true, "", "of a processor's time were not enough"},
		"waits for ever":           {"echo waits; exec sleep 600", child{idle: 500 * time.Millisecond}, true, "waits", "it does nothing for"},
		"does not end when asked":  {"trap '' QUIT; echo waits; while :; do :; done", child{bound: 50 * time.Millisecond}, true, "waits", "of a processor's time were not enough"},
		"goes on behind a finding": {"echo '--- FAIL: TestX'; exec sleep 600", child{}, true, "--- FAIL: TestX", ""},
		"takes too long":           {"exec sleep 600", child{longest: 500 * time.Millisecond}, true, "", "500ms were not enough"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.child.path, c.child.args = "/bin/sh", []string{"-c", c.script}
			if c.child.longest == 0 {
				c.child.longest = time.Minute
			}
			o, err := c.child.watch(t.Context())
			require.NoError(t, err)
			require.Equal(t, c.failed, o.failed, "%+v", o)
			require.Contains(t, o.said, c.said)
			if c.hangs == "" {
				require.Empty(t, o.hangs)
			} else {
				require.Contains(t, o.hangs, c.hangs)
			}
		})
	}
}
