package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/store/keyspace"
)

// Without deriving, lanes are checked by themselves: what is parked must wait for
// something, and what is ready for nothing.
func TestCheckFindsWhatIsParkedForEverAndWhatOvertakes(t *testing.T) {
	mem := filledStore(t)
	files := tree(t, mem, "node")
	var headKey, parkedKey []byte
	var head, parked keyspace.Lease
	heads := map[uint64]bool{}
	eachKey(t, mem, func(key, val []byte) {
		ref, err := keyspace.DecodeLeaseKey(key)
		if err != nil {
			return
		}
		l, err := keyspace.DecodeLease(val)
		require.NoError(t, err)
		switch lane := l.Lane + uint64(ref.Queue); {
		case ref.Group != 4 || l.Lane == 0:
		case l.State == keyspace.Leased && !heads[lane]:
			heads[lane] = true
			if headKey == nil {
				headKey, head = key, l
			}
		case l.State == keyspace.Parked && parkedKey == nil:
			parkedKey, parked = key, l
		}
	})
	require.NotNil(t, headKey, "nothing of a message group is leased")
	require.NotNil(t, parkedKey, "nothing is parked")

	for what, c := range map[string]struct {
		key    []byte
		lease  keyspace.Lease
		change func(*keyspace.Lease)
		want   string
	}{
		"head parked":         {headKey, head, func(l *keyspace.Lease) { l.State, l.When = keyspace.Parked, 0 }, "nothing before it in its message group"},
		"parked is ready":     {parkedKey, parked, func(l *keyspace.Lease) { l.State, l.When = keyspace.Ready, 1 }, "is before it in its message group"},
		"other message group": {headKey, head, func(l *keyspace.Lease) { l.Lane++ }, "message-group hash"},
		"parked without one":  {parkedKey, parked, func(l *keyspace.Lease) { l.Lane, l.Try = 0, 1 }, "has no message group"},
	} {
		t.Run(what, func(t *testing.T) {
			l := c.lease
			c.change(&l)
			changed := edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Set(c.key, keyspace.AppendLease(nil, &l), nil)) })
			found, _ := check(t, changed, false)
			problems := ""
			for _, f := range found {
				if f.Key == fmt.Sprintf("%x", c.key) {
					problems += f.Problem + "\n"
				}
			}
			require.True(t, strings.Contains(problems, c.want), "%s", problems)
		})
	}
	ref, err := keyspace.DecodeLeaseKey(parkedKey)
	require.NoError(t, err)
	ref.Group = 2
	stray := edited(t, files, func(b *pebble.Batch) {
		require.NoError(t, b.Set(keyspace.AppendLeaseKey(nil, ref), keyspace.AppendLease(nil, &parked), nil))
	})
	found, _ := check(t, stray, false)
	require.Contains(t, fmt.Sprint(found), "is not FIFO")
}
