package drive

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/perigee-mq/perigee/internal/loadgen"
)

// JetStream loads a NATS server with JetStream. A topic is a stream with one subject.
type JetStream struct {
	conns         []*nats.Conn
	js            jetstream.JetStream
	load, latency string // names of streams
	consumers     int    // made so far
}

// maxWindow is the most messages in flight: nats-server refuses what comes in faster than
// it is stored beyond 10,000 of them.
const maxWindow = 8000

// ConnectJetStream connects, and publishes a message that is acknowledged.
func ConnectJetStream(ctx context.Context, endpoint string) (_ *JetStream, err error) {
	d := &JetStream{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	for range Connections {
		conn, err := nats.Connect("nats://"+endpoint, nats.NoReconnect(), nats.Timeout(time.Second))
		if err != nil {
			return nil, err
		}
		d.conns = append(d.conns, conn)
	}
	if d.js, err = jetstream.New(d.conns[0]); err != nil {
		return nil, err
	}
	if err := d.create(ctx, startName); err != nil {
		return nil, err
	}
	_, err = d.js.Publish(ctx, startName, make([]byte, BodySize))
	return d, err
}

func (d *JetStream) create(ctx context.Context, name string) error {
	_, err := d.js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Storage: jetstream.FileStorage})
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	return nil
}

// createConsumer makes a consumer of a stream. Each load has one of its own: a consumer
// that ends keeps what it has asked for and not used.
func (d *JetStream) createConsumer(ctx context.Context, stream string, from jetstream.DeliverPolicy) (name string, err error) {
	d.consumers++
	name = fmt.Sprint(groupName, "-", d.consumers)
	_, err = d.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable: name, DeliverPolicy: from, AckPolicy: jetstream.AckExplicitPolicy, AckWait: invisible, MaxAckPending: -1,
	})
	return name, err
}

// Close ends the connections.
func (d *JetStream) Close() {
	for _, conn := range d.conns {
		conn.Close()
	}
}

// Prepare makes the streams of a round.
func (d *JetStream) Prepare(ctx context.Context, round int) error {
	d.load, d.latency = roundName(round), latencyName(round)
	if err := d.create(ctx, d.load); err != nil {
		return err
	}
	return d.create(ctx, d.latency)
}

