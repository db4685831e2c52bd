package proxy

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/router"
)

var anyClient = client{ID: "c"}

func publisher(topics ...string) *rmqpb.Settings {
	p := &rmqpb.Publishing{}
	for _, topic := range topics {
		p.Topics = append(p.Topics, named(topic))
	}
	return &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PRODUCER.Enum(),
		PubSub:     &rmqpb.Settings_Publishing{Publishing: p},
	}
}

func subscriber(kind rmqpb.ClientType, group string, topics ...string) *rmqpb.Settings {
	sub := &rmqpb.Subscription{Group: named(group)}
	for _, topic := range topics {
		sub.Subscriptions = append(sub.Subscriptions, &rmqpb.SubscriptionEntry{
			Topic: named(topic), Expression: &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		})
	}
	return &rmqpb.Settings{
		ClientType: kind.Enum(),
		PubSub:     &rmqpb.Settings_Subscription{Subscription: sub},
	}
}

func TestProducerSettingsCarryWhatEverySDKNeeds(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.MaxBodySize = 1234 })
	sent := publisher("orders")
	sent.GetPublishing().Topics[0].ResourceNamespace = "shop"
	sent.GetPublishing().MaxBodySize = 128 << 20
	sent.AccessPoint = endpoints(0, "10.0.0.1", 8081)
	sent.RequestTimeout = durationpb.New(3 * time.Second)
	sent.UserAgent = &rmqpb.UA{Language: rmqpb.Language_JAVA, Version: "5.2.1"}
	sent.ClientProperties = map[string]string{"zone": "a"}
	sent.Metric = &rmqpb.Metric{On: true, Endpoints: &rmqpb.Endpoints{}}
	before := proto.CloneOf(sent)

	got := s.mergeSettings(t.Context(), anyClient, sent)
	want := proto.CloneOf(before)
	want.GetPublishing().MaxBodySize = 1234
	want.GetPublishing().ValidateMessageType = true
	want.AccessPoint.Scheme = rmqpb.AddressScheme_IPv4
	want.Metric = &rmqpb.Metric{}
	want.BackoffPolicy = &rmqpb.RetryPolicy{MaxAttempts: 3, Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{
		ExponentialBackoff: &rmqpb.ExponentialBackoff{
			Initial: &durationpb.Duration{Seconds: 1}, Max: &durationpb.Duration{Seconds: 10}, Multiplier: 2,
		},
	}}
	require.True(t, proto.Equal(want, got), "%v", got)
	require.True(t, proto.Equal(before, sent), "what the client sent stays as it is")
}

func TestServerDecidesTheLimitsOfConsumers(t *testing.T) {
	s := newTestServer(t, func(o *testOptions) { o.MaxPolling = 15*time.Second + 300*time.Millisecond })
	s.group(t, "g", router.GroupSpec{Retry: mq.RetryPolicy{MaxAttempts: 5, Customized: []time.Duration{time.Second, time.Minute}}})
	for _, kind := range []rmqpb.ClientType{rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_SIMPLE_CONSUMER} {
		sent := subscriber(kind, "g", "orders")
		sent.BackoffPolicy = &rmqpb.RetryPolicy{MaxAttempts: 1000}
		sub := sent.GetSubscription()
		sub.Fifo, sub.ReceiveBatchSize = new(true), new(int32(10000))
		sub.LongPollingTimeout = durationpb.New(time.Hour)

		got := s.mergeSettings(t.Context(), anyClient, sent)
		require.False(t, got.GetSubscription().GetFifo())
		require.NotNil(t, got.GetSubscription().Fifo)
		require.EqualValues(t, 32, got.GetSubscription().GetReceiveBatchSize())
		require.True(t, proto.Equal(&durationpb.Duration{Seconds: 15}, got.GetSubscription().GetLongPollingTimeout()))
		require.True(t, proto.Equal(&rmqpb.RetryPolicy{MaxAttempts: 5, Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{
			CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: []*durationpb.Duration{{Seconds: 1}, {Seconds: 60}}},
		}}, got.GetBackoffPolicy()), "%v", got)
		require.True(t, proto.Equal(sub.GetSubscriptions()[0], got.GetSubscription().GetSubscriptions()[0]))
		require.Equal(t, "g", got.GetSubscription().GetGroup().GetName())
	}
}

