package drive

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/perigee-mq/perigee/internal/loadgen"
)

// RabbitMQ loads a RabbitMQ server. A topic is a quorum queue, whose messages are on
// disk, with an fsync, before they are confirmed.
type RabbitMQ struct {
	conns         []*amqp.Connection
	load, latency string // names of queues
}

// ConnectRabbitMQ connects, and publishes a message that is confirmed.
func ConnectRabbitMQ(ctx context.Context, endpoint string) (_ *RabbitMQ, err error) {
	d := &RabbitMQ{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	for range Connections {
		conn, err := amqp.DialConfig("amqp://guest:guest@"+endpoint+"/", amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
		if err != nil {
			return nil, err
		}
		d.conns = append(d.conns, conn)
	}
	if err := d.withChannel(0, func(ch *amqp.Channel) error { return declare(ch, startName) }); err != nil {
		return nil, err
	}
	return d, d.withChannel(0, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		confirmed, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", startName, false, false, persistent(make([]byte, BodySize)))
		if err != nil {
			return err
		}
		good, err := confirmed.WaitContext(ctx)
		if err == nil && !good {
			err = errors.New("the first message was refused")
		}
		return err
	})
}

func declare(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	return err
}

func persistent(body []byte) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Body: body}
}

func (d *RabbitMQ) withChannel(i int, use func(*amqp.Channel) error) error {
	ch, err := d.conns[i].Channel()
	if err != nil {
		return err
	}
	return errors.Join(use(ch), ch.Close())
}

// Close ends the connections.
func (d *RabbitMQ) Close() {
	for _, conn := range d.conns {
		_ = conn.CloseDeadline(time.Now().Add(time.Second)) // the server may be gone
	}
}

// Prepare makes the queues of a round, and removes those of the one before.
func (d *RabbitMQ) Prepare(_ context.Context, round int) error {
	return d.withChannel(0, func(ch *amqp.Channel) error {
		for _, name := range []string{roundName(round - 1), latencyName(round - 1)} {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				return err
			}
		}
		d.load, d.latency = roundName(round), latencyName(round)
		return errors.Join(declare(ch, d.load), declare(ch, d.latency))
	})
}

// Send publishes messages with confirms: each of those in flight is followed by the next
// when its confirm is there. Without batches a goroutine for each waits for it, as a
// producer does; with batches one goroutine sends the next where a confirm arrives, as a
// producer that does not wait.
func (d *RabbitMQ) Send(ctx context.Context, l Load) (loadgen.Result, error) {
	n := l.connections()
	meters, b, start := newMeters(n), newBudget(l.Limit), time.Now()
	errs := make(chan error, n)
	ctx, cancel := context.WithTimeout(ctx, l.Duration+grace)
	defer cancel()
	for i := range n {
		go func() {
			errs <- d.withChannel(i, func(ch *amqp.Channel) error {
				if l.Batch == 1 {
					return produce(ctx, ch, d.load, split(l.InFlight, i, n), b, meters[i])
				}
				return publish(ctx, ch, d.load, split(l.InFlight*l.Batch, i, n), b, meters[i])
			})
		}()
	}
	var all error
	for range n {
		all = errors.Join(all, <-errs)
	}
	return gather(time.Since(start), meters), all
}

