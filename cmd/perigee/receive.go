package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
)

// maxReceiveBatch is the most messages the protocol's servers deliver at a time.
const maxReceiveBatch = 32

// receiveMargin is how much longer than its long poll a receive may take.
const receiveMargin = 5 * time.Second

// receiveFlags say what to receive.
type receiveFlags struct {
	group     string
	max       int
	wait      time.Duration
	invisible time.Duration
	tag       string
	sql       string
	noAck     bool
}

func (a *app) receiveCommand() *cobra.Command {
	var flags receiveFlags
	cmd := &cobra.Command{
		Use: "receive TOPIC --group GROUP", Short: "Receive messages and acknowledge them",
		Long: "Receive messages, print them and acknowledge what was printed. Ends when --max\n" +
			"messages have come, or when there is none: --wait is how long to wait for the first.",
		Args: arguments("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case flags.group == "":
				return usagef("a consumer group is missing: name it with --group")
			case flags.max < 1:
				return usagef("max %d: must be 1 or more", flags.max)
			case flags.wait < 0 || flags.invisible < 0:
				return usagef("wait %s, invisible %s: must not be negative", flags.wait, flags.invisible)
			case flags.sql != "" && cmd.Flags().Changed("tag"):
				return usagef("--tag and --filter-sql: only one of them can be the filter; TAGS is the tag in an expression")
			}
			return a.withConn(func(conn *client.Conn) error {
				r := &receiving{app: a, conn: conn, flags: flags, topic: args[0]}
				return r.run(cmd.Context())
			})
		},
	}
	cmd.Flags().StringVar(&flags.group, "group", "", "consumer `group` to receive for")
	cmd.Flags().IntVar(&flags.max, "max", maxReceiveBatch, "`number` of messages after which to end")
	cmd.Flags().DurationVar(&flags.wait, "wait", 5*time.Second, "`time` to wait for the first message")
	cmd.Flags().DurationVar(&flags.invisible, "invisible", 30*time.Second, "`time` that others do not get the messages for")
	cmd.Flags().StringVar(&flags.tag, "tag", "*", "`tags` to receive, as in \"a || b\"")
	cmd.Flags().StringVar(&flags.sql, "filter-sql", "", "SQL92 `expression` over properties, as in \"price > 5 AND region IN ('eu')\"")
	cmd.Flags().BoolVar(&flags.noAck, "no-ack", false, "do not acknowledge: the messages come again")
	return a.addEndpoint(cmd)
}

// messageView is how a message is printed. A body that is not text is in
// body_base64.
type messageView struct {
	MessageID     string            `json:"message_id"`
	Topic         string            `json:"topic"`
	Queue         int32             `json:"queue"`
	Offset        int64             `json:"offset"`
	Attempt       int32             `json:"attempt"`
	Tag           string            `json:"tag,omitempty"`
	Keys          []string          `json:"keys,omitempty"`
	MessageGroup  string            `json:"message_group,omitempty"`
	Properties    map[string]string `json:"properties,omitempty"`
	Born          string            `json:"born,omitempty"`
	Stored        string            `json:"stored,omitempty"`
	Body          *string           `json:"body,omitempty"`
	BodyBase64    []byte            `json:"body_base64,omitempty"`
	ReceiptHandle string            `json:"receipt_handle"`
}

func viewMessage(m *rmqpb.Message) messageView {
	system := m.GetSystemProperties()
	v := messageView{
		MessageID: system.GetMessageId(), Topic: m.GetTopic().GetName(),
		Queue: system.GetQueueId(), Offset: system.GetQueueOffset(), Attempt: system.GetDeliveryAttempt(),
		Tag: system.GetTag(), Keys: system.GetKeys(), MessageGroup: system.GetMessageGroup(),
		Properties: m.GetUserProperties(), ReceiptHandle: system.GetReceiptHandle(),
		Born: viewTime(system.GetBornTimestamp()), Stored: viewTime(system.GetStoreTimestamp()),
	}
	if utf8.Valid(m.GetBody()) {
		body := string(m.GetBody())
		v.Body = &body
	} else {
		v.BodyBase64 = m.GetBody()
	}
	return v
}