func TestConsumersOfAMissingGroupGetTheDefaults(t *testing.T) {
	for _, create := range []bool{true, false} {
		s := newTestServer(t, func(o *testOptions) { o.router.AutoCreateGroups = create })
		got := s.mergeSettings(t.Context(), anyClient, subscriber(rmqpb.ClientType_PUSH_CONSUMER, "new"))
		require.EqualValues(t, mq.DefaultMaxAttempts, got.GetBackoffPolicy().GetMaxAttempts())
		require.Len(t, got.GetBackoffPolicy().GetCustomizedBackoff().GetNext(), 18)
		_, err := s.meta.Group(t.Context(), mq.Resource{Name: "new"})
		require.Equal(t, create, err == nil)
	}
}

func TestRetryPolicyComesInTheFormThatTheSDKUnderstands(t *testing.T) {
	listed := mq.RetryPolicy{MaxAttempts: 4, Customized: []time.Duration{1500 * time.Millisecond, time.Minute}}
	growing := mq.RetryPolicy{MaxAttempts: 6, Initial: time.Second, Max: 5 * time.Second, Multiplier: 2}
	once := mq.RetryPolicy{MaxAttempts: 1, Initial: time.Second, Max: time.Second, Multiplier: 1}
	none := mq.RetryPolicy{MaxAttempts: 2, Customized: []time.Duration{0}}
	ms := func(values ...int64) *rmqpb.RetryPolicy {
		var next []*durationpb.Duration
		for _, v := range values {
			next = append(next, durationpb.New(time.Duration(v)*time.Millisecond))
		}
		return &rmqpb.RetryPolicy{Strategy: &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: next}}}
	}
	exp := func(initial, longest time.Duration) *rmqpb.RetryPolicy { return exponential(0, initial, longest, 2) }
	for _, c := range []struct {
		what     string
		language quirks.Language
		version  string
		fifo     bool
		retry    mq.RetryPolicy
		want     *rmqpb.RetryPolicy
	}{
		{"Java reads lists", quirks.Java, "5.2.1", false, listed, ms(1500, 60000)},
		{"Java reads lists of FIFO groups", quirks.Java, "5.2.1", true, listed, ms(1500, 60000)},
		{"an unknown SDK is like most", "COBOL", "", true, listed, ms(1500, 60000)},
		{"Python reads seconds and lists", quirks.Python, "5.1.1", true, listed, ms(2000, 60000)},
		{"Python cannot read exponential", quirks.Python, "5.1.1", false, growing, ms(1000, 2000, 4000, 5000)},
		{"Go panics without a list entry", quirks.Go, "5.1.4", false, once, ms(1000)},
		{"no delay is a delay", quirks.Rust, "5.0.0", false, none, ms(0)},
		{"Node.js, not FIFO: a list it ignores", quirks.NodeJS, "1.0.8", false, listed, ms(2000, 60000)},
		{"Node.js, FIFO: seconds for milliseconds", quirks.NodeJS, "1.0.8", true, listed, exp(2000*time.Second, 60000*time.Second)},
		{"Node.js, FIFO: also before", quirks.NodeJS, "1.0.7", true, growing, exp(1000*time.Second, 5000*time.Second)},
		{"Node.js, FIFO: never none", quirks.NodeJS, "1.0.7", true, none, exp(1000*time.Second, 1000*time.Second)},
		{"Node.js, FIFO: later versions may be right", quirks.NodeJS, "1.0.9", true, listed, exp(2*time.Second, 60*time.Second)},
	} {
		got := backoffPolicy(client{Language: c.language, Version: c.version}, c.fifo, c.retry)
		c.want.MaxAttempts = int32(c.retry.MaxAttempts)
		require.True(t, proto.Equal(c.want, got), "%s: %v", c.what, got)
	}
}

