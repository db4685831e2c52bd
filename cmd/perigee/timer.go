package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
)

func (a *app) timerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "timer", Short: "List, cancel and postpone delayed messages", Args: noSubcommand, RunE: showHelp,
		Long: "List, cancel and postpone delayed messages that wait for their time of delivery.",
	}
	cmd.AddCommand(a.timerList(), a.timerCancel(), a.timerPostpone())
	return a.addEndpoint(cmd)
}

// withTimers runs do with a client of the service of delayed messages.
func (a *app) withTimers(cmd *cobra.Command, do func(context.Context, adminpb.TimerServiceClient) error) error {
	return a.withConn(func(conn *client.Conn) error { return do(cmd.Context(), adminpb.NewTimerServiceClient(conn)) })
}

// timerView is how a delayed message is printed.
type timerView struct {
	ID        string   `json:"id"`
	MessageID string   `json:"message_id"`
	Topic     string   `json:"topic"`
	DeliverAt string   `json:"deliver_at"`
	StoredAt  string   `json:"stored_at"`
	Shard     string   `json:"shard"`
	Queue     int32    `json:"queue"`
	Tag       string   `json:"tag,omitempty"`
	Keys      []string `json:"keys,omitempty"`
	Size      int64    `json:"size"`
}

func viewTimer(topic string, t *adminpb.Timer) timerView {
	return timerView{
		ID: t.GetId(), MessageID: t.GetMessageId(), Topic: topic, DeliverAt: stamp(t.GetDeliverAt()), StoredAt: stamp(t.GetStoredAt()),
		Shard: t.GetShard(), Queue: t.GetQueue(), Tag: t.GetTag(), Keys: t.GetKeys(), Size: t.GetSize(),
	}
}

func (a *app) timerList() *cobra.Command {
	var most int
	var messageID, key string
	var count bool
	cmd := &cobra.Command{
		Use: "list TOPIC", Short: "List the delayed messages of a topic, the next one first", Args: arguments("TOPIC"),
		Long: "List the delayed messages of a topic that wait for their time, the next one first on each\n" +
			"shard. A search by message id goes through all of them, one by key reads them too.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 0 {
				return usagef("max %d: must not be negative", most)
			}
			return a.withTimers(cmd, func(ctx context.Context, timers adminpb.TimerServiceClient) error {
				req := &adminpb.ListTimersRequest{Namespace: a.endpoint.namespace, Topic: args[0], MessageId: messageID}
				if count {
					return a.countTimers(ctx, timers, req)
				}
				views := []timerView{}
				missing, err := eachTimer(ctx, timers, req, func(t *adminpb.Timer) bool {
					if key == "" || slices.Contains(t.GetKeys(), key) {
						views = append(views, viewTimer(args[0], t))
					}
					return most == 0 || len(views) < most
				})
				if err != nil {
					return err
				}
				err = printAll(a, views, "ID MESSAGE DELIVER_AT QUEUE TAG KEYS SIZE", func(v timerView) []any {
					return []any{v.ID, v.MessageID, v.DeliverAt, v.Queue, v.Tag, strings.Join(v.Keys, " "), v.Size}
				})
				return errors.Join(err, unasked(missing))
			})
		},
	}
	cmd.Flags().IntVar(&most, "max", 100, "largest `number` of messages; 0: all")
	cmd.Flags().StringVar(&messageID, "message-id", "", "`id` of the message to look for")
	cmd.Flags().StringVar(&key, "key", "", "`key` of the messages to look for")
	cmd.Flags().BoolVar(&count, "count", false, "say how many there are, and no more")
	return cmd
}

// timerCountView is how many delayed messages a topic has.
type timerCountView struct {
	Topic   string `json:"topic"`
	Pending int64  `json:"pending"`
}

func (a *app) countTimers(ctx context.Context, timers adminpb.TimerServiceClient, req *adminpb.ListTimersRequest) error {
	req.PageSize = 1
	resp, err := call(ctx, method(timers.ListTimers), req)
	if err != nil {
		return err
	}
	v := timerCountView{req.GetTopic(), resp.GetPending()}
	err = a.print(v, func(w io.Writer) { fmt.Fprintf(w, "topic %s: %s pending\n", v.Topic, messages(v.Pending)) })
	return errors.Join(err, unasked(resp.GetUnreachableShards()))
}

