package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// popScan bounds how many index entries one pop looks at. A receive with a
// sparse filter goes on with the next pop, behind what waits meanwhile.
const popScan = 2048

// popBytes bounds the messages of one receive, which are all in memory until the
// consumer has read them. One message is delivered whatever its size.
const popBytes = 4 << 20

// How long a receive goes on that does not wait for messages.
const (
	// fullHold is how long a receive is held whose group has as many messages in
	// flight as it may, so that clients that ask again at once do so slowly.
	fullHold = time.Second
	// lookTime is how long a receive looks for messages at least, whatever its
	// wait: behind a sparse filter there may be many to look at.
	lookTime = time.Second
)

// A haul is what a receive has found.
type haul struct {
	popped []machine.Popped
	popID  mq.PopID
	more   bool // the look has not come to its end
	left   bool // it is as much as one receive gets, and there may be more
	full   bool // there are messages in queues at their in-flight limit
}

// Receive leases up to r.Max messages to the caller: redeliveries first, then
// new messages, from any queue; of a PRIORITY topic what is in the queue with the highest
// id first. A group that is FIFO gets no message before all earlier ones of its message
// group are settled or part of the same answer, and nothing by priority. It returns none
// when r.Wait passes or the shard
// is closed without any. When ctx ends, messages that were leased meanwhile are
// given back uncounted.
//
// When the only messages there are lie in queues at the in-flight limit, it waits
// about a second for some to be settled, and not beyond r.Wait, and then returns
// an error that wraps mq.ErrTooManyInFlight. When more receives wait than may, the
// error wraps mq.ErrBusy.
func (s *Shard) Receive(ctx context.Context, r mq.Receive) ([]mq.Delivery, error) {
	if r.Max < 1 || r.Max > math.MaxInt32 || r.Invisible <= 0 {
		return nil, fmt.Errorf("receive of %d messages for %s: %w", r.Max, r.Invisible, mq.ErrInvalid)
	}
	for i := range r.Tags[min(1, len(r.Tags)):] {
		if r.Tags[i] >= r.Tags[i+1] {
			return nil, fmt.Errorf("receive with tags %q, they must be sorted and without repeats: %w", r.Tags, mq.ErrInvalid)
		}
	}
	if r.InFlight < 0 || r.InFlight > math.MaxInt32 {
		return nil, fmt.Errorf("receive with an in-flight limit of %d: %w", r.InFlight, mq.ErrInvalid)
	}
	if !s.beginReceive() {
		return nil, context.Cause(s.serving)
	}
	defer s.receiving.Done()
	if r.Lite != "" {
		return s.receiveLite(ctx, r)
	}
	if r.Filter != nil && len(r.Tags) > 0 {
		return nil, fmt.Errorf("receive with tags and a filter: %w", mq.ErrInvalid)
	}
	what := wishOf(keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID}, r.Tags)
	if r.Filter != nil {
		what = s.looks.enter(what.key.sub, r.Filter)
		defer s.looks.leave(what.look)
	}
	end := time.Now().Add(r.Wait)
	for {
		got, err := s.find(ctx, r, what.look, time.Now().Add(max(r.Wait, lookTime)))
		switch {
		case err != nil || len(got.popped) > 0:
		case what.look != nil && r.Wait > 0 && !time.Now().Before(end):
			err = s.moveOn(ctx, r, what.look, 0) // there was that much to look at
		case r.Wait > 0:
			if what.look != nil {
				r.Wait = time.Until(end)
			}
			got, err = s.wait(ctx, r, what)
		case got.full:
			err = tooManyInFlight(r)
		}
		if err != nil || len(got.popped) == 0 {
			return nil, err
		}
		if ctx.Err() != nil {
			s.giveBack(r, got.popped, got.popID)
			return nil, context.Cause(ctx)
		}
		if r.Reserve != nil {
			if err := s.reserveFor(ctx, r, sizeOf(got.popped)); err != nil {
				s.giveBack(r, got.popped, got.popID)
				return nil, err
			}
		}
		deliveries, err := s.read(r, got.popped, got.popID)
		if len(deliveries) > 0 || err != nil {
			return deliveries, err
		}
		// All of it was dropped from the log meanwhile.
		r.Wait = max(time.Until(end), 0)
	}
}

