package proxy

import (
	"context"
	"errors"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
)

// AckMessage settles deliveries of one topic to one group.
//
// Fields: group, topic; of each entry the receipt_handle, and the message_id,
// which is only repeated in the answer. lite_topic has no effect.
//
// Answer: one entry for each of the request, in its order. At the top OK when
// all are OK, their common code when they agree, else MULTIPLE_RESULTS. Acking a
// message that is settled already is OK, so that an ack can be repeated when its
// answer was lost; a handle of another topic or group is refused, and so is one
// of a delivery since which the message was delivered again, but for an SDK that
// never gives up (quirks.EndedAckOK). An ack that fails keeps the message leased,
// and renewed if it was.
//
// Codes: OK, MULTIPLE_RESULTS, BAD_REQUEST (no entry), PAYLOAD_TOO_LARGE (more than
// 1024 entries; nothing is settled then), ILLEGAL_TOPIC,
// ILLEGAL_CONSUMER_GROUP, INVALID_RECEIPT_HANDLE (also for a topic or group that
// does not exist: clients stop repeating then).
//
// Apache's server refuses a handle by its own clock as soon as the invisible
// duration is over; here a handle is good until the message is delivered again.
func (s *Server) AckMessage(ctx context.Context, req *rmqpb.AckMessageRequest) (*rmqpb.AckMessageResponse, error) {
	v, err := s.settlementOf(ctx, req.GetGroup(), req.GetTopic())
	if err == nil {
		err = checkEntries(len(req.GetEntries()))
	}
	if err != nil {
		return &rmqpb.AckMessageResponse{Status: s.statusOf(ctx, err)}, nil
	}
	results := s.ack(ctx, &v, req.GetEntries())
	resp := &rmqpb.AckMessageResponse{Entries: make([]*rmqpb.AckMessageResultEntry, len(results))}
	for i, e := range req.GetEntries() {
		status := s.statusOf(ctx, results[i])
		resp.Entries[i] = &rmqpb.AckMessageResultEntry{MessageId: e.GetMessageId(), ReceiptHandle: e.GetReceiptHandle(), Status: status}
		switch {
		case i == 0:
			resp.Status = status
		case resp.Status.Code != status.Code:
			resp.Status = &rmqpb.Status{Code: rmqpb.Code_MULTIPLE_RESULTS, Message: "the entries have different results"}
		}
	}
	return resp, nil
}

// maxAckEntries bounds the entries of one request. No receive delivers more than 32
// messages.
const maxAckEntries = 1024

func checkEntries(n int) error {
	switch {
	case n == 0:
		return refuse(rmqpb.Code_BAD_REQUEST, "entries is empty: at least one is required")
	case n > maxAckEntries:
		return refuse(rmqpb.Code_PAYLOAD_TOO_LARGE, "entries: %d in one request, the limit is %d", n, maxAckEntries)
	}
	return nil
}

// ack returns what became of each entry.
func (s *Server) ack(ctx context.Context, v *settlement, entries []*rmqpb.AckMessageEntry) []error {
	results := make([]error, len(entries))
	leases := make([]mq.Lease, 0, len(entries))
	which := make([]int, 0, len(entries))
	for i, e := range entries {
		l, err := v.lease(e.GetReceiptHandle())
		if err != nil {
			results[i] = v.ended(l, err, quirks.EndedAckOK)
			continue
		}
		leases = append(leases, l)
		which = append(which, i)
	}
	if len(leases) == 0 {
		return results
	}
	for n, err := range s.store.Ack(ctx, leases) {
		if err == nil || leaseOver(err) {
			s.renewals.drop(leases[n])
		}
		if alreadySettled(err) {
			err = nil
		}
		results[which[n]] = v.ended(leases[n], err, quirks.EndedAckOK)
	}
	return results
}

// alreadySettled reports whether err says that an earlier call settled the
// delivery.
func alreadySettled(err error) bool {
	return errors.Is(err, mq.ErrLeaseEnded) && !errors.Is(err, mq.ErrLeaseSuperseded)
}
