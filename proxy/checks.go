package proxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/wire"
	"github.com/perigee-mq/perigee/receipt"
)

// Transactions is what the proxy asks of the store tier about half messages. The
// documentation of the methods is in package store, which implements it in one process.
type Transactions interface {
	EndTransaction(ctx context.Context, h mq.PendingHandle, commit bool) error
	Checks(ctx context.Context, topics []mq.Resource, limit int) ([]mq.Check, error)
	Unasked(ctx context.Context, checks []mq.Check) error
}

const (
	// checksAtOnce is how many questions are taken from the store at a time: what a
	// stream has room for.
	checksAtOnce = 16
	// askWait is how long a producer is given to make room in its stream, and askRest how
	// long those of a topic are left alone that did not.
	askWait = time.Second
	askRest = 10 * time.Second
	// checksRetry is how long to wait after the store could not say what to ask.
	checksRetry = time.Second
	// unaskedTimeout bounds the calls that give questions back.
	unaskedTimeout = 5 * time.Second
)

// checks asks producers about half messages. It takes questions from the store for the topics that have
// producers here and hands each to one of these; what reaches nobody goes back.
type checks struct {
	server    *Server
	producers *producers
	stop      context.CancelFunc
	running   sync.WaitGroup

	mu struct {
		sync.Mutex
		// queued are the questions on their way through a stream.
		queued map[*rmqpb.TelemetryCommand]mq.Check
	}
}

func newChecks(s *Server) *checks {
	c := &checks{server: s, producers: newProducers()}
	c.mu.queued = map[*rmqpb.TelemetryCommand]mq.Check{}
	ctx, stop := s.streams.untilDrained(context.Background())
	c.stop = stop
	c.running.Go(func() { c.run(ctx) })
	return c
}

func (s *Server) producers() *producers { return s.checks.producers }

// close ends the asking. The streams have ended.
func (c *checks) close() {
	c.stop()
	c.running.Wait()
}

func (c *checks) run(ctx context.Context) {
	for ctx.Err() == nil {
		topics := c.producers.topics()
		if len(topics) == 0 {
			select {
			case <-c.producers.changed:
			case <-ctx.Done():
			}
			continue
		}
		found, err := c.wait(ctx, topics)
		c.hand(ctx, found)
		if err != nil && ctx.Err() == nil {
			if !errors.Is(err, mq.ErrStopped) { // the shard has told why
				c.server.logger.WarnContext(ctx, "no questions to producers", "error", err)
			}
			pause(ctx, checksRetry)
		}
	}
}

// wait returns the next questions about messages of the topics; none when others
// are to be asked for.
func (c *checks) wait(ctx context.Context, topics []mq.Resource) ([]mq.Check, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.running.Go(func() {
		select {
		case <-c.producers.changed:
			cancel()
		case <-ctx.Done():
		}
	})
	return c.server.opts.Transactions.Checks(ctx, topics, checksAtOnce)
}

// hand hands each question to a producer, those of one topic one after the other. A topic
// whose producers have no room does not hold up the others for long.
func (c *checks) hand(ctx context.Context, found []mq.Check) {
	of := map[mq.TopicID][]mq.Check{}
	for _, check := range found {
		of[check.Topic] = append(of[check.Topic], check)
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	var handing sync.WaitGroup
	for id, list := range of {
		handing.Go(func() {
			topic, err := c.server.router.TopicByID(id)
			if err != nil {
				c.server.logger.WarnContext(ctx, "question about a message of a topic that is not known", "topic_id", id, "error", err)
				c.unasked(list)
				return
			}
			for i := range list {
				if !c.ask(ctx, topic, &list[i]) {
					c.producers.rest(topic.Resource, askRest)
					c.unasked(list[i:])
					return
				}
			}
		})
	}
	handing.Wait()
}

// ask hands a question to a producer, if one takes it before ctx ends.
func (c *checks) ask(ctx context.Context, topic *mq.Topic, check *mq.Check) bool {
	m, err := wire.DecodeMessage(topic.Resource, &check.Message)
	if err != nil {
		c.server.logger.ErrorContext(ctx, "half message cannot be decoded", "pending", uint64(check.ID), "error", err)
		return true // counted: it is given up in the end, where an operator sees it
	}
	m.SystemProperties.QueueId = int32(check.Queue)
	m.SystemProperties.StoreTimestamp = timestamppb.New(check.StoreTime)
	cmd := &rmqpb.TelemetryCommand{Status: ok(), Command: &rmqpb.TelemetryCommand_RecoverOrphanedTransactionCommand{
		RecoverOrphanedTransactionCommand: &rmqpb.RecoverOrphanedTransactionCommand{
			Message: m, TransactionId: receipt.EncodePending(check.PendingHandle),
		},
	}}
	c.mu.Lock()
	c.mu.queued[cmd] = *check
	c.mu.Unlock()
	candidates := c.producers.ofMessage(topic.Resource, m)
	for _, one := range candidates {
		if one.Send(cmd) {
			return true
		}
	}
	if len(candidates) > 0 {
		if st := candidates[0].Newest(); st != nil && st.SendWait(ctx, cmd) {
			return true
		}
	}
	c.sent(cmd)
	return false
}

// sent notes that a command has left the server.
func (c *checks) sent(cmd *rmqpb.TelemetryCommand) {
	if cmd.GetRecoverOrphanedTransactionCommand() == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.mu.queued, cmd)
}

// unsent gives the questions back among commands that have not left the server.
func (c *checks) unsent(cmds []*rmqpb.TelemetryCommand) {
	var back []mq.Check
	c.mu.Lock()
	for _, cmd := range cmds {
		if check, ok := c.mu.queued[cmd]; ok {
			delete(c.mu.queued, cmd)
			back = append(back, check)
		}
	}
	c.mu.Unlock()
	c.unasked(back)
}

// unasked gives questions back that reached nobody.
func (c *checks) unasked(back []mq.Check) {
	if len(back) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), unaskedTimeout)
	defer cancel()
	if err := c.server.opts.Transactions.Unasked(ctx, back); err != nil {
		c.server.logger.WarnContext(ctx, "questions to producers count although they reached nobody", "messages", len(back), "error", err)
	}
}