// beginReceive notes that a receive is under way, unless the shard is closing.
func (s *Shard) beginReceive() bool {
	s.submit.RLock()
	defer s.submit.RUnlock()
	if s.submit.closed {
		return false
	}
	s.receiving.Add(1)
	return true
}

// reserveFor asks the receive to make room, and not beyond the beginning of Close.
func (s *Shard) reserveFor(ctx context.Context, r mq.Receive, bytes int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.serving, func() { cancel(context.Cause(s.serving)) })()
	return r.Reserve(ctx, bytes)
}

func tooManyInFlight(r mq.Receive) error {
	return fmt.Errorf("group %s has %d or more messages of topic %s in flight in each queue that has any for it, the limit is %d: %w",
		r.Group.Resource, r.InFlight, r.Topic.Resource, r.InFlight, mq.ErrTooManyInFlight)
}

// sizeOf returns the bytes that the messages take.
func sizeOf(popped []machine.Popped) (bytes int) {
	for _, p := range popped {
		bytes += int(p.Size)
	}
	return bytes
}

// find asks for messages until there are some, all were looked at, or the time is over.
func (s *Shard) find(ctx context.Context, r mq.Receive, l *look, end time.Time) (haul, error) {
	if l == nil {
		return s.pop(ctx, r, end)
	}
	got, err := s.popJudged(ctx, r, l, end)
	if err == nil && len(got.popped) == 0 && r.Wait == 0 && ctx.Err() == nil {
		err = s.moveOn(ctx, r, l, 0)
	}
	return got, err
}

// wait parks the receive until there is something for it.
func (s *Shard) wait(ctx context.Context, r mq.Receive, what wish) (haul, error) {
	if !s.waiters.enter(s.opts.MaxWaiting) {
		return haul{}, fmt.Errorf("shard %s: %d receives wait already: %w", s.opts.Name, s.opts.MaxWaiting, mq.ErrBusy)
	}
	defer s.waiters.leave()
	end := time.Now().Add(r.Wait)
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	w := &waiter{c: make(chan struct{}, 1), max: r.Max}
	full := false
	for {
		s.waiters.register(w, what)
		got, err := s.find(ctx, r, what.look, end)
		if err == nil && len(got.popped) == 0 && got.full && s.waiters.wantRoom(w) {
			// From now on it is woken by what makes room, and not by what has before.
			got, err = s.find(ctx, r, what.look, end)
		}
		if err == nil && len(got.popped) == 0 && ctx.Err() != nil {
			err = context.Cause(ctx) // it may not have looked at all
		}
		if err != nil || len(got.popped) > 0 {
			s.waiters.unregister(w)
			if err != nil || got.left || got.more || what.look.isCalled() {
				// What it was woken for may still be there.
				s.waiters.passOn(what.key)
			}
			return got, err
		}
		if got.full != full {
			left := time.Until(end)
			if full = got.full; full {
				left = min(left, fullHold)
			}
			timer.Reset(left)
		}
		woken, err := s.park(ctx, r, w, timer, full, what.look)
		if woken {
			continue
		}
		s.waiters.unregister(w)
		return haul{}, err
	}
}

// park waits until w is woken, and reports true, or until there is another reason to
// end. A filter's receives carry their group past what it does not want meanwhile.
func (s *Shard) park(ctx context.Context, r mq.Receive, w *waiter, timer *time.Timer, full bool, l *look) (woken bool, err error) {
	defer waited(r, time.Now())
	move := &time.Timer{}
	if l.owes() {
		move = time.NewTimer(moveTime)
		defer move.Stop()
	}
	for {
		select {
		case <-w.c:
			return true, nil
		case <-move.C:
			if err := s.moveOn(ctx, r, l, moveTime); err != nil {
				return false, err
			}
			if l.owes() { // another one was about to
				move.Reset(moveTime)
			}
		case <-timer.C:
			if full {
				return false, tooManyInFlight(r)
			}
			return false, s.moveOn(ctx, r, l, 0)
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-s.closing:
			return false, nil
		case <-s.failed:
			return false, s.Err()
		}
	}
}