func TestListOfDelaysIsBounded(t *testing.T) {
	long := mq.RetryPolicy{MaxAttempts: 1000, Initial: time.Second, Max: time.Hour, Multiplier: 1}
	require.Len(t, listedDelays(long), maxBackoffSteps)
}

func TestSettingsThatCannotBeAreRefused(t *testing.T) {
	push := func(change func(*rmqpb.Subscription)) *rmqpb.Settings {
		settings := subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "orders")
		change(settings.GetSubscription())
		return settings
	}
	typed := func(settings *rmqpb.Settings, kind rmqpb.ClientType) *rmqpb.Settings {
		settings.ClientType = kind.Enum()
		return settings
	}
	for _, c := range []struct {
		what     string
		settings *rmqpb.Settings
		want     rmqpb.Code
		text     string
	}{
		{"neither side", &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum()}, rmqpb.Code_BAD_REQUEST, "publishing"},
		{"illegal topic to publish", publisher("orders", "a.b"), rmqpb.Code_ILLEGAL_TOPIC, "a.b"},
		{"illegal topic to subscribe", subscriber(rmqpb.ClientType_PUSH_CONSUMER, "g", "a.b"), rmqpb.Code_ILLEGAL_TOPIC, "a.b"},
		{"illegal group", subscriber(rmqpb.ClientType_PUSH_CONSUMER, "a.b"), rmqpb.Code_ILLEGAL_CONSUMER_GROUP, "a.b"},
		{"no group", push(func(s *rmqpb.Subscription) { s.Group = nil }), rmqpb.Code_ILLEGAL_CONSUMER_GROUP, "group"},
		{"illegal filter", push(func(s *rmqpb.Subscription) { s.Subscriptions[0].Expression.Expression = "||" }), rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "||"},
		{"illegal SQL", push(func(s *rmqpb.Subscription) {
			s.Subscriptions[0].Expression = &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: "a >"}
		}), rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "line 1, column 4"},
		{"lite consumer that publishes", typed(publisher(), rmqpb.ClientType_LITE_PUSH_CONSUMER), rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "LITE_PUSH_CONSUMER"},
		{"pull consumer that publishes", typed(publisher(), rmqpb.ClientType_PULL_CONSUMER), rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "PULL_CONSUMER"},
		{"producer that subscribes", typed(subscriber(0, "g"), rmqpb.ClientType_PRODUCER), rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "PRODUCER"},
		{"consumer that publishes", typed(publisher(), rmqpb.ClientType_PUSH_CONSUMER), rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "PUSH_CONSUMER"},
		{"unknown type", typed(publisher(), 42), rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "42"},
		{"too large", publisher(strings.Repeat("x", maxSettings)), rmqpb.Code_BAD_REQUEST, "limit"},
	} {
		err := newFilters().validateSettings(anyClient, c.settings)
		st := (&testServer{Server: &Server{}}).statusOf(t.Context(), err)
		require.Equal(t, c.want, st.GetCode(), "%s: %v", c.what, err)
		require.Contains(t, st.GetMessage(), c.text, c.what)
	}
	for _, fine := range []*rmqpb.Settings{
		publisher(), publisher("unknown"), typed(publisher(), 0), subscriber(rmqpb.ClientType_SIMPLE_CONSUMER, "g"),
		subscriber(rmqpb.ClientType_PULL_CONSUMER, "g"), subscriber(rmqpb.ClientType_LITE_PUSH_CONSUMER, "g"), subscriber(rmqpb.ClientType_LITE_SIMPLE_CONSUMER, "g"),
		{PubSub: publisher().PubSub},
		push(func(s *rmqpb.Subscription) { s.Subscriptions[0].Expression = nil }),
		push(func(s *rmqpb.Subscription) {
			s.Subscriptions[0].Expression = &rmqpb.FilterExpression{Type: rmqpb.FilterType_SQL, Expression: "a > 5"}
		}),
	} {
		require.NoError(t, newFilters().validateSettings(anyClient, fine))
	}
}
