package admin

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func TestDeadLettersOfMessageGroupsGoBackToTheQueueOfTheirGroupInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOn(t, shards[:1])
		topic, _, err := f.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "orders"}, Type: mq.TopicFIFO, Queues: 8})
		require.NoError(t, err)
		group, _, err := f.router.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: "workers"}, FIFO: true})
		require.NoError(t, err)
		groups := []string{"anna", "bert", "cleo", "dora", "emil"}
		for _, n := range []string{"1", "2", "3"} {
			for _, g := range groups {
				shard, queue, ok := topic.QueueOf(g)
				require.True(t, ok)
				system, err := proto.Marshal(&rmqpb.SystemProperties{MessageId: g + n, MessageType: rmqpb.MessageType_FIFO, MessageGroup: &g})
				require.NoError(t, err)
				_, err = f.store.Append(t.Context(), shard, topic, queue, []*mq.Message{
					{ID: g + n, Type: mq.FIFO, Group: g, System: system, Body: []byte(g + n)},
				})
				require.NoError(t, err)
			}
		}
		receive := func(handle func(mq.Delivery)) (n int) {
			for {
				got, err := f.store.Receive(t.Context(), shards[0], mq.Receive{Topic: topic, Group: group, Max: 4, Invisible: time.Hour})
				require.NoError(t, err)
				if len(got) == 0 {
					return n
				}
				for _, d := range got {
					handle(d)
					n++
				}
			}
		}
		require.Equal(t, 15, receive(func(d mq.Delivery) { require.NoError(t, f.store.DeadLetter(t.Context(), d.Lease)) }))

		resp := f.redrive(t, "workers", 100)
		require.EqualValues(t, 15, resp.GetRedriven(), "%v", resp)
		order := map[string][]string{}
		require.Equal(t, 15, receive(func(d mq.Delivery) {
			shard, queue, _ := topic.QueueOf(d.Group)
			require.Equal(t, []any{shard, queue}, []any{d.Lease.Shard, d.Lease.Queue})
			require.Equal(t, mq.FIFO, d.Type)
			var system rmqpb.SystemProperties
			require.NoError(t, proto.Unmarshal(d.System, &system))
			require.Equal(t, rmqpb.MessageType_FIFO, system.GetMessageType())
			require.Equal(t, d.Group, system.GetMessageGroup())
			order[d.Group] = append(order[d.Group], d.ID)
			for _, err := range f.store.Ack(t.Context(), []mq.Lease{d.Lease}) {
				require.NoError(t, err)
			}
		}))
		for _, g := range groups {
			require.Equal(t, []string{g + "1", g + "2", g + "3"}, order[g])
		}
	})
}
