package machine_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
)

// A purge leaves index keys of the leases that it ends. Whoever looks for the next end of a
// lease before the command that ends them, as a shard does, and whoever applies the command
// alone, as a replay does, must come to the same.
func TestTheEndOfLeasesIsTheSameInAReplay(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := newStory(t, 1)
	s.close()
	open := func(fs vfs.FS) {
		db, err := pebble.Open("views", &pebble.Options{FS: fs, DisableWAL: true, Logger: quiet{}})
		require.NoError(t, err)
		m, err := machine.Open(db)
		require.NoError(t, err)
		s.db, s.m = db, m
	}
	open(fs)
	s.log = nil
	s.register(1)
	s.send(0, 3, "")
	got, _ := s.pop(command.Pop{Max: 3, Invisible: int64(10 * time.Second)})
	require.Len(t, got.Popped, 3)
	require.NoError(t, s.apply(command.KindTrim, &command.Trim{Time: s.tick(), Topic: 1, Purge: true}).Err)
	s.send(0, 1, "")
	got, _ = s.pop(command.Pop{Max: 3, Invisible: int64(time.Minute)})
	require.Len(t, got.Popped, 1)
	require.NoError(t, s.m.Commit())
	require.NoError(t, s.db.Flush())

	answers := [2][]string{}
	log := s.log
	for i := range answers {
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		s.close()
		open(crashed)
		s.log = log
		now := s.now + int64(2*time.Minute)
		for range 4 {
			if i == 0 {
				_, err := s.m.Due(now)
				require.NoError(t, err)
			}
			now++
			res := s.apply(command.KindExpire, &command.Expire{Time: now, Limit: 1})
			answers[i] = append(answers[i], answer(&res))
			require.NoError(t, s.m.Commit())
		}
		b, err := s.m.Backlogs(1)
		require.NoError(t, err)
		require.Equal(t, []mq.Backlog{{Topic: 1, Ready: 1}}, b)
	}
	require.Equal(t, answers[0], answers[1])
}
