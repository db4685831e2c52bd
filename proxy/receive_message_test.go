package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func TestAReceiveStreamsStatusMessagesAndTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.StoreHost = "10.0.0.7:8081" })
		s.topic(t, "a")
		conn := s.dial(t)
		c := s.consumer("a", "g")
		big := message("a", "big", string(make([]byte, 100_000)))
		s.send(t, message("a", "small", "body"))
		s.send(t, big)
		a, err := receiveOver(t, from(t, c.id), conn, c.simple(32, 30*time.Second, 0))
		require.NoError(t, err)
		require.Equal(t, "smmt", a.kinds)
		require.ElementsMatch(t, []string{"small", "big"}, a.ids())
		for i, m := range a.messages {
			sys := m.GetSystemProperties()
			require.Equal(t, "a", m.GetTopic().GetName())
			require.EqualValues(t, 1, sys.GetDeliveryAttempt())
			require.Equal(t, "10.0.0.7:8081", sys.GetStoreHost())
			require.Equal(t, 30*time.Second, sys.GetInvisibleDuration().AsDuration())
			require.NotNil(t, sys.GetStoreTimestamp())
			require.NotNil(t, sys.GetBodyDigest())
			if a.ids()[i] == "big" {
				require.Equal(t, big.GetBody(), m.GetBody())
			}
		}
		c.acked(t, a.handle(0), a.handle(1))
	})
}

func TestTheBatchIsCutToBetweenOneAnd32(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		for i := range 40 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		c := s.consumer("a", "g")
		for size, want := range map[int32]int{-1: 1, 0: 1, 3: 3} {
			require.Len(t, c.receive(t, c.simple(size, time.Minute, 0)).messages, want)
		}
		require.Len(t, c.receive(t, c.simple(1000, time.Minute, 0)).messages, 32)
	})
}

func TestAWaitingReceiveGetsAMessageOfAnyQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 16})
		c := s.consumer("a", "g")
		seen := map[int32]bool{}
		for i := range 40 {
			req := c.simple(1, time.Minute, 20*time.Second)
			req.MessageQueue.Id = 3
			req.MessageQueue.Broker = &rmqpb.Broker{Name: testShard}
			got := make(chan *answer, 1)
			start := time.Now()
			go func() { got <- c.receive(t, req) }()
			time.Sleep(5 * time.Second)
			s.send(t, message("a", fmt.Sprint(i), "x"))
			a := <-got
			require.Equal(t, []string{fmt.Sprint(i)}, a.ids())
			require.Less(t, time.Since(start), 5200*time.Millisecond)
			seen[a.messages[0].GetSystemProperties().GetQueueId()] = true
			c.acked(t, a.handle(0))
		}
		require.Greater(t, len(seen), 1)
	})
}

func TestAMessageSentAroundTheStartOfAPollIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		for i := range 300 {
			got := make(chan *answer, 1)
			start := time.Now()
			go func() { got <- c.receive(t, c.simple(1, time.Minute, 20*time.Second)) }()
			s.send(t, message("a", fmt.Sprint(i), "x"))
			a := <-got
			require.Equal(t, []string{fmt.Sprint(i)}, a.ids())
			require.Less(t, time.Since(start), time.Second)
			c.acked(t, a.handle(0))
		}
	})
}

func TestARequestWithoutABrokerOrWithAForeignOneIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.router.Shards = []string{"s1", "s2"} })
		s.topic(t, "a")
		for i := range 40 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		c := s.consumer("a", "g")
		ids := map[string]bool{}
		for range 40 {
			req := c.simple(32, time.Minute, 0)
			req.MessageQueue.Broker = &rmqpb.Broker{Name: "elsewhere"}
			a := c.receive(t, req)
			for i, id := range a.ids() {
				require.False(t, ids[id])
				ids[id] = true
				c.acked(t, a.handle(i))
			}
		}
		require.Len(t, ids, 40)
	})
}

