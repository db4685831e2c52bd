package shard

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// endLimit is how many deliveries one command ends when a group is set to another place.
// Where there are more in its queues, most of them end in commands before that.
const endLimit = 1000

// SetOffset moves the progress of a group in queues of a topic, all of them or none, and
// returns how many deliveries that has ended: acknowledging them answers with
// mq.ErrLeaseEnded. Receives that wait are woken when there is more for them. An offset
// that is not in its queue is an *mq.OffsetError.
//
// Where many deliveries end they do so some at a time, and the group gets nothing of the
// topic meanwhile. When ctx ends on the way, or the oldest messages are removed that were
// to be delivered again, the group may be left between its old place and the new one: it
// has lost nothing, and gets some messages again.
func (s *Shard) SetOffset(ctx context.Context, set mq.OffsetSet) (dropped int, err error) {
	c := command.SetOffset{Topic: set.Topic.ID, Group: set.Group.ID, Drop: set.Drop}
	for queue, offset := range set.Offsets {
		c.Queues = append(c.Queues, command.QueueSet{Queue: queue, Offset: offset})
	}
	c.Sort()
	many, err := s.holdFor(ctx, &c)
	if err != nil {
		return 0, err
	}
	if len(many) > 0 {
		sub := keyspace.Sub{Group: c.Group, Topic: c.Topic}
		defer s.unhold(sub)
		for _, q := range many {
			// They are not lost when the rest does not come to pass: the progress goes
			// back with them.
			end := command.EndDeliveries{Topic: c.Topic, Group: c.Group, Queue: q.Queue, From: q.Offset, To: math.MaxInt64, Back: true}
			if err := s.endSome(ctx, end, &dropped); err != nil {
				return 0, err
			}
		}
		c.Drop = false
	}
	r := s.newRequest(command.KindSetOffset)
	r.topic, r.group = set.Topic, set.Group
	r.setOffset = c
	if err := s.do(ctx, r); err != nil {
		return 0, err // r may still be under way: it is not reused
	}
	dropped += r.res.Dropped
	s.release(r)
	for _, q := range many {
		if !set.Drop {
			break
		}
		// What lies before the new place is given up.
		end := command.EndDeliveries{Topic: c.Topic, Group: c.Group, Queue: q.Queue, To: q.Offset}
		if err := s.endSome(ctx, end, &dropped); err != nil {
			return 0, err
		}
	}
	return dropped, nil
}

// holdFor returns the queues that have deliveries, when there are more of them than one
// command is to end. Then the group gets nothing of the topic until unhold.
func (s *Shard) holdFor(ctx context.Context, c *command.SetOffset) (many []command.QueueSet, err error) {
	sub := keyspace.Sub{Group: c.Group, Topic: c.Topic}
	err = s.look(ctx, func(m *machine.Machine) error {
		n := int64(0)
		for _, q := range c.Queues {
			if under := m.Unsettled(sub, q.Queue); under > 0 {
				n, many = n+under, append(many, q)
			}
		}
		if n <= endLimit {
			many = nil
			return nil
		}
		refusal, err := m.CheckSetOffset(c)
		if err = errors.Join(refusal, err); err != nil {
			many = nil
			return err
		}
		s.held[sub]++
		return nil
	})
	return many, err
}

// unhold undoes holdFor.
func (s *Shard) unhold(sub keyspace.Sub) {
	// A shard that has stopped wakes everybody.
	_ = s.look(context.Background(), func(*machine.Machine) error {
		if s.held[sub]--; s.held[sub] == 0 {
			delete(s.held, sub)
		}
		woken := []machine.Readied{{Sub: sub, N: endLimit}}
		s.looks.hurry(woken)
		s.waiters.ready(woken)
		return nil
	})
}

// endSome ends deliveries, the last first, until there are none left.
func (s *Shard) endSome(ctx context.Context, c command.EndDeliveries, dropped *int) error {
	c.Limit = endLimit
	for {
		r := s.newRequest(command.KindEndDeliveries)
		r.endDeliveries = c
		if err := s.do(ctx, r); err != nil {
			return err
		}
		n, first := r.res.Dropped, r.res.First
		s.release(r)
		if *dropped += n; n < endLimit {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.To = first // what is gone from there on need not be stepped over
	}
}

// Positions returns how far the group is with each queue of the topic that the shard
// knows, in their order.
func (s *Shard) Positions(ctx context.Context, topic mq.TopicID, group mq.GroupID) (list []mq.Position, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		list, err = m.Positions(keyspace.Sub{Group: group, Topic: topic})
		return err
	})
	return list, err
}

// Range returns which offsets a queue holds.
func (s *Shard) Range(topic *mq.Topic, queue mq.QueueID) (r mq.QueueRange, err error) {
	err = s.withView(func(v *machine.View) (err error) {
		r, err = v.Range(keyspace.Queue{Topic: topic.ID, Queue: queue}, s.queuesOf(topic))
		return err
	})
	return r, s.naming(mq.Pull{Topic: topic}, err)
}

// OffsetAt returns the first offset of a queue that was stored at or after a time: its
// beginning when the time is before all, its end when it is behind all.
func (s *Shard) OffsetAt(topic *mq.Topic, queue mq.QueueID, at time.Time) (offset mq.QueueOffset, err error) {
	err = s.withView(func(v *machine.View) (err error) {
		offset, err = v.OffsetAt(keyspace.Queue{Topic: topic.ID, Queue: queue}, s.queuesOf(topic), unixNano(at))
		return err
	})
	return offset, s.naming(mq.Pull{Topic: topic}, err)
}

// unixNano is t.UnixNano, and the nearest there is for a time that has none.
func unixNano(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}
