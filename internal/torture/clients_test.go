package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
)

// A client sends, receives, and treats what it gets in all the ways there are.
type client struct {
	h    *history
	s    *store.Store
	life int
	name string
	rng  *rand.Rand
	held []held
}

// held is a delivery that the client has not decided about.
type held struct {
	group mq.GroupID
	mq.Delivery
}

var tags = []string{"", "red", "green"}

// run acts until the store stops or ctx ends.
func (c *client) run(ctx context.Context) {
	for _, g := range c.h.groups {
		if err := c.sync(g, mq.LiteReplace); errors.Is(err, mq.ErrStopped) {
			return
		}
	}
	for ctx.Err() == nil {
		var err error
		switch n := c.rng.IntN(100); {
		case n < 28:
			err = c.send()
		case n < 32:
			err = c.sendAgain()
		case n < 56:
			err = c.receive(ctx)
		case n < 60:
			err = c.changeDelayed()
		case n < 65:
			err = c.endTransaction()
		case n < 67:
			err = c.answerQuestions(ctx)
		case n < 69:
			err = c.move()
		case n < 71:
			err = c.sync(c.group(), mq.LiteAction(c.rng.IntN(4)))
		case n < 72:
			err = c.look()
		case n < 73 && c.h.jumps:
			c.h.ledger.clock.step(c.h.step(c.rng))
		case len(c.held) > 0:
			i := c.rng.IntN(len(c.held))
			d := c.held[i]
			c.held = append(c.held[:i], c.held[i+1:]...)
			err = c.treat(d)
		}
		if errors.Is(err, mq.ErrStopped) {
			return
		}
		if c.rng.IntN(3) == 0 {
			time.Sleep(time.Duration(c.rng.IntN(8)) * tick)
		}
	}
}

func (c *client) group() consumers { return c.h.groups[c.rng.IntN(len(c.h.groups))] }

// topic returns one of the topics, of the type if it is not 0, or nil.
func (c *client) topic(kind mq.TopicType) *mq.Topic {
	if kind == 0 {
		return c.h.topics[c.rng.IntN(len(c.h.topics))]
	}
	if i := slices.IndexFunc(c.h.topics, func(t *mq.Topic) bool { return t.Type == kind }); i >= 0 {
		return c.h.topics[i]
	}
	return nil
}

// soon returns a time around now.
func (c *client) soon() time.Time {
	return c.h.ledger.clock.Now().Add(time.Duration(c.rng.IntN(60)-2) * tick)
}

func (c *client) send() error {
	l, topic := c.h.ledger, c.topic(0)
	l.mu.Lock()
	ids := newIDs(&c.h.nextID, 1+c.rng.IntN(5)*c.rng.IntN(2))
	l.mu.Unlock()
	sn := &sent{
		ids: ids, tag: tags[c.rng.IntN(len(tags))], topic: topic.ID, filling: c.rng.IntN(200),
		queues: []mq.QueueID{mq.QueueID(c.rng.IntN(3))},
	}
	switch topic.Type {
	case mq.TopicPriority:
		sn.kind = mq.Priority
	case mq.TopicLite:
		sn.kind, sn.lite, sn.queues[0] = mq.Lite, c.h.names[c.rng.IntN(len(c.h.names))], 0
	default:
		sn.kind = c.h.kinds[c.rng.IntN(len(c.h.kinds))]
	}
	for _, id := range ids {
		switch sn.kind {
		case mq.Delay:
			l.asked(id, c.soon())
		case mq.Transaction:
			l.asked(id, time.Time{})
		}
	}
	if sn.kind == mq.FIFO {
		sn.lane = []string{"a", "b", "c"}[c.rng.IntN(3)]
		_, sn.queues[0], _ = topic.QueueOf(sn.lane)
	}
	queue := sn.queues[0] // from beginSend on a client that sends it again may add one
	l.beginSend(sn)
	return c.append(topic, sn, queue)
}

