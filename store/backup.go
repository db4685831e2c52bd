package store

import (
	"context"
	"path"

	"github.com/perigee-mq/perigee/internal/backup"
)

// Backup puts a copy of every shard into a backup, below the folder dir of it, where dir is
// what Options.Dir is in a data folder; see shard.Shard.Backup. It returns what there is of
// each.
func (s *Store) Backup(ctx context.Context, w *backup.Writer, dir string) ([]backup.Shard, error) {
	var list []backup.Shard
	for _, name := range s.names {
		sum, err := s.shards[name].Backup(ctx, w, path.Join(dir, shardsDir, name))
		if err != nil {
			return list, err
		}
		list = append(list, sum)
	}
	return list, nil
}
