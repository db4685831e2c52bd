package remote

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/internal/tierversion"
)

// TestProcessesThatCannotWorkTogetherSaySoAndOthersDoNotMind goes by the versions of the protocol
// that a router and who follows it speak.
func TestProcessesThatCannotWorkTogetherSaySoAndOthersDoNotMind(t *testing.T) {
	r := func(oldest, newest uint32) tierversion.Range {
		return tierversion.Range{Oldest: oldest, Newest: newest}
	}
	for _, c := range []struct {
		router, node tierversion.Range
		says         string // empty: they work together
	}{
		{r(1, 1), r(1, 1), ""},
		{r(1, 2), r(1, 1), ""},
		{r(1, 1), r(1, 2), ""},
		{r(2, 3), r(1, 2), ""},
		{r(1, 2), r(2, 3), ""},
		{r(2, 3), r(1, 1), "this process speaks versions 2 to 3 of the protocol between tiers, the caller version 1: the caller is too old: upgrade it"},
		{r(1, 1), r(2, 3), "this process speaks version 1 of the protocol between tiers, the caller versions 2 to 3: this process is too old: upgrade it"},
	} {
		inWorld(t, "", func(w *world) {
			h := &host{t: w.T, name: "r1", fs: vfs.NewMem()}
			opts, err := tiercreds.Server(tiercreds.Options{})
			require.NoError(w, err)
			h.opts = slices.Concat(opts, c.router.Server())
			w.hosts["r1"] = h
			h.start(w.network)
			o := w.options("r1")
			o.Dial = append(o.Dial, c.node.Client()...)
			var log logBuffer
			o.Logger = log.logger()
			client := w.open(o)
			ctx, cancel := context.WithTimeout(w.Context(), 30*time.Second)
			defer cancel()
			err = client.Ready(ctx)
			if c.says == "" {
				require.NoError(w, err)
				return
			}
			require.Error(w, err)
			require.ErrorContains(w, client.Err(), c.says)
			require.Contains(w, log.String(), c.says)
		})
	}
	// A process from before there were versions says nothing, and is of version 1.
	inWorld(t, "", func(w *world) {
		h := &host{t: w.T, name: "r1", fs: vfs.NewMem()}
		opts, err := tiercreds.Server(tiercreds.Options{})
		require.NoError(w, err)
		h.opts = slices.Concat(opts, tierversion.Current().Server())
		w.hosts["r1"] = h
		h.start(w.network)
		w.client("r1")
	})
}