// waited notes that the receive waited from then until now.
func waited(r mq.Receive, from time.Time) {
	if r.Waited != nil {
		*r.Waited += time.Since(from)
	}
}

// orderOf returns the order in which the receive is given messages.
func orderOf(r *mq.Receive) command.Order {
	switch {
	case r.Group.FIFO:
		return command.GroupOrder
	case r.Topic.Type == mq.TopicPriority:
		return command.PriorityOrder
	}
	return command.AnyOrder
}

// pop asks the machine for messages until it has some, has looked at all, or the
// time is over.
func (s *Shard) pop(ctx context.Context, r mq.Receive, end time.Time) (haul, error) {
	kind, order := command.KindPop, orderOf(&r)
	switch {
	case order != command.AnyOrder:
		kind = command.KindPopSelect
	case r.InFlight > 0:
		kind = command.KindPopLimited
	}
	after, full := uint64(0), false
	for {
		req := s.newRequest(kind)
		req.topic, req.group = r.Topic, r.Group
		req.pop.InFlight = int32(r.InFlight)
		req.pop.Order, req.pop.Attempt = order, r.Attempt
		req.pop.LimitedPop.Pop = command.Pop{
			Topic: r.Topic.ID, Group: r.Group.ID, Max: int32(r.Max), Bytes: popBytes,
			Invisible: int64(r.Invisible), Scan: popScan, After: after, Tags: r.Tags,
		}
		// The answer is awaited even when ctx ends: what it leases must be
		// given back.
		if err := s.send(ctx, req); err != nil {
			return haul{}, err
		}
		<-req.done
		full = full || req.res.Full
		after = req.res.After
		got := haul{
			popped: append([]machine.Popped(nil), req.res.Popped...), popID: req.res.PopID,
			more: req.res.More, left: req.res.Left, full: full,
		}
		err := req.err
		s.release(req)
		if err != nil || len(got.popped) > 0 || !got.more || ctx.Err() != nil || !time.Now().Before(end) {
			return got, err
		}
	}
}

// giveBack makes deliveries visible again that never reached the consumer.
func (s *Shard) giveBack(r mq.Receive, popped []machine.Popped, popID mq.PopID) {
	changes := make([]command.LeaseChange, len(popped))
	for i, p := range popped {
		changes[i] = command.LeaseChange{
			LeaseRef: command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: popID},
			Reason:   mq.GiveBack,
		}
	}
	// The caller's context may be over. A shard that fails meanwhile lets the leases end
	// by themselves; one that is closed waits for this.
	_, _ = s.Change(context.Background(), r.Topic.ID, r.Group.ID, changes)
}

// gap is how many bytes between two messages are read along rather than
// starting another read; readRun bounds one read.
const (
	gap     = 4 << 10
	readRun = 4 << 20
)

