package node_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
)

func TestHealthFailsWithTheStore(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir, func(c *config.Config) { c.SegmentSize, c.MaxBodySize = 128<<10, 32<<10 })
	watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	first, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, first.GetStatus())
	_, err = r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err)

	// Without its folder the log cannot begin another segment.
	require.NoError(t, os.RemoveAll(filepath.Join(dir, node.StoreDir, "shards", config.Default().Shard, "log")))
	sent := 0
	for r.send(t, "t").GetCode() == rmqpb.Code_OK {
		sent++
		require.Less(t, sent, 10_000, "the log goes on without its folder")
	}
	then, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, then.GetStatus())
	r.cancel()
	require.Error(t, <-r.done)
}

func TestMetadataThatIsGoneDeletesNoMessage(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	r.stop(t)

	metadata, elsewhere := filepath.Join(dir, "router"), filepath.Join(t.TempDir(), "router")
	require.NoError(t, os.Rename(metadata, elsewhere))
	err = node.Run(t.Context(), configOf(dir), slog.New(slog.DiscardHandler), func(node.Info) {})
	require.ErrorContains(t, err, metadata)

	require.NoError(t, os.RemoveAll(metadata))
	require.NoError(t, os.Rename(elsewhere, metadata))
	r = start(t, dir)
	code, bodies, err := r.receive(context.Background(), "t", 0)
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, code)
	require.Equal(t, []string{"x"}, bodies)
	r.stop(t)
}

// refusal returns why a node does not start. One that starts is ended.
func refusal(t *testing.T, cfg config.Config) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	return node.Run(ctx, cfg, slog.New(slog.DiscardHandler), func(node.Info) { cancel() })
}

func TestAShardWithAnotherNameIsNotBegunAnew(t *testing.T) {
	renamed := func(c *config.Config) { c.Shard = "orders-0" }
	for name, topics := range map[string]bool{"with topics": true, "without topics": false} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := start(t, dir)
			if topics {
				_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
				require.NoError(t, err)
				require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
			}
			r.stop(t)
			shards := filepath.Join(dir, node.StoreDir, "shards")
			old := filepath.Join(shards, config.Default().Shard)
			err := refusal(t, configOf(dir, renamed))
			require.ErrorContains(t, err, "the configuration names shard orders-0")
			require.ErrorContains(t, err, old)
			require.ErrorContains(t, err, "set shard to "+config.Default().Shard+" again")
			require.NoDirExists(t, filepath.Join(shards, "orders-0"), "nothing is made")
			r = start(t, dir)
			if topics {
				_, bodies, err := r.receive(t.Context(), "t", 0)
				require.NoError(t, err)
				require.Equal(t, []string{"x"}, bodies)
			}
			r.stop(t)
		})
	}
}

func TestALogWithoutSegmentsIsNotBegunAnew(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	r.stop(t)
	shardDir := filepath.Join(dir, node.StoreDir, "shards", config.Default().Shard)
	require.NoError(t, os.Rename(shardDir, filepath.Join(t.TempDir(), "elsewhere")))
	log := filepath.Join(shardDir, "log")
	require.NoError(t, os.MkdirAll(log, 0o755))

	err = refusal(t, configOf(dir))
	require.ErrorContains(t, err, log+" has no segment of a log, but the metadata places topic t")
	names, err := os.ReadDir(log)
	require.NoError(t, err)
	require.Empty(t, names, "nothing is made")
	var found []string
	_, err = node.Check(vfs.Default, dir, node.CheckOptions{Found: func(f node.Finding) { found = append(found, f.String()) }})
	require.NoError(t, err)
	require.Contains(t, found, log+": has no segment of a log, but the metadata places topics on the shard")
}

func TestAHealthWatchEndsWithTheNode(t *testing.T) {
	r := start(t, t.TempDir())
	watch, err := healthpb.NewHealthClient(r.conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	r.stop(t)
	told := 0
	for err == nil {
		var res *healthpb.HealthCheckResponse
		if res, err = watch.Recv(); err == nil {
			require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, res.GetStatus())
			told++
		}
	}
	require.NotZero(t, told)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "closing", "it was cut off")
}

// The router would give the ids of what was deleted since out again, and the store
// knows that they are gone for ever.
func TestMetadataFromBeforeADeletionIsRefused(t *testing.T) {
	dir := t.TempDir()
	metadata, older := filepath.Join(dir, "router"), filepath.Join(t.TempDir(), "router")
	start(t, dir).stop(t)
	require.NoError(t, os.CopyFS(older, os.DirFS(metadata)))
	r := start(t, dir)
	r.createTopic(t, "t", 1)
	require.Equal(t, rmqpb.Code_OK, r.send(t, "t").GetCode())
	_, err := r.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: "t"})
	require.NoError(t, err)
	r.stop(t)
	require.NoError(t, os.RemoveAll(metadata))
	require.NoError(t, os.Rename(older, metadata))
	err = node.Run(t.Context(), configOf(dir), slog.New(slog.DiscardHandler), func(node.Info) {})
	require.ErrorContains(t, err, metadata)
	require.ErrorContains(t, err, "older than the store")
}

func TestAFullDiskRefusesNewTopicsAndGroupsAndNoDeletion(t *testing.T) {
	dir := t.TempDir()
	r := start(t, dir)
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err)
	_, err = r.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "g"})
	require.NoError(t, err)
	r.stop(t)

	r = start(t, dir, func(c *config.Config) { c.Retention.Disk.Refuse = config.Watermark{Free: 1 << 60} })
	_, err = r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "other"})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "new topics and groups are refused")
	_, err = r.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "other"})
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	_, err = r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "t"})
	require.NoError(t, err, "it is there already")
	_, err = r.admin.DeleteGroup(t.Context(), &adminpb.DeleteGroupRequest{Name: "g"})
	require.NoError(t, err)
	_, err = r.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: "t"})
	require.NoError(t, err)
	r.stop(t)
}