func TestAnEmptyPollIsHeldAndEndsBeforeTheDeadline(t *testing.T) {
	const unset = -1
	for name, c := range map[string]struct {
		asked, settings, deadline time.Duration
		want                      time.Duration
	}{
		"as long as asked":                       {5 * time.Second, unset, 8 * time.Second, 5 * time.Second},
		"no longer than the server's limit":      {time.Minute, unset, unset, 20 * time.Second},
		"no deadline and no polling time":        {unset, unset, unset, 20 * time.Second},
		"Rust: no slack between the two":         {20 * time.Second, unset, 20 * time.Second, 19 * time.Second},
		"polling time equal to a long deadline":  {30 * time.Second, unset, 30 * time.Second, 20 * time.Second},
		"Go: from the deadline":                  {unset, unset, 8 * time.Second, 5 * time.Second},
		"Go: from its settings":                  {unset, 2 * time.Second, 8 * time.Second, 2 * time.Second},
		"asked counts before the settings":       {time.Second, 9 * time.Second, 12 * time.Second, time.Second},
		"not at all":                             {0, unset, 3 * time.Second, 0},
		"negative counts as not at all":          {-time.Second, unset, 3 * time.Second, 0},
		"the deadline leaves a little":           {20 * time.Second, unset, 3 * time.Second, 2500 * time.Millisecond},
		"Go: a deadline of the slack alone":      {unset, unset, 3 * time.Second, 0},
		"no wait is no reason to blame a client": {0, unset, time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t)
				s.topic(t, "a")
				conn := s.dial(t)
				cons := s.consumer("a", "g")
				if c.settings != unset {
					s.sessions.Touch(cons.id).SetSettings(&rmqpb.Settings{PubSub: &rmqpb.Settings_Subscription{
						Subscription: &rmqpb.Subscription{LongPollingTimeout: durationpb.New(c.settings)},
					}})
				}
				req := cons.simple(1, time.Minute, c.asked)
				if c.asked == unset {
					req.LongPollingTimeout = nil
				}
				ctx := from(t, cons.id)
				if c.deadline != unset {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				start := time.Now()
				a, err := receiveOver(t, ctx, conn, req)
				require.NoError(t, err)
				require.Equal(t, "st", a.kinds)
				require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, a.code, a.text)
				require.InDelta(t, c.want, time.Since(start), float64(50*time.Millisecond))
			})
		})
	}
}

func TestADeadlineTooShortToPoll(t *testing.T) {
	for version, want := range map[string]rmqpb.Code{
		"5.0.3": rmqpb.Code_ILLEGAL_POLLING_TIME, "5.0.10": rmqpb.Code_ILLEGAL_POLLING_TIME,
		"5.0.2": rmqpb.Code_BAD_REQUEST, "": rmqpb.Code_BAD_REQUEST,
	} {
		for _, asked := range []*durationpb.Duration{durationpb.New(20 * time.Second), nil} {
			t.Run(fmt.Sprintf("version %q asking %v", version, asked.AsDuration()), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newTestServer(t)
					s.topic(t, "a")
					c := s.consumer("a", "g", headerVersion, version)
					receive := func() *answer {
						ctx, cancel := context.WithTimeout(c.ctx(t), time.Second)
						defer cancel()
						req := c.simple(1, time.Minute, 0)
						req.LongPollingTimeout = asked
						a := c.receiveIn(t, ctx, req)
						require.NoError(t, ctx.Err())
						return a
					}
					require.Equal(t, want, receive().code)
					s.send(t, message("a", "1", "x"))
					require.Equal(t, []string{"1"}, receive().ids())
				})
			})
		}
	}
}

func TestAnEmptyAnswerIsWhatTheSDKTakesBest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		for _, language := range []string{"JAVA", "GO", "HTTP", "PYTHON", "RUST", "DOTNET", "CPP", "PHP", ""} {
			c := s.consumer("a", "g", headerLanguage, language)
			want := rmqpb.Code_MESSAGE_NOT_FOUND
			require.Equal(t, want, c.receive(t, c.simple(1, time.Minute, time.Second)).code, language)
			if language == "GO" {
				want = rmqpb.Code_OK
			}
			a := c.receive(t, c.push(1, time.Second))
			require.Equal(t, want, a.code, language)
			require.Equal(t, "st", a.kinds)
		}
	})
}

