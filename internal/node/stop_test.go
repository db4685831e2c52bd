package node_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

func TestANodeThatRecoversStopsWhenAsked(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	r.topic(t, "t")
	for range 300 {
		require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	}
	r.stop(t)
	// Without the views everything is replayed.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, node.StoreDir, "shards", config.Default().Shard, "views")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, node.Run(ctx, configOf(dir), slog.New(slog.DiscardHandler), func(node.Info) { t.Error("ready") }))

	r = start(t, dir)
	require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	r.stop(t)
}