// sendAgain repeats a send, as an SDK does that got no answer, or one whose answer came
// too late.
func (c *client) sendAgain() error {
	l := c.h.ledger
	if c.h.topics[0].Dedup == 0 {
		return nil
	}
	l.mu.Lock()
	late := l.sends[max(0, len(l.sends)-30):]
	if len(late) == 0 {
		l.mu.Unlock()
		return nil
	}
	sn := late[c.rng.IntN(len(late))]
	queue := sn.queues[0]
	if sn.lane == "" && sn.kind != mq.Lite {
		queue = mq.QueueID(c.rng.IntN(3))
		sn.queues = append(sn.queues, queue)
	}
	l.mu.Unlock()
	return c.append(c.h.topics[sn.topic-1], sn, queue)
}

func (c *client) append(topic *mq.Topic, sn *sent, queue mq.QueueID) error {
	msgs := make([]*mq.Message, len(sn.ids))
	for i, id := range sn.ids {
		m := message(id, sn.tag)
		m.Type, m.Lite, m.Group = sn.kind, sn.lite, sn.lane
		m.Properties = properties("tag", sn.tag, "filling", strings.Repeat("x", sn.filling))
		if sn.kind == mq.Delay {
			m.DeliverAt = c.h.ledger.firstTime(id)
		}
		msgs[i] = m
	}
	a, err := c.s.Append(context.Background(), shardName, topic, queue, msgs)
	if err == nil {
		c.h.ledger.endSend(sn, c.life, a)
	}
	return c.expect(err, "send")
}

// expect notes an error that no request of a client may have, but for those given. It
// returns err.
func (c *client) expect(err error, what string, allowed ...error) error {
	if err == nil || errors.Is(err, mq.ErrStopped) {
		return err
	}
	for _, a := range allowed {
		if errors.Is(err, a) {
			return err
		}
	}
	if c.h.ledger.misreadSays(err) {
		return err
	}
	c.h.ledger.wrong("%s: %v", what, err)
	return err
}

func (c *client) receive(ctx context.Context) error {
	g, topic := c.group(), c.topic(0)
	r := mq.Receive{
		Topic: topic, Group: g.Group, Max: 1 + c.rng.IntN(8), Invisible: time.Duration(1+c.rng.IntN(100)) * tick,
		Wait: time.Duration(c.rng.IntN(40)) * tick,
	}
	if topic.Type == mq.TopicLite {
		r.Lite = c.name
	} else {
		r.InFlight = c.h.inFlight
		g.choose(&r, c.rng.IntN(2) == 0)
	}
	if c.rng.IntN(8) == 0 { // a caller that goes away meanwhile
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.rng.IntN(20))*tick)
		defer cancel()
	}
	start := time.Now()
	got, err := c.s.Receive(ctx, shardName, r)
	if err != nil && ctx.Err() == nil {
		_ = c.expect(err, "receive", mq.ErrTooManyInFlight)
	}
	if r.InFlight > 0 {
		start = time.Now() // it may have waited for others to settle theirs
	}
	c.h.ledger.delivered(c.life, g, start, r.Invisible, got)
	c.h.ledger.withinLimit(c.life, g, r.InFlight, got)
	if r.Lite != "" {
		c.h.lites.got(c.h.ledger, liteSet{g.ID, c.name}, start, got)
	}
	if err == nil && len(got) == 0 && r.InFlight == 0 && r.Wait > 0 && time.Since(start) >= r.Wait {
		c.h.ledger.gotNothing(c.life, g, topic, c.h.lites.of(liteSet{g.ID, c.name}, g.LiteExclusive))
	}
	for _, d := range got {
		if c.rng.IntN(5) > 0 { // the rest is left to the end of its lease
			c.held = append(c.held, held{g.ID, d})
		}
	}
	return err
}

