package proxy

import (
	"context"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
)

// ChangeInvisibleDuration sets when a delivery becomes visible again.
//
// Fields: group, topic, receipt_handle, invisible_duration (0 to 12 h; absent
// counts as 0, which is at once), suspend. message_id and lite_topic have no
// effect.
//
// For a message that the server renews it means that the consumer gives up on
// this delivery: renewal ends, and the last attempt is dead-lettered. For all others it
// prolongs or shortens the lease. suspend puts the delivery off, for every group: renewal
// ends, and the delivery that follows has the same attempt.
//
// Answer: always the handle that came in. It stays good, as do all handles of
// the same delivery, until the message is delivered again. For durations and
// ended deliveries of some SDKs see package quirks.
//
// Codes: OK, ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP, ILLEGAL_INVISIBLE_TIME,
// INVALID_RECEIPT_HANDLE.
//
// Apache's server hands out a new handle and forgets the old one, although some
// SDKs go on using it; and it revives a message that was acknowledged already.
func (s *Server) ChangeInvisibleDuration(ctx context.Context, req *rmqpb.ChangeInvisibleDurationRequest) (*rmqpb.ChangeInvisibleDurationResponse, error) {
	return &rmqpb.ChangeInvisibleDurationResponse{
		Status: s.statusOf(ctx, s.changeInvisible(ctx, req)), ReceiptHandle: req.GetReceiptHandle(),
	}, nil
}

func (s *Server) changeInvisible(ctx context.Context, req *rmqpb.ChangeInvisibleDurationRequest) error {
	v, err := s.settlementOf(ctx, req.GetGroup(), req.GetTopic())
	if err != nil {
		return err
	}
	d, err := checkInvisible(req.GetInvisibleDuration(), 0)
	if err != nil {
		return err
	}
	l, err := v.lease(req.GetReceiptHandle())
	if err == nil {
		err = s.change(ctx, &v, mq.LeaseChange{Lease: l, Invisible: d, Reason: reasonOf(l, req.GetSuspend())})
	}
	return v.ended(l, err, quirks.EndedChangeOK)
}

func reasonOf(l mq.Lease, suspend bool) mq.ChangeReason {
	if suspend {
		return mq.Suspend
	}
	if l.AutoRenew {
		return mq.Nack
	}
	return mq.Extend
}

func (s *Server) change(ctx context.Context, v *settlement, c mq.LeaseChange) error {
	if c.Reason == mq.Nack && quirks.RetryDelayFromPolicy(v.client.Language, c.Lease.AutoRenew, c.Invisible) {
		c.Invisible = v.group.Retry.Delay(c.Lease.Attempt)
	}
	if !c.Lease.AutoRenew {
		return s.store.ChangeInvisible(ctx, []mq.LeaseChange{c})[0]
	}
	// A renewal that came after the change would undo it.
	held := s.renewals.hold(ctx, c.Lease)
	err := s.store.ChangeInvisible(ctx, []mq.LeaseChange{c})[0]
	if err == nil || leaseOver(err) {
		held.drop()
	} else {
		held.resume()
	}
	return err
}

// giveUpDelay is the delay of the group's retry policy as it is now, or as it was
// at the delivery when the group cannot be looked up.
func (s *Server) giveUpDelay(ctx context.Context, g *mq.Group, attempt mq.Attempt) time.Duration {
	if now, err := s.router.Group(ctx, g.Resource); err == nil && now.ID == g.ID {
		g = now
	}
	return g.Retry.Delay(attempt)
}
