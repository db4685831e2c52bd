package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
)

// Append stores the messages in one queue of the topic, all of them or none, at
// consecutive offsets, and returns for each where it is. When it returns they are as
// durable as the flush mode says. The messages belong to the shard from now on.
// When ctx ends first the outcome is unknown. When more wait than may, the error
// wraps mq.ErrBusy, and nothing is stored.
//
// A message that waits for its time or for the end of its transaction is stored as
// pending. One that the topic was sent within its Dedup window, by id and content, is
// not stored again: the answer is that to the send before.
func (s *Shard) Append(ctx context.Context, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	switch {
	case len(msgs) == 0:
		return nil, fmt.Errorf("append: %w: no message", mq.ErrInvalid)
	case len(msgs) > command.MaxSend:
		return nil, fmt.Errorf("append of %d messages, the limit is %d: %w", len(msgs), command.MaxSend, mq.ErrTooLarge)
	}
	if err := s.checkLite(topic, msgs); err != nil {
		return nil, err
	}
	r := s.newRequest(command.KindSend)
	r.topic = topic
	r.sent = command.Send{Topic: topic.ID, Queue: queue, Window: int64(topic.Dedup), Messages: msgs}
	if r.sent.Window > 0 {
		for _, m := range msgs {
			m.Content = fingerprint(m)
		}
	}
	for _, m := range msgs {
		if m.Delay > 0 {
			m.DeliverAt = time.Unix(0, s.wall()+int64(m.Delay))
		}
		// Behind the fingerprint: a message that comes again may have come due meanwhile.
		if m.Type == mq.Delay && m.DeliverAt.UnixNano() <= s.wall() {
			m.DeliverAt = time.Time{} // it waits for nothing
		}
		if m.Type == mq.Transaction && m.Recovery <= 0 {
			m.Recovery = s.opts.Transactions.First
		}
	}
	if !s.reserve(r) {
		return nil, fmt.Errorf("shard %s: appends of %d bytes wait, which is as much as may: %w", s.opts.Name, s.opts.QueueBytes, mq.ErrBusy)
	}
	if err := s.do(ctx, r); err != nil {
		return nil, err // r may still be under way: it is not reused
	}
	appended := make([]mq.Appended, len(r.res.Stored))
	for i, stored := range r.res.Stored {
		appended[i] = mq.Appended{
			Queue: stored.Queue, Offset: stored.Offset, StoreTime: time.Unix(0, stored.StoreTime),
			Pending: stored.Pending, Repeated: stored.Repeated,
		}
	}
	s.release(r)
	return appended, nil
}

// fingerprint returns what tells a message that is sent again from another with its id.
// What an SDK makes anew for each try, as the time of birth and the trace context, has
// no part in it.
func fingerprint(m *mq.Message) uint64 {
	var d xxhash.Digest
	d.Reset()
	// The lengths tell the end of one part from the beginning of the next.
	var head [8 * 6]byte
	deliverAt := int64(0)
	switch {
	case m.Delay > 0:
		deliverAt = -int64(m.Delay) // the time that it comes to is another one at each try
	case !m.DeliverAt.IsZero():
		deliverAt = m.DeliverAt.UnixNano()
	}
	for i, n := range [...]int{len(m.ID), len(m.Tag), len(m.Group)<<8 | int(m.Type), len(m.Properties), int(deliverAt), int(m.Recovery)} {
		binary.LittleEndian.PutUint64(head[8*i:], uint64(n))
	}
	_, _ = d.Write(head[:]) // a hash takes everything
	_, _ = d.WriteString(m.ID)
	_, _ = d.WriteString(m.Tag)
	_, _ = d.WriteString(m.Group)
	_, _ = d.WriteString(m.Lite)
	_, _ = d.Write(m.Properties)
	_, _ = d.Write(m.Body)
	return d.Sum64()
}

// Ack settles deliveries of one topic to one group. It answers for each: nil, or
// an error that wraps mq.ErrLeaseEnded when that delivery is over already.
func (s *Shard) Ack(ctx context.Context, topic mq.TopicID, group mq.GroupID, leases []command.LeaseRef) ([]error, error) {
	r := s.newRequest(command.KindAck)
	r.ack = command.Ack{Topic: topic, Group: group, Leases: leases}
	return s.settle(ctx, r)
}

// Change sets when deliveries of one topic to one group become visible again.
// It answers for each like Ack.
func (s *Shard) Change(ctx context.Context, topic mq.TopicID, group mq.GroupID, changes []command.LeaseChange) ([]error, error) {
	r := s.newRequest(command.KindChange)
	r.change = command.Change{Topic: topic, Group: group, Changes: changes}
	return s.settle(ctx, r)
}

