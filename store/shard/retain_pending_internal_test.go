package shard

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPendingMessagesAreWeighedAgainWhenItCanComeToSomethingElse: a look at all of them
// each time would be work of an idle server, and of a busy one much of its work.
func TestPendingMessagesAreWeighedAgainWhenItCanComeToSomethingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := weighing{held: true, begin: 100, position: 7, at: time.Now(), took: time.Second}
		require.True(t, w.stands(200, 8), "it was expensive, and is new")
		time.Sleep(weighRest * time.Second)
		require.True(t, w.stands(100, 7), "nothing has happened")
		require.False(t, w.stands(200, 7), "more is to be cut")
		require.False(t, w.stands(100, 8), "some may be gone")
		w.held = false
		require.False(t, w.stands(100, 7), "they can be moved")
	})
}
