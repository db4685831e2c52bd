package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Pull returns messages of one queue from an offset on, and waits for the first one if
// it is asked to. It reads beside the loop and leaves no trace: no lease, no progress, no
// record in the log.
//
// An offset that is not in the queue is an *mq.OffsetError. A topic that is deleted while
// the pull waits ends it with an error that wraps mq.ErrTopicNotFound. A message that
// cannot be read ends what is returned before it; when it is the first, the error is that
// of the pull. When more wait than may, the error wraps mq.ErrBusy.
func (s *Shard) Pull(ctx context.Context, p mq.Pull) (mq.Pulled, error) {
	if p.Max < 1 || p.Max > math.MaxInt32 {
		return mq.Pulled{}, fmt.Errorf("pull of %d messages: %w", p.Max, mq.ErrInvalid)
	}
	end := time.Now().Add(p.Wait)
	for {
		found, err := s.search(ctx, p, time.Now().Add(max(p.Wait, lookTime)))
		if err == nil && len(found.Messages) == 0 && found.End && p.Wait > 0 {
			p.Offset = found.Next
			found, err = s.waitPull(ctx, p)
		}
		if err != nil || len(found.Messages) == 0 {
			return mq.Pulled{Next: found.Next}, s.naming(p, err)
		}
		if p.Reserve != nil {
			if err := p.Reserve(ctx, sizeOf(found.Messages)); err != nil {
				return mq.Pulled{}, err
			}
		}
		pulled, err := s.readPulled(p, found)
		if !errors.Is(err, commitlog.ErrTrimmed) {
			return pulled, err
		}
		// The log has dropped it meanwhile, and the queue begins later.
		p.Wait = max(time.Until(end), 0)
	}
}

// naming adds the topic's name to an error that knows only its id.
func (s *Shard) naming(p mq.Pull, err error) error {
	var outside *mq.OffsetError
	switch {
	case errors.As(err, &outside):
		outside.Topic = p.Topic.Resource
	case errors.Is(err, mq.ErrQueueNotFound), errors.Is(err, mq.ErrTopicNotFound):
		return fmt.Errorf("topic %s: %w", p.Topic.Resource, err)
	}
	return err
}

// search looks until it has messages, has looked at all, or the time is over.
func (s *Shard) search(ctx context.Context, p mq.Pull, end time.Time) (found machine.PageFound, err error) {
	page := machine.Page{
		Queue: keyspace.Queue{Topic: p.Topic.ID, Queue: p.Queue}, From: p.Offset, Tags: p.Tags,
		Max: p.Max, Bytes: popBytes, Scan: popScan, Queues: s.queuesOf(p.Topic),
	}
	if p.Filter != nil {
		page.Max = max(p.Max, judgedPage)
	}
	for {
		if err := s.Err(); err != nil {
			return found, err
		}
		err := s.withView(func(v *machine.View) (err error) {
			found, err = v.Page(page)
			return err
		})
		if err == nil && p.Filter != nil {
			s.choosePulled(p, &found)
		}
		if err != nil || len(found.Messages) > 0 || found.End {
			return found, err
		}
		if ctx.Err() != nil {
			return found, context.Cause(ctx)
		}
		if !time.Now().Before(end) {
			return found, nil
		}
		page.From = found.Next
	}
}

// judgedPage is how many messages a pull with a filter reads at a time.
const judgedPage = 256

// choosePulled leaves of what was found what the filter wants, up to as many as the pull
// takes. A message that cannot be read counts as wanted: reading it again says why.
func (s *Shard) choosePulled(p mq.Pull, found *machine.PageFound) {
	var wanted []machine.Popped
	s.readAll(found.Messages, func(m machine.Popped, msg mq.Message, err error) {
		switch {
		case err == nil && !p.Filter.Matches(msg.Properties, msg.System):
		case len(wanted) < p.Max:
			wanted = append(wanted, m)
		case len(wanted) == p.Max && found.Next > m.Offset:
			found.Next, found.End = m.Offset, false
		}
	})
	found.Messages = wanted
}

// withView runs fn with what is committed now.
func (s *Shard) withView(fn func(*machine.View) error) error {
	return s.withViews(func() error {
		v, err := machine.OpenView(s.db)
		if err != nil {
			return err
		}
		return errors.Join(fn(v), v.Close())
	})
}

// waitPull parks the pull until there is something for it.
func (s *Shard) waitPull(ctx context.Context, p mq.Pull) (machine.PageFound, error) {
	if !s.waiters.enter(s.opts.MaxWaiting) {
		return machine.PageFound{}, fmt.Errorf("shard %s: %d receives and pulls wait already: %w", s.opts.Name, s.opts.MaxWaiting, mq.ErrBusy)
	}
	defer s.waiters.leave()
	end := time.Now().Add(p.Wait)
	timer := time.NewTimer(p.Wait)
	defer timer.Stop()
	w := s.pulls.register(keyspace.Queue{Topic: p.Topic.ID, Queue: p.Queue}, p.Tags)
	defer s.pulls.unregister(w)
	for {
		found, err := s.search(ctx, p, end)
		if err != nil || len(found.Messages) > 0 || !found.End {
			return found, err
		}
		p.Offset = found.Next
		parked := time.Now()
		over := false
		select {
		case <-w.c:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over, err = true, context.Cause(ctx)
		case <-s.closing:
			over = true
		case <-s.failed:
			over, err = true, s.Err()
		}
		if p.Waited != nil {
			*p.Waited += time.Since(parked)
		}
		if over {
			return found, err
		}
	}
}

// readPulled reads the messages that were found.
func (s *Shard) readPulled(p mq.Pull, found machine.PageFound) (mq.Pulled, error) {
	pulled := mq.Pulled{Messages: make([]mq.Delivery, 0, len(found.Messages)), Next: found.Next}
	var failed error
	bytes := 0
	s.readAll(found.Messages, func(m machine.Popped, msg mq.Message, err error) {
		switch {
		case failed != nil:
			return
		case err != nil:
			failed, pulled.Next = err, m.Offset
			if !errors.Is(err, commitlog.ErrTrimmed) {
				failed = s.unreadable(p.Topic.Resource, mq.Resource{}, m, err)
				s.stats.unreadable.Add(1)
			}
			return
		}
		bytes += int(m.Size)
		pulled.Messages = append(pulled.Messages, mq.Delivery{
			Message:   msg,
			Lease:     mq.Lease{Shard: s.opts.Name, Topic: p.Topic.ID, Queue: m.Queue, Offset: m.Offset, Attempt: 1},
			StoreTime: time.Unix(0, m.StoreTime),
		})
	})
	if len(pulled.Messages) == 0 {
		return pulled, failed
	}
	s.stats.pulledFrom(p.Topic.ID, len(pulled.Messages), bytes)
	return pulled, nil
}
