package sdktest

import (
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
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
