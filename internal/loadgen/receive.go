package loadgen

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
)

// ReceiveLoad is a load of receives, with or without acknowledgments.
type ReceiveLoad struct {
	Load
	Group string
	// SQL, when set, is the expression that chooses the messages. Without it all are.
	SQL string
	// Lites, when set, are the lite topics of a LITE topic that each connection receives
	// from, from their beginnings.
	Lites []string
	// Batch is the most messages a receive asks for, at least 1.
	Batch int
	// AckBatch is the number of messages acknowledged with one request; 0 means
	// that none is.
	AckBatch int
	// Invisible is how long a message stays away from others, Wait how long an
	// empty receive waits.
	Invisible, Wait time.Duration
	// UntilEmpty ends each worker at its first receive without a message.
	UntilEmpty bool
	// Keep keeps the handles of the messages that are not acknowledged.
	Keep bool

	// Of an end-to-end load.
	stamp    *stamp
	arrivals *arrivals
}

func (l ReceiveLoad) validate() error {
	switch {
	case l.Batch < 1:
		return fmt.Errorf("batch %d: must be 1 or more", l.Batch)
	case l.AckBatch < 0:
		return fmt.Errorf("ack batch %d: must not be negative", l.AckBatch)
	case l.Group == "":
		return fmt.Errorf("group: must be named")
	}
	return l.Load.validate()
}

// Receive receives messages until the load's limit or the end of ctx, and then
// acknowledges what is left to acknowledge. The error is about the load or the
// topic; what goes wrong later is counted in the result.
func (t *Target) Receive(ctx context.Context, l ReceiveLoad) (Result, error) {
	if err := l.validate(); err != nil {
		return Result{}, err
	}
	queues, err := t.queues(ctx, l.Topic, rmqpb.Permission_READ)
	if err != nil {
		return Result{}, err
	}
	filter := &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"}
	if l.SQL != "" {
		filter = &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: l.SQL}
	}
	sessions := make([]*client.Session, 0, len(t.conns))
	for _, c := range t.conns {
		if len(l.Lites) == 0 {
			sessions = append(sessions, c.StartConsumer(ctx, l.Group, l.Topic, filter, l.Wait))
			continue
		}
		if err := subscribe(ctx, c, &l); err != nil {
			return Result{}, err
		}
	}
	defer closeAll(sessions)

	meters, workers := make([]*meter, l.Concurrency), make([]worker, l.Concurrency)
	for i := range workers {
		r := &receiver{load: l, conn: t.conn(i), meter: newMeter(), next: i}
		r.acks = newAcker(r.conn, l.Group, l.Topic, r.meter)
		for _, q := range queues {
			r.requests = append(r.requests, r.request(q, filter))
		}
		meters[i], workers[i] = r.meter, r
	}
	return drive(ctx, l.Load, l.Batch, true, meters, workers), nil
}

// subscribe subscribes a connection to lite topics. It has no session: the settings of one
// would say that it is no lite consumer.
func subscribe(ctx context.Context, c *client.Conn, l *ReceiveLoad) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := rmqpb.NewMessagingServiceClient(c).SyncLiteSubscription(ctx, &rmqpb.SyncLiteSubscriptionRequest{
		Action: rmqpb.LiteSubscriptionAction_PARTIAL_ADD, Topic: c.Resource(l.Topic), Group: c.Resource(l.Group), LiteTopicSet: l.Lites,
		OffsetOption: &rmqpb.OffsetOption{OffsetType: &rmqpb.OffsetOption_Policy_{Policy: rmqpb.OffsetOption_MIN}},
	})
	if err != nil {
		return err
	}
	if st := resp.GetStatus(); st.GetCode() != rmqpb.Code_OK {
		return fmt.Errorf("subscription to lite topics: %s: %s", st.GetCode(), st.GetMessage())
	}
	return nil
}

// receiver polls the queues of a topic in turn.
type receiver struct {
	load     ReceiveLoad
	conn     *client.Conn
	meter    *meter
	acks     *acker
	requests []func(batch int) request
	next     int
	frame    frame
}