// Send publishes messages: each of those in flight is followed by the next when its
// acknowledgment is there. Without batches a goroutine for each waits for it, as a
// producer does; with batches the next is sent where the acknowledgment arrives, as by a
// producer that does not wait.
func (d *JetStream) Send(ctx context.Context, l Load) (loadgen.Result, error) {
	n := l.connections()
	meters, b, start := newMeters(n), newBudget(l.Limit), time.Now()
	window := min(l.InFlight*l.Batch, maxWindow)
	var publishers []*publisher
	defer func() {
		for _, p := range publishers {
			p.stop()
		}
	}()
	for i := range n {
		p, err := newPublisher(d.conns[i], d.load, split(window, i, n), l.Batch == 1, b, meters[i])
		if err != nil {
			return loadgen.Result{}, err
		}
		publishers = append(publishers, p)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, p := range publishers {
		p.start(ctx)
	}
	for _, p := range publishers {
		if err := await(ctx, l.Limit, p.done); err != nil {
			return loadgen.Result{}, err
		}
	}
	return gather(time.Since(start), meters), nil
}

// publisher keeps a number of messages in flight on a connection.
type publisher struct {
	conn    *nats.Conn
	subject string
	budget  *budget
	replies *nats.Subscription
	prefix  string // of the subjects of replies, followed by the number of a message
	body    []byte
	wake    []chan *nats.Msg // of the goroutines that wait for replies; nil: there are none

	mu     sync.Mutex
	meter  *meter
	sentAt []time.Time
	open   int
	done   chan struct{} // closed when no more messages are in flight
}

func newPublisher(conn *nats.Conn, subject string, window int, waits bool, b *budget, m *meter) (*publisher, error) {
	p := &publisher{
		conn: conn, subject: subject, budget: b, meter: m, prefix: nats.NewInbox() + ".",
		body: make([]byte, BodySize), sentAt: make([]time.Time, window), open: window, done: make(chan struct{}),
	}
	if waits {
		p.wake = make([]chan *nats.Msg, window)
		for i := range p.wake {
			p.wake[i] = make(chan *nats.Msg, 1)
		}
	}
	var err error
	if p.replies, err = subscribe(conn, p.prefix+"*", p.replied); err != nil {
		return nil, err
	}
	return p, nil
}

// subscribe subscribes without a bound on what waits to be handled.
func subscribe(conn *nats.Conn, subject string, handle nats.MsgHandler) (*nats.Subscription, error) {
	s, err := conn.Subscribe(subject, handle)
	if err != nil {
		return nil, err
	}
	return s, s.SetPendingLimits(-1, -1)
}

func (p *publisher) start(ctx context.Context) {
	for slot := range p.wake {
		go p.produce(ctx, slot)
	}
	if p.wake == nil {
		p.mu.Lock() // replies arrive meanwhile
		defer p.mu.Unlock()
		for slot := range p.sentAt {
			p.nextLocked(slot, time.Now())
		}
	}
}

// produce publishes and waits for the reply, again and again.
func (p *publisher) produce(ctx context.Context, slot int) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.endLocked()
	}()
	reply := p.prefix + strconv.Itoa(slot)
	for start := time.Now(); p.budget.take(start); start = time.Now() {
		if err := p.conn.PublishRequest(p.subject, reply, p.body); err != nil {
			p.mu.Lock()
			p.meter.failed(err.Error())
			p.mu.Unlock()
			return
		}
		select {
		case reply := <-p.wake[slot]:
			p.mu.Lock()
			p.countLocked(reply, time.Since(start))
			p.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

func (p *publisher) endLocked() {
	if p.open--; p.open == 0 {
		close(p.done)
	}
}

func (p *publisher) countLocked(reply *nats.Msg, latency time.Duration) {
	if stored(reply) {
		p.meter.done(latency)
	} else {
		p.meter.failed(refusal(reply))
	}
}

// nextLocked sends the next message in a slot, or ends the slot.
func (p *publisher) nextLocked(slot int, now time.Time) {
	if p.budget.take(now) {
		p.sentAt[slot] = now
		err := p.conn.PublishRequest(p.subject, p.prefix+strconv.Itoa(slot), p.body)
		if err == nil {
			return
		}
		p.meter.failed(err.Error())
	}
	p.endLocked()
}

func (p *publisher) replied(reply *nats.Msg) {
	slot, err := strconv.Atoi(strings.TrimPrefix(reply.Subject, p.prefix))
	if err != nil || slot >= len(p.sentAt) {
		return // not ours
	}
	if p.wake != nil {
		p.wake[slot] <- reply // there is room: one message is in flight
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.countLocked(reply, now.Sub(p.sentAt[slot]))
	p.nextLocked(slot, now)
}

func (p *publisher) stop() { _ = p.replies.Unsubscribe() } // the connection may be gone

// stored says whether a reply is that to a message that was stored. It is not decoded:
// only the reply to one that was not stored has the word in it.
func stored(reply *nats.Msg) bool {
	return len(reply.Data) > 0 && !bytes.Contains(reply.Data, []byte(`"error"`))
}

func refusal(reply *nats.Msg) string {
	if len(reply.Data) > 0 {
		return string(reply.Data)
	}
	return "status " + reply.Header.Get("Status")
}

// Receive consumes messages with the client's callback, and acknowledges each. An
// acknowledgment has no answer unless Each asks for one.
func (d *JetStream) Receive(ctx context.Context, l Load) (loadgen.Result, error) {
	consumer, err := d.createConsumer(ctx, d.load, jetstream.DeliverAllPolicy)
	if err != nil {
		return loadgen.Result{}, err
	}
	n := l.connections()
	c := &consumption{budget: newBudget(l.Limit), last: make(chan struct{}, 1), start: time.Now()}
	meters := newMeters(n)
	var ends []func()
	defer func() {
		for _, end := range ends {
			end()
		}
	}()
	for i := range n {
		ack := func(m jetstream.Msg) error { return m.Ack() }
		if l.Each {
			confirm, err := newConfirmer(d.conns[i], split(l.InFlight, i, n))
			if err != nil {
				return loadgen.Result{}, err
			}
			ends = append(ends, confirm.stop)
			ack = func(m jetstream.Msg) error { return confirm.ack(ctx, m) }
		}
		stop, err := d.consume(ctx, i, d.load, consumer, split(l.InFlight, i, n)*ReceiveBatch, func(m jetstream.Msg) {
			if !c.take() {
				return
			}
			if err := ack(m); err != nil {
				meters[i].failed(err.Error())
				return
			}
			meters[i].messages++
			c.acked()
		})
		if err != nil {
			return loadgen.Result{}, err
		}
		ends = append(ends, stop)
	}
	elapsed := c.await(ctx, l.Limit)
	for _, end := range ends {
		end()
	}
	ends = nil
	return gather(elapsed, meters), ctx.Err()
}

// consume starts a consumer on the i-th connection. stop returns after the last call of
// handle.
func (d *JetStream) consume(ctx context.Context, i int, stream, name string, pending int, handle func(jetstream.Msg)) (stop func(), err error) {
	js, err := jetstream.New(d.conns[i])
	if err != nil {
		return nil, err
	}
	consumer, err := js.Consumer(ctx, stream, name)
	if err != nil {
		return nil, err
	}
	running, err := consumer.Consume(handle, jetstream.PullMaxMessages(pending))
	if err != nil {
		return nil, err
	}
	return func() {
		running.Stop()
		select {
		case <-running.Closed():
		case <-time.After(grace):
		}
	}, nil
}

// confirmer acknowledges messages and waits until the server has confirmed it, with a
// number of acknowledgments in flight.
type confirmer struct {
	conn    *nats.Conn
	inbox   string
	replies *nats.Subscription
	free    chan struct{}
}

func newConfirmer(conn *nats.Conn, inFlight int) (*confirmer, error) {
	c := &confirmer{conn: conn, inbox: nats.NewInbox(), free: make(chan struct{}, inFlight)}
	var err error
	c.replies, err = subscribe(conn, c.inbox, func(*nats.Msg) { <-c.free })
	return c, err
}

func (c *confirmer) ack(ctx context.Context, m jetstream.Msg) error {
	select {
	case c.free <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	return c.conn.PublishRequest(m.Reply(), c.inbox, []byte("+ACK"))
}

func (c *confirmer) stop() { _ = c.replies.Unsubscribe() } // the connection may be gone

// EndToEnd publishes at a fixed rate and consumes at the same time. Latency is that from
// when a message should be sent to its arrival.
func (d *JetStream) EndToEnd(ctx context.Context, rate float64, over time.Duration) (loadgen.Result, error) {
	consumer, err := d.createConsumer(ctx, d.latency, jetstream.DeliverNewPolicy)
	if err != nil {
		return loadgen.Result{}, err
	}
	times, seen, meters := stamps{time.Now()}, newArrivals(), newMeters(1)
	stop, err := d.consume(ctx, 1, d.latency, consumer, latencyReceivers*ReceiveBatch, func(m jetstream.Msg) {
		meters[0].done(times.age(m.Data()))
		if err := m.Ack(); err != nil {
			meters[0].failed(err.Error())
		}
		seen.add()
	})
	if err != nil {
		return loadgen.Result{}, err
	}
	var refused atomic.Int64
	inbox, body := nats.NewInbox(), make([]byte, BodySize)
	replies, err := subscribe(d.conns[0], inbox, func(reply *nats.Msg) {
		if !stored(reply) {
			refused.Add(1)
		}
	})
	if err != nil {
		stop()
		return loadgen.Result{}, err
	}
	sent, err := openLoop(ctx, rate, over, func(due time.Time) error {
		times.put(body, due)
		return d.conns[0].PublishRequest(d.latency, inbox, body)
	})
	arrived := seen.await(ctx, sent, grace)
	stop()
	_ = replies.Unsubscribe() // the connection may be gone
	result := gather(over, meters)
	if missing := sent - arrived; missing > 0 {
		result.Errors["missing"] = missing
	}
	if n := refused.Load(); n > 0 {
		result.Errors["refused"] = n
	}
	return result, err
}
