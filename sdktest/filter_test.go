package sdktest

import (
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
)

func TestTagFilter(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic()
	p := startProducer(t, s.Endpoint(), topic)
	for _, m := range []*rmq.Message{
		message(topic, "tag a", "a"), message(topic, "tag b", "b"), message(topic, "tag c", "c"),
		message(topic, "tag ab", "ab"), message(topic, "no tag", ""),
	} {
		send(t, p, m)
	}
	for _, test := range []struct {
		name, expression string
		want             []string
	}{
		{"one tag", "a", []string{"tag a"}},
		{"two tags", "a || b", []string{"tag a", "tag b"}},
		{"tags without blanks", "a||c", []string{"tag a", "tag c"}},
		{"star wants untagged messages too", "*", []string{"tag a", "tag b", "tag c", "tag ab", "no tag"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := server{s.Server, t}
			filter := rmq.NewFilterExpression(test.expression)
			t.Run("simple consumer", func(t *testing.T) {
				group := s.group()
				c := startSimpleConsumer(t, s.Endpoint(), group, topic, filter)
				got := c.receive(len(test.want), longInvisible)
				require.ElementsMatch(t, test.want, bodies(got))
				c.ack(got...)
				got, err := c.poll(longInvisible)
				require.NoError(t, err)
				require.Empty(t, bodies(got))
			})
			t.Run("push consumer", func(t *testing.T) {
				group := s.group()
				box := newInbox()
				startPushConsumer(t, s.Endpoint(), group, topic, filter, box.accept)
				var got []string
				for range test.want {
					got = append(got, string(box.next(t).GetBody()))
				}
				s.awaitSettled(group, topic)
				require.ElementsMatch(t, test.want, got)
				require.Empty(t, box)
			})
		})
	}
}

func TestSQLFilter(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic()
	p := startProducer(t, s.Endpoint(), topic)
	for _, m := range []struct{ price, region, tag string }{
		{"3", "eu", "a"}, {"7", "eu", "a"}, {"7", "us", "b"}, {"12", "eu", ""}, {"", "eu", "a"},
	} {
		msg := message(topic, m.price+" "+m.region, m.tag)
		if m.price != "" {
			msg.AddProperty("price", m.price)
		}
		msg.AddProperty("region", m.region)
		send(t, p, msg)
	}
	for _, test := range []struct {
		name, expression string
		want             []string
	}{
		{"numbers and texts", "price > 5 AND region IN ('eu', 'asia')", []string{"7 eu", "12 eu"}},
		{"what is missing", "price IS NULL OR TAGS = 'b'", []string{" eu", "7 us"}},
		{"parts of texts", "NOT region STARTSWITH 'e'", []string{"7 us"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := server{s.Server, t}
			filter := rmq.NewFilterExpressionWithType(test.expression, rmq.SQL92)
			t.Run("simple consumer", func(t *testing.T) {
				group := s.group()
				c := startSimpleConsumer(t, s.Endpoint(), group, topic, filter)
				got := c.receive(len(test.want), longInvisible)
				require.ElementsMatch(t, test.want, bodies(got))
				c.ack(got...)
				got, err := c.poll(longInvisible)
				require.NoError(t, err)
				require.Empty(t, bodies(got))
				s.awaitSettled(group, topic)
			})
			t.Run("push consumer", func(t *testing.T) {
				group := s.group()
				box := newInbox()
				startPushConsumer(t, s.Endpoint(), group, topic, filter, box.accept)
				var got []string
				for range test.want {
					got = append(got, string(box.next(t).GetBody()))
				}
				s.awaitSettled(group, topic)
				require.ElementsMatch(t, test.want, got)
				require.Empty(t, box)
			})
		})
	}
}

func TestIllegalSQLIsToldWithItsPlace(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic := s.topic()
	startProducer(t, s.Endpoint(), topic)
	c := startSimpleConsumer(t, s.Endpoint(), s.group(), topic, everything)
	require.NoError(t, c.Subscribe(topic, rmq.NewFilterExpressionWithType("price > 5 AND", rmq.SQL92)))
	_, err := c.Receive(t.Context(), 1, longInvisible)
	require.True(t, hasCode(err, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION), "%v", err)
	require.ErrorContains(t, err, "line 1, column 14")
}
