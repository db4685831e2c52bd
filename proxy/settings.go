package proxy

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
)

const (
	// maxSettings is the largest settings message that is kept, in bytes: room
	// for some thousand topics.
	maxSettings = 1 << 20
	// maxBackoffSteps is the longest list of delays sent to a client. The last
	// one repeats.
	maxBackoffSteps = 100

	// How producers repeat a send that was answered with TOO_MANY_REQUESTS. The
	// values are whole seconds because Node.js reads nothing else, and all three
	// are set because two SDKs end without one of them.
	producerAttempts   = 3
	producerInitial    = time.Second
	producerMax        = 10 * time.Second
	producerMultiplier = 2
)

// validateSettings checks what a client says about itself. Topics and groups
// need not exist: a settings error would keep some SDKs waiting for ever.
func (s *Server) validateSettings(c client, settings *rmqpb.Settings) error {
	if size := proto.Size(settings); size > maxSettings {
		return refuse(rmqpb.Code_BAD_REQUEST, "settings: have %d bytes, the limit is %d", size, maxSettings)
	}
	publishing, subscription := settings.GetPublishing(), settings.GetSubscription()
	if publishing == nil && subscription == nil {
		return refuse(rmqpb.Code_BAD_REQUEST, "settings: publishing or subscription must be set")
	}
	if err := validateClientType(settings); err != nil {
		return err
	}
	for _, topic := range publishing.GetTopics() {
		if err := validateTopic(c.resource(topic)); err != nil {
			return err
		}
	}
	if subscription == nil {
		return nil
	}
	if err := validateGroup(c.resource(subscription.GetGroup())); err != nil {
		return err
	}
	for _, entry := range subscription.GetSubscriptions() {
		if err := validateTopic(c.resource(entry.GetTopic())); err != nil {
			return err
		}
		if _, _, err := s.filters.of(entry.GetExpression()); err != nil {
			return err
		}
	}
	return nil
}

// validateClientType refuses clients that could not do anything here, and those
// whose type does not fit the rest. A type that is not set follows from the rest.
func validateClientType(settings *rmqpb.Settings) error {
	t := settings.GetClientType()
	var fits bool
	switch t {
	case rmqpb.ClientType_CLIENT_TYPE_UNSPECIFIED:
		return nil
	case rmqpb.ClientType_PRODUCER:
		fits = settings.GetPublishing() != nil
	case rmqpb.ClientType_PUSH_CONSUMER, rmqpb.ClientType_SIMPLE_CONSUMER, rmqpb.ClientType_PULL_CONSUMER,
		rmqpb.ClientType_LITE_PUSH_CONSUMER, rmqpb.ClientType_LITE_SIMPLE_CONSUMER:
		fits = settings.GetSubscription() != nil
	default:
		return refuse(rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "client_type %d: is no client type", t)
	}
	if !fits {
		return refuse(rmqpb.Code_UNRECOGNIZED_CLIENT_TYPE, "client_type %s: does not fit the other settings", t)
	}
	return nil
}

// mergeSettings returns the settings that a client is to work with: a copy of
// its own, with names and namespaces as it sent them, in which everything that
// the server decides is replaced. Metrics are off, without an endpoint: some
// SDKs export to any endpoint they see.
func (s *Server) mergeSettings(ctx context.Context, c client, sent *rmqpb.Settings) *rmqpb.Settings {
	merged := proto.CloneOf(sent)
	merged.Metric = &rmqpb.Metric{}
	if merged.AccessPoint != nil {
		merged.AccessPoint = dialled(ctx, merged.AccessPoint)
	}
	if publishing := merged.GetPublishing(); publishing != nil {
		publishing.MaxBodySize = int32(min(s.opts.MaxBodySize, math.MaxInt32))
		publishing.ValidateMessageType = true
		merged.BackoffPolicy = exponential(producerAttempts, producerInitial, producerMax, producerMultiplier)
		return merged
	}
	fifo, retry := s.groupPolicy(ctx, c, sent.GetSubscription().GetGroup())
	subscription := merged.GetSubscription()
	if isLite(sent) {
		// Each lite topic is in order, whatever the group is. Without both limits one SDK
		// never finishes its start, and others refuse every subscription.
		fifo = true
		subscription.LiteSubscriptionQuota = new(int32(min(s.opts.LiteClientQuota, math.MaxInt32)))
		subscription.MaxLiteTopicSize = new(int32(mq.MaxLiteName))
	}
	subscription.Fifo = new(fifo)
	subscription.ReceiveBatchSize = new(int32(maxReceiveBatch))
	// Several SDKs take a missing or a fractional time for none, and then poll
	// without a pause.
	subscription.LongPollingTimeout = durationpb.New(max(s.opts.MaxPolling.Truncate(time.Second), time.Second))
	merged.BackoffPolicy = backoffPolicy(c, fifo, retry)
	return merged
}

