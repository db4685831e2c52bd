package proxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
	"github.com/perigee-mq/perigee/router"
)

func TestAnAckAnswersEachEntryInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.topic(t, "b")
		s.send(t, message("a", "1", "x"))
		s.send(t, message("a", "2", "x"))
		s.send(t, message("b", "3", "x"))
		c := s.consumer("a", "g")
		a := c.receive(t, c.simple(32, time.Minute, 0))
		require.Len(t, a.messages, 2)
		other := s.consumer("b", "g")
		foreignTopic := other.receive(t, other.simple(1, time.Minute, 0)).handle(0)
		otherGroup := s.consumer("a", "h")
		foreignGroup := otherGroup.receive(t, otherGroup.simple(1, time.Minute, 0)).handle(0)

		handles := []string{a.handle(0), "rubbish", foreignTopic, foreignGroup, a.handle(1)}
		resp := c.ack(t, handles...)
		require.Equal(t, rmqpb.Code_MULTIPLE_RESULTS, resp.GetStatus().GetCode())
		var codes []rmqpb.Code
		for i, e := range resp.GetEntries() {
			require.Equal(t, handles[i], e.GetReceiptHandle())
			require.Equal(t, "id of "+handles[i], e.GetMessageId())
			codes = append(codes, e.GetStatus().GetCode())
		}
		const good, bad = rmqpb.Code_OK, rmqpb.Code_INVALID_RECEIPT_HANDLE
		require.Equal(t, []rmqpb.Code{good, bad, bad, bad, good}, codes)
		require.Equal(t, bad, c.ack(t, "rubbish", foreignGroup).GetStatus().GetCode())
		other.acked(t, foreignTopic) // was left alone
		otherGroup.acked(t, foreignGroup)

		resp = c.ack(t)
		require.Equal(t, rmqpb.Code_BAD_REQUEST, resp.GetStatus().GetCode())
		require.Contains(t, resp.GetStatus().GetMessage(), "entries")
		gone := s.consumer("gone", "g")
		require.Equal(t, bad, gone.ack(t, a.handle(0)).GetStatus().GetCode())
	})
}

func TestAnAckCanBeRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		c.acked(t, h)
		c.acked(t, h)
		time.Sleep(time.Hour)
		c.acked(t, h, h)
	})
}

func TestAHandleIsGoodUntilTheMessageIsDeliveredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		first := c.receive(t, c.simple(1, 10*time.Second, 0)).handle(0)
		time.Sleep(time.Minute) // over, and nobody has asked for it
		require.Equal(t, rmqpb.Code_OK, c.change(t, first, 10*time.Second).GetStatus().GetCode())
		time.Sleep(time.Minute)
		second := c.receive(t, c.simple(1, 10*time.Second, 0))
		require.Equal(t, []int32{2}, second.attempts())
		require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.change(t, first, time.Minute).GetStatus().GetCode())
		require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.ack(t, first).GetStatus().GetCode(),
			"it must not settle the second delivery")
		time.Sleep(11 * time.Second)
		third := c.receive(t, c.simple(1, 10*time.Second, 0))
		require.Equal(t, []int32{3}, third.attempts())
		c.acked(t, third.handle(0))
	})
}

func TestUnackedMessagesComeBackOnTimeAndAckedOnesDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		c := s.consumer("a", "g")
		n := 10_000
		if testing.Short() {
			n = 1_000
		}
		s.fill(t, "a", n)
		random := rand.New(rand.NewPCG(1, 2))
		start := time.Now()
		due := map[string]time.Duration{}
		for left := n; left > 0; {
			invisible := time.Duration(10+random.IntN(590)) * time.Second
			a := c.receive(t, c.simple(16, invisible, 0))
			require.NotEmpty(t, a.messages)
			left -= len(a.messages)
			for i, id := range a.ids() {
				if random.IntN(10) < 7 {
					c.acked(t, a.handle(i))
				} else {
					due[id] = time.Since(start) + invisible
				}
			}
		}
		require.NotEmpty(t, due)
		for len(due) > 0 {
			a := c.receive(t, c.simple(16, 12*time.Hour, 20*time.Second))
			for i, id := range a.ids() {
				at, unacked := due[id]
				require.True(t, unacked, "message %s was acked, or is here twice", id)
				require.GreaterOrEqual(t, time.Since(start), at)
				require.Less(t, time.Since(start), at+time.Second)
				require.EqualValues(t, 2, a.attempts()[i])
				delete(due, id)
				c.acked(t, a.handle(i))
			}
			require.Less(t, time.Since(start), time.Hour)
		}
	})
}

