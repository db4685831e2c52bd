package store

import (
	"context"

	"github.com/perigee-mq/perigee/mq"
)

// SyncLite changes which lite topics a client wants on the named shard; see shard.SyncLite.
func (s *Store) SyncLite(ctx context.Context, shard string, r mq.LiteSync) ([]mq.LiteLoss, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, err
	}
	return sh.SyncLite(ctx, r)
}

// LeaveLite forgets which lite topics a client wants.
func (s *Store) LeaveLite(client string) {
	for _, name := range s.names {
		s.shards[name].LeaveLite(client)
	}
}

// LiteTopics returns how many lite topics a topic has on the named shard.
func (s *Store) LiteTopics(ctx context.Context, shard string, id mq.TopicID) (int, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return 0, err
	}
	return sh.LiteTopics(ctx, id)
}
