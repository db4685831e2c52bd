package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/mq"
)

func (a *app) topicCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "topic", Short: "Create, show, change, empty and delete topics", Args: noSubcommand, RunE: showHelp}
	cmd.AddCommand(a.topicCreate(), a.topicList(), a.topicDescribe(), a.topicUpdate(), a.topicPurge(), a.topicDelete())
	return a.addEndpoint(cmd)
}

// topicView is how a topic is printed.
type topicView struct {
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	Permission string          `json:"permission"`
	ID         uint32          `json:"id"`
	Version    uint64          `json:"version"`
	Shards     []topicShardOut `json:"shards"`
	// Retention is empty for the default of the node.
	Retention string `json:"retention,omitempty"`
	// Dedup is how long a message that was sent is known; 0s: not at all.
	Dedup string `json:"dedup,omitempty"`
	// LiteTTL is how long lite topics live that nobody writes to; empty: for ever.
	LiteTTL string `json:"lite_ttl,omitempty"`
}

type topicShardOut struct {
	Shard       string `json:"shard"`
	ReadQueues  int32  `json:"read_queues"`
	WriteQueues int32  `json:"write_queues"`
}

type queueView struct {
	Shard     string `json:"shard"`
	Queue     int32  `json:"queue"`
	MinOffset int64  `json:"min_offset"`
	MaxOffset int64  `json:"max_offset"`
}

func viewTopic(t *adminpb.Topic) topicView {
	v := topicView{
		Namespace: t.GetNamespace(), Name: t.GetName(), ID: t.GetId(), Version: t.GetVersion(),
		Type:       strings.TrimPrefix(t.GetType().String(), "TOPIC_TYPE_"),
		Permission: strings.TrimPrefix(t.GetPermission().String(), "PERMISSION_"),
		Shards:     []topicShardOut{},
	}
	if t.GetRetention() != nil {
		v.Retention = shortDuration(t.GetRetention().AsDuration())
	}
	if t.GetDedup() != nil {
		v.Dedup = shortDuration(t.GetDedup().AsDuration())
	}
	if t.GetLiteTtl() != nil {
		v.LiteTTL = shortDuration(t.GetLiteTtl().AsDuration())
	}
	for _, s := range t.GetShards() {
		v.Shards = append(v.Shards, topicShardOut{s.GetShard(), s.GetReadQueues(), s.GetWriteQueues()})
	}
	return v
}

// queues returns how many queues can be read and written, over all shards.
func (v topicView) queues() (read, write int32) {
	for _, s := range v.Shards {
		read += s.ReadQueues
		write += s.WriteQueues
	}
	return read, write
}

func viewQueues(list []*adminpb.QueueStatus) []queueView {
	views := make([]queueView, 0, len(list))
	for _, q := range list {
		views = append(views, queueView{q.GetShard(), q.GetQueue(), q.GetMinOffset(), q.GetMaxOffset()})
	}
	return views
}

func (v topicView) describe(w io.Writer) {
	fmt.Fprintf(w, "topic       %s\n", mq.Resource{Namespace: v.Namespace, Name: v.Name})
	fmt.Fprintf(w, "type        %s\n", v.Type)
	fmt.Fprintf(w, "permission  %s\n", v.Permission)
	fmt.Fprintf(w, "retention   %s\n", cmp.Or(v.Retention, "the node's default"))
	fmt.Fprintf(w, "dedup       %s\n", v.Dedup)
	if v.Type == mq.TopicLite.String() {
		fmt.Fprintf(w, "lite-ttl    %s\n", cmp.Or(v.LiteTTL, "for ever"))
	}
	for _, s := range v.Shards {
		fmt.Fprintf(w, "queues      %d to read, %d to write on %s\n", s.ReadQueues, s.WriteQueues, s.Shard)
	}
}

func parseTopicType(s string) (adminpb.TopicType, error) {
	t, err := mq.ParseTopicType(s)
	if err != nil {
		return 0, &usageError{err}
	}
	return adminpb.TopicType(t), nil
}

func parsePermission(s string) (adminpb.Permission, error) {
	name := "PERMISSION_" + strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
	if p, ok := adminpb.Permission_value[name]; ok && p != 0 {
		return adminpb.Permission(p), nil
	}
	return 0, usagef("permission %q: must be one of NONE, READ, WRITE, READ_WRITE", s)
}

// withAdmin runs do with the administration of the server.
func (a *app) withAdmin(cmd *cobra.Command, do func(ctx context.Context, admin adminpb.AdminServiceClient) error) error {
	return a.withConn(func(conn *client.Conn) error {
		return do(cmd.Context(), adminpb.NewAdminServiceClient(conn))
	})
}