func TestAnAckThatFailedInTheStoreCanBeRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		c.live(t, 100*time.Second)
		require.GreaterOrEqual(t, store.renewed(), 2)
		store.failing(func(call string) error {
			if call == "ack" {
				return errors.New("disk on fire")
			}
			return nil
		})
		resp := c.ack(t, h)
		require.Equal(t, rmqpb.Code_INTERNAL_SERVER_ERROR, resp.GetStatus().GetCode())
		require.NotContains(t, resp.GetStatus().GetMessage(), "fire")
		store.failing(nil)
		c.quiet(t, 10*time.Minute)
		c.acked(t, h)
		require.Zero(t, s.renewals.len())
		require.Empty(t, c.receive(t, c.push(1, 20*time.Second)).messages)
	})
}

func TestAChangeAlwaysAnswersAUsableHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.simple(1, time.Minute, 0)).handle(0)
		for code, fail := range map[rmqpb.Code]error{
			rmqpb.Code_OK: nil, rmqpb.Code_TOO_MANY_REQUESTS: mq.ErrBusy, rmqpb.Code_INTERNAL_SERVER_ERROR: mq.ErrStopped,
		} {
			store.failing(func(string) error { return fail })
			resp := c.change(t, h, 30*time.Second)
			require.Equal(t, code, resp.GetStatus().GetCode())
			require.Equal(t, h, resp.GetReceiptHandle())
		}
		store.failing(nil)
		for _, d := range []time.Duration{-1, 12*time.Hour + 1} {
			resp := c.change(t, h, d)
			require.Equal(t, rmqpb.Code_ILLEGAL_INVISIBLE_TIME, resp.GetStatus().GetCode())
			require.Contains(t, resp.GetStatus().GetMessage(), "0s and 12h")
			require.Equal(t, h, resp.GetReceiptHandle())
		}
		require.Equal(t, "rubbish", c.change(t, "rubbish", time.Second).GetReceiptHandle())
		c.acked(t, h)
	})
}

func TestAChangeOfASimpleConsumerMovesTheEndOfTheLease(t *testing.T) {
	for _, d := range []time.Duration{0, 50 * time.Millisecond, time.Second, 15 * time.Second} {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t)
				s.topic(t, "a")
				s.send(t, message("a", "1", "x"))
				c := s.consumer("a", "g")
				a := c.receive(t, c.simple(1, 10*time.Second, 0))
				require.Equal(t, rmqpb.Code_OK, c.change(t, a.handle(0), d).GetStatus().GetCode())
				start := time.Now()
				a = c.receive(t, c.simple(1, 10*time.Second, 20*time.Second))
				require.Equal(t, []int32{2}, a.attempts())
				require.GreaterOrEqual(t, time.Since(start), d)
				require.Less(t, time.Since(start), d+time.Second)
			})
		})
	}
}

func TestChangingAnEndedDeliveryIsOKForGoAndRustPushConsumersOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		for _, language := range []string{"JAVA", "GO", "HTTP", "PYTHON", "RUST", "DOTNET", "CPP", ""} {
			for _, push := range []bool{true, false} {
				c := s.consumer("a", "g", headerLanguage, language)
				s.send(t, message("a", fmt.Sprint(language, push), "x"))
				req := c.simple(1, time.Minute, 0)
				if push {
					req = c.push(1, 0)
				}
				h := c.receive(t, req).handle(0)
				c.acked(t, h)
				want := rmqpb.Code_INVALID_RECEIPT_HANDLE
				if push && (language == "GO" || language == "RUST") {
					want = rmqpb.Code_OK
				}
				require.Equal(t, want, c.change(t, h, time.Second).GetStatus().GetCode(), "%s push %t", language, push)
				require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.change(t, "rubbish", time.Second).GetStatus().GetCode())
			}
		}
	})
}

// attemptsUntilDead fails every delivery as a push consumer does and returns the
// gaps between them.
func attemptsUntilDead(t *testing.T, c *consumer, nack time.Duration) (attempts []int32, gaps []time.Duration) {
	t.Helper()
	var last time.Time
	for {
		a := c.receive(t, c.push(1, 20*time.Second))
		if len(a.messages) == 0 {
			return attempts, gaps
		}
		if !last.IsZero() {
			gaps = append(gaps, time.Since(last).Round(100*time.Millisecond))
		}
		last = time.Now()
		attempts = append(attempts, a.attempts()...)
		require.Equal(t, rmqpb.Code_OK, c.change(t, a.handle(0), nack).GetStatus().GetCode())
	}
}