// produce runs producers that publish and wait for the confirm, again and again.
func produce(ctx context.Context, ch *amqp.Channel, queue string, producers int, b *budget, m *meter) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	var mu sync.Mutex // of the meter
	var running sync.WaitGroup
	errs := make(chan error, producers)
	for range producers {
		running.Go(func() {
			body := make([]byte, BodySize)
			for start := time.Now(); b.take(start); start = time.Now() {
				confirmed, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, persistent(body))
				good := false
				if err == nil {
					good, err = confirmed.WaitContext(ctx)
				}
				if err != nil {
					errs <- err
					return
				}
				mu.Lock()
				if good {
					m.done(time.Since(start))
				} else {
					m.failed("refused")
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	close(errs)
	return <-errs // the first, or nil
}

// publish keeps a number of messages in flight on a channel until the budget is used up.
func publish(ctx context.Context, ch *amqp.Channel, queue string, window int, b *budget, m *meter) error {
	if err := ch.Confirm(false); err != nil {
		return err
	}
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, window))
	sentAt := make([]time.Time, window) // by tag, modulo its length
	body := make([]byte, BodySize)
	tag, open := uint64(0), 0
	next := func(now time.Time) error {
		if !b.take(now) {
			return nil
		}
		tag++
		sentAt[tag%uint64(window)] = now
		open++
		return ch.PublishWithContext(ctx, "", queue, false, false, persistent(body))
	}
	for range window {
		if err := next(time.Now()); err != nil {
			return err
		}
	}
	for open > 0 {
		select {
		case confirm, ok := <-confirms:
			if !ok {
				return errors.New("the channel was closed")
			}
			open--
			now := time.Now()
			if confirm.Ack {
				m.done(now.Sub(sentAt[confirm.DeliveryTag%uint64(window)]))
			} else {
				m.failed("refused")
			}
			if err := next(now); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%d confirms are missing: %w", open, ctx.Err())
		}
	}
	return nil
}

// Receive consumes messages and acknowledges so many at once, or each. Acknowledgments
// have no answer.
func (d *RabbitMQ) Receive(ctx context.Context, l Load) (loadgen.Result, error) {
	n := l.connections()
	c := &consumption{budget: newBudget(l.Limit), last: make(chan struct{}, 1), start: time.Now()}
	meters, errs := newMeters(n), make(chan error, n)
	every := ReceiveBatch
	if l.Each {
		every = 1
	}
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	for i := range n {
		go func() {
			errs <- d.consume(receiving, i, d.load, split(l.InFlight, i, n)*ReceiveBatch, func(m amqp.Delivery) error {
				if !c.take() {
					return nil
				}
				meters[i].messages++
				var err error
				if meters[i].messages%int64(every) == 0 {
					err = m.Ack(true)
				}
				c.acked()
				return err
			})
		}()
	}
	elapsed := c.await(ctx, l.Limit)
	stop()
	var all error
	for range n {
		all = errors.Join(all, <-errs)
	}
	return gather(elapsed, meters), errors.Join(all, ctx.Err())
}

// maxPrefetch is the largest number of messages that a channel may be given ahead.
const maxPrefetch = 65535

// consume calls handle with messages until ctx ends.
func (d *RabbitMQ) consume(ctx context.Context, i int, queue string, prefetch int, handle func(amqp.Delivery) error) error {
	return d.withChannel(i, func(ch *amqp.Channel) error {
		if err := ch.Qos(min(prefetch, maxPrefetch), 0, false); err != nil {
			return err
		}
		deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		// The client closes no channel with deliveries that nobody takes.
		defer func() {
			go func() {
				for range deliveries {
				}
			}()
		}()
		for {
			select {
			case m, ok := <-deliveries:
				if !ok {
					return errors.New("the channel was closed")
				}
				if err := handle(m); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// EndToEnd publishes at a fixed rate and consumes at the same time. Latency is that from
// when a message should be sent to its arrival.
func (d *RabbitMQ) EndToEnd(ctx context.Context, rate float64, over time.Duration) (loadgen.Result, error) {
	times, seen, meters := stamps{time.Now()}, newArrivals(), newMeters(1)
	receiving, stop := context.WithCancel(ctx)
	defer stop()
	consumed := make(chan error, 1)
	go func() {
		consumed <- d.consume(receiving, 1, d.latency, latencyReceivers*ReceiveBatch, func(m amqp.Delivery) error {
			meters[0].done(times.age(m.Body))
			seen.add()
			return m.Ack(false)
		})
	}()
	var sent, arrived, refused int64
	err := d.withChannel(0, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		// There is room for all of them: the client gives confirms away one by one.
		confirms := ch.NotifyPublish(make(chan amqp.Confirmation, int(rate*over.Seconds())+1))
		var err error
		sent, err = openLoop(ctx, rate, over, func(due time.Time) error {
			body := make([]byte, BodySize)
			times.put(body, due)
			return ch.PublishWithContext(ctx, "", d.latency, false, false, persistent(body))
		})
		arrived = seen.await(ctx, sent, grace)
		for len(confirms) > 0 {
			if !(<-confirms).Ack {
				refused++
			}
		}
		return err
	})
	stop()
	err = errors.Join(err, <-consumed)
	result := gather(over, meters)
	if missing := sent - arrived; missing > 0 {
		result.Errors["missing"] = missing
	}
	if refused > 0 {
		result.Errors["refused"] = refused
	}
	return result, err
}