func viewTime(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

func (v messageView) write(w io.Writer) {
	fmt.Fprintf(w, "%s  queue %d, offset %d, attempt %d", v.MessageID, v.Queue, v.Offset, v.Attempt)
	if v.Tag != "" {
		fmt.Fprintf(w, ", tag %s", v.Tag)
	}
	if len(v.Keys) > 0 {
		fmt.Fprintf(w, ", keys %s", strings.Join(v.Keys, " "))
	}
	if v.MessageGroup != "" {
		fmt.Fprintf(w, ", message group %s", v.MessageGroup)
	}
	for _, key := range slices.Sorted(maps.Keys(v.Properties)) {
		fmt.Fprintf(w, ", %s=%s", key, v.Properties[key])
	}
	if v.Body != nil {
		fmt.Fprintf(w, "\n%s\n", *v.Body)
	} else {
		fmt.Fprintf(w, "\n(%d bytes that are not text; --json shows them)\n", len(v.BodyBase64))
	}
}

// receiving is one run of the command.
type receiving struct {
	app   *app
	conn  *client.Conn
	flags receiveFlags
	topic string

	printed, acked int // messages so far
}

// lost turns the error of a call into one that says what was received before, when the
// server has gone meanwhile.
func (r *receiving) lost(err error) error {
	if status.Code(err) != codes.Unavailable {
		return err
	}
	done := fmt.Sprintf("%d messages received", r.printed)
	switch {
	case r.printed == 0 || r.flags.noAck:
	case r.acked == r.printed:
		done += " and acknowledged"
	default:
		done += fmt.Sprintf(", %d of them acknowledged; the others may come again", r.acked)
	}
	return &goneError{endpoint: r.app.endpoint.address, done: done, err: err}
}

func (r *receiving) run(ctx context.Context) error {
	queueCtx, cancel := context.WithTimeout(ctx, callTimeout)
	queues, err := r.conn.Queues(queueCtx, r.topic, rmqpb.Permission_READ)
	cancel()
	if err != nil {
		return err
	}
	filter := &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: r.flags.tag}
	if r.flags.sql != "" {
		filter = &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: r.flags.sql}
	}
	session := r.conn.StartConsumer(ctx, r.flags.group, r.topic, filter, r.flags.wait)
	defer session.Close()

	total, empty, deadline := 0, 0, time.Now().Add(r.flags.wait)
	for total < r.flags.max {
		wait := max(time.Until(deadline), 0)
		if total > 0 {
			wait = 0 // only what is there already
		}
		queue := queues[(total+empty)%len(queues)]
		messages, err := r.receive(ctx, queue, filter, min(r.flags.max-total, maxReceiveBatch), wait)
		if ctx.Err() != nil {
			return nil // interrupted; what was received is printed and acknowledged
		}
		if err != nil {
			return r.lost(err)
		}
		total += len(messages)
		if len(messages) > 0 {
			empty = 0
			if err := r.settle(ctx, messages); err != nil {
				return r.lost(err)
			}
			continue
		}
		// The end is known when every queue had its turn.
		if empty++; empty >= len(queues) && (total > 0 || !time.Now().Before(deadline)) {
			break
		}
	}
	if total == 0 && !r.app.json {
		fmt.Fprintf(r.app.stderr, "no message for group %s within %s\n", r.flags.group, r.flags.wait)
	}
	return nil
}

// receive makes one call. No message is no error.
func (r *receiving) receive(ctx context.Context, queue *rmqpb.MessageQueue, filter *rmqpb.FilterExpression,
	batch int, wait time.Duration,
) ([]*rmqpb.Message, error) {
	ctx, cancel := context.WithTimeout(ctx, wait+receiveMargin)
	defer cancel()
	stream, err := rmqpb.NewMessagingServiceClient(r.conn).ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group: r.conn.Resource(r.flags.group), MessageQueue: queue, FilterExpression: filter, BatchSize: int32(batch),
		InvisibleDuration: durationpb.New(r.flags.invisible), LongPollingTimeout: durationpb.New(wait),
	})
	if err != nil {
		return nil, err
	}
	var messages []*rmqpb.Message
	var result *rmqpb.Status
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if m := resp.GetMessage(); m != nil {
			messages = append(messages, m)
		}
		if s := resp.GetStatus(); s != nil {
			result = s
		}
	}
	if len(messages) == 0 && result.GetCode() == rmqpb.Code_MESSAGE_NOT_FOUND {
		return nil, nil
	}
	return messages, client.Check(result)
}

// settle prints messages and acknowledges them.
func (r *receiving) settle(ctx context.Context, messages []*rmqpb.Message) error {
	ack := &rmqpb.AckMessageRequest{Group: r.conn.Resource(r.flags.group), Topic: r.conn.Resource(r.topic)}
	for _, m := range messages {
		v := viewMessage(m)
		if err := r.app.print(v, v.write); err != nil {
			return err
		}
		r.printed++
		ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{MessageId: v.MessageID, ReceiptHandle: v.ReceiptHandle})
	}
	if r.flags.noAck {
		return nil
	}
	resp, err := call(context.WithoutCancel(ctx), method(rmqpb.NewMessagingServiceClient(r.conn).AckMessage), ack)
	if err != nil {
		return err
	}
	for _, e := range resp.GetEntries() {
		if err := client.Check(e.GetStatus()); err != nil {
			return fmt.Errorf("acknowledging %s: %w", e.GetMessageId(), err)
		}
		r.acked++
	}
	return client.Check(resp.GetStatus())
}
