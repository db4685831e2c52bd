package store

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// RestoreViews puts the views of one shard in dir aside and their base in their place, so
// that the next Open rebuilds them with what the log has since, see shard.RestoreViews.
// The name of the shard may be empty when there is only one. The store must be stopped;
// nothing is deleted.
func RestoreViews(fs vfs.FS, dir, name string) (restored shard.Restored, err error) {
	err = whileStopped(fs, dir, func(names []string) error {
		if name == "" && len(names) == 1 {
			name = names[0]
		}
		if !slices.Contains(names, name) {
			return &mq.InvalidError{
				Kind: mq.ErrShardNotFound, Field: "shard", Value: name,
				Reason: fmt.Sprintf("must be one of those in %s: %s", dir, strings.Join(names, ", ")),
			}
		}
		restored, err = shard.RestoreViews(fs, fs.PathJoin(dir, shardsDir, name))
		return err
	})
	return restored, err
}
