package shard_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/store/shard"
)

// A stickyDisk does not remove what has the word in its path. With late set it removes it,
// and fails all the same.
type stickyDisk struct {
	vfs.FS
	word atomic.Pointer[string]
	late atomic.Bool
}

func (d *stickyDisk) remove(name string, remove func(string) error) error {
	if word := d.word.Load(); word == nil || !strings.Contains(name, *word) {
		return remove(name)
	}
	if d.late.Load() {
		_ = remove(name)
	}
	return syscall.EIO
}

func (d *stickyDisk) Remove(name string) error    { return d.remove(name, d.FS.Remove) }
func (d *stickyDisk) RemoveAll(name string) error { return d.remove(name, d.FS.RemoveAll) }

func TestFileThatCannotBeRemovedIsTriedAgainAndStopsNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		word string
		late bool
	}{
		"a segment": {word: "/log/"}, "a segment that is gone nevertheless": {word: "/log/", late: true}, "a base": {word: "views.base-"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := &stickyDisk{FS: vfs.NewMem()}
				var lines bytes.Buffer
				r := shard.Retention{Age: time.Hour}
				opts := shard.Options{
					Name: shardName, FS: disk, Dir: "shard", SegmentSize: smallSegment, ZeroFill: -1, Retention: r,
					Logger: slog.New(slog.NewTextHandler(&lines, nil)),
				}
				s, err := shard.Open(opts)
				require.NoError(t, err)
				topic, group := topicOf(2), groupOf(2)
				bases := func() int {
					list, err := shard.Bases(disk, "shard")
					require.NoError(t, err)
					return len(list)
				}
				fill(t, s, topic, 100)
				time.Sleep(2 * time.Hour)
				require.Equal(t, 1, bases())
				fill(t, s, topic, 100)
				full := segments(t, disk)
				disk.word.Store(&tt.word)
				disk.late.Store(tt.late)

				time.Sleep(90 * time.Minute)
				require.NoError(t, s.Err())
				records := s.Stats().Records
				failed := s.Stats().NotRemoved
				require.Positive(t, failed)
				if tt.word == "/log/" && !tt.late {
					require.Equal(t, full, segments(t, disk), "nothing younger goes before the oldest")
				}
				time.Sleep(20 * time.Minute)
				if !tt.late {
					require.Greater(t, s.Stats().NotRemoved, failed+10, "it is tried again")
				}
				require.Equal(t, records, s.Stats().Records, "without another command for each try")
				kept := fill(t, s, topic, 20)

				// A life later too.
				require.NoError(t, s.Close())
				warned := strings.Count(lines.String(), "cannot be removed")
				require.Positive(t, warned)
				require.Less(t, warned, 20, "every try is not a line")
				lines.Reset()
				s, err = shard.Open(opts)
				require.NoError(t, err)
				time.Sleep(time.Minute)
				require.NoError(t, s.Err())
				disk.word.Store(nil)
				time.Sleep(time.Minute)
				require.Less(t, segments(t, disk), full)
				require.ElementsMatch(t, kept, receiveAll(t, s, topic, group))
				time.Sleep(2 * time.Hour)
				require.Equal(t, 1, segments(t, disk))
				require.Equal(t, 1, bases())
				require.NoError(t, s.Close())
			})
		})
	}
}
