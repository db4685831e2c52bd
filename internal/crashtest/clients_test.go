package crashtest

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/receipt"
)

const topicName = "crash"

var topicResource = &rmqpb.Resource{Name: topicName}

// call returns a context with the headers of a client, for one call.
func call(ctx context.Context, client string, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", client, "x-mq-language", "GO", "x-mq-client-version", "5.1.3")
	return context.WithTimeout(ctx, timeout)
}

// pause waits; false when ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// backoff is how long to wait after so many failures in a row.
func backoff(failures int) time.Duration {
	return min(5*time.Millisecond<<min(failures, 8), 250*time.Millisecond)
}

// A way leads clients to the server.
type way interface {
	// connection waits while there is none; the error is that of ctx.
	connection(ctx context.Context) (*grpc.ClientConn, error)
}

// A consumer of one group receives and treats messages in all the ways there
// are, until gentle is set: then it acknowledges everything.
type consumer struct {
	name, group, tag string
	topic            *rmqpb.Resource
	lite             bool     // it receives from lite topics
	shards           []string // to ask, by chance; none: the server has one, without a name
	server           way
	settles          way // where it acknowledges; nil: where it has received
	history          *history
	rng              *rand.Rand
	gentle           *atomic.Bool
	synced           time.Time // when it said last which lite topics it wants
}

func (c *consumer) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		conn, err := c.server.connection(ctx)
		if err != nil {
			return
		}
		if c.receive(ctx, rmqpb.NewMessagingServiceClient(conn)) {
			failures = 0
		} else {
			if !pause(ctx, backoff(failures)) {
				return
			}
			failures++
		}
	}
}

// receive makes one call and treats what it brings, also when the stream broke
// off in the middle.
func (c *consumer) receive(ctx context.Context, service rmqpb.MessagingServiceClient) bool {
	// While one of several shards is away, what lies on the others goes on.
	if c.lite && !c.sync(ctx, service) && len(c.shards) == 0 {
		return false
	}
	callCtx, cancel := call(ctx, c.name, 5*time.Second)
	defer cancel()
	expression := "*"
	if c.tag != "" {
		expression = c.tag
	}
	from := &rmqpb.MessageQueue{Topic: c.topic}
	if len(c.shards) > 0 {
		from.Broker = &rmqpb.Broker{Name: c.shards[c.rng.IntN(len(c.shards))]}
	}
	began := time.Now()
	stream, err := service.ReceiveMessage(callCtx, &rmqpb.ReceiveMessageRequest{
		Group:            &rmqpb.Resource{Name: c.group},
		MessageQueue:     from,
		FilterExpression: &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: expression},
		BatchSize:        int32(1 + c.rng.IntN(16)), InvisibleDuration: durationpb.New(invisible),
		LongPollingTimeout: durationpb.New(time.Second),
	})
	if err != nil {
		return false
	}
	var messages []got
	ok := true
	for {
		resp, err := stream.Recv()
		if err != nil {
			break
		}
		switch code := resp.GetStatus().GetCode(); {
		case resp.GetMessage() != nil:
			m := resp.GetMessage()
			p := m.GetSystemProperties()
			d := delivery{
				group: c.group, id: p.GetMessageId(), body: string(m.GetBody()),
				place:   place{queue{c.shardOf(p.GetReceiptHandle()), p.GetQueueId()}, p.GetQueueOffset()},
				attempt: p.GetDeliveryAttempt(), began: began, at: time.Now(),
			}
			messages = append(messages, got{d, p.GetReceiptHandle()})
			c.history.deliver(d)
		case resp.GetStatus() != nil && code != rmqpb.Code_OK && code != rmqpb.Code_MESSAGE_NOT_FOUND:
			ok = false
		}
	}
	for _, m := range messages {
		if c.settles != nil {
			conn, err := c.settles.connection(ctx)
			if err != nil {
				break
			}
			service = rmqpb.NewMessagingServiceClient(conn)
		}
		c.treat(ctx, service, m)
	}
	if !ok {
		c.synced = time.Time{} // it may be a server that does not know the client
	}
	return ok
}

// shardOf returns the shard that a message came from, which is not always the one that was
// asked.
func (c *consumer) shardOf(handle string) string {
	if len(c.shards) == 0 {
		return ""
	}
	lease, err := receipt.Decode(handle)
	if err != nil {
		return "of a handle that is broken: " + handle
	}
	return lease.Shard
}

// got is a message that a consumer has.
type got struct {
	delivery
	handle string
}

// sync says which lite topics the consumer wants, if it has not for a while: a server that
// was started does not know.
func (c *consumer) sync(ctx context.Context, service rmqpb.MessagingServiceClient) bool {
	if time.Since(c.synced) < time.Second {
		return true
	}
	callCtx, cancel := call(ctx, c.name, 5*time.Second)
	defer cancel()
	resp, err := service.SyncLiteSubscription(callCtx, &rmqpb.SyncLiteSubscriptionRequest{
		Action: rmqpb.LiteSubscriptionAction_COMPLETE_ADD, Topic: c.topic, Group: &rmqpb.Resource{Name: c.group}, LiteTopicSet: lites,
	})
	if err != nil || resp.GetStatus().GetCode() != rmqpb.Code_OK {
		return false
	}
	c.synced = time.Now()
	return true
}

func (c *consumer) treat(ctx context.Context, service rmqpb.MessagingServiceClient, m got) {
	n := c.rng.IntN(100)
	switch {
	case c.gentle.Load() || n < 80:
		c.ack(ctx, service, m)
	case n < 95:
		c.history.giveUp(m.key())
		callCtx, cancel := call(ctx, c.name, 5*time.Second)
		defer cancel()
		// What became of it shows in when the message comes back.
		_, _ = service.ChangeInvisibleDuration(callCtx, &rmqpb.ChangeInvisibleDurationRequest{
			Group: &rmqpb.Resource{Name: c.group}, Topic: c.topic, MessageId: m.id,
			ReceiptHandle:     m.handle,
			InvisibleDuration: durationpb.New(time.Duration(c.rng.IntN(2)) * time.Second),
		})
	}
	// The rest is left to the end of its lease.
}

func (c *consumer) ack(ctx context.Context, service rmqpb.MessagingServiceClient, m got) {
	c.history.beginAck(m.key())
	callCtx, cancel := call(ctx, c.name, 5*time.Second)
	defer cancel()
	resp, err := service.AckMessage(callCtx, &rmqpb.AckMessageRequest{
		Group: &rmqpb.Resource{Name: c.group}, Topic: c.topic,
		Entries: []*rmqpb.AckMessageEntry{{MessageId: m.id, ReceiptHandle: m.handle}},
	})
	if err == nil && resp.GetStatus().GetCode() == rmqpb.Code_OK {
		c.history.endAck(m.key(), m.began)
	}
}
