package remote_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

// TestANodeThatHangsHoldsUpNoOther: calls to it end when their callers give up, and all others
// take no longer than ever, also those of one caller to both.
func TestANodeThatHangsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		hung := &hooked{
			append:  func(context.Context) ([]mq.Appended, error) { <-hang; return stored(), nil },
			receive: func(context.Context) ([]mq.Delivery, error) { <-hang; return nil, nil },
			ack:     func() []error { <-hang; return []error{nil} },
		}
		well := &hooked{
			append:  func(context.Context) ([]mq.Appended, error) { return stored(), nil },
			receive: func(context.Context) ([]mq.Delivery, error) { return delivered(5), nil },
			ack:     func() []error { return []error{nil} },
			change:  func(changes []mq.LeaseChange) []error { return make([]error, len(changes)) },
		}
		cl := newCluster(t)
		cl.start(nodeA, hung, "hung")
		cl.start(nodeB, well, "s")
		c := cl.client()
		begin := time.Now()
		const patience = 3 * time.Second
		calls := []func(ctx context.Context) error{
			func(ctx context.Context) error {
				_, err := c.Append(ctx, "hung", topic(), 1, []*mq.Message{{ID: "m", Type: mq.Normal}})
				return err
			},
			func(ctx context.Context) error {
				_, err := c.Receive(ctx, "hung", mq.Receive{Topic: topic(), Group: group(), Max: 1, Invisible: time.Minute})
				return err
			},
			func(ctx context.Context) error {
				return c.Ack(ctx, []mq.Lease{{Shard: "hung", Topic: 7, Group: 9, PopID: 1}})[0]
			},
		}
		ended := make(chan error, 1000)
		for range 100 { // so many that they would fill whatever is shared
			for _, call := range calls {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					ended <- call(ctx)
				}()
			}
		}
		both := make(chan []error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			both <- c.Ack(ctx, []mq.Lease{{Shard: "hung", Topic: 7, Group: 9, PopID: 1}, {Shard: "s", Topic: 7, Group: 9, PopID: 2}})
		}()
		synctest.Wait()
		for range 100 {
			_, err := send(t.Context(), c)
			require.NoError(t, err)
			got, err := receive(t.Context(), c)
			require.NoError(t, err)
			require.Len(t, got, 1)
			require.NoError(t, ack(t.Context(), c))
		}
		require.Zero(t, time.Since(begin), "it took as long as ever")
		for range 300 {
			require.ErrorIs(t, <-ended, context.DeadlineExceeded)
		}
		results := <-both
		require.ErrorIs(t, results[0], context.DeadlineExceeded)
		require.NoError(t, results[1], "what the other node has settled is settled")
		require.Equal(t, patience, time.Since(begin))
		close(hang)
		require.NoError(t, c.Close())
		cl.stopAll()
	})
}

func TestAWholeSetOfLiteTopicsIsHeldByTheNodesThatAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []string
		h := &hooked{lite: func(r mq.LiteSync, names map[string][]string) { asked = append(asked, names["s"]...) }}
		cl := newCluster(t)
		cl.start(nodeB, h, "s")
		cl.shards["away"] = "passthrough:///nobody"
		c := cl.client()
		on := topic()
		on.Shards = []mq.ShardQueues{{Shard: "away", Read: 1, Write: 1}, {Shard: "s", Read: 1, Write: 1}}
		names := map[string][]string{"s": {"x"}, "away": {"y"}}
		sync := func(action mq.LiteAction) error {
			_, err := c.SyncLite(t.Context(), mq.LiteSync{Topic: on, Group: group(), Client: "c", Action: action}, names)
			return err
		}
		require.NoError(t, sync(mq.LiteReplace), "the client says it again")
		require.Equal(t, []string{"x"}, asked)
		require.ErrorIs(t, sync(mq.LiteAdd), mq.ErrUnavailable, "this it does not repeat")
		names = map[string][]string{"away": {"y"}}
		on.Shards = on.Shards[:1]
		require.ErrorIs(t, sync(mq.LiteReplace), mq.ErrUnavailable, "nobody has held it")
		require.NoError(t, c.Close())
		cl.stopAll()
	})
}

var _ remote.Store = (*hooked)(nil)