func TestTheAttemptLimitIsExactAndDeadLetteringPrompt(t *testing.T) {
	for limit := range mq.Attempt(5) {
		if limit == 0 {
			continue
		}
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTestServer(t)
				s.topic(t, "a")
				retry := mq.DefaultRetryPolicy()
				retry.MaxAttempts = limit
				s.group(t, "g", router.GroupSpec{Retry: retry})
				s.send(t, message("a", "1", "x"))
				c := s.consumer("a", "g")
				attempts, _ := attemptsUntilDead(t, c, time.Second)
				require.Len(t, attempts, int(limit))
				require.True(t, slices.IsSorted(attempts))
				require.Equal(t, []string{"1"}, c.deadLetters(t))

				// By running out of time rather than by a nack.
				s.send(t, message("a", "2", "x"))
				for range limit {
					require.Len(t, c.receive(t, c.simple(1, 10*time.Second, 20*time.Second)).messages, 1)
				}
				time.Sleep(12 * time.Second)
				require.Equal(t, []string{"2"}, c.deadLetters(t))
				require.Empty(t, c.receive(t, c.simple(1, 10*time.Second, 20*time.Second)).messages)
			})
		})
	}
}

func TestTheLastNackIsDeadLetteredAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 1, Customized: []time.Duration{2 * time.Hour}}})
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		a := c.receive(t, c.push(1, 0))
		require.Equal(t, rmqpb.Code_OK, c.change(t, a.handle(0), 2*time.Hour).GetStatus().GetCode())
		time.Sleep(2 * time.Second)
		require.Equal(t, []string{"1"}, c.deadLetters(t))
	})
}

func TestRetriesOfNodeFollowTheGroupsPolicy(t *testing.T) {
	sec := func(list ...int) (gaps []time.Duration) {
		for _, n := range list {
			gaps = append(gaps, time.Duration(n)*time.Second)
		}
		return gaps
	}
	for name, c := range map[string]struct {
		retry mq.RetryPolicy
		want  []time.Duration
	}{
		"exponential": {mq.RetryPolicy{MaxAttempts: 6, Initial: time.Second, Max: 8 * time.Second, Multiplier: 2}, sec(1, 2, 4, 8, 8)},
		"customized":  {mq.RetryPolicy{MaxAttempts: 4, Customized: sec(3, 5)}, sec(3, 5, 5)},
	} {
		for _, asked := range []time.Duration{0, time.Millisecond} {
			t.Run(fmt.Sprintf("%s %v", name, asked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newTestServer(t)
					s.topic(t, "a")
					s.group(t, "g", router.GroupSpec{Retry: c.retry})
					s.send(t, message("a", "1", "x"))
					_, gaps := attemptsUntilDead(t, s.consumer("a", "g", headerLanguage, "HTTP"), asked)
					require.Equal(t, c.want, gaps)
				})
			})
		}
	}
}

func TestSuspendLeavesTheLastAttemptAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 1, Customized: []time.Duration{time.Second}}})
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		suspend := true
		resp, err := s.ChangeInvisibleDuration(c.ctx(t), &rmqpb.ChangeInvisibleDurationRequest{
			Group: named("g"), Topic: named("a"), ReceiptHandle: h, InvisibleDuration: durationpb.New(time.Minute), Suspend: &suspend,
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
		time.Sleep(30 * time.Second)
		require.Empty(t, c.deadLetters(t))
		c.acked(t, h)
	})
}

func TestForwardingToTheDeadLetterQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := withFaults(t)
		for _, push := range []bool{true, false} {
			topic, group := fmt.Sprintf("a-%t", push), fmt.Sprintf("g-%t", push)
			s.topic(t, topic)
			c := s.consumer(topic, group)
			s.send(t, message(topic, group, "x"))
			req := c.simple(1, time.Minute, 0)
			if push {
				req = c.push(1, 0)
			}
			h := c.receive(t, req).handle(0)
			store.failing(func(call string) error {
				if call == "dead letter" {
					return errors.New("disk on fire")
				}
				return nil
			})
			require.Equal(t, rmqpb.Code_INTERNAL_SERVER_ERROR, c.forward(t, h))
			require.Empty(t, c.deadLetters(t))
			store.failing(nil)
			require.Equal(t, rmqpb.Code_OK, c.forward(t, h))
			require.Zero(t, s.renewals.len())
			require.Equal(t, rmqpb.Code_OK, c.forward(t, h))
			require.Equal(t, []string{group}, c.deadLetters(t))
			time.Sleep(5 * time.Minute)
			require.Empty(t, c.receive(t, req).messages)

			require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.forward(t, "rubbish"))
			require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, s.consumer(topic, "undertaker").forward(t, h))
			require.Equal(t, rmqpb.Code_OK, s.consumer("gone", group).forward(t, h))
		}
	})
}

func TestAHandleOfAnotherShardIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		topic, group := s.topic(t, "a"), s.group(t, "g")
		c := s.consumer("a", "g")
		l := mq.Lease{Shard: "elsewhere", Topic: topic.ID, Group: group.ID, PopID: 1, Attempt: 1}
		require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.ack(t, receipt.Encode(l)).GetStatus().GetCode())
		l.Shard = strings.Repeat("x", receipt.MaxShard)
		require.Equal(t, rmqpb.Code_INVALID_RECEIPT_HANDLE, c.forward(t, receipt.Encode(l)))
	})
}
