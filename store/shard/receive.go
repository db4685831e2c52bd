package shard

import (
	"context"
	"fmt"
	"math"
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

// full reports whether popped is as much as one receive gets, so that there may
// be more.
func full(r mq.Receive, popped []machine.Popped) bool {
	bytes := 0
	for _, p := range popped {
		bytes += int(p.Size)
	}
	return len(popped) == r.Max || bytes >= popBytes
}

// Receive leases up to r.Max messages to the caller: redeliveries first, then
// new messages, from any queue. It returns none when r.Wait passes or the shard
// is closed without any. When ctx ends, messages that were leased meanwhile are
// given back uncounted.
func (s *Shard) Receive(ctx context.Context, r mq.Receive) ([]mq.Delivery, error) {
	if r.Max < 1 || r.Max > math.MaxInt32 || r.Invisible <= 0 {
		return nil, fmt.Errorf("receive of %d messages for %s: %w", r.Max, r.Invisible, mq.ErrInvalid)
	}
	popped, popID, err := s.pop(ctx, r)
	if err == nil && len(popped) == 0 && r.Wait > 0 {
		popped, popID, err = s.wait(ctx, r)
	}
	if err != nil || len(popped) == 0 {
		return nil, err
	}
	if ctx.Err() != nil {
		s.giveBack(r, popped, popID)
		return nil, context.Cause(ctx)
	}
	return s.read(r, popped, popID)
}

// wait parks the receive until there is something for it.
func (s *Shard) wait(ctx context.Context, r mq.Receive) (popped []machine.Popped, popID mq.PopID, err error) {
	sub := keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID}
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	w := &waiter{c: make(chan struct{}, 1)}
	for {
		s.waiters.register(w, sub, r.Tags)
		popped, popID, err = s.pop(ctx, r)
		if err == nil && len(popped) == 0 && ctx.Err() != nil {
			err = context.Cause(ctx) // it may not have looked at all
		}
		if err != nil || len(popped) > 0 {
			s.waiters.unregister(w)
			if err != nil || full(r, popped) {
				// What it was woken for may still be there.
				s.waiters.passOn(sub, r.Tags)
			}
			return popped, popID, err
		}
		parked := time.Now()
		select {
		case <-w.c:
			waited(r, parked)
			continue
		case <-timer.C:
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-s.closing:
		case <-s.failed:
			err = s.Err()
		}
		s.waiters.unregister(w)
		waited(r, parked)
		return nil, 0, err
	}
}

// waited notes that the receive waited from then until now.
func waited(r mq.Receive, from time.Time) {
	if r.Waited != nil {
		*r.Waited += time.Since(from)
	}
}

// pop asks the machine for messages until it has some or has looked at all.
func (s *Shard) pop(ctx context.Context, r mq.Receive) ([]machine.Popped, mq.PopID, error) {
	after := uint64(0)
	for {
		req := s.newRequest(command.KindPop)
		req.topic, req.group = r.Topic, r.Group
		req.pop = command.Pop{
			Topic: r.Topic.ID, Group: r.Group.ID, Max: int32(r.Max), Bytes: popBytes,
			Invisible: int64(r.Invisible), Scan: popScan, After: after, Tags: r.Tags,
		}
		// The answer is awaited even when ctx ends: what it leases must be
		// given back.
		if err := s.send(ctx, req); err != nil {
			return nil, 0, err
		}
		<-req.done
		popped := append([]machine.Popped(nil), req.res.Popped...)
		popID, more, err := mq.PopID(req.pop.Time), req.res.More, req.err
		after = req.res.After
		s.release(req)
		if err != nil || len(popped) > 0 || !more || ctx.Err() != nil {
			return popped, popID, err
		}
		after = max(after, 1) // above 0: go on without asking whether it is worth it
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
	// The caller's context is over. A shard that stops meanwhile lets the
	// leases end by themselves.
	_, _ = s.Change(context.Background(), r.Topic.ID, r.Group.ID, changes)
}

// gap is how many bytes between two messages are read along rather than
// starting another read; readRun bounds one read.
const (
	gap     = 4 << 10
	readRun = 4 << 20
)

// read reads the popped messages from the log, neighbours in one read. A message
// that cannot be read stays leased and comes back; the others are delivered.
func (s *Shard) read(r mq.Receive, popped []machine.Popped, popID mq.PopID) ([]mq.Delivery, error) {
	deliveries := make([]mq.Delivery, 0, len(popped))
	var failed error
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
					failed = s.unreadable(r, p, alone)
					continue
				}
				from = 0
			}
			to := from + uint64(p.Size)
			msg, err := command.DecodeMessage(single[from:to:to])
			if err != nil {
				failed = s.unreadable(r, p, err)
				continue
			}
			deliveries = append(deliveries, mq.Delivery{
				Message: msg,
				Lease: mq.Lease{
					Shard: s.opts.Name, Topic: r.Topic.ID, Group: r.Group.ID, Queue: p.Queue,
					Offset: p.Offset, PopID: popID, Attempt: p.Attempt, AutoRenew: r.AutoRenew,
				},
				StoreTime: time.Unix(0, p.StoreTime),
			})
		}
	}
	if len(deliveries) == 0 {
		return nil, failed
	}
	return deliveries, nil
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

func (s *Shard) unreadable(r mq.Receive, p machine.Popped, cause error) error {
	s.stats.failedRead(keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID})
	err := fmt.Errorf("message at offset %d of queue %d, log position %d: %w", p.Offset, p.Queue, p.Pos, cause)
	s.logger.Error("message not readable", "topic", r.Topic.String(), "group", r.Group.String(), "queue", p.Queue, "offset", p.Offset, "position", p.Pos, "error", cause)
	return err
}