func (s *Shard) settle(ctx context.Context, r *request) ([]error, error) {
	if err := s.do(ctx, r); err != nil {
		return nil, err
	}
	results := append([]error(nil), r.res.Settled...)
	s.release(r)
	return results, nil
}

// UpdateGroup makes a changed group known at once, so that new limits hold for
// what is in flight. A shard that does not know the group learns of it with the
// first receive.
func (s *Shard) UpdateGroup(ctx context.Context, group *mq.Group) error {
	older := false
	err := s.look(ctx, func(m *machine.Machine) error {
		version := m.GroupVersion(group.ID)
		older = version > 0 && version < group.Version
		return nil
	})
	if err != nil || !older {
		return err
	}
	r := s.newRequest(command.KindGroup)
	r.group = group
	if err := s.do(ctx, r); err != nil {
		return err
	}
	s.release(r)
	return nil
}

// DeleteTopic ends the life of a topic on this shard.
func (s *Shard) DeleteTopic(ctx context.Context, id mq.TopicID) error {
	r := s.newRequest(command.KindTopicDelete)
	r.topicDelete = command.TopicDelete{ID: id}
	return s.do(ctx, r)
}

// PurgeTopic empties the queues of a topic on this shard, drops its delayed messages, and
// ends what every group has of it under delivery: acknowledgements that are on their way
// answer with mq.ErrLeaseEnded. Half messages stay: what a transaction commits later is
// sent then. What is sent after it has returned is delivered. An error that
// wraps mq.ErrTopicNotFound says that the shard does not know the topic.
func (s *Shard) PurgeTopic(ctx context.Context, id mq.TopicID) error {
	// What fires meanwhile comes into a queue, which is emptied after.
	if err := s.purgePending(ctx, id); err != nil {
		return err
	}
	r := s.newRequest(command.KindTrim)
	r.trim = command.Trim{Topic: id, Purge: true}
	return s.do(ctx, r)
}

// DeleteGroup ends the life of a group on this shard.
func (s *Shard) DeleteGroup(ctx context.Context, id mq.GroupID) error {
	r := s.newRequest(command.KindGroupDelete)
	r.groupDelete = command.GroupDelete{ID: id}
	return s.do(ctx, r)
}

// Queues returns which offsets the queues of a topic hold.
func (s *Shard) Queues(ctx context.Context, id mq.TopicID) (ranges []mq.QueueRange, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		ranges, err = m.Queues(id)
		return err
	})
	return ranges, err
}

// Backlogs returns how far a group is with each topic it has received from.
func (s *Shard) Backlogs(ctx context.Context, group mq.GroupID) (list []mq.Backlog, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		list, err = m.Backlogs(group)
		return err
	})
	return list, err
}

// look runs fn in the loop, after what was asked before it. When the shard has failed by
// then the error is that failure, as in withViews.
func (s *Shard) look(ctx context.Context, fn func(*machine.Machine) error) error {
	r := s.newRequest(0)
	r.query = fn
	if err := s.send(ctx, r); err != nil {
		return err
	}
	<-r.done // fn must not run after look has returned
	err := r.err
	s.release(r)
	if failure := s.Err(); failure != nil {
		return failure // what Pebble says after it means nothing
	}
	return err
}

// Gone returns the greatest ids of topics and groups that were deleted from the shard,
// 0 without any.
func (s *Shard) Gone(ctx context.Context) (topic mq.TopicID, group mq.GroupID, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		topic, group, err = m.Gone()
		return err
	})
	return topic, group, err
}

// Registered returns the ids of all topics and groups the shard knows.
func (s *Shard) Registered(ctx context.Context) (topics []mq.TopicID, groups []mq.GroupID, err error) {
	err = s.look(ctx, func(m *machine.Machine) error {
		topics, groups = m.Registered()
		return nil
	})
	return topics, groups, err
}

// Named returns the names by which the shard knows topics and groups.
func (s *Shard) Named(ctx context.Context) (topics map[mq.TopicID]mq.Resource, groups map[mq.GroupID]mq.Resource, err error) {
	topics, groups = map[mq.TopicID]mq.Resource{}, map[mq.GroupID]mq.Resource{}
	err = s.look(ctx, func(m *machine.Machine) error {
		topicIDs, groupIDs := m.Registered()
		for _, id := range topicIDs {
			topics[id], _ = m.TopicName(id)
		}
		for _, id := range groupIDs {
			groups[id], _ = m.GroupName(id)
		}
		return nil
	})
	return topics, groups, err
}
