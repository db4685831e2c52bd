package main

import (
	"context"
	"log/slog"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

// serveNode runs all tiers in this process.
func serveNode(ctx context.Context, cfg config.Config, logger *slog.Logger, ready func(serverInfo)) error {
	return node.Run(ctx, cfg, logger, func(info node.Info) { ready(serverInfo(info)) })
}