// method binds the options of a generated method.
func method[Request, Response any](m func(context.Context, Request, ...grpc.CallOption) (Response, error)) func(context.Context, Request) (Response, error) {
	return func(ctx context.Context, req Request) (Response, error) { return m(ctx, req) }
}

func (a *app) topicCreate() *cobra.Command {
	var kind, permission string
	var queues int32
	var retention, dedup, liteTTL time.Duration
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a topic; again with the same configuration is no error",
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &adminpb.CreateTopicRequest{Namespace: a.endpoint.namespace, Name: args[0], Queues: queues}
			if retention != 0 {
				req.Retention = durationpb.New(retention)
			}
			if liteTTL != 0 {
				req.LiteTtl = durationpb.New(liteTTL)
			}
			if cmd.Flags().Changed("dedup") {
				req.Dedup = durationpb.New(dedup)
			}
			var err error
			if req.Type, err = parseTopicType(kind); err != nil {
				return err
			}
			if req.Permission, err = parsePermission(permission); err != nil {
				return err
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.CreateTopic), req)
				if err != nil {
					return err
				}
				v := viewTopic(resp.GetTopic())
				return a.print(struct {
					Topic   topicView `json:"topic"`
					Created bool      `json:"created"`
				}{v, resp.GetCreated()}, func(w io.Writer) {
					_, write := v.queues()
					fmt.Fprintf(w, "%s topic %s (%s, %d queues)\n", verb(resp.GetCreated()), args[0], v.Type, write)
				})
			})
		},
	}
	cmd.Flags().StringVar(&kind, "type", "NORMAL", "`type` of the messages; NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED")
	cmd.Flags().Int32Var(&queues, "queues", 0, "`number` of queues on each shard; 0: the server's default")
	cmd.Flags().StringVar(&permission, "permission", "READ_WRITE", "`permission`: NONE, READ, WRITE or READ_WRITE")
	cmd.Flags().DurationVar(&retention, "retention", 0, "`time` to keep messages for, from 1m; 0: the node's default")
	cmd.Flags().DurationVar(&dedup, "dedup", mq.DefaultDedup, "`time`, 1s to 1h, for which a message that is sent again is not stored again; 0: off")
	liteTTLFlag(cmd, &liteTTL)
	return cmd
}

func verb(created bool) string {
	if created {
		return "created"
	}
	return "there was already"
}

func (a *app) topicList() *cobra.Command {
	var system bool
	cmd := &cobra.Command{
		Use: "list", Short: "List the topics of a namespace", Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.ListTopics),
					&adminpb.ListTopicsRequest{Namespace: a.endpoint.namespace, IncludeSystem: system})
				if err != nil {
					return err
				}
				views := make([]topicView, 0, len(resp.GetTopics()))
				for _, t := range resp.GetTopics() {
					views = append(views, viewTopic(t))
				}
				return printAll(a, views, "NAME TYPE PERMISSION READ WRITE RETENTION", func(v topicView) []any {
					read, write := v.queues()
					return []any{v.Name, v.Type, v.Permission, read, write, cmp.Or(v.Retention, "default")}
				})
			})
		},
	}
	cmd.Flags().BoolVar(&system, "system", false, "list topics of the server itself too, such as dead-letter topics")
	return cmd
}

func (a *app) topicDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show a topic and its queues", Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.GetTopic),
					&adminpb.GetTopicRequest{Namespace: a.endpoint.namespace, Name: args[0]})
				if err != nil {
					return err
				}
				v, queues := viewTopic(resp.GetTopic()), viewQueues(resp.GetQueues())
				err = a.print(struct {
					Topic   topicView   `json:"topic"`
					Queues  []queueView `json:"queues"`
					Lites   int64       `json:"lite_topics,omitempty"`
					InLite  int64       `json:"lite_messages,omitempty"`
					Missing []string    `json:"unreachable_shards,omitempty"`
				}{v, queues, resp.GetLiteTopics(), resp.GetLiteMessages(), resp.GetUnreachableShards()}, func(w io.Writer) {
					v.describe(w)
					if v.Type == mq.TopicLite.String() {
						fmt.Fprintf(w, "lite topics %d, with %s\n", resp.GetLiteTopics(), messages(resp.GetLiteMessages()))
					}
					table(w, "SHARD QUEUE FIRST NEXT MESSAGES", queues, func(q queueView) []any {
						return []any{q.Shard, q.Queue, q.MinOffset, q.MaxOffset, q.MaxOffset - q.MinOffset}
					})
				})
				return errors.Join(err, unasked(resp.GetUnreachableShards()))
			})
		},
	}
}