func (c *client) treat(d held) error {
	l, ctx := c.h.ledger, context.Background()
	switch n := c.rng.IntN(100); {
	case n < 55:
		f := l.beginAck(d.group, d.ID, d.Lease, false)
		err := c.s.Ack(ctx, []mq.Lease{d.Lease})[0]
		l.endAck(c.life, f, d.ID, d.Lease, err)
		return c.expect(err, "ack", mq.ErrLeaseEnded)
	case n < 62:
		f := l.beginAck(d.group, d.ID, d.Lease, true)
		err := c.s.DeadLetter(ctx, d.Lease)
		l.endAck(c.life, f, d.ID, d.Lease, err)
		return c.expect(err, "dead letter", mq.ErrLeaseEnded)
	default:
		after := []time.Duration{0, tick, 20 * tick, 100 * tick}[c.rng.IntN(4)]
		reason := []mq.ChangeReason{mq.Extend, mq.Renew, mq.Nack}[c.rng.IntN(3)]
		f := l.beginChange(d.group, d.ID, d.Lease)
		err := c.s.ChangeInvisible(ctx, []mq.LeaseChange{{Lease: d.Lease, Invisible: after, Reason: reason}})[0]
		l.endChange(c.life, f, d.ID, d.Lease, after, err)
		if err == nil && c.rng.IntN(2) == 0 {
			c.held = append(c.held, d) // its receipt is still good
		}
		return c.expect(err, "change", mq.ErrLeaseEnded)
	}
}

// changeDelayed recalls a delayed message, as its sender, or postpones it, as an operator.
func (c *client) changeDelayed() error {
	l, ctx := c.h.ledger, context.Background()
	id, w := l.claim(mq.Delay, c.rng.IntN)
	if w == nil {
		return nil
	}
	if c.rng.IntN(2) == 0 {
		l.beginRecall(w)
		err := c.s.Recall(ctx, []mq.PendingHandle{w.handle})[0]
		l.endRecall(c.life, id, w, err)
		return err
	}
	at := c.soon()
	l.beginPostpone(w, at)
	err := c.s.Postpone(ctx, []mq.PendingHandle{w.handle}, at)[0]
	l.endPostpone(c.life, id, w, err)
	return err
}

// endTransaction ends one, or says again how it ended.
func (c *client) endTransaction() error {
	id, w := c.h.ledger.claim(mq.Transaction, c.rng.IntN)
	if w == nil {
		return nil
	}
	if c.rng.IntN(4) > 0 {
		return c.end(id, w, w.handle, c.rng.IntN(3) > 0)
	}
	// Two say it at the same moment, the opposite or the same.
	other, commit := make(chan error), c.rng.IntN(2) == 0
	go func() { other <- c.end(id, w, w.handle, true) }()
	err := c.end(id, w, w.handle, commit)
	return errors.Join(err, <-other)
}

func (c *client) end(id string, w *waiting, handle mq.PendingHandle, commit bool) error {
	c.h.ledger.beginEnd(w, commit)
	err := c.s.EndTransaction(context.Background(), handle, commit)
	c.h.ledger.endEnd(c.life, id, w, commit, err)
	return err
}

// answerQuestions waits for questions about half messages, and answers some.
func (c *client) answerQuestions(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.rng.IntN(10))*tick)
	defer cancel()
	var names []mq.Resource
	for _, t := range c.h.topics {
		names = append(names, t.Resource)
	}
	start := time.Now()
	checks, err := c.s.Checks(ctx, names, 1+c.rng.IntN(4))
	if err == nil && len(checks) == 0 && ctx.Err() != nil && time.Since(start) > 0 {
		c.h.ledger.notAsked(c.life, c.h.checks.First)
	}
	for i := range checks {
		w := c.h.ledger.questioned(c.life, &checks[i])
		switch n := c.rng.IntN(4); {
		case n == 0:
			c.h.ledger.unasked(checks[i].MessageID)
			if err := c.s.Unasked(context.Background(), checks[i:i+1]); err != nil {
				return c.expect(err, "unasked")
			}
		case n < 3 && w != nil:
			if err := c.end(checks[i].MessageID, w, checks[i].PendingHandle, c.rng.IntN(3) > 0); err != nil {
				return err
			}
		}
	}
	return c.expect(err, "questions")
}

