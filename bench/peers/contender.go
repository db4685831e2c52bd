package peers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/bench/drive"
	"github.com/perigee-mq/perigee/bench/figures"
	"github.com/perigee-mq/perigee/bench/server"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// driver loads a server.
type driver interface {
	// Prepare makes what the loads of a round use.
	Prepare(ctx context.Context, round int) error
	Send(ctx context.Context, l drive.Load) (loadgen.Result, error)
	Receive(ctx context.Context, l drive.Load) (loadgen.Result, error)
	EndToEnd(ctx context.Context, rate float64, over time.Duration) (loadgen.Result, error)
	Close()
}

// contender is a server with settings that is compared with others.
type contender struct {
	name  string // of package figures
	class string
	kind  server.Kind
	// connect connects and sends a first message that is acknowledged.
	connect func(ctx context.Context, endpoint string) (driver, error)
	// lasting: it takes long to start and to get warm, so it runs through all rounds.
	lasting bool
	// consumers: only the rows of consumers are measured; those of sends are another's.
	consumers bool
	// endless: what is received has no end, and was not sent.
	endless bool

	server   *server.Server
	driver   driver
	failures int
	gone     bool // it failed too often
	// backlog is the number of messages of the round that have been sent and not received.
	backlog int64
}

// contenders returns those of a class.
func (k kinds) contenders(class string, rounds int) (all []*contender) {
	sync := class == figures.Fsync
	rocket := func(v drive.Variant) func(context.Context, string) (driver, error) {
		return func(ctx context.Context, endpoint string) (driver, error) {
			return orNil(drive.ConnectRocketMQ(ctx, endpoint, v))
		}
	}
	add := func(c contender) {
		c.class = class
		all = append(all, &c)
	}
	if k.noop != nil && !sync {
		add(contender{name: figures.Noop, kind: *k.noop, connect: rocket(drive.Variant{}), endless: true})
	}
	if k.perigee != nil {
		kind := *k.perigee
		kind.Sync = sync
		add(contender{name: figures.Perigee, kind: kind, connect: rocket(drive.Variant{Creates: true, Keeps: true})})
	}
	if k.rocketmq != nil {
		kind := *k.rocketmq
		kind.Sync, kind.Topics, kind.Groups = sync, drive.Topics(rounds+1), drive.Groups()
		connect := rocket(drive.Variant{OneResult: true, Keeps: true})
		add(contender{name: figures.RocketMQ, kind: kind, connect: connect, lasting: true})
		kind.KV = true
		add(contender{name: figures.RocketMQKV, kind: kind, connect: connect, lasting: true, consumers: true})
	}
	if k.jetstream != nil {
		kind := *k.jetstream
		kind.Sync = sync
		add(contender{name: figures.JetStream, kind: kind, connect: func(ctx context.Context, endpoint string) (driver, error) {
			return orNil(drive.ConnectJetStream(ctx, endpoint))
		}})
	}
	if k.rabbitmq != nil && sync {
		add(contender{name: figures.RabbitMQ, kind: *k.rabbitmq, lasting: true, connect: func(ctx context.Context, endpoint string) (driver, error) {
			return orNil(drive.ConnectRabbitMQ(ctx, endpoint))
		}})
	}
	return all
}

// orNil returns a driver, or the error and no driver.
func orNil[D driver](d D, err error) (driver, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

// The bounds of a start, and how often it is tried to connect.
const (
	startTimeout   = 90 * time.Second
	connectTimeout = 5 * time.Second
	connectEvery   = 3 * time.Millisecond
)

// start starts the server and connects to it. It returns the time to the first message
// that was acknowledged.
func (c *contender) start(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	began := time.Now()
	if c.server, err = server.Start(ctx, c.name, c.kind); err != nil {
		c.server = nil
		return 0, err
	}
	if err := c.open(ctx); err != nil {
		c.stop()
		return 0, err
	}
	return time.Since(began), nil
}

// open connects to the server until it serves.
func (c *contender) open(ctx context.Context) error {
	ticker := time.NewTicker(connectEvery)
	defer ticker.Stop()
	for {
		d, err := bounded(ctx, connectTimeout, func(ctx context.Context) (driver, error) { return c.connect(ctx, c.server.Endpoint) })
		if err == nil {
			c.driver = d
			return nil
		}
		if failed := c.server.Failed(); failed != nil {
			return failed
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not serve: %w", c.name, err)
		}
	}
}

// closeTimeout bounds the end of connections.
const closeTimeout = 3 * time.Second

// close ends the connections.
func (c *contender) close() {
	if d := c.driver; d != nil {
		// One that does not come about goes on alone: its server is about to end.
		_, _ = bounded(context.Background(), closeTimeout, func(context.Context) (struct{}, error) {
			d.Close()
			return struct{}{}, nil
		})
	}
	c.driver = nil
}

// stop ends the server. What goes wrong then is nobody's loss.
func (c *contender) stop() {
	if c.server != nil {
		_ = c.server.Stop()
	}
	c.close()
	c.server = nil
}

// errHangs is the error of a call that did not end with its context.
var errHangs = errors.New("a call does not end")

// hangs is how much longer than its context a call may take.
const hangs = 3 * time.Second

// bounded makes a call with a bound on its time, and gives up on one that does not heed
// it.
func bounded[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := call(ctx)
		done <- outcome{value, err}
	}()
	giveUp := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(hangs, func() { close(giveUp) }) })
	defer stop()
	select {
	case o := <-done:
		return o.value, o.err
	case <-giveUp:
		var none T
		return none, errHangs
	}
}