// request returns how to encode a receive from q. The encoding for a full batch
// is made once.
func (r *receiver) request(q *rmqpb.MessageQueue, filter *rmqpb.FilterExpression) func(batch int) request {
	encode := func(batch int) request {
		encoded, err := proto.Marshal(&rmqpb.ReceiveMessageRequest{
			Group: r.conn.Resource(r.load.Group), MessageQueue: q, FilterExpression: filter,
			BatchSize:          int32(batch),
			InvisibleDuration:  durationpb.New(r.load.Invisible),
			LongPollingTimeout: durationpb.New(r.load.Wait),
		})
		if err != nil {
			panic(fmt.Sprintf("BUG: loadgen: a receive request: %v", err)) // its strings came off the wire
		}
		return encoded
	}
	full := encode(r.load.Batch)
	return func(batch int) request {
		if batch == r.load.Batch {
			return full
		}
		return encode(batch)
	}
}

// receiveMargin is how much longer than the long poll a receive may take.
const receiveMargin = 10 * time.Second

func (r *receiver) step(ctx context.Context, n int, due time.Time) (int, bool, error) {
	req := r.requests[r.next%len(r.requests)](n)
	r.next++
	r.meter.requests++
	r.frame = frame{receiver: r}
	limited, cancel := context.WithTimeout(ctx, r.load.Wait+receiveMargin)
	err := stream(limited, r.conn, rmqpb.MessagingService_ReceiveMessage_FullMethodName, req, &r.frame)
	cancel()
	got := r.frame.messages
	// An end-to-end load measures messages instead of calls.
	if got > 0 && r.load.stamp == nil {
		record(r.meter.latency, time.Since(due))
	}
	r.meter.done(got, r.frame.bytes)
	for r.load.AckBatch > 0 && len(r.acks.pending) >= r.load.AckBatch && err == nil {
		// The end of a load must not cut an acknowledgment: it could not be
		// told whether it came about.
		_, err = r.acks.send(context.WithoutCancel(ctx), r.load.AckBatch)
	}
	switch {
	case err != nil:
		return got, true, err
	case got == 0 && r.frame.code != rmqpb.Code_MESSAGE_NOT_FOUND && r.frame.code != rmqpb.Code_OK:
		r.meter.failed(r.frame.code.String(), 1)
		return got, pause(ctx, afterError), nil
	}
	return got, got > 0 || !r.load.UntilEmpty, nil
}

// finish acknowledges what has been received and not been acknowledged.
func (r *receiver) finish(ctx context.Context) error {
	for len(r.acks.pending) > 0 {
		if _, err := r.acks.send(ctx, min(r.load.AckBatch, len(r.acks.pending))); err != nil {
			return err
		}
	}
	return nil
}

// frame reads the responses of one receive.
type frame struct {
	receiver *receiver
	code     rmqpb.Code
	messages int
	bytes    int
}

func (f *frame) read(data []byte) error {
	return fields(data, func(field protowire.Number, content []byte, _ uint64) (err error) {
		switch field {
		case 1:
			f.code, err = readCode(content)
		case 2:
			err = f.message(content)
		}
		return err
	})
}

func (f *frame) message(encoded []byte) error {
	var handle Handle
	var body []byte
	err := fields(encoded, func(field protowire.Number, content []byte, _ uint64) error {
		switch field {
		case 3:
			return fields(content, func(field protowire.Number, content []byte, _ uint64) error {
				switch field {
				case 3:
					handle.MessageID = string(content)
				case 12:
					handle.Receipt = string(content)
				}
				return nil
			})
		case 4:
			body = content
		}
		return nil
	})
	if err != nil {
		return err
	}
	f.messages++
	f.bytes += len(body)
	r := f.receiver
	if r.load.stamp != nil {
		if age, ok := r.load.stamp.age(body); ok {
			record(r.meter.latency, age)
			r.load.arrivals.add()
		}
	}
	if r.load.AckBatch > 0 {
		r.acks.pending = append(r.acks.pending, handle)
	} else if r.load.Keep {
		r.meter.handles = append(r.meter.handles, handle)
	}
	return nil
}
