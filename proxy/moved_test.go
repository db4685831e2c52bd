package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A refusingStore is the store tier of several nodes, one of which refuses what is sent.
type refusingStore struct {
	Store
	shard string
	with  error
}

func (r *refusingStore) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	if shard == r.shard {
		return nil, fmt.Errorf("shard %s: %w", shard, r.with)
	}
	return r.Store.Append(ctx, shard, topic, queue, msgs)
}

// TestSendsGoAroundAShardThatHasDoneNothing: those that may lie anywhere, and only when it is
// known that nothing was done.
func TestSendsGoAroundAShardThatHasDoneNothing(t *testing.T) {
	for _, c := range []struct {
		with   error
		around bool
	}{
		{mq.ErrUnavailable, true},
		{mq.ErrNotServing, true},
		{mq.ErrStoreFull, true},
		{mq.ErrStale, true},
		{mq.ErrStopped, false},
		{mq.ErrOutcomeUnknown, false},
		{mq.ErrBusy, false},
	} {
		t.Run(c.with.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"s0", "s1"} })
				topic := s.topic(t, "a", router.TopicSpec{Type: mq.TopicMixed, Queues: 2})
				s.Server.store = &refusingStore{s.Server.store, "s1", c.with}
				send := func(id, group string) bool {
					m := message("a", id, "x")
					if group != "" {
						m.SystemProperties.MessageType, m.SystemProperties.MessageGroup = rmqpb.MessageType_FIFO, &group
					}
					resp, err := s.SendMessage(as(t, "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
					require.NoError(t, err)
					return resp.GetStatus().GetCode() == rmqpb.Code_OK
				}
				began := time.Now()
				for i := range 20 {
					at, _, _ := topic.QueueFor(fmt.Sprint(i))
					require.Equal(t, at == "s0" || c.around, send(fmt.Sprint(i), ""))
				}
				require.Zero(t, time.Since(began), "it waits for nothing")
				for i := range 20 {
					at, _, _ := topic.QueueOf(fmt.Sprint(i))
					require.Equal(t, at == "s0", send(fmt.Sprint("f", i), fmt.Sprint(i)), "a message group has one place")
				}
			})
		})
	}
}

// TestASendWaitsForThePlaceOfItsMessageGroup: while its shard is about to close, and when this
// process hears late that it has.
func TestASendWaitsForThePlaceOfItsMessageGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"s0", "s1"} })
		topic := s.topic(t, "a", router.TopicSpec{Type: mq.TopicFIFO, Queues: 2})
		for _, shard := range []string{"s0", "s1"} {
			_, err := s.meta.AddShard(t.Context(), shard)
			require.NoError(t, err)
		}
		group := ""
		for i := 0; group == ""; i++ {
			if shard, _, _ := topic.QueueOf(fmt.Sprint(i)); shard == "s0" {
				group = fmt.Sprint(i)
			}
		}
		send := func(id string) chan *rmqpb.Status {
			sent := make(chan *rmqpb.Status, 1)
			go func() {
				m := message("a", id, "x")
				m.SystemProperties.MessageType, m.SystemProperties.MessageGroup = rmqpb.MessageType_FIFO, &group
				resp, err := s.SendMessage(as(t, "c"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
				if err == nil {
					sent <- resp.GetStatus()
				}
				close(sent)
			}()
			synctest.Wait()
			return sent
		}
		_, err := s.meta.SetShard(t.Context(), "s0", router.ShardDraining)
		require.NoError(t, err)
		began := time.Now()
		refused := <-send("1")
		require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, refused.GetCode(), "nobody has closed the shard")
		require.Equal(t, heldTime, time.Since(began))

		waits := send("2")
		closing := s.topicNamed(t, "a")
		require.NoError(t, s.nodes.Place(t.Context(), "s0", closing))
		require.NoError(t, s.meta.ShardClosed(t.Context(), "s0", []router.ClosedTopic{{ID: topic.ID, Placed: closing.Placed}}))
		require.Equal(t, rmqpb.Code_OK, (<-waits).GetCode())
		ranges, err := s.nodes.Queues(t.Context(), "s0", topic.ID)
		require.NoError(t, err)
		for _, r := range ranges {
			require.Zero(t, r.Next)
		}
	})
}
