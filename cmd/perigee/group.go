package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
)

func (a *app) groupCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "group", Short: "Create, show, change, reset and delete consumer groups", Args: noSubcommand, RunE: showHelp}
	cmd.AddCommand(a.groupCreate(), a.groupList(), a.groupDescribe(), a.groupUpdate(), a.groupDelete(), a.groupResetOffset())
	return a.addEndpoint(cmd)
}

// groupView is how a consumer group is printed.
type groupView struct {
	Namespace       string    `json:"namespace"`
	Name            string    `json:"name"`
	ID              uint32    `json:"id"`
	Version         uint64    `json:"version"`
	FIFO            bool      `json:"fifo"`
	LiteTopic       string    `json:"lite_topic,omitempty"`
	LiteExclusive   bool      `json:"lite_exclusive,omitempty"`
	Broadcast       bool      `json:"broadcast,omitempty"`
	Instances       int32     `json:"instances,omitempty"`
	Retry           retryView `json:"retry"`
	Start           string    `json:"start"`
	DeadLetterTopic string    `json:"dead_letter_topic"`
}

type retryView struct {
	MaxAttempts int32    `json:"max_attempts"`
	Delays      []string `json:"delays,omitempty"`
	Initial     string   `json:"initial,omitempty"`
	Max         string   `json:"max,omitempty"`
	Multiplier  float64  `json:"multiplier,omitempty"`
}

type progressView struct {
	Namespace string `json:"namespace"`
	Topic     string `json:"topic"`
	Ready     int64  `json:"ready"`
	InFlight  int64  `json:"in_flight"`
	Blocked   int64  `json:"blocked"`
	UsedUp    int64  `json:"used_up"`
	// Lites have messages that the group was never given, the oldest of which is so old.
	Lites  int64  `json:"lite_topics,omitempty"`
	Oldest string `json:"lite_oldest_age,omitempty"`
}

func viewGroup(g *adminpb.Group) groupView {
	retry := g.GetRetry()
	v := groupView{
		Namespace: g.GetNamespace(), Name: g.GetName(), ID: g.GetId(), Version: g.GetVersion(),
		LiteTopic: g.GetLiteTopic(), LiteExclusive: g.GetLiteExclusive(),
		Broadcast: g.GetBroadcast(), Instances: g.GetInstances(),
		FIFO: g.GetFifo(), Start: viewStart(g.GetStart()), DeadLetterTopic: g.GetDeadLetterTopic(),
		Retry: retryView{MaxAttempts: retry.GetMaxAttempts()},
	}
	for _, d := range retry.GetCustomized() {
		v.Retry.Delays = append(v.Retry.Delays, shortDuration(d.AsDuration()))
	}
	if len(v.Retry.Delays) == 0 && retry.GetInitial() != nil {
		v.Retry.Initial = shortDuration(retry.GetInitial().AsDuration())
		v.Retry.Max = shortDuration(retry.GetMax().AsDuration())
		v.Retry.Multiplier = retry.GetMultiplier()
	}
	return v
}

func (v groupView) describe(w io.Writer) {
	order := "none"
	if v.FIFO {
		order = "within each message group (FIFO)"
	}
	fmt.Fprintf(w, "group         %s\n", mq.Resource{Namespace: v.Namespace, Name: v.Name})
	fmt.Fprintf(w, "order         %s\n", order)
	fmt.Fprintf(w, "attempts      %d\n", v.Retry.MaxAttempts)
	fmt.Fprintf(w, "retry         %s\n", v.Retry)
	fmt.Fprintf(w, "start         %s\n", v.Start)
	fmt.Fprintf(w, "dead letters  %s\n", v.DeadLetterTopic)
	if v.LiteTopic != "" {
		fmt.Fprintf(w, "lite topic    %s\n", v.LiteTopic)
	}
	if v.Broadcast {
		fmt.Fprintf(w, "broadcast     to %d clients\n", v.Instances)
	}
	if v.LiteExclusive {
		fmt.Fprintf(w, "lite model    exclusive\n")
	}
}

// String returns the delays as a person would say them.
func (r retryView) String() string {
	if len(r.Delays) > 0 {
		return "after " + strings.Join(r.Delays, ", ")
	}
	if r.Initial == "" {
		return "the server's default"
	}
	return fmt.Sprintf("after %s, then %g times as long each time, up to %s", r.Initial, r.Multiplier, r.Max)
}

// shortDuration returns d without units that are zero: 2h and not 2h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (a *app) groupCreate() *cobra.Command {
	var flags groupFlags
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a consumer group; again with the same configuration is no error",
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			retry, err := flags.retryPolicy(cmd)
			if err != nil {
				return err
			}
			start, err := flags.startPosition(cmd)
			if err != nil {
				return err
			}
			if retry != nil && len(retry.GetCustomized()) == 0 && retry.GetInitial() == nil {
				// Only the number of attempts was named.
				retry.Customized = durations(mq.DefaultRetryPolicy().Customized)
			}
			req := &adminpb.CreateGroupRequest{
				Namespace: a.endpoint.namespace, Name: args[0], Fifo: flags.fifo, Retry: retry, Start: start,
				LiteTopic: flags.liteTopic, LiteExclusive: flags.exclusive, Broadcast: flags.broadcast,
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.CreateGroup), req)
				if err != nil {
					return err
				}
				return a.print(struct {
					Group   groupView `json:"group"`
					Created bool      `json:"created"`
				}{viewGroup(resp.GetGroup()), resp.GetCreated()}, func(w io.Writer) {
					fmt.Fprintf(w, "%s group %s\n", verb(resp.GetCreated()), args[0])
				})
			})
		},
	}
	flags.add(cmd)
	return cmd
}