// read reads the popped messages from the log, neighbours in one read. A message
// that cannot be read stays leased and comes back; the others are delivered, but where
// there is an order those behind it in its queue are given back: which of them are in its
// message group it does not say. What the log has dropped is lost, and settled; it may be
// all.
func (s *Shard) read(r mq.Receive, popped []machine.Popped, popID mq.PopID) ([]mq.Delivery, error) {
	deliveries := make([]mq.Delivery, 0, len(popped))
	var failed error
	var lost []command.LeaseRef
	var behind []machine.Popped
	var stuck []mq.QueueID
	s.readAll(popped, func(p machine.Popped, msg mq.Message, err error) {
		switch {
		case slices.Contains(stuck, p.Queue):
			behind = append(behind, p)
		case errors.Is(err, commitlog.ErrTrimmed):
			lost = append(lost, command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: popID})
		case err != nil:
			failed = s.unreadable(r.Topic.Resource, r.Group.Resource, p, err)
			s.stats.failedRead(keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID})
			if r.Group.FIFO || r.Lite != "" {
				stuck = append(stuck, p.Queue)
			}
		default:
			deliveries = append(deliveries, mq.Delivery{
				Message: msg,
				Lease: mq.Lease{
					Shard: s.opts.Name, Topic: r.Topic.ID, Group: r.Group.ID, Queue: p.Queue,
					Offset: p.Offset, PopID: popID, Attempt: p.Attempt, AutoRenew: r.AutoRenew,
				},
				StoreTime: time.Unix(0, p.StoreTime),
			})
		}
	})
	if len(behind) > 0 {
		s.giveBack(r, behind, popID)
	}
	if len(lost) > 0 {
		if err := s.settleLost(r.Topic.ID, r.Group.ID, lost); err != nil {
			failed = err
		}
	}
	if len(deliveries) == 0 {
		return nil, failed
	}
	return deliveries, nil
}

// readAll reads messages from the log, neighbours in one read, and calls fn for each in
// their order, with the message or with why it cannot be read.
func (s *Shard) readAll(popped []machine.Popped, fn func(machine.Popped, mq.Message, error)) {
	for i := 0; i < len(popped); {
		run := neighbours(popped[i:])
		i += len(run)
		buf, err := s.fetch(run)
		for j, p := range run {
			single := buf
			from := p.Pos - run[0].Pos
			if err != nil {
				// No read crosses the end of a segment, and one bad place must
				// not take its neighbours along: each message by itself.
				var alone error
				if single, alone = s.fetch(run[j : j+1]); alone != nil {
					fn(p, mq.Message{}, alone)
					continue
				}
				from = 0
			}
			to := from + uint64(p.Size)
			msg, err := command.DecodeMessage(single[from:to:to])
			fn(p, msg, err)
		}
	}
}

// settleLost ends deliveries whose messages the log has dropped.
func (s *Shard) settleLost(topic mq.TopicID, group mq.GroupID, lost []command.LeaseRef) error {
	s.stats.dropped(keyspace.Sub{Group: group, Topic: topic}, uint64(len(lost)))
	s.logger.Warn("messages dropped before they were delivered", "topic_id", topic, "group_id", group, "messages", len(lost))
	req := s.newRequest(command.KindAck)
	req.internal = true
	req.ack = command.Ack{Topic: topic, Group: group, Leases: lost}
	// Whoever waits for the receive may be gone; the deliveries are over all the same.
	_, err := s.settle(context.Background(), req)
	return err
}

// neighbours returns the messages from the first on that one read should fetch.
func neighbours(popped []machine.Popped) []machine.Popped {
	start, end := popped[0].Pos, popped[0].Pos+uint64(popped[0].Size)
	n := 1
	for ; n < len(popped); n++ {
		p := popped[n]
		if p.Pos < end || p.Pos-end > gap || p.Pos+uint64(p.Size)-start > readRun {
			break
		}
		end = p.Pos + uint64(p.Size)
	}
	return popped[:n]
}

// fetch reads the bytes from the beginning of the first message to the end of
// the last.
func (s *Shard) fetch(run []machine.Popped) ([]byte, error) {
	last := run[len(run)-1]
	buf := make([]byte, last.Pos+uint64(last.Size)-run[0].Pos)
	return buf, s.log.ReadAt(buf, commitlog.Pos(run[0].Pos))
}

// unreadable returns the error about a message that cannot be read, and logs it.
func (s *Shard) unreadable(topic, group mq.Resource, p machine.Popped, cause error) error {
	file, offset := s.log.Place(commitlog.Pos(p.Pos))
	err := fmt.Errorf("message at offset %d of queue %d, %s:%d: %w", p.Offset, p.Queue, file, offset, cause)
	s.logger.Error("message not readable", "topic", topic.String(), "group", group.String(),
		"queue", p.Queue, "offset", p.Offset, "file", file, "file_offset", offset, "error", cause)
	return err
}