// move sets the place of a group in a queue, back or forward.
func (c *client) move() error {
	g, topic, l := c.group(), c.topic(0), c.h.ledger
	if !c.h.resets || !l.startMoving(c.h.moving, g.ID) {
		return nil
	}
	defer l.stopMoving(c.h.moving, g.ID)
	if topic.Type == mq.TopicLite {
		return c.moveLite(g, topic)
	}
	queue := mq.QueueID(c.rng.IntN(3))
	key := moveKey{g.ID, topic.ID, queue}
	m := &move{drop: c.rng.IntN(2) == 0}
	if c.rng.IntN(2) == 0 {
		at := time.Now().Add(-time.Duration(c.rng.IntN(60)) * tick)
		if c.rng.IntN(2) == 0 {
			at = l.timeOf(key, c.rng.IntN, at)
		}
		var err error
		if m.to, err = c.s.OffsetAt(context.Background(), shardName, topic, queue, at); err != nil {
			return c.expect(err, "offset of a time", mq.ErrTopicNotFound, mq.ErrQueueNotFound)
		}
		l.offsetAt(c.life, key, at, m.to)
	} else {
		r, err := c.s.Range(context.Background(), shardName, topic, queue)
		if err != nil {
			return c.expect(err, "range", mq.ErrTopicNotFound, mq.ErrQueueNotFound)
		}
		m.to = r.Min + mq.QueueOffset(c.rng.Int64N(int64(r.Next-r.Min)+1))
	}
	l.beginMove(key, m)
	_, err := c.s.SetOffset(context.Background(), shardName, mq.OffsetSet{
		Topic: topic, Group: g.Group, Drop: m.drop, Offsets: map[mq.QueueID]mq.QueueOffset{queue: m.to},
	})
	if err == nil {
		l.endMove(c.life, key, m)
	}
	return c.expect(err, "set offset")
}

// moveLite subscribes anew to a lite topic, from an offset on.
func (c *client) moveLite(g consumers, topic *mq.Topic) error {
	l, name := c.h.ledger, c.h.names[c.rng.IntN(len(c.h.names))]
	at, ok := l.liteQueue(topic.ID, name, c.rng.IntN)
	if !ok {
		return nil
	}
	key, m := moveKey{g.ID, topic.ID, at.queue}, &move{to: at.offset, drop: true}
	sync := mq.LiteSync{Topic: topic, Group: g.Group, Client: c.name, Action: mq.LiteRemove, Names: []string{name}, Exclusive: g.LiteExclusive}
	if _, err := c.syncLite(sync); err != nil {
		return c.expect(err, "sync")
	}
	sync.Action, sync.Place = mq.LiteAdd, mq.LitePlace{Start: mq.LiteOffset, Value: int64(at.offset), Again: true}
	l.beginMove(key, m)
	l.beginSync(g.ID, topic.ID, sync.Names)
	_, err := c.syncLite(sync)
	if err == nil {
		l.endMove(c.life, key, m)
		l.endSync(c.life, g.ID, topic.ID, sync.Names)
	}
	return c.expect(err, "sync")
}

// sync says which lite topics the client wants, or wants no more.
func (c *client) sync(g consumers, action mq.LiteAction) error {
	topic := c.topic(mq.TopicLite)
	if topic == nil {
		return nil
	}
	var names []string
	for _, name := range c.h.names {
		if c.rng.IntN(3) > 0 {
			names = append(names, name)
		}
	}
	if action == mq.LiteAdd || action == mq.LiteReplace {
		c.h.ledger.beginSync(g.ID, topic.ID, names)
	}
	_, err := c.syncLite(mq.LiteSync{
		Topic: topic, Group: g.Group, Client: c.name, Action: action, Names: names, Exclusive: g.LiteExclusive,
	})
	if err == nil && (action == mq.LiteAdd || action == mq.LiteReplace) {
		c.h.ledger.endSync(c.life, g.ID, topic.ID, names)
	}
	return c.expect(err, "sync")
}

// look lists what waits for its time.
func (c *client) look() error {
	list, _, err := c.s.Timers(context.Background(), shardName, mq.PendingQuery{Topic: 1, Max: 1000})
	if err == nil && c.s.Err() == nil {
		c.h.ledger.listedTimers(c.life, list)
	}
	return err
}

// syncLite changes what the client wants of lite topics.
func (c *client) syncLite(sync mq.LiteSync) ([]mq.LiteLoss, error) {
	losses, err := syncLite(context.Background(), c.s, sync)
	if err == nil {
		c.h.lites.synced(sync, losses)
	}
	return losses, err
}

// syncLite changes what a client wants of the lite topics of the one shard.
func syncLite(ctx context.Context, s *store.Store, sync mq.LiteSync) ([]mq.LiteLoss, error) {
	return s.SyncLite(ctx, sync, map[string][]string{shardName: sync.Names})
}
