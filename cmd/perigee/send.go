package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
)

// sendFlags describe the messages to send.
type sendFlags struct {
	count      int
	tag        string
	keys       []string
	properties []string
	group      string
	delay      time.Duration
	priority   int32
}

func (a *app) sendCommand() *cobra.Command {
	var flags sendFlags
	cmd := &cobra.Command{
		Use: "send TOPIC [BODY]", Short: "Send messages",
		Long: "Send messages. The body is read from standard input when it is - or when it is\n" +
			"left out and standard input is not a terminal.",
		Args: arguments("TOPIC", "[BODY]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := a.body(args[1:])
			if err != nil {
				return err
			}
			message, err := flags.message(cmd, body)
			if err != nil {
				return err
			}
			if flags.count < 1 {
				return usagef("count %d: must be 1 or more", flags.count)
			}
			return a.withConn(func(conn *client.Conn) error {
				message.Topic = conn.Resource(args[0])
				return a.send(cmd.Context(), conn, message, flags.count)
			})
		},
	}
	cmd.Flags().IntVar(&flags.count, "count", 1, "`number` of messages to send, each with the same content")
	cmd.Flags().StringVar(&flags.tag, "tag", "", "`tag` to filter by")
	cmd.Flags().StringArrayVar(&flags.keys, "key", nil, "`key` to find the message by; may be repeated")
	cmd.Flags().StringArrayVar(&flags.properties, "property", nil, "`key=value` of a property; may be repeated")
	cmd.Flags().StringVar(&flags.group, "message-group", "", "`group` within which a FIFO topic keeps the order")
	cmd.Flags().DurationVar(&flags.delay, "delay", 0, "`time` until the message is visible, on a DELAY topic")
	cmd.Flags().Int32Var(&flags.priority, "priority", 0, "`number` from 0 up, on a PRIORITY topic: the higher, the sooner")
	return a.addEndpoint(cmd)
}

// body returns the body that the command line or standard input holds.
func (a *app) body(args []string) ([]byte, error) {
	if len(args) == 1 && args[0] != "-" {
		return []byte(args[0]), nil
	}
	if len(args) == 0 && isTerminal(a.stdin) {
		return nil, usagef("a body is missing: name it, or give it on standard input")
	}
	body, err := io.ReadAll(a.stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	return body, nil
}

// isTerminal reports whether stream is a terminal, as far as a character device
// is one.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// message returns the message without topic and id.
func (f *sendFlags) message(cmd *cobra.Command, body []byte) (*rmqpb.Message, error) {
	properties := make(map[string]string, len(f.properties))
	for _, p := range f.properties {
		key, value, ok := strings.Cut(p, "=")
		if !ok || key == "" {
			return nil, usagef("property %q: must be key=value", p)
		}
		properties[key] = value
	}
	system := &rmqpb.SystemProperties{
		Keys:         f.keys,
		MessageType:  rmqpb.MessageType_NORMAL,
		BodyEncoding: rmqpb.Encoding_IDENTITY,
		BornHost:     client.Host(),
	}
	if f.tag != "" {
		system.Tag = &f.tag
	}
	if cmd.Flags().Changed("delay") {
		if f.delay < 0 {
			return nil, usagef("delay %s: must not be negative", f.delay)
		}
		system.MessageType = rmqpb.MessageType_DELAY
		system.DeliveryTimestamp = timestamppb.New(time.Now().Add(f.delay))
		properties["perigee.delay"] = f.delay.String() // by the server's clock
	}
	if f.group != "" {
		system.MessageType = rmqpb.MessageType_FIFO
		system.MessageGroup = &f.group
	}
	if cmd.Flags().Changed("priority") {
		if f.priority < 0 {
			return nil, usagef("priority %d: must not be negative", f.priority)
		}
		system.MessageType = rmqpb.MessageType_PRIORITY
		system.Priority = &f.priority
	}
	return &rmqpb.Message{UserProperties: properties, SystemProperties: system, Body: bytes.Clone(body)}, nil
}

// sentView is how the result of a send is printed.
type sentView struct {
	MessageID    string `json:"message_id"`
	Topic        string `json:"topic"`
	Offset       int64  `json:"offset"`
	RecallHandle string `json:"recall_handle,omitempty"`
}

func (a *app) send(ctx context.Context, conn *client.Conn, message *rmqpb.Message, count int) error {
	service, ids := rmqpb.NewMessagingServiceClient(conn), client.NewMessageIDs()
	for range count {
		message.SystemProperties.MessageId = ids.Next()
		message.SystemProperties.BornTimestamp = timestamppb.Now()
		resp, err := call(ctx, method(service.SendMessage), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message}})
		if err != nil {
			return err
		}
		entry := &rmqpb.SendResultEntry{}
		if entries := resp.GetEntries(); len(entries) > 0 {
			entry = entries[0]
			if err := client.Check(entry.GetStatus()); err != nil {
				return err
			}
		}
		if err := client.Check(resp.GetStatus()); err != nil {
			return err
		}
		v := sentView{entry.GetMessageId(), message.GetTopic().GetName(), entry.GetOffset(), entry.GetRecallHandle()}
		err = a.print(v, func(w io.Writer) {
			if v.RecallHandle != "" {
				at := message.GetSystemProperties().GetDeliveryTimestamp().AsTime()
				fmt.Fprintf(w, "sent %s to %s, to be delivered at %s\n", v.MessageID, v.Topic, at.Format(time.RFC3339))
				return
			}
			fmt.Fprintf(w, "sent %s to %s at offset %d\n", v.MessageID, v.Topic, v.Offset)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