func (a *app) topicUpdate() *cobra.Command {
	var permission string
	var queues, read, write int32
	var retention, dedup, liteTTL time.Duration
	var spread bool
	cmd := &cobra.Command{
		Use: "update NAME", Short: "Change the queues, the permission, the retention or the dedup of a topic, or spread it over new shards", Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &adminpb.UpdateTopicRequest{Namespace: a.endpoint.namespace, Name: args[0], Spread: spread}
			changed := cmd.Flags().Changed
			if changed("queues") {
				req.ReadQueues, req.WriteQueues = &queues, &queues
			}
			if changed("read-queues") {
				req.ReadQueues = &read
			}
			if changed("write-queues") {
				req.WriteQueues = &write
			}
			if changed("permission") {
				p, err := parsePermission(permission)
				if err != nil {
					return err
				}
				req.Permission = &p
			}
			if changed("retention") {
				req.Retention = durationpb.New(retention)
			}
			if changed("dedup") {
				req.Dedup = durationpb.New(dedup)
			}
			if changed("lite-ttl") {
				req.LiteTtl = durationpb.New(liteTTL)
			}
			if !spread && req.LiteTtl == nil && req.ReadQueues == nil && req.WriteQueues == nil && req.Permission == nil && req.Retention == nil && req.Dedup == nil {
				return usagef("nothing to change; see %s --help", cmd.CommandPath())
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.UpdateTopic), req)
				if err != nil {
					return err
				}
				v := viewTopic(resp.GetTopic())
				return a.print(struct {
					Topic topicView `json:"topic"`
				}{v}, v.describe)
			})
		},
	}
	cmd.Flags().Int32Var(&queues, "queues", 0, "new `number` of queues on each shard")
	cmd.Flags().Int32Var(&read, "read-queues", 0, "new `number` of queues to read on each shard")
	cmd.Flags().Int32Var(&write, "write-queues", 0, "new `number` of queues to write on each shard")
	cmd.Flags().StringVar(&permission, "permission", "", "`permission`: NONE, READ, WRITE or READ_WRITE")
	cmd.Flags().DurationVar(&retention, "retention", 0, "`time` to keep messages for, stored ones too, from 1m; 0: the node's default")
	cmd.Flags().DurationVar(&dedup, "dedup", 0, "`time`, 1s to 1h, for which a message that is sent again is not stored again; 0: off")
	cmd.Flags().BoolVar(&spread, "spread", false, "give it queues on every shard that is active and that it is not on; message groups stay where they are")
	liteTTLFlag(cmd, &liteTTL)
	return cmd
}

func liteTTLFlag(cmd *cobra.Command, ttl *time.Duration) {
	cmd.Flags().DurationVar(ttl, "lite-ttl", 0, "of a LITE topic: `time`, 1m to 720h, for which lite topics live that nobody writes to; 0: for ever")
}

func (a *app) topicPurge() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "purge NAME --yes", Short: "Remove all messages of a topic, for every consumer group; the topic stays",
		Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return usagef("purging removes every message of topic %s, for all consumer groups, for good: say --yes", args[0])
			}
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				resp, err := call(ctx, method(admin.PurgeTopic),
					&adminpb.PurgeTopicRequest{Namespace: a.endpoint.namespace, Name: args[0]})
				if err != nil {
					return err
				}
				return a.print(struct {
					Topic  string      `json:"topic"`
					Purged int64       `json:"purged"`
					Queues []queueView `json:"queues"`
				}{args[0], resp.GetPurged(), viewQueues(resp.GetQueues())}, func(w io.Writer) {
					fmt.Fprintf(w, "purged topic %s: %s removed\n", args[0], messages(resp.GetPurged()))
				})
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

// messages returns a number of messages as a person would say it.
func messages(n int64) string {
	if n == 1 {
		return "1 message"
	}
	return fmt.Sprintf("%d messages", n)
}

func (a *app) topicDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Short: "Delete a topic and its messages", Args: arguments("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withAdmin(cmd, func(ctx context.Context, admin adminpb.AdminServiceClient) error {
				_, err := call(ctx, method(admin.DeleteTopic),
					&adminpb.DeleteTopicRequest{Namespace: a.endpoint.namespace, Name: args[0]})
				if err != nil {
					return err
				}
				return a.printDeleted("topic", args[0])
			})
		},
	}
}

func (a *app) printDeleted(kind, name string) error {
	return a.print(map[string]string{"deleted": name}, func(w io.Writer) { fmt.Fprintf(w, "deleted %s %s\n", kind, name) })
}
