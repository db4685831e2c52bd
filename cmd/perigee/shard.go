package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
)

func (a *app) shardCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "shard", Short: "Show the shards, and take them out of use", Args: noSubcommand, RunE: showHelp,
		Long: "Show the shards of a deployment in several processes, and take them out of use. A shard is active,\n" +
			"draining (new topics are not placed on it, those that it has stay), or removed.",
	}
	cmd.AddCommand(a.shardList(), a.shardSet("drain", "Place no new topics on a shard; those that it has stay", adminpb.ShardState_SHARD_STATE_DRAINING),
		a.shardSet("activate", "Place new topics on a shard again", adminpb.ShardState_SHARD_STATE_ACTIVE), a.shardRemove())
	return a.addEndpoint(cmd)
}

// shardView is how a shard is printed.
type shardView struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Node   string `json:"node"`
	Topics int64  `json:"topics"`
}

func viewShard(s *adminpb.Shard) shardView {
	return shardView{
		Name: s.GetName(), State: strings.ToLower(strings.TrimPrefix(s.GetState().String(), "SHARD_STATE_")),
		Node: s.GetNode(), Topics: s.GetTopics(),
	}
}

func viewShards(list []*adminpb.Shard) []shardView {
	views := make([]shardView, len(list))
	for i, s := range list {
		views[i] = viewShard(s)
	}
	return views
}

const shardColumns = "NAME STATE NODE TOPICS"

func (v shardView) row() []any { return []any{v.Name, v.State, dash(v.Node), v.Topics} }

// withCluster runs do with the service about the deployment.
func (a *app) withCluster(cmd *cobra.Command, do func(ctx context.Context, cluster adminpb.ClusterServiceClient) error) error {
	return a.withConn(func(conn *client.Conn) error {
		return do(cmd.Context(), adminpb.NewClusterServiceClient(conn))
	})
}

func (a *app) shardList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the shards, where they are and how many topics are on them", Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withCluster(cmd, func(ctx context.Context, cluster adminpb.ClusterServiceClient) error {
				resp, err := call(ctx, method(cluster.ListShards), &adminpb.ListShardsRequest{})
				if err != nil {
					return err
				}
				return printAll(a, viewShards(resp.GetShards()), shardColumns, shardView.row)
			})
		},
	}
}

func (a *app) shardSet(verb, short string, state adminpb.ShardState) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCluster(cmd, func(ctx context.Context, cluster adminpb.ClusterServiceClient) error {
				resp, err := call(ctx, method(cluster.SetShard), &adminpb.SetShardRequest{Name: args[0], State: state})
				if err != nil {
					return err
				}
				return a.printShard(resp.GetShard())
			})
		},
	}
}

func (a *app) printShard(s *adminpb.Shard) error {
	v := viewShard(s)
	return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "shard %s is %s, %d topics are on it\n", v.Name, v.State, v.Topics) })
}

func (a *app) shardRemove() *cobra.Command {
	var lose bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Remove a shard that no topic is on and that holds no dead letters", Args: arguments("NAME"),
		Long: "Remove a shard that no topic is on and that holds no dead letters; its store node must be alive to be\n" +
			"asked for those. The node may be stopped then: it is refused when it registers the next time. The name\n" +
			"of the shard is kept; activate takes it back.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withCluster(cmd, func(ctx context.Context, cluster adminpb.ClusterServiceClient) error {
				resp, err := call(ctx, method(cluster.RemoveShard), &adminpb.RemoveShardRequest{Name: args[0], LoseDeadLetters: lose})
				if err != nil {
					return err
				}
				return a.printShard(resp.GetShard())
			})
		},
	}
	cmd.Flags().BoolVar(&lose, "lose-dead-letters", false, "remove it although dead letters are on it, or its store node cannot be asked: they are lost")
	return cmd
}