// eachTimer calls fn for the messages asked for, page by page, until it returns false. It
// returns the shards that were missing in one of the pages.
func eachTimer(ctx context.Context, timers adminpb.TimerServiceClient, req *adminpb.ListTimersRequest, fn func(*adminpb.Timer) bool) (missing []string, err error) {
	err = eachPage(func(token string) (next string, enough bool, err error) {
		req.PageToken = token
		resp, err := call(ctx, method(timers.ListTimers), req)
		missing = both(missing, resp.GetUnreachableShards())
		return resp.GetNextPageToken(), slices.ContainsFunc(resp.GetTimers(), func(t *adminpb.Timer) bool { return !fn(t) }), err
	})
	return missing, err
}

// printTimerChanges prints what became of each message, and fails when one was not changed.
func (a *app) printTimerChanges(done string, results []*adminpb.TimerResult) error {
	failed, err := printChanges(a, done, results)
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("%s not %s", messages(int64(len(failed))), done)
	}
	return err
}

const timerIDs = "An ID is one that list shows, or the recall handle that the sender of the message was given.\n"

func (a *app) timerCancel() *cobra.Command {
	return &cobra.Command{
		Use: "cancel TOPIC ID...", Short: "Take delayed messages back: they are never delivered", Args: atLeast(2, "TOPIC ID..."),
		Long: "Take delayed messages back: they are never delivered. " + timerIDs +
			"To cancel again is no error until the time of delivery, and for a day at least.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTimers(cmd, func(ctx context.Context, timers adminpb.TimerServiceClient) error {
				resp, err := call(ctx, method(timers.CancelTimers), &adminpb.CancelTimersRequest{
					Namespace: a.endpoint.namespace, Topic: args[0], Ids: args[1:],
				})
				if err != nil {
					return err
				}
				return a.printTimerChanges("cancelled", resp.GetResults())
			})
		},
	}
}

func (a *app) timerPostpone() *cobra.Command {
	var in time.Duration
	var at string
	cmd := &cobra.Command{
		Use: "postpone TOPIC ID... --in TIME", Short: "Give delayed messages another time of delivery", Args: atLeast(2, "TOPIC ID..."),
		Long: "Give delayed messages another time of delivery, earlier or later; with --in 0s they are\n" +
			"delivered at once. " + timerIDs,
		RunE: func(cmd *cobra.Command, args []string) error {
			when, err := deliveryTime(cmd, in, at)
			if err != nil {
				return err
			}
			when.Namespace, when.Topic, when.Ids = a.endpoint.namespace, args[0], args[1:]
			return a.withTimers(cmd, func(ctx context.Context, timers adminpb.TimerServiceClient) error {
				resp, err := call(ctx, method(timers.PostponeTimers), when)
				if err != nil {
					return err
				}
				return a.printTimerChanges("postponed", resp.GetResults())
			})
		},
	}
	cmd.Flags().DurationVar(&in, "in", 0, "`time` from now until the delivery, by the clock of the server")
	cmd.Flags().StringVar(&at, "at", "", "`time` of the delivery, as 2026-01-31T18:00:00Z")
	return cmd
}

// deliveryTime returns a request for the time that the flags ask for: one of them must.
func deliveryTime(cmd *cobra.Command, in time.Duration, at string) (*adminpb.PostponeTimersRequest, error) {
	switch hasIn, hasAt := cmd.Flags().Changed("in"), cmd.Flags().Changed("at"); {
	case hasIn == hasAt:
		return nil, usagef("one of --in and --at must say when")
	case hasIn && in < 0:
		return nil, usagef("in %s: must not be negative", in)
	case hasIn:
		return &adminpb.PostponeTimersRequest{Delay: durationpb.New(in)}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return nil, usagef("at %q: must be a time such as 2026-01-31T18:00:00Z", at)
	}
	return &adminpb.PostponeTimersRequest{DeliverAt: timestamppb.New(t)}, nil
}