func TestErrorAnswersAreHeldBackButNotBeyondTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		c := s.consumer("missing", "g")
		for deadline, want := range map[time.Duration]time.Duration{0: time.Second, 20 * time.Second: time.Second, time.Second: 500 * time.Millisecond, 100 * time.Millisecond: 0} {
			ctx := c.ctx(t)
			if deadline > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, deadline)
				defer cancel()
			}
			start := time.Now()
			a := c.receiveIn(t, ctx, c.simple(1, time.Minute, 20*time.Second))
			require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, a.code)
			require.Contains(t, a.text, "missing")
			require.Equal(t, want, time.Since(start))
		}
		ctx, cancel := context.WithCancel(c.ctx(t))
		cancel()
		err := s.ReceiveMessage(c.simple(1, time.Minute, 0), &frameStream{ctx: ctx, t: t})
		require.Equal(t, grpccodes.Canceled, status.Code(err))
	})
}

func TestInvisibleDurationsOfAReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		receive := func(d *durationpb.Duration, renew bool) *answer {
			req := c.push(1, 0)
			req.InvisibleDuration, req.AutoRenew = d, renew
			return c.receive(t, req)
		}
		for _, bad := range []*durationpb.Duration{
			nil, durationpb.New(0), durationpb.New(-time.Second), durationpb.New(10*time.Second - 1),
			durationpb.New(12*time.Hour + 1),
			{Seconds: 20, Nanos: -1},
			{Seconds: 1 << 60},
		} {
			a := receive(bad, false)
			require.Equal(t, rmqpb.Code_ILLEGAL_INVISIBLE_TIME, a.code, bad)
			require.Contains(t, a.text, "invisible_duration")
			require.Contains(t, a.text, "10s and 12h")
			require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, receive(bad, true).code, bad)
		}
		for _, good := range []time.Duration{10 * time.Second, 12 * time.Hour} {
			require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, receive(durationpb.New(good), false).code, good)
		}
	})
}

func TestWhatMayNotBeReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.router.AutoCreateGroups = false })
		s.topic(t, "a")
		s.topic(t, "closed", router.TopicSpec{Permission: 3})
		s.group(t, "g")
		for want, change := range map[rmqpb.Code]func(*rmqpb.ReceiveMessageRequest){
			rmqpb.Code_FORBIDDEN:                 func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Topic = named("closed") },
			rmqpb.Code_TOPIC_NOT_FOUND:           func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Topic = named("b") },
			rmqpb.Code_CONSUMER_GROUP_NOT_FOUND:  func(r *rmqpb.ReceiveMessageRequest) { r.Group = named("h") },
			rmqpb.Code_ILLEGAL_TOPIC:             func(r *rmqpb.ReceiveMessageRequest) { r.MessageQueue.Topic = named("a b") },
			rmqpb.Code_ILLEGAL_CONSUMER_GROUP:    func(r *rmqpb.ReceiveMessageRequest) { r.Group = named("") },
			rmqpb.Code_ILLEGAL_FILTER_EXPRESSION: func(r *rmqpb.ReceiveMessageRequest) { r.FilterExpression = &rmqpb.FilterExpression{Expression: "||"} },
		} {
			c := s.consumer("a", "g")
			req := c.simple(1, time.Minute, 0)
			change(req)
			a := c.receive(t, req)
			require.Equal(t, want, a.code, a.text)
			require.Equal(t, "st", a.kinds)
		}
		c := s.consumer("a", "g")
		c.id = ""
		require.Equal(t, rmqpb.Code_CLIENT_ID_REQUIRED, c.receive(t, c.simple(1, time.Minute, 0)).code)
	})
}

// A stream that breaks at any frame leaves no message behind: what was not
// written is back at once, and the delivery did not count.
func TestMessagesOfABrokenStreamGoBack(t *testing.T) {
	for _, c := range []struct {
		push     bool
		language string
		soon     bool // also what was written, and may have been seen
	}{{true, "", true}, {true, "JAVA", true}, {false, "JAVA", true}, {false, "PYTHON", true}, {false, "", false}} {
		for broken := range 6 {
			t.Run(fmt.Sprintf("push %t, language %q, frame %d", c.push, c.language, broken), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testBrokenStream(t, c.push, c.language, c.soon, broken) })
			})
		}
	}
}

