package drive

import (
	"context"
	"fmt"
	"time"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// RocketMQ loads a server of the RocketMQ 5 protocol, whoever made it, with one and the
// same code.
type RocketMQ struct {
	Variant
	endpoint string
	target   *loadgen.Target
	readers  *loadgen.Target // of what is sent over target at the same time
	round    int
}

// Variant is in what servers of one protocol differ.
type Variant struct {
	// Creates: topics are made through Perigee's admin service; otherwise they are there.
	Creates bool
	// OneResult: a batch is answered with one result.
	OneResult bool
	// Keeps: there is an end to what is received, and what is received was sent. Not so
	// of a server that does nothing.
	Keeps bool
}

// sdkVersion is the version of a client that servers take for one of theirs.
const sdkVersion = "5.1.4"

// emptyWait is how long a receive waits for messages.
const emptyWait = 500 * time.Millisecond

// ConnectRocketMQ connects, and sends a message that is acknowledged.
func ConnectRocketMQ(ctx context.Context, endpoint string, v Variant) (*RocketMQ, error) {
	d := &RocketMQ{Variant: v, endpoint: endpoint}
	var err error
	for _, t := range []**loadgen.Target{&d.target, &d.readers} {
		if *t, err = loadgen.Dial(client.Options{Endpoint: endpoint, Version: sdkVersion}, Connections); err != nil {
			return nil, err // of the endpoint; nothing is open
		}
	}
	if err = d.create(ctx, startName); err == nil {
		err = d.first(ctx)
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (d *RocketMQ) first(ctx context.Context) error {
	r, err := d.target.Send(ctx, loadgen.SendLoad{
		Load: loadgen.Load{Topic: startName, Concurrency: 1, Limit: loadgen.Limit{Count: 1}}, Size: BodySize, Batch: 1,
	})
	if err == nil && r.Messages != 1 {
		err = fmt.Errorf("the first message was not acknowledged: %v", r.Errors)
	}
	return err
}

// create creates topics where they are to be created.
func (d *RocketMQ) create(ctx context.Context, names ...string) error {
	if !d.Creates {
		return nil
	}
	conn, err := client.Dial(client.Options{Endpoint: d.endpoint, Version: sdkVersion})
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, name := range names {
		if _, err := adminpb.NewAdminServiceClient(conn).CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name}); err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
	}
	return nil
}

// Close ends the connections.
func (d *RocketMQ) Close() {
	d.target.Close()
	d.readers.Close()
}

// Prepare makes the topics of a round. Its group gets all that is sent from then on.
func (d *RocketMQ) Prepare(ctx context.Context, round int) error {
	d.round = round
	names := []string{roundName(round), latencyName(round)}
	if err := d.create(ctx, names...); err != nil || !d.Keeps {
		return err
	}
	for _, name := range names {
		// A server of another maker starts a group at the end of what there is.
		r, err := d.target.Receive(ctx, loadgen.ReceiveLoad{
			Load: loadgen.Load{Topic: name, Concurrency: 1}, Group: groupName, Batch: ReceiveBatch,
			Invisible: invisible, Wait: emptyWait, UntilEmpty: true,
		})
		if err == nil && r.Failures() > 0 {
			err = fmt.Errorf("errors %v", r.Errors)
		}
		if err != nil {
			return fmt.Errorf("group of topic %s: %w", name, err)
		}
	}
	return nil
}

// Send sends messages.
func (d *RocketMQ) Send(ctx context.Context, l Load) (loadgen.Result, error) {
	return d.target.Send(ctx, loadgen.SendLoad{Load: d.load(l), Size: BodySize, Batch: l.Batch, OneResult: d.OneResult})
}

// Receive receives messages and acknowledges them, as many with a request as a receive
// asks for, or each with one.
func (d *RocketMQ) Receive(ctx context.Context, l Load) (loadgen.Result, error) {
	acks := ReceiveBatch
	if l.Each {
		acks = 1
	}
	return d.target.Receive(ctx, loadgen.ReceiveLoad{
		Load: d.load(l), Group: groupName, Batch: ReceiveBatch, AckBatch: acks, Invisible: invisible, Wait: emptyWait,
	})
}

func (d *RocketMQ) load(l Load) loadgen.Load {
	return loadgen.Load{Topic: roundName(d.round), Concurrency: l.InFlight, Limit: l.Limit}
}

// The requests of a load at a fixed rate: enough that none is late because of them.
const (
	latencySenders   = 64
	latencyReceivers = 8
)

// EndToEnd sends at a fixed rate and receives at the same time. Latency is that from
// when a message should be sent to its arrival.
func (d *RocketMQ) EndToEnd(ctx context.Context, rate float64, over time.Duration) (loadgen.Result, error) {
	topic := latencyName(d.round)
	sent, received, err := d.target.EndToEnd(ctx, loadgen.EndToEndLoad{
		Send: loadgen.SendLoad{
			Load: loadgen.Load{Topic: topic, Concurrency: latencySenders, Rate: rate, Limit: loadgen.Limit{Duration: over}},
			Size: BodySize, Batch: 1,
		},
		Receive: loadgen.ReceiveLoad{
			Load: loadgen.Load{Topic: topic, Concurrency: latencyReceivers}, Group: groupName,
			Batch: ReceiveBatch, AckBatch: 1, Invisible: invisible, Wait: emptyWait,
		},
		From:  d.readers,
		Drain: grace,
	})
	if err != nil {
		return loadgen.Result{}, err
	}
	if missing := sent.Messages - received.Messages; missing > 0 {
		received.Errors["missing"] += missing
	}
	for reason, n := range sent.Errors {
		received.Errors[reason] += n
	}
	return received, nil
}
