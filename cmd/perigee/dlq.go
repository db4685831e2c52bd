package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
)

func (a *app) dlqCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "dlq", Short: "Count dead letters and send them back", Args: noSubcommand, RunE: showHelp,
		Long: "Count dead letters and send them back. To look at them, receive from the dead-letter\n" +
			"topic with a consumer group of its own: perigee receive '%DLQ%GROUP' --group NAME",
	}
	cmd.AddCommand(a.dlqList(), a.dlqRedrive())
	return a.addEndpoint(cmd)
}

// deadLettersView is how the dead letters of a group are printed.
type deadLettersView struct {
	Namespace string `json:"namespace"`
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	Messages  int64  `json:"messages"`
	Waiting   int64  `json:"waiting"`
}

func (a *app) dlqList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the consumer groups of a namespace that have dead letters", Args: arguments(),
		Long: "List the consumer groups of a namespace that have dead letters. MESSAGES are all that the\n" +
			"dead-letter topic holds, WAITING those that were not sent back by redrive.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.ListDeadLetters), &adminpb.ListDeadLettersRequest{Namespace: a.endpoint.namespace})
				if err != nil {
					return err
				}
				views := make([]deadLettersView, 0, len(resp.GetDeadLetters()))
				for _, d := range resp.GetDeadLetters() {
					views = append(views, deadLettersView{d.GetNamespace(), d.GetGroup(), d.GetTopic(), d.GetMessages(), d.GetWaiting()})
				}
				err = printAll(a, views, "GROUP TOPIC MESSAGES WAITING", func(v deadLettersView) []any {
					return []any{v.Group, v.Topic, v.Messages, v.Waiting}
				})
				return errors.Join(err, unasked(resp.GetUnreachableShards()))
			})
		},
	}
}

// both returns the shards that are missing in one of two answers, in order.
func both(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// unasked says that shards are missing in an answer, or is nil.
func unasked(shards []string) error {
	switch len(shards) {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("shard %s cannot be asked: what is on it is missing here", shards[0])
	default:
		return fmt.Errorf("shards %s cannot be asked: what is on them is missing here", strings.Join(shards, ", "))
	}
}

// redriveView is what a redrive did.
type redriveView struct {
	Group    string        `json:"group"`
	Redriven int64         `json:"redriven"`
	Waiting  int64         `json:"waiting"`
	Unmoved  []unmovedView `json:"unmoved"`
	Missing  []string      `json:"unreachable_shards,omitempty"`

	taken int64 // waiting, but not met
}

type unmovedView struct {
	Topic    string `json:"topic"`
	Reason   string `json:"reason"`
	Messages int64  `json:"messages"`
}

// unmoved returns how many dead letters could not be sent back.
func (v redriveView) unmoved() (n int64) {
	for _, u := range v.Unmoved {
		n += u.Messages
	}
	return n
}

func (v redriveView) write(w io.Writer) {
	fmt.Fprintf(w, "group %s: %s sent back, %d waiting\n", v.Group, messages(v.Redriven), v.Waiting)
	for _, u := range v.Unmoved {
		from := "without origin"
		if u.Topic != "" {
			from = "of topic " + u.Topic
		}
		fmt.Fprintf(w, "  %s %s cannot go back: %s\n", messages(u.Messages), from, u.Reason)
	}
	if v.taken > 0 {
		fmt.Fprintf(w, "  %s in the hands of another redrive, or of one that was cut off in the last two minutes\n", messages(v.taken))
	}
}

func (a *app) dlqRedrive() *cobra.Command {
	var most int64
	cmd := &cobra.Command{
		Use: "redrive GROUP", Short: "Send dead letters of a consumer group back to the topics they came from",
		Args: arguments("GROUP"),
		Long: "Send dead letters of a consumer group back to the topics they came from, oldest first, each\n" +
			"once, with a new count of attempts. All consumer groups of such a topic get the message; its\n" +
			"perigee.dead-letter properties say whose dead letter it was. The copies in the dead-letter\n" +
			"topic stay until their retention ends. When the server is killed meanwhile, a message may be\n" +
			"sent twice; none is lost.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 0 {
				return usagef("max %d: must not be negative", most)
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				v, failed := redriveAll(ctx, admin, mq.Resource{Namespace: a.endpoint.namespace, Name: args[0]}, most)
				if failed != nil && v.Redriven == 0 {
					return failed
				}
				if err := a.print(v, v.write); err != nil {
					return err
				}
				if n := v.unmoved(); n > 0 && failed == nil {
					failed = fmt.Errorf("%s cannot go back", messages(n))
				}
				if failed == nil {
					failed = unasked(v.Missing)
				}
				return failed
			})
		},
	}
	cmd.Flags().Int64Var(&most, "max", 0, "`number` of messages after which to end; 0: all that wait now")
	return cmd
}

// redriveAll calls until most messages, or with 0 all that wait at first, are
// sent, or no more can be. What dies again meanwhile is left for another time.
func redriveAll(ctx context.Context, admin adminpb.AdminServiceClient, group mq.Resource, most int64) (redriveView, error) {
	v := redriveView{Group: group.Name, Unmoved: []unmovedView{}}
	for first := true; ; first = false {
		limit := most - v.Redriven // 0: the server's
		resp, err := call(ctx, method(admin.RedriveDeadLetters), &adminpb.RedriveDeadLettersRequest{
			Namespace: group.Namespace, Group: group.Name, Max: int32(min(limit, math.MaxInt32)),
		})
		if err != nil {
			return v, err
		}
		if all := resp.GetRedriven() + resp.GetWaiting(); first && (most == 0 || all < most) {
			most = all
		}
		v.Redriven += resp.GetRedriven()
		v.Waiting, v.Missing = resp.GetWaiting(), resp.GetUnreachableShards()
		v.Unmoved = v.Unmoved[:0] // a later call meets them again
		for _, u := range resp.GetUnmoved() {
			v.Unmoved = append(v.Unmoved, unmovedView{u.GetTopic(), u.GetReason(), u.GetMessages()})
		}
		if v.Redriven >= most {
			return v, nil
		}
		if resp.GetRedriven() == 0 {
			v.taken = v.Waiting - v.unmoved()
			return v, nil
		}
	}
}
