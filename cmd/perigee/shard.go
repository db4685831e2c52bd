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
			"draining (its topics leave it: nothing is sent there any more, and what is there is read), or removed.",
	}
	cmd.AddCommand(a.shardList(), a.shardSet("drain", "Let the topics of a shard leave it, to others that are active", adminpb.ShardState_SHARD_STATE_DRAINING),
		a.shardSet("activate", "Place topics on a shard again, and keep those that have not left it", adminpb.ShardState_SHARD_STATE_ACTIVE), a.shardRemove())
	return a.addEndpoint(cmd)
}

// shardView is how a shard is printed.
type shardView struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Node   string `json:"node"`
	Topics int64  `json:"topics"`

	Leaving *leavingView `json:"leaving,omitempty"`
}

// leavingView is how far a shard is drained.
type leavingView struct {
	Open        int64  `json:"topics_open"`
	Closing     int64  `json:"topics_closing"`
	Closed      int64  `json:"topics_closed"`
	Queues      int64  `json:"queues"`
	Messages    int64  `json:"messages"`
	Pending     int64  `json:"pending"`
	DeadLetters int64  `json:"dead_letters"`
	Owing       int64  `json:"owing"`
	OwingGroup  string `json:"owing_group,omitempty"`
	OwingTopic  string `json:"owing_topic,omitempty"`
	Error       string `json:"error,omitempty"`
}

// String says what is left in one line.
func (v *leavingView) String() string {
	if v == nil {
		return dash("")
	}
	var parts []string
	add := func(n int64, what string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(v.Open, "topics still open")
	add(v.Closing, "topics closing")
	if v.Error != "" {
		return strings.Join(append(parts, "its store cannot be asked: "+v.Error), ", ")
	}
	if v.Messages > 0 {
		parts = append(parts, fmt.Sprintf("%d messages in %d queues", v.Messages, v.Queues))
	}
	add(v.Pending, "pending")
	add(v.DeadLetters, "dead letters")
	if v.Owing > 0 {
		parts = append(parts, fmt.Sprintf("%d groups not done, as %s with %s", v.Owing, v.OwingGroup, v.OwingTopic))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}

func viewShard(s *adminpb.Shard) shardView {
	v := shardView{
		Name: s.GetName(), State: strings.ToLower(strings.TrimPrefix(s.GetState().String(), "SHARD_STATE_")),
		Node: s.GetNode(), Topics: s.GetTopics(),
	}
	if l := s.GetLeaving(); l != nil {
		v.Leaving = &leavingView{
			Open: l.GetOpen(), Closing: l.GetClosing(), Closed: l.GetClosed(), Queues: l.GetQueues(), Messages: l.GetMessages(),
			Pending: l.GetPending(), DeadLetters: l.GetDeadLetters(), Owing: l.GetOwing(),
			OwingGroup: l.GetOwingGroup(), OwingTopic: l.GetOwingTopic(), Error: l.GetError(),
		}
	}
	return v
}

func viewShards(list []*adminpb.Shard) []shardView {
	views := make([]shardView, len(list))
	for i, s := range list {
		views[i] = viewShard(s)
	}
	return views
}

const shardColumns = "NAME STATE NODE TOPICS LEFT"

func (v shardView) row() []any {
	return []any{v.Name, v.State, dash(v.Node), v.Topics, v.Leaving.String()}
}

// withCluster runs do with the service about the deployment.
func (a *app) withCluster(cmd *cobra.Command, do func(ctx context.Context, cluster adminpb.ClusterServiceClient) error) error {
	return a.withConn(func(conn *client.Conn) error {
		return do(cmd.Context(), adminpb.NewClusterServiceClient(conn))
	})
}

func (a *app) shardList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the shards: where they are, how many topics are on them, and what is left on those that are drained", Args: arguments(),
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
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "shard %s is %s, %d topics are on it\n", v.Name, v.State, v.Topics)
		if v.Leaving != nil {
			fmt.Fprintf(w, "left on it: %s\n", v.Leaving)
		}
	})
}

func (a *app) shardRemove() *cobra.Command {
	req := &adminpb.RemoveShardRequest{}
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Remove a shard that its topics have left and that holds nothing", Args: arguments("NAME"),
		Long: "Remove a shard that was drained and holds nothing; its store node must be alive to be asked. The node\n" +
			"may be stopped then: it is refused when it registers the next time. The name of the shard is kept;\n" +
			"activate takes it back.",
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			return a.withCluster(cmd, func(ctx context.Context, cluster adminpb.ClusterServiceClient) error {
				resp, err := call(ctx, method(cluster.RemoveShard), req)
				if err != nil {
					return err
				}
				return a.printShard(resp.GetShard())
			})
		},
	}
	cmd.Flags().BoolVar(&req.LoseSettled, "lose-settled", false, "remove it although it holds messages that every group has settled: no group can go back to them")
	cmd.Flags().BoolVar(&req.LoseDeadLetters, "lose-dead-letters", false, "remove it although dead letters are on it, or its store node cannot be asked: they are lost")
	cmd.Flags().BoolVar(&req.LoseMessages, "lose-messages", false, "remove it whatever is on it, and although its store node cannot be asked: that is lost")
	return cmd
}
