package proxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/router"
)

func TestTagExpressions(t *testing.T) {
	for expression, want := range map[string][]string{
		"": nil, "*": nil, "  ": nil, " * ": nil,
		"a": {"a"}, " a ": {"a"}, "b||a": {"a", "b"}, " a || b||a ": {"a", "b"}, "a||||b": {"a", "b"}, "||a||": {"a"},
		"A||a": {"A", "a"}, "*||a": {"*", "a"}, "a b": {"a b"}, "é||日本": {"é", "日本"},
	} {
		for _, typ := range []rmqpb.FilterType{rmqpb.FilterType_TAG, rmqpb.FilterType_FILTER_TYPE_UNSPECIFIED} {
			got, err := filterTags(&rmqpb.FilterExpression{Type: typ, Expression: expression})
			require.NoError(t, err, expression)
			require.Equal(t, want, got, expression)
		}
	}
	got, err := filterTags(nil)
	require.NoError(t, err)
	require.Nil(t, got)
	long := strings.Repeat("x", maxFilter)
	got, err = filterTags(&rmqpb.FilterExpression{Expression: long})
	require.NoError(t, err)
	require.Equal(t, []string{long}, got)
}

func TestFiltersThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		typ        rmqpb.FilterType
		expression string
		code       rmqpb.Code
	}{
		{rmqpb.FilterType_TAG, "||", rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType_TAG, " || || ", rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType_TAG, "a|b", rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType_TAG, "a|||b", rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType_TAG, "a\nb", rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType_TAG, strings.Repeat("x", maxFilter+1), rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType(7), "a", rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
		{rmqpb.FilterType_SQL, "a > 1", rmqpb.Code_UNSUPPORTED},
		{rmqpb.FilterType_SQL, "", rmqpb.Code_UNSUPPORTED},
	} {
		_, err := filterTags(&rmqpb.FilterExpression{Type: c.typ, Expression: c.expression})
		var ce *codeError
		require.ErrorAs(t, err, &ce)
		require.Equal(t, c.code, ce.code, c.expression)
		require.Contains(t, ce.text, "filter_expression")
		require.Less(t, len(ce.text), 300)
	}
}

func tagged(topic, id, tag string) *rmqpb.Message {
	m := message(topic, id, "x")
	if tag != "" {
		m.SystemProperties.Tag = &tag
	}
	return m
}

func (c *consumer) filtered(most int32, poll time.Duration, expression string) *rmqpb.ReceiveMessageRequest {
	req := c.simple(most, 10*time.Second, poll)
	req.FilterExpression = &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: expression}
	return req
}

func TestOnlyTheTagsAskedForAreDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		// Aa and BB have the same hash in RocketMQ's index.
		for _, tag := range []string{"Aa", "BB", "", "aa", "*"} {
			s.send(t, tagged("a", "id"+tag, tag))
		}
		for expression, want := range map[string][]string{
			"Aa": {"idAa"}, "BB||Aa": {"idAa", "idBB"}, "*": {"idAa", "idBB", "id", "idaa", "id*"}, "nothing": {}, "*||aa": {"idaa", "id*"},
		} {
			group := fmt.Sprintf("g%d", len(want)*10+len(expression))
			c := s.consumer("a", group)
			a := c.receive(t, c.filtered(32, 0, expression))
			require.Equal(t, want, a.ids(), expression)
			// What was passed over is not delivered later, and not in flight.
			require.Empty(t, c.receive(t, c.filtered(32, 0, expression)).messages)
			b, err := s.nodes.Backlogs(t.Context(), testShard, s.group(t, group).ID)
			require.NoError(t, err)
			require.Len(t, b, 1)
			require.Zero(t, b[0].Ready)
			require.EqualValues(t, len(want), b[0].InFlight)
		}
	})
}

func TestAFilterHoldsForRetriesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.send(t, tagged("a", "1", "A"))
		s.send(t, tagged("a", "2", "B"))
		c := s.consumer("a", "g")
		require.Len(t, c.receive(t, c.filtered(32, 0, "*")).messages, 2)
		time.Sleep(11 * time.Second)
		a := c.receive(t, c.filtered(32, 0, "A"))
		require.Equal(t, []string{"1"}, a.ids())
		require.Equal(t, []int32{2}, a.attempts())
		c.acked(t, a.handle(0))
		require.Empty(t, c.receive(t, c.filtered(32, 5*time.Second, "A")).messages)
		require.Equal(t, []string{"2"}, c.receive(t, c.filtered(32, 0, "B")).ids())
	})
}

func TestProgressPassesWhatDoesNotMatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		for i := range 300 {
			var batch []*rmqpb.Message
			for j := range 20 {
				batch = append(batch, tagged("a", fmt.Sprint(i, "-", j), "B"))
			}
			s.send(t, batch...)
		}
		c := s.consumer("a", "g")
		got := make(chan *answer, 1)
		go func() { got <- c.receive(t, c.filtered(1, 20*time.Second, "A")) }()
		time.Sleep(5 * time.Second)
		start := time.Now()
		s.send(t, tagged("a", "wanted", "A"))
		require.Equal(t, []string{"wanted"}, (<-got).ids())
		require.Less(t, time.Since(start), time.Second)
		b, err := s.nodes.Backlogs(t.Context(), testShard, s.group(t, "g").ID)
		require.NoError(t, err)
		require.Zero(t, b[0].Ready)
	})
}
