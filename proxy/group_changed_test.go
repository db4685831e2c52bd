package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func listed(r *rmqpb.RetryPolicy) (delays []time.Duration) {
	for _, d := range r.GetCustomizedBackoff().GetNext() {
		delays = append(delays, d.AsDuration())
	}
	return delays
}

func seconds(list ...int) (delays []time.Duration) {
	for _, n := range list {
		delays = append(delays, time.Duration(n)*time.Second)
	}
	return delays
}

// changed gives a group another policy, as the wiring of a node does.
func (s *testServer) changed(t testing.TB, name string, policy mq.RetryPolicy) {
	t.Helper()
	s.retry(t, name, policy)
	group, err := s.meta.Group(t.Context(), mq.Resource{Name: name})
	require.NoError(t, err)
	s.GroupChanged(t.Context(), group)
}

func TestConsumersLearnOfAChangedRetryPolicyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		for _, name := range []string{"g", "other"} {
			s.group(t, name, router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 3, Customized: seconds(30)}})
		}
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		streams := map[string]clientStream{}
		for _, language := range []string{"JAVA", "GO", "PYTHON", "RUST", "DOTNET", "CPP"} {
			for _, kind := range []rmqpb.ClientType{rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_SIMPLE_CONSUMER} {
				name := fmt.Sprint(language, " ", kind)
				streams[name] = open(t, c, from(t, name, headerLanguage, language))
				offer(t, streams[name], subscriber(kind, "g", "a"))
				require.Equal(t, seconds(30), listed(reply(t, streams[name]).GetBackoffPolicy()), name)
			}
		}
		bystanders := []clientStream{open(t, c, from(t, "producer")), open(t, c, from(t, "of another group")), open(t, c, from(t, "without settings"))}
		offer(t, bystanders[0], publisher("a"))
		reply(t, bystanders[0])
		offer(t, bystanders[1], subscriber(rmqpb.ClientType_PUSH_CONSUMER, "other", "a"))
		reply(t, bystanders[1])

		start := time.Now()
		for _, policy := range []struct {
			set  mq.RetryPolicy
			want []time.Duration
		}{
			{mq.RetryPolicy{MaxAttempts: 6, Initial: time.Second, Max: 8 * time.Second, Multiplier: 2}, seconds(1, 2, 4, 8)},
			{mq.RetryPolicy{MaxAttempts: 4, Customized: seconds(3, 5)}, seconds(3, 5)},
		} {
			s.changed(t, "g", policy.set)
			for name, stream := range streams {
				got := reply(t, stream)
				require.Equal(t, policy.want, listed(got.GetBackoffPolicy()), name)
				require.EqualValues(t, policy.set.MaxAttempts, got.GetBackoffPolicy().GetMaxAttempts(), name)
				require.Equal(t, "a", got.GetSubscription().GetSubscriptions()[0].GetTopic().GetName(), "settings are whole")
			}
		}
		require.Less(t, time.Since(start), time.Second)
		for i, stream := range bystanders {
			offer(t, stream, publisher(fmt.Sprint("marker-", i)))
			got := reply(t, stream)
			require.NotNil(t, got.GetPublishing(), "nothing came before the answer to this")
		}
	})
}

func TestOnlyTheNewestStreamOfAConsumerHearsOfAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.group(t, "g")
		c := rmqpb.NewMessagingServiceClient(s.dial(t))
		settings := subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "a")
		first := open(t, c, from(t, "c"))
		offer(t, first, settings)
		reply(t, first)
		ctx, end := context.WithCancel(from(t, "c"))
		second := open(t, c, ctx)
		s.changed(t, "g", mq.RetryPolicy{MaxAttempts: 2, Customized: seconds(7)})
		require.Equal(t, seconds(7), listed(reply(t, second).GetBackoffPolicy()))
		end()
		synctest.Wait()
		s.changed(t, "g", mq.RetryPolicy{MaxAttempts: 2, Customized: seconds(9)})
		require.Equal(t, seconds(9), listed(reply(t, first).GetBackoffPolicy()), "and the older one when it is the only one left")
		s.sessions.Remove("c")
		s.changed(t, "g", mq.RetryPolicy{MaxAttempts: 2, Customized: seconds(11)})
	})
}

// The retries of a push consumer that takes its delays from the settings it was
// told, across a change of the policy.
func TestRetriesAreSpacedAsThePolicySays(t *testing.T) {
	for name, c := range map[string]struct {
		policy mq.RetryPolicy
		want   []time.Duration
	}{
		"exponential": {mq.RetryPolicy{MaxAttempts: 6, Initial: time.Second, Max: 8 * time.Second, Multiplier: 2}, seconds(1, 2, 4, 8, 8)},
		"customized":  {mq.RetryPolicy{MaxAttempts: 5, Customized: seconds(2, 3, 10)}, seconds(2, 3, 10, 10)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t)
				s.topic(t, "a")
				s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 2, Customized: seconds(3600)}})
				conn := s.dial(t)
				cons := s.consumer("a", "g", headerLanguage, "JAVA")
				stream := open(t, rmqpb.NewMessagingServiceClient(conn), from(t, cons.id, cons.headers...))
				offer(t, stream, subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "a"))
				reply(t, stream)
				s.changed(t, "g", c.policy)
				delays := listed(reply(t, stream).GetBackoffPolicy())
				s.send(t, message("a", "1", "x"))
				var gaps []time.Duration
				var failed time.Time
				for {
					a := cons.receive(t, cons.push(1, 20*time.Second))
					if len(a.messages) == 0 {
						break
					}
					attempt := int(a.attempts()[0])
					if attempt > 1 {
						gaps = append(gaps, time.Since(failed).Round(100*time.Millisecond))
					}
					time.Sleep(300 * time.Millisecond)
					failed = time.Now()
					resp, err := s.ChangeInvisibleDuration(cons.ctx(t), &rmqpb.ChangeInvisibleDurationRequest{
						Group: named("g"), Topic: named("a"), ReceiptHandle: a.handle(0),
						InvisibleDuration: durationpb.New(delays[min(attempt, len(delays))-1]),
					})
					require.NoError(t, err)
					require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
				}
				require.Equal(t, c.want, gaps)
				require.Equal(t, []string{"1"}, cons.deadLetters(t))
			})
		})
	}
}
