package admin

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
)

// retryPolicy converts a policy; none is the zero value, which the router takes
// for its default. Without attempts it gets the default number, without any
// delay the default delays.
func retryPolicy(p *adminpb.RetryPolicy) (mq.RetryPolicy, error) {
	if p == nil {
		return mq.RetryPolicy{}, nil
	}
	if p.GetMaxAttempts() < 0 {
		return mq.RetryPolicy{}, invalid("retry.max_attempts", fmt.Sprint(p.GetMaxAttempts()), "must not be negative")
	}
	policy := mq.RetryPolicy{MaxAttempts: mq.Attempt(p.GetMaxAttempts()), Multiplier: p.GetMultiplier()}
	for i, d := range p.GetCustomized() {
		v, err := delay(fmt.Sprintf("retry.customized[%d]", i), d)
		if err != nil {
			return mq.RetryPolicy{}, err
		}
		policy.Customized = append(policy.Customized, v)
	}
	var err error
	if policy.Initial, err = delay("retry.initial", p.GetInitial()); err != nil {
		return mq.RetryPolicy{}, err
	}
	if policy.Max, err = delay("retry.max", p.GetMax()); err != nil {
		return mq.RetryPolicy{}, err
	}
	def := mq.DefaultRetryPolicy()
	if policy.MaxAttempts == 0 {
		policy.MaxAttempts = def.MaxAttempts
	}
	if len(policy.Customized) == 0 && p.Initial == nil && p.Max == nil && p.Multiplier == 0 {
		policy.Customized = def.Customized
	}
	return policy, nil
}

func delay(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > mq.MaxRetryDelay {
		return 0, invalid(field, d.AsDuration().String(), "must lie between 0s and "+mq.MaxRetryDelay.String())
	}
	return d.AsDuration(), nil
}

// startPosition converts a start position; none is the earliest.
func startPosition(p *adminpb.StartPosition) (mq.StartPosition, error) {
	var pos mq.StartPosition
	switch p.GetPolicy() {
	case adminpb.StartPosition_POLICY_UNSPECIFIED, adminpb.StartPosition_POLICY_EARLIEST:
		pos.Policy = mq.StartEarliest
	case adminpb.StartPosition_POLICY_LATEST:
		pos.Policy = mq.StartLatest
	case adminpb.StartPosition_POLICY_TIMESTAMP:
		pos.Policy = mq.StartTimestamp
	default:
		return pos, invalid("start.policy", fmt.Sprint(int32(p.GetPolicy())), "is not a start policy")
	}
	switch t := p.GetTime(); {
	case pos.Policy != mq.StartTimestamp && t != nil:
		return pos, invalid("start.time", t.AsTime().Format(time.RFC3339), "may be set only with POLICY_TIMESTAMP")
	case pos.Policy == mq.StartTimestamp && t == nil:
		return pos, invalid("start.time", "", "is required with POLICY_TIMESTAMP")
	case t != nil && !storable(t):
		return pos, invalid("start.time", fmt.Sprintf("%d s", t.GetSeconds()), "must lie between the years 1970 and 2262")
	case t != nil:
		pos.Time = t.AsTime()
	}
	return pos, nil
}

// storable reports whether a time can be counted in nanoseconds since 1970, as
// store times are.
func storable(t *timestamppb.Timestamp) bool {
	return t.CheckValid() == nil && t.GetSeconds() >= 0 && t.GetSeconds() < math.MaxInt64/int64(time.Second)
}

func groupProto(g *mq.Group) *adminpb.Group {
	p := &adminpb.Group{
		Namespace: g.Namespace, Name: g.Name, Id: uint32(g.ID), Version: g.Version, Fifo: g.FIFO,
		LiteTopic: g.LiteTopic, LiteExclusive: g.LiteExclusive, Broadcast: g.Broadcast,
		Retry: &adminpb.RetryPolicy{MaxAttempts: int32(g.Retry.MaxAttempts)}, Start: startProto(g.Start),
		DeadLetterTopic: g.DeadLetterTopic().Name,
	}
	for _, d := range g.Retry.Customized {
		p.Retry.Customized = append(p.Retry.Customized, durationpb.New(d))
	}
	if len(g.Retry.Customized) == 0 {
		p.Retry.Initial, p.Retry.Max = durationpb.New(g.Retry.Initial), durationpb.New(g.Retry.Max)
		p.Retry.Multiplier = g.Retry.Multiplier
	}
	return p
}

func startProto(s mq.StartPosition) *adminpb.StartPosition {
	switch s.Policy {
	case mq.StartLatest:
		return &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_LATEST}
	case mq.StartTimestamp:
		return &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_TIMESTAMP, Time: timestamppb.New(s.Time)}
	default:
		return &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_EARLIEST}
	}
}
