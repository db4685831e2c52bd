package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
	"github.com/perigee-mq/perigee/receipt"
)

// A settlement is what the calls that settle deliveries have in common: the
// topic and group the client names, against which handles are checked. Both are
// nil when one of them does not exist: no handle can be good then, and clients
// repeat a settlement for ever that is refused with anything else.
type settlement struct {
	client client
	router Router
	topic  *mq.Topic
	group  *mq.Group
}

func (s *Server) settlementOf(ctx context.Context, group, topic *rmqpb.Resource) (settlement, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return settlement{}, err
	}
	groupName, topicName := c.resource(group), c.resource(topic)
	if err := validateNames(groupName, topicName); err != nil {
		return settlement{}, err
	}
	t, err := s.router.Topic(ctx, topicName)
	if errors.Is(err, mq.ErrTopicNotFound) {
		return settlement{client: c, router: s.router}, nil
	}
	if err != nil {
		return settlement{}, err
	}
	g, err := s.router.Group(ctx, groupName)
	if errors.Is(err, mq.ErrGroupNotFound) {
		return settlement{client: c, router: s.router}, nil
	}
	return settlement{client: c, router: s.router, topic: t, group: g}, err
}

// gone reports whether the topic or the group does not exist.
func (v *settlement) gone() bool { return v.topic == nil }

// lease returns the lease of a handle. A handle that cannot be read, or is of
// another topic or group, is mq.ErrInvalidReceipt; that of a topic or group that
// does not exist, or of one that was deleted since and had the same name, is
// mq.ErrLeaseEnded.
func (v *settlement) lease(handle string) (mq.Lease, error) {
	l, err := receipt.Decode(handle)
	switch {
	case err != nil:
		return l, fmt.Errorf("receipt_handle: %w", err)
	case v.gone():
		return l, errGone
	case l.Topic != v.topic.ID:
		if _, err := v.router.TopicByID(l.Topic); errors.Is(err, mq.ErrTopicNotFound) {
			return l, errGone
		}
		return l, refuse(rmqpb.Code_INVALID_RECEIPT_HANDLE, "receipt_handle is not of topic %q", v.topic.Resource)
	case l.Group != v.group.ID:
		if _, err := v.router.GroupByID(l.Group); errors.Is(err, mq.ErrGroupNotFound) {
			return l, errGone
		}
		if !v.ofInstance(l.Group) {
			return l, refuse(rmqpb.Code_INVALID_RECEIPT_HANDLE, "receipt_handle is not of group %q", v.group.Resource)
		}
	}
	if _, err := v.topic.On(l.Shard); err != nil {
		return l, refuse(rmqpb.Code_INVALID_RECEIPT_HANDLE, "receipt_handle is of a shard that does not serve topic %q", v.topic.Resource)
	}
	return l, nil
}

// ofInstance reports whether the group is an instance of the one that the client names.
func (v *settlement) ofInstance(id mq.GroupID) bool {
	g, err := v.router.GroupByID(id)
	return err == nil && v.group.HasInstance(g.Resource)
}

// errGone is the answer to a handle whose topic or group does not exist any more.
var errGone = fmt.Errorf("receipt_handle: its topic or group does not exist: %w", mq.ErrLeaseEnded)

// ended returns the answer to the settlement of a lease that failed with err: none
// when the delivery is over and the client would repeat the call until it is OK.
func (v *settlement) ended(l mq.Lease, err error, insists func(l quirks.Language, autoRenew bool) bool) error {
	if leaseOver(err) && insists(v.client.Language, l.AutoRenew) {
		return nil
	}
	return err
}

// leaseOver reports whether err says that there is nothing left to settle.
func leaseOver(err error) bool {
	return errors.Is(err, mq.ErrLeaseEnded) || errors.Is(err, mq.ErrTopicNotFound) || errors.Is(err, mq.ErrGroupNotFound)
}

// logUnexpected logs the first of the errors that is more than a delivery being
// over.
func logUnexpected(ctx context.Context, logger *slog.Logger, what string, errs []error) {
	for _, err := range errs {
		if err != nil && !leaseOver(err) {
			logger.WarnContext(ctx, what, "messages", len(errs), "error", err)
			return
		}
	}
}