func testBrokenStream(t *testing.T, push bool, language string, soon bool, broken int) {
	s := newTestServer(t)
	s.topic(t, "a", router.TopicSpec{Queues: 1})
	ids := []string{"0", "1", "2", "3"}
	for _, id := range ids {
		s.send(t, message("a", id, "x"))
	}
	c := s.consumer("a", "g", headerLanguage, language)
	req := c.simple(32, time.Hour, 0)
	if push {
		req = c.push(32, 0)
	}
	gone := errors.New("connection lost")
	err := s.ReceiveMessage(req, &frameStream{ctx: c.ctx(t), t: t, before: func(frame int) error {
		if frame == broken {
			return gone
		}
		return nil
	}})
	require.ErrorIs(t, err, gone)
	sent := max(broken-1, 0)
	require.Zero(t, s.renewals.len())
	other := s.consumer("a", "g")
	a := other.receive(t, other.simple(32, 10*time.Hour, 0))
	require.Equal(t, ids[sent:], a.ids())
	for _, attempt := range a.attempts() {
		require.EqualValues(t, 1, attempt)
	}
	if sent == 0 {
		return
	}
	start := time.Now()
	a = other.receive(t, other.simple(32, 10*time.Hour, 20*time.Second))
	if !soon {
		require.Empty(t, a.messages)
		time.Sleep(time.Hour - time.Since(start) + time.Second)
		a = other.receive(t, other.simple(32, 10*time.Hour, 0))
	} else {
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
	}
	require.Equal(t, ids[:sent], a.ids())
	require.EqualValues(t, 2, a.attempts()[0])
}

func TestACancelledCallGivesItsMessagesBackEvenWhenEveryFrameWasTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		ctx, cancel := context.WithCancel(c.ctx(t))
		err := s.ReceiveMessage(c.push(1, 0), &frameStream{ctx: ctx, t: t, before: func(frame int) error {
			if frame == 2 {
				cancel()
			}
			return nil
		}})
		require.Equal(t, grpccodes.Canceled, status.Code(err))
		require.Zero(t, s.renewals.len())
		a := c.receive(t, c.push(1, 5*time.Second))
		require.Equal(t, []string{"1"}, a.ids())
	})
}

func TestACancelledPollTakesNoMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		conn := s.dial(t)
		c := s.consumer("a", "g")
		ctx, cancel := context.WithCancel(from(t, c.id))
		done := make(chan error, 1)
		go func() {
			_, err := receiveOver(t, ctx, conn, c.push(1, 20*time.Second))
			done <- err
		}()
		time.Sleep(time.Second)
		cancel()
		require.Equal(t, grpccodes.Canceled, status.Code(<-done))
		synctest.Wait()
		s.send(t, message("a", "1", "x"))
		a := c.receive(t, c.push(1, 0))
		require.Equal(t, []string{"1"}, a.ids())
		require.Equal(t, []int32{1}, a.attempts())
	})
}

func TestAClientThatSaidGoodbyeGetsNothingFromItsLastPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g", headerLanguage, "JAVA")
		got := make(chan *answer, 1)
		go func() { got <- c.receive(t, c.push(1, 20*time.Second)) }()
		time.Sleep(time.Second)
		c.terminate(t)
		s.send(t, message("a", "1", "x"))
		require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, (<-got).code)
		other := s.consumer("a", "g")
		require.Equal(t, []int32{1}, other.receive(t, other.push(1, 0)).attempts())
	})
}