func (a *app) groupList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the consumer groups of a namespace", Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.ListGroups), &adminpb.ListGroupsRequest{Namespace: a.endpoint.namespace})
				if err != nil {
					return err
				}
				views := make([]groupView, 0, len(resp.GetGroups()))
				for _, g := range resp.GetGroups() {
					views = append(views, viewGroup(g))
				}
				return printAll(a, views, "NAME FIFO ATTEMPTS START", func(v groupView) []any {
					return []any{v.Name, v.FIFO, v.Retry.MaxAttempts, v.Start}
				})
			})
		},
	}
}

func (a *app) groupDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show a consumer group and its progress", Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withConn(func(conn *client.Conn) error {
				ctx, admin := cmd.Context(), adminpb.NewAdminServiceClient(conn)
				resp, err := call(ctx, method(admin.GetGroup),
					&adminpb.GetGroupRequest{Namespace: a.endpoint.namespace, Name: args[0]})
				if err != nil {
					return err
				}
				queues, missing, err := listPositions(ctx, conn, &adminpb.ListPositionsRequest{Namespace: a.endpoint.namespace, Group: args[0]})
				if err != nil {
					return err
				}
				v, topics := viewGroup(resp.GetGroup()), []progressView{}
				for _, t := range resp.GetTopics() {
					p := progressView{
						Namespace: t.GetNamespace(), Topic: t.GetName(), Ready: t.GetReady(), InFlight: t.GetInFlight(), Blocked: t.GetBlocked(),
						UsedUp: t.GetUsedUp(), Lites: t.GetLiteTopics(),
					}
					if t.GetLiteOldestAge() != nil {
						p.Oldest = shortDuration(t.GetLiteOldestAge().AsDuration().Round(time.Second))
					}
					topics = append(topics, p)
				}
				missing = both(missing, resp.GetUnreachableShards())
				err = a.print(struct {
					Group   groupView      `json:"group"`
					Topics  []progressView `json:"topics"`
					Queues  []positionView `json:"queues"`
					Missing []string       `json:"unreachable_shards,omitempty"`
				}{v, topics, queues, missing}, func(w io.Writer) {
					v.describe(w)
					table(w, "TOPIC READY IN-FLIGHT BLOCKED USED-UP", topics, func(t progressView) []any {
						return []any{mq.Resource{Namespace: t.Namespace, Name: t.Topic}, t.Ready, t.InFlight, t.Blocked, t.UsedUp}
					})
					for _, t := range topics {
						if t.Lites > 0 {
							fmt.Fprintf(w, "\n%s: messages wait in %d lite topics, the oldest for %s\n", mq.Resource{Namespace: t.Namespace, Name: t.Topic}, t.Lites, t.Oldest)
						}
					}
					positionTable(w, queues)
				})
				return errors.Join(err, unasked(missing))
			})
		},
	}
}

func (a *app) groupUpdate() *cobra.Command {
	var flags groupFlags
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change how a consumer group retries, orders and starts", Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &adminpb.UpdateGroupRequest{Namespace: a.endpoint.namespace, Name: args[0]}
			retry, err := flags.retryPolicy(cmd)
			if err != nil {
				return err
			}
			if req.Start, err = flags.startPosition(cmd); err != nil {
				return err
			}
			if cmd.Flags().Changed("fifo") {
				req.Fifo = &flags.fifo
			}
			if cmd.Flags().Changed("lite-topic") {
				req.LiteTopic = &flags.liteTopic
			}
			if cmd.Flags().Changed("broadcast") {
				req.Broadcast = &flags.broadcast
			}
			if cmd.Flags().Changed("lite-exclusive") {
				req.LiteExclusive = &flags.exclusive
			}
			if retry == nil && req.Start == nil && req.Fifo == nil && req.LiteTopic == nil && req.LiteExclusive == nil && req.Broadcast == nil {
				return usagef("nothing to change; see %s --help", cmd.CommandPath())
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				if retry != nil {
					have, err := call(ctx, method(admin.GetGroup),
						&adminpb.GetGroupRequest{Namespace: a.endpoint.namespace, Name: args[0]})
					if err != nil {
						return err
					}
					req.Retry = flags.complete(cmd, retry, have.GetGroup().GetRetry())
				}
				resp, err := call(ctx, method(admin.UpdateGroup), req)
				if err != nil {
					return err
				}
				v := viewGroup(resp.GetGroup())
				return a.print(struct {
					Group groupView `json:"group"`
				}{v}, v.describe)
			})
		},
	}
	flags.add(cmd)
	return cmd
}

func (a *app) groupDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a consumer group and its progress", Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				_, err := call(ctx, method(admin.DeleteGroup),
					&adminpb.DeleteGroupRequest{Namespace: a.endpoint.namespace, Name: args[0]})
				if err != nil {
					return err
				}
				return a.printDeleted("group", args[0])
			})
		},
	}
}

// durations turns delays into the protocol's.
func durations(delays []time.Duration) []*durationpb.Duration {
	out := make([]*durationpb.Duration, 0, len(delays))
	for _, d := range delays {
		out = append(out, durationpb.New(d))
	}
	return out
}
