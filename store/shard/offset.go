package shard

import (
	"context"
	"math"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// SetOffset moves the progress of a group in queues of a topic, all of them or none, and
// returns how many deliveries that has ended: acknowledging them answers with
// mq.ErrLeaseEnded. Receives that wait are woken when there is more for them. An offset
// that is not in its queue is an *mq.OffsetError.
func (s *Shard) SetOffset(ctx context.Context, set mq.OffsetSet) (dropped int, err error) {
	r := s.newRequest(command.KindSetOffset)
	r.topic, r.group = set.Topic, set.Group
	r.setOffset = command.SetOffset{Topic: set.Topic.ID, Group: set.Group.ID, Drop: set.Drop}
	for queue, offset := range set.Offsets {
		r.setOffset.Queues = append(r.setOffset.Queues, command.QueueSet{Queue: queue, Offset: offset})
	}
	r.setOffset.Sort()
	if err := s.do(ctx, r); err != nil {
		return 0, err // r may still be under way: it is not reused
	}
	dropped = r.res.Dropped
	s.release(r)
	return dropped, nil
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
