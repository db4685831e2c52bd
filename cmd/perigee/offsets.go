package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
)

// positionView is how the progress of a group in a queue is printed.
type positionView struct {
	Namespace string `json:"namespace"`
	Topic     string `json:"topic"`
	Shard     string `json:"shard"`
	Queue     int32  `json:"queue"`
	MinOffset int64  `json:"min_offset"`
	MaxOffset int64  `json:"max_offset"`
	Offset    *int64 `json:"offset"` // null: the group has no place in the queue yet
	Ready     int64  `json:"ready"`
	InFlight  int64  `json:"in_flight"`
	Blocked   int64  `json:"blocked"`
	UsedUp    int64  `json:"used_up"`
	// Lag is how many messages the group has not settled: the sum of the four.
	Lag int64 `json:"lag"`
}

func viewPosition(namespace, topic string, p *adminpb.QueuePosition) positionView {
	return positionView{
		Namespace: namespace, Topic: topic, Shard: p.GetShard(), Queue: p.GetQueue(),
		MinOffset: p.GetMinOffset(), MaxOffset: p.GetMaxOffset(), Offset: p.Offset,
		Ready: p.GetReady(), InFlight: p.GetInFlight(), Blocked: p.GetBlocked(), UsedUp: p.GetUsedUp(),
		Lag: p.GetReady() + p.GetInFlight() + p.GetBlocked() + p.GetUsedUp(),
	}
}

// at returns where the group is, a dash for nowhere.
func (v positionView) at() string {
	if v.Offset == nil {
		return "-"
	}
	return strconv.FormatInt(*v.Offset, 10)
}

func (v positionView) topic() mq.Resource {
	return mq.Resource{Namespace: v.Namespace, Name: v.Topic}
}

func positionTable(w io.Writer, list []positionView) {
	table(w, "TOPIC SHARD QUEUE OFFSET END READY IN-FLIGHT BLOCKED USED-UP LAG", list, func(v positionView) []any {
		return []any{v.topic(), v.Shard, v.Queue, v.at(), v.MaxOffset, v.Ready, v.InFlight, v.Blocked, v.UsedUp, v.Lag}
	})
}

// listPositions returns how far a group is with each queue, and the shards that are missing.
func listPositions(ctx context.Context, conn *client.Conn, req *adminpb.ListPositionsRequest) (views []positionView, missing []string, err error) {
	resp, err := call(ctx, method(adminpb.NewOffsetServiceClient(conn).ListPositions), req)
	if err != nil {
		return nil, nil, err
	}
	views = []positionView{}
	for _, t := range resp.GetTopics() {
		for _, p := range t.GetQueues() {
			views = append(views, viewPosition(t.GetNamespace(), t.GetTopic(), p))
		}
	}
	return views, resp.GetUnreachableShards(), nil
}

// resetView is how a reset of one queue is printed.
type resetView struct {
	Before positionView `json:"before"`
	Offset int64        `json:"offset"`
}

// ended returns how many deliveries the reset ends.
func (v resetView) ended() int64 { return v.Before.InFlight + v.Before.UsedUp }

func (a *app) groupResetOffset() *cobra.Command {
	req := &adminpb.ResetOffsetRequest{}
	var earliest, latest bool
	var at string
	var offset int64
	var queue int32
	cmd := &cobra.Command{
		Use: "reset-offset GROUP", Short: "Set where a consumer group goes on in a topic, forward or back", Args: arguments("GROUP"),
		Long: `Set where a consumer group goes on in a topic, forward or back, while its consumers run or not.

Going back, everything from there on is delivered again, acknowledged or not. What consumers have in their hands
ends at once: acknowledging it has no effect, and it comes again where the group goes on from before it. Going
forward, the backlog, what is in flight and what waits for another try are given up.

--dry-run shows what would be done.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Namespace, req.Group = a.endpoint.namespace, args[0]
			flags := cmd.Flags()
			named := 0
			for _, name := range []string{"earliest", "latest", "time", "offset"} {
				if flags.Changed(name) {
					named++
				}
			}
			if named != 1 {
				return usagef("one of --earliest, --latest, --time and --offset is required; see %s --help", cmd.CommandPath())
			}
			switch {
			case req.Topic == "":
				return usagef("--topic is required")
			case flags.Changed("offset") && !flags.Changed("queue"):
				return usagef("--offset is of one queue: --queue is required with it")
			case flags.Changed("offset"):
				req.Target = &adminpb.ResetOffsetRequest_Offset{Offset: offset}
			case flags.Changed("time"):
				when, err := time.Parse(time.RFC3339Nano, at)
				if err != nil {
					return usagef("time %q: must be as in 2026-01-31T08:00:00Z", at)
				}
				req.Target = &adminpb.ResetOffsetRequest_Time{Time: timestamppb.New(when)}
			case earliest:
				req.Target = &adminpb.ResetOffsetRequest_End_{End: adminpb.ResetOffsetRequest_END_EARLIEST}
			case latest:
				req.Target = &adminpb.ResetOffsetRequest_End_{End: adminpb.ResetOffsetRequest_END_LATEST}
			default:
				return usagef("--earliest and --latest are either given or left out")
			}
			if flags.Changed("queue") {
				req.Queue = &queue
			}
			return a.withConn(func(conn *client.Conn) error {
				resp, err := call(cmd.Context(), method(adminpb.NewOffsetServiceClient(conn).ResetOffset), req)
				if err != nil {
					return err
				}
				return a.printReset(req, resp)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&req.Topic, "topic", "", "the `topic`")
	flags.BoolVar(&earliest, "earliest", false, "go on with the oldest message retained")
	flags.BoolVar(&latest, "latest", false, "go on behind the newest message")
	flags.StringVar(&at, "time", "", "go on with the first message stored at or after a `time` as in 2026-01-31T08:00:00Z")
	flags.Int64Var(&offset, "offset", 0, "go on with this `offset` of the queue")
	flags.Int32Var(&queue, "queue", 0, "only this `queue`; otherwise every one")
	flags.StringVar(&req.Shard, "shard", "", "only the queues of this `shard`; otherwise of every one")
	flags.BoolVar(&req.DryRun, "dry-run", false, "change nothing, and show what would be done")
	return cmd
}

func (a *app) printReset(req *adminpb.ResetOffsetRequest, resp *adminpb.ResetOffsetResponse) error {
	views := []resetView{}
	for _, q := range resp.GetQueues() {
		views = append(views, resetView{viewPosition(req.GetNamespace(), req.GetTopic(), q.GetBefore()), q.GetOffset()})
	}
	return a.print(struct {
		Queues []resetView `json:"queues"`
		DryRun bool        `json:"dry_run"`
	}{views, req.GetDryRun()}, func(w io.Writer) {
		table(w, "TOPIC SHARD QUEUE FROM TO ENDED", views, func(v resetView) []any {
			return []any{v.Before.topic(), v.Before.Shard, v.Before.Queue, v.Before.at(), v.Offset, v.ended()}
		})
		if req.GetDryRun() {
			fmt.Fprintln(w, "nothing was changed")
		}
	})
}
