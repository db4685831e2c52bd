package store

import (
	"context"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// PurgeTopic empties a topic on every shard: no message stored before the call is
// delivered any more, and no backlog counts one. Groups keep their subscriptions, and
// offsets go on. Deliveries under way are over: settling one answers with
// mq.ErrLeaseEnded. What is sent after the call is delivered.
//
// The bytes leave the disk as shard.Retention says, never without it.
//
// When it returns an error, some shards may have been purged; it may be repeated.
// Purging what a shard never knew is no error.
func (s *Store) PurgeTopic(ctx context.Context, id mq.TopicID) error {
	return s.each(func(sh *shard.Shard) error { return ignore(sh.PurgeTopic(ctx, id), mq.ErrTopicNotFound) })
}
