package node_test

import (
	"github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/proxy"
	"github.com/perigee-mq/perigee/router/remote"
)

// A router in another process has what the tiers ask of one.
var (
	_ proxy.Router = (*remote.Client)(nil)
	_ admin.Router = (*remote.Client)(nil)
)
