package node_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

func TestACheckOfAStoreNodeMissesNoMetadata(t *testing.T) {
	d, router := deploy(t)
	a, p := d.start(config.Store, "a"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 1, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	for _, r := range []*running{p, a, router} {
		r.stop(t)
	}
	sum, err := node.Check(vfs.Default, a.info.DataDir, node.CheckOptions{
		DeriveLimit: 1 << 30, Found: func(f node.Finding) { t.Error(f) },
	})
	require.NoError(t, err)
	require.True(t, sum.MetadataElsewhere)
	require.Len(t, sum.Shards, 1)
	require.EqualValues(t, 1, sum.Shards[0].Messages)
}
