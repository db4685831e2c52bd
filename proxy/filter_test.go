package proxy

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
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

// newFilters returns a server that does nothing but take filters.
func newFilters() *Server { return &Server{filters: filters{compile: compileFilter}} }

func sqlFilter(expression string) *rmqpb.FilterExpression {
	return &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: expression}
}

func TestSQLExpressionsAreCompiledOnceAndFaultsToldWithTheirPlace(t *testing.T) {
	compiled := 0
	s := &Server{filters: filters{compile: func(expression string) (mq.Filter, error) {
		compiled++
		return compileFilter(expression)
	}}}
	for range 3 {
		tags, filter, err := s.filters.of(sqlFilter("a > 5"))
		require.NoError(t, err)
		require.Nil(t, tags)
		require.Equal(t, "a > 5", filter.String())
	}
	require.Equal(t, 1, compiled)
	for i := range 2 * maxCompiled {
		_, _, err := s.filters.of(sqlFilter(fmt.Sprint("a > ", i)))
		require.NoError(t, err)
	}
	require.Len(t, s.filters.mu.compiled, maxCompiled)

	for expression, want := range map[string]string{
		"a >": "line 1, column 4", "": "empty", "a = 5\nAND b": "", "a = NULL": "IS NULL", "*": "line 1, column 1",
		strings.Repeat("x", maxFilter+1): "the limit is 16384",
	} {
		_, filter, err := s.filters.of(sqlFilter(expression))
		if want == "" {
			require.NoError(t, err)
			continue
		}
		require.Nil(t, filter)
		st := s.statusOf(t.Context(), err)
		require.Equal(t, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, st.GetCode(), expression)
		require.Contains(t, st.GetMessage(), want)
		require.Contains(t, st.GetMessage(), "filter_expression.expression")
		require.Less(t, len(st.GetMessage()), 300)
	}
	_, _, err := (&Server{}).filters.of(sqlFilter("a > 5"))
	require.Equal(t, rmqpb.Code_UNSUPPORTED, s.statusOf(t.Context(), err).GetCode())
}

func numbered(topic, id string, properties map[string]string) *rmqpb.Message {
	m := message(topic, id, "x")
	m.UserProperties = properties
	return m
}

func TestSQLFiltersChooseByProperties(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a")
		for i := range 20 {
			m := numbered("a", fmt.Sprint("id", i), map[string]string{"a": fmt.Sprint(i), "b": []string{"x", "y", "z"}[i%3], "größe": "1"})
			m.SystemProperties.Tag = new([]string{"even", "odd"}[i%2])
			m.SystemProperties.Keys = []string{"k", fmt.Sprint("key", i)}
			s.send(t, m)
		}
		for i, c := range []struct {
			expression string
			want       []string
		}{
			{"a > 15 AND b IN ('x','y')", []string{"id16", "id18", "id19"}},
			{"TAGS = 'odd' AND a < 4", []string{"id1", "id3"}},
			{"KEYS ENDSWITH 'key7' OR UNIQ_KEY = 'id8'", []string{"id7", "id8"}},
			{"missing IS NOT NULL", nil},
			{"missing IS NULL AND a BETWEEN 2 AND 3", []string{"id2", "id3"}},
		} {
			cons := s.consumer("a", fmt.Sprint("g", i))
			req := cons.simple(32, 10*time.Second, 0)
			req.FilterExpression = sqlFilter(c.expression)
			a := cons.receive(t, req)
			require.ElementsMatch(t, c.want, a.ids(), c.expression)
			require.Empty(t, cons.receive(t, req).messages)
		}
		cons := s.consumer("a", "bad")
		req := cons.simple(32, 10*time.Second, 0)
		req.FilterExpression = sqlFilter("a > 5 AND")
		a := cons.receive(t, req)
		require.Equal(t, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, a.code)
		require.Contains(t, a.text, "line 1, column 10")
	})
}

func TestASQLFilterHoldsForRetriesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.topic(t, "a", router.TopicSpec{Queues: 1})
		s.send(t, numbered("a", "1", map[string]string{"k": "A"}))
		s.send(t, numbered("a", "2", map[string]string{"k": "B"}))
		c := s.consumer("a", "g")
		require.Len(t, c.receive(t, c.filtered(32, 0, "*")).messages, 2)
		time.Sleep(11 * time.Second)
		of := func(expression string, poll time.Duration) *rmqpb.ReceiveMessageRequest {
			req := c.simple(32, 10*time.Second, poll)
			req.FilterExpression = sqlFilter(expression)
			return req
		}
		a := c.receive(t, of("k = 'A'", 0))
		require.Equal(t, []string{"1"}, a.ids())
		require.Equal(t, []int32{2}, a.attempts())
		c.acked(t, a.handle(0))
		require.Empty(t, c.receive(t, of("k = 'A'", 5*time.Second)).messages)
		require.Equal(t, []string{"2"}, c.receive(t, of("k = 'B'", 0)).ids())
	})
}
