package store

import (
	"context"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// Pull returns messages of one queue of the named shard from an offset on, without a
// lease and without a trace; see shard.Pull. It returns none when p.Wait passes without
// any. An offset that is not in the queue is an *mq.OffsetError.
func (s *Store) Pull(ctx context.Context, shard string, p mq.Pull) (mq.Pulled, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return mq.Pulled{}, err
	}
	return sh.Pull(ctx, p)
}

// SetOffset moves the progress of a group in queues of a topic on the named shard, all
// of them or none, and returns how many deliveries that has ended. An offset that is not
// in its queue is an *mq.OffsetError.
func (s *Store) SetOffset(ctx context.Context, shard string, set mq.OffsetSet) (dropped int, err error) {
	sh, err := s.shard(shard)
	if err != nil {
		return 0, err
	}
	return sh.SetOffset(ctx, set)
}

// Positions returns how far a group is with each queue of the topic on the named shard,
// in their order; none when the shard does not know the topic yet.
func (s *Store) Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, err
	}
	return sh.Positions(ctx, topic, group)
}

// Range returns which offsets a queue of the topic on the named shard holds. The error
// wraps mq.ErrQueueNotFound when there is no such queue.
func (s *Store) Range(_ context.Context, shard string, topic *mq.Topic, queue mq.QueueID) (mq.QueueRange, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return mq.QueueRange{}, err
	}
	return sh.Range(topic, queue)
}

// OffsetAt returns the first offset of a queue of the named shard that was stored at or
// after a time: its beginning when the time is before all, its end when it is behind all.
// The error is as with Range.
func (s *Store) OffsetAt(_ context.Context, shard string, topic *mq.Topic, queue mq.QueueID, at time.Time) (mq.QueueOffset, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return 0, err
	}
	return sh.OffsetAt(topic, queue, at)
}
