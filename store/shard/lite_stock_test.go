package shard_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// What lite topics hold and what waits in them is counted by topic and group, however many
// there are, and shows in a survey beside what is under delivery.
func TestWhatWaitsInLiteTopicsIsCounted(t *testing.T) {
	modes(t, func(t *testing.T, mode shard.FlushMode) {
		s := open(t, vfs.NewMem(), mode)
		defer func() { require.NoError(t, s.Close()) }()
		const lites = 2500 // more than one page
		var names []string
		for i := range lites {
			names = append(names, fmt.Sprint("l-", i))
		}
		subscribe(t, s, "c", mq.LiteReplace, names[:2000]...)
		other := *groupOf(17)
		other.ID, other.Resource = 2, mq.Resource{Name: "other"}
		_, err := s.SyncLite(t.Context(), mq.LiteSync{Topic: liteTopic(), Group: &other, Client: "c", Names: names[:1]})
		require.NoError(t, err)
		for i, name := range names {
			if i == 1000 {
				time.Sleep(time.Minute)
			}
			send(t, s, liteTopic(), 0, toLite(name+" 1", name), toLite(name+" 2", name))
		}
		require.Len(t, receive(t, s, liteReceive("c", 0)), 32, "of 16 lite topics")
		time.Sleep(time.Second)
		stock, err := s.LiteStock(t.Context(), 1)
		require.NoError(t, err)
		require.EqualValues(t, lites, stock.Topics)
		require.EqualValues(t, 2*lites, stock.Messages)
		require.Len(t, stock.Groups, 2)
		mine := stock.Groups[1]
		require.EqualValues(t, 1984, mine.Topics)
		require.EqualValues(t, 2*1984, mine.Messages)
		require.InDelta(t, float64(61*time.Second), float64(mine.Age), float64(time.Second))
		require.EqualValues(t, 2, stock.Groups[2].Messages)

		v, err := s.Survey(t.Context())
		require.NoError(t, err)
		require.Len(t, v.Topics, 1)
		require.EqualValues(t, lites, v.Topics[0].Lites)
		require.EqualValues(t, 2*lites, v.Topics[0].Stored)
		require.Len(t, v.Groups, 2)
		row := v.Groups[0]
		require.Equal(t, [...]int64{1984, 2 * 1984, 32}, [...]int64{row.Lites, row.New, row.InFlight})
		require.Equal(t, mine.Age, row.Oldest)
		st := s.Stats()
		require.Equal(t, 2, st.LiteClients)
		require.Equal(t, 2001, st.LiteSubscriptions)

		require.NoError(t, s.PurgeTopic(t.Context(), 1))
		stock, err = s.LiteStock(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, mq.LiteStock{Groups: map[mq.GroupID]mq.LiteWaiting{1: {}, 2: {}}}, stock)
	})
}