// groupPolicy returns what the group decides for its consumers. A group that
// cannot be had is taken for one with the defaults: its consumers must start,
// and are told at their first receive.
func (s *Server) groupPolicy(ctx context.Context, c client, name *rmqpb.Resource) (fifo bool, retry mq.RetryPolicy) {
	group, err := s.ensureGroup(ctx, c, name)
	if err == nil {
		return group.FIFO, group.Retry
	}
	if !errors.Is(err, mq.ErrGroupNotFound) {
		s.logger.WarnContext(ctx, "settings with the defaults of a group", "client", mq.Shorten(c.ID), "group", name.GetName(), "error", err)
	}
	return false, mq.DefaultRetryPolicy()
}

// backoffPolicy returns the retry policy in a form that the client understands:
// listed delays, but for quirks.FIFOBackoffOf.
func backoffPolicy(c client, fifo bool, retry mq.RetryPolicy) *rmqpb.RetryPolicy {
	delays := listedDelays(retry)
	if fifo {
		initial := max(wholeSeconds(delays[0]), time.Second)
		longest := max(wholeSeconds(slices.Max(delays)), time.Second)
		switch quirks.FIFOBackoffOf(c.Language, c.Version) {
		case quirks.Exponential:
			return exponential(retry.MaxAttempts, initial, longest, 2)
		case quirks.ExponentialMillis:
			return exponential(retry.MaxAttempts, 1000*initial, 1000*longest, 2)
		case quirks.ListedDelays:
		}
	}
	next := make([]*durationpb.Duration, len(delays))
	for i, d := range delays {
		if quirks.WholeSeconds(c.Language) {
			d = wholeSeconds(d)
		}
		next[i] = durationpb.New(d)
	}
	return &rmqpb.RetryPolicy{
		MaxAttempts: int32(retry.MaxAttempts),
		Strategy:    &rmqpb.RetryPolicy_CustomizedBackoff{CustomizedBackoff: &rmqpb.CustomizedBackoff{Next: next}},
	}
}

// listedDelays returns the delays of a policy in their order. The list is never
// empty: the Go SDK panics at the first failure without one.
func listedDelays(retry mq.RetryPolicy) []time.Duration {
	if len(retry.Customized) > 0 {
		return retry.Customized
	}
	steps := min(max(int(retry.MaxAttempts)-1, 1), maxBackoffSteps)
	delays := make([]time.Duration, 0, steps)
	for attempt := range mq.Attempt(steps) {
		d := retry.Delay(attempt + 1)
		delays = append(delays, d)
		if d == retry.Max {
			break
		}
	}
	return delays
}

// wholeSeconds rounds up, so that a delay does not become none.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

func exponential(attempts mq.Attempt, initial, longest time.Duration, multiplier float32) *rmqpb.RetryPolicy {
	return &rmqpb.RetryPolicy{
		MaxAttempts: int32(attempts),
		Strategy: &rmqpb.RetryPolicy_ExponentialBackoff{ExponentialBackoff: &rmqpb.ExponentialBackoff{
			Initial: durationpb.New(initial), Max: durationpb.New(longest), Multiplier: multiplier,
		}},
	}
}