// Whatever is left out of a request, the answer is a 4xx that names a field, or
// the request works.
func TestRequestsWithoutAnyOfTheirFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		check := func(st *rmqpb.Status, missing string, works bool) {
			t.Helper()
			if works {
				require.Contains(t, []rmqpb.Code{rmqpb.Code_OK, rmqpb.Code_MESSAGE_NOT_FOUND}, st.GetCode(), "%s: %s", missing, st.GetMessage())
				return
			}
			require.Equal(t, 4, int(st.GetCode())/10_000, "%s: %v", missing, st)
			require.NotEmpty(t, st.GetMessage())
		}
		without(t, c.simple(1, time.Minute, 0), func(req *rmqpb.ReceiveMessageRequest, missing string) {
			a := c.receive(t, req)
			check(&rmqpb.Status{Code: a.code, Message: a.text}, missing, missing == "batch_size" || missing == "long_polling_timeout")
		})
		handle := func() string {
			s.send(t, message("a", rand.Text(), "x"))
			return c.receive(t, c.simple(1, time.Minute, 0)).handle(0)
		}
		without(t, &rmqpb.AckMessageRequest{
			Group: named("g"), Topic: named("a"), Entries: []*rmqpb.AckMessageEntry{{MessageId: "1", ReceiptHandle: handle()}},
		}, func(req *rmqpb.AckMessageRequest, missing string) {
			resp, err := s.AckMessage(c.ctx(t), req)
			require.NoError(t, err)
			check(resp.GetStatus(), missing, false)
		})
		resp, err := s.AckMessage(c.ctx(t), &rmqpb.AckMessageRequest{Group: named("g"), Topic: named("a"), Entries: []*rmqpb.AckMessageEntry{nil, {}}})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, resp.GetStatus().GetCode())
		require.Len(t, resp.GetEntries(), 2)
		without(t, &rmqpb.ChangeInvisibleDurationRequest{
			Group: named("g"), Topic: named("a"), ReceiptHandle: handle(), InvisibleDuration: durationpb.New(time.Second),
		}, func(req *rmqpb.ChangeInvisibleDurationRequest, missing string) {
			resp, err := s.ChangeInvisibleDuration(c.ctx(t), req)
			require.NoError(t, err)
			check(resp.GetStatus(), missing, missing == "invisible_duration")
		})
		without(t, &rmqpb.ForwardMessageToDeadLetterQueueRequest{
			Group: named("g"), Topic: named("a"), ReceiptHandle: handle(),
		}, func(req *rmqpb.ForwardMessageToDeadLetterQueueRequest, missing string) {
			resp, err := s.ForwardMessageToDeadLetterQueue(c.ctx(t), req)
			require.NoError(t, err)
			check(resp.GetStatus(), missing, false)
		})
	})
}

// without calls fn with copies of the request that lack one of its fields.
func without[M proto.Message](t testing.TB, req M, fn func(req M, missing string)) {
	t.Helper()
	fields := req.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if !req.ProtoReflect().Has(field) {
			continue
		}
		less := proto.Clone(req).(M)
		less.ProtoReflect().Clear(field)
		fn(less, string(field.Name()))
	}
	empty := req.ProtoReflect().New().Interface().(M)
	fn(empty, "everything")
}

// A drainingStore begins to drain the server at the moment it has messages.
type drainingStore struct {
	Store
	drain func()
}

func (d drainingStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	got, err := d.Store.Receive(ctx, shard, r)
	d.drain()
	synctest.Wait() // until the poll has heard of it
	return got, err
}

func TestMessagesThatMeetTheDrainAreDeliveredAndNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		s.store = drainingStore{s.store, s.Drain}
		c := s.consumer("a", "g")
		got := c.receive(t, c.simple(1, time.Hour, 10*time.Second))
		require.Equal(t, []string{"1"}, got.ids(), "leased for an hour, and in nobody's hands")
		again := c.receive(t, c.simple(1, time.Hour, 10*time.Second))
		require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, again.code, "a receive after the drain ends empty")
	})
}

func TestAGroupWithTooManyMessagesInFlightIsToldSlowlyAndGoesOnWhenItAcknowledges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, func(o *testOptions) { o.InFlight = 2 })
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		for i := range 5 {
			s.send(t, message("a", fmt.Sprint(i), "x"))
		}
		c := s.consumer("a", "g")
		held := c.receive(t, c.simple(32, time.Hour, 0))
		require.Len(t, held.messages, 2)
		for _, poll := range []time.Duration{0, 20 * time.Second} {
			start := time.Now()
			a := c.receive(t, c.simple(32, time.Hour, poll))
			require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, a.code)
			for _, part := range []string{`group g`, `topic a`, "limit is 2"} {
				require.Contains(t, a.text, part)
			}
			require.Equal(t, time.Second, time.Since(start))
		}
		waiting := make(chan *answer, 1)
		start := time.Now()
		go func() { waiting <- c.receive(t, c.simple(32, time.Hour, 20*time.Second)) }()
		time.Sleep(100 * time.Millisecond)
		c.acked(t, held.handle(0))
		require.Equal(t, []string{"2"}, (<-waiting).ids())
		require.Equal(t, 100*time.Millisecond, time.Since(start))
	})
}
