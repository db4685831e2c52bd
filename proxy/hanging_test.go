package proxy

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A hangingStore is the store tier of several nodes, one of which answers nothing.
type hangingStore struct {
	Store
	shard string
	hangs atomic.Bool
}

// of waits until the caller gives up when the call is about the shard that hangs.
func (h *hangingStore) of(ctx context.Context, shard string) error {
	if shard != h.shard || !h.hangs.Load() {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (h *hangingStore) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	if err := h.of(ctx, shard); err != nil {
		return nil, err
	}
	return h.Store.Append(ctx, shard, topic, queue, msgs)
}

func (h *hangingStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	if err := h.of(ctx, shard); err != nil {
		return nil, err
	}
	return h.Store.Receive(ctx, shard, r)
}

// ChangeInvisible asks the nodes at the same time, as a client of several does.
func (h *hangingStore) ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error {
	results := make([]error, len(changes))
	for i := range changes {
		if changes[i].Lease.Shard != h.shard || !h.hangs.Load() {
			results[i] = h.Store.ChangeInvisible(ctx, changes[i:i+1])[0]
		}
	}
	for i := range changes {
		if changes[i].Lease.Shard == h.shard && h.hangs.Load() {
			results[i] = h.of(ctx, h.shard)
		}
	}
	return results
}

func withHanging(t testing.TB) (*testServer, *hangingStore) {
	s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"s0", "s1", "s2"} })
	h := &hangingStore{Store: s.Server.store, shard: "s1"}
	s.Server.store = h
	return s, h
}

// TestAShardThatHangsHoldsUpNoOther: sends to it and receives from it end in time, and those
// of the others take no longer than ever.
func TestAShardThatHangsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := withHanging(t)
		topic := s.topic(t, "a", router.TopicSpec{Type: mq.TopicFIFO, Queues: 4})
		h.hangs.Store(true)
		begin := time.Now()
		const patience = 10 * time.Second
		call := func(fn func(ctx context.Context)) chan time.Duration {
			ended := make(chan time.Duration, 1)
			go func() {
				ctx, cancel := context.WithTimeout(as(t, "c"), patience)
				defer cancel()
				fn(ctx)
				ended <- time.Since(begin)
			}()
			return ended
		}
		var slow, quick []chan time.Duration
		for i := range 60 {
			group := fmt.Sprint("customer-", i)
			shard, _, _ := topic.QueueOf(group)
			ended := call(func(ctx context.Context) {
				m := message("a", group, "x")
				m.SystemProperties.MessageType, m.SystemProperties.MessageGroup = rmqpb.MessageType_FIFO, &group
				resp, err := s.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
				require.NoError(t, err)
				require.Equal(t, shard != "s1", resp.GetStatus().GetCode() == rmqpb.Code_OK, resp.GetStatus().GetMessage())
			})
			if shard == "s1" {
				slow = append(slow, ended)
			} else {
				quick = append(quick, ended)
			}
		}
		require.NotEmpty(t, slow)
		for _, ended := range quick {
			require.Zero(t, <-ended)
		}
		for shard, group := range map[string]string{"s0": "g", "s2": "g"} {
			c := s.consumer("a", group)
			req := c.simple(4, time.Minute, 5*time.Second)
			req.MessageQueue.Broker = &rmqpb.Broker{Name: shard}
			require.NotEmpty(t, c.receive(t, req).messages)
		}
		require.Zero(t, time.Since(begin))
		slow = append(slow, call(func(ctx context.Context) {
			c := s.consumer("a", "g")
			req := c.simple(4, time.Minute, 5*time.Second)
			req.MessageQueue.Broker = &rmqpb.Broker{Name: "s1"}
			_ = s.ReceiveMessage(req, &frameStream{ctx: ctx, t: t})
		}))
		for _, ended := range slow {
			require.LessOrEqual(t, <-ended, patience)
		}
	})
}

// TestLeasesOfOtherShardsAreRenewedWhileOneHangs: also when a client holds far more on the
// one that hangs than one call renews.
func TestLeasesOfOtherShardsAreRenewedWhileOneHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, h := withHanging(t)
		topic, group := s.topic(t, "a"), s.group(t, "g")
		c := client{ID: "c"}
		_, err := s.touch(c)
		require.NoError(t, err)
		take := func(shard string, n int) (got []mq.Delivery) {
			for i := range n {
				m := &mq.Message{ID: fmt.Sprint(shard, i), Type: mq.Normal, Body: []byte("x")}
				_, err := s.nodes.Append(t.Context(), shard, topic, 0, []*mq.Message{m})
				require.NoError(t, err)
			}
			for len(got) < n {
				part, err := s.nodes.Receive(t.Context(), shard, mq.Receive{Topic: topic, Group: group, Max: 1000, Invisible: time.Minute, AutoRenew: true})
				require.NoError(t, err)
				got = append(got, part...)
			}
			s.renewals.add(c, group, got, time.Time{})
			return got
		}
		take("s1", 5*renewBatch)
		held := take("s0", 3)
		h.hangs.Store(true)
		for range 30 { // ten minutes
			time.Sleep(20 * time.Second)
			_, err := s.touch(c)
			require.NoError(t, err)
			again, err := s.nodes.Receive(t.Context(), "s0", mq.Receive{Topic: topic, Group: group, Max: 10, Invisible: time.Minute})
			require.NoError(t, err)
			require.Empty(t, again, "their leases never end")
		}
		for _, d := range held {
			require.NoError(t, s.nodes.Ack(t.Context(), []mq.Lease{d.Lease})[0])
		}
		h.hangs.Store(false)
	})
}
