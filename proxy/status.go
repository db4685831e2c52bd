package proxy

import (
	"context"
	"errors"
	"fmt"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/proxy/quirks"
)

// A codeError is an error that names the protocol's code itself. Validation
// makes them; the other tiers use the sentinels of mq.
type codeError struct {
	code rmqpb.Code
	text string
}

func (e *codeError) Error() string { return e.text }

// refuse returns an error with the protocol's code. The text names the field,
// the value and the limit.
func refuse(code rmqpb.Code, format string, args ...any) error {
	return &codeError{code: code, text: fmt.Sprintf(format, args...)}
}

// codes maps every sentinel that a tier returns to the protocol's code, the first
// that matches. Ended leases depend on the call too: AckMessage,
// ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue answer some with OK.
var codes = []struct {
	err  error
	code rmqpb.Code
}{
	{mq.ErrIllegalTopic, rmqpb.Code_ILLEGAL_TOPIC},
	{mq.ErrIllegalGroup, rmqpb.Code_ILLEGAL_CONSUMER_GROUP},
	{mq.ErrTopicNotFound, rmqpb.Code_TOPIC_NOT_FOUND},
	{mq.ErrGroupNotFound, rmqpb.Code_CONSUMER_GROUP_NOT_FOUND},
	{mq.ErrQueueNotFound, rmqpb.Code_TOPIC_NOT_FOUND},
	{mq.ErrShardNotFound, rmqpb.Code_BAD_REQUEST},
	{mq.ErrForbidden, rmqpb.Code_FORBIDDEN},
	{mq.ErrInvalidReceipt, rmqpb.Code_INVALID_RECEIPT_HANDLE},
	{mq.ErrLeaseSuperseded, rmqpb.Code_INVALID_RECEIPT_HANDLE},
	{mq.ErrLeaseEnded, rmqpb.Code_INVALID_RECEIPT_HANDLE},
	{mq.ErrIllegalOffset, rmqpb.Code_ILLEGAL_OFFSET},
	{mq.ErrOffsetNotFound, rmqpb.Code_OFFSET_NOT_FOUND},
	{mq.ErrIllegalFilter, rmqpb.Code_ILLEGAL_FILTER_EXPRESSION},
	{mq.ErrInvalidHandle, rmqpb.Code_BAD_REQUEST},
	{mq.ErrNotPending, rmqpb.Code_BAD_REQUEST},
	{mq.ErrUnknownTransaction, rmqpb.Code_INVALID_TRANSACTION_ID},
	{mq.ErrTransactionEnded, rmqpb.Code_INVALID_TRANSACTION_ID},
	{mq.ErrIllegalLiteTopic, rmqpb.Code_ILLEGAL_LITE_TOPIC},
	{mq.ErrLiteTopicQuota, rmqpb.Code_LITE_TOPIC_QUOTA_EXCEEDED},
	{mq.ErrLiteSubscriptionQuota, rmqpb.Code_LITE_SUBSCRIPTION_QUOTA_EXCEEDED},
	{mq.ErrTooLarge, rmqpb.Code_PAYLOAD_TOO_LARGE},
	{mq.ErrBusy, rmqpb.Code_TOO_MANY_REQUESTS},
	{mq.ErrTooManyInFlight, rmqpb.Code_TOO_MANY_REQUESTS},
	// The one code on which producers wait before they try again, elsewhere if they can.
	// With others they are back three times in a millisecond.
	{mq.ErrStoreFull, rmqpb.Code_TOO_MANY_REQUESTS},
	{mq.ErrOutcomeUnknown, rmqpb.Code_TOO_MANY_REQUESTS},
	{mq.ErrStale, rmqpb.Code_TOO_MANY_REQUESTS},
	{mq.ErrUnavailable, rmqpb.Code_TOO_MANY_REQUESTS},
	{mq.ErrNotImplemented, rmqpb.Code_NOT_IMPLEMENTED},
	{mq.ErrTopicExists, rmqpb.Code_PRECONDITION_FAILED},
	{mq.ErrGroupExists, rmqpb.Code_PRECONDITION_FAILED},
	{mq.ErrInvalid, rmqpb.Code_BAD_REQUEST},
	// A stopped store is the server's fault: clients go to another endpoint.
	{mq.ErrNotServing, rmqpb.Code_INTERNAL_SERVER_ERROR},
	{mq.ErrStopped, rmqpb.Code_INTERNAL_SERVER_ERROR},
	{context.DeadlineExceeded, rmqpb.Code_PROXY_TIMEOUT},
	{context.Canceled, rmqpb.Code_REQUEST_TIMEOUT},
}

// ok is the status of success.
func ok() *rmqpb.Status {
	return &rmqpb.Status{Code: rmqpb.Code_OK, Message: rmqpb.Code_OK.String()}
}

// statusOf returns the status that tells the client of err. Errors that the table
// does not know are logged with their text and told without it.
func (s *Server) statusOf(ctx context.Context, err error) *rmqpb.Status {
	if err == nil {
		return ok()
	}
	var ce *codeError
	if errors.As(err, &ce) {
		code := ce.code
		if c := clientOf(ctx); code == rmqpb.Code_MESSAGE_BODY_EMPTY && !quirks.KnowsEmptyBody(c.Language, c.Version) {
			code = rmqpb.Code_BAD_REQUEST
		}
		return &rmqpb.Status{Code: code, Message: ce.text}
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			if errors.Is(c.err, mq.ErrStopped) {
				// The cause may name files of the server. The shard has logged it.
				return &rmqpb.Status{Code: c.code, Message: "the store has stopped; the server's log has the cause"}
			}
			return &rmqpb.Status{Code: c.code, Message: err.Error()}
		}
	}
	s.logger.ErrorContext(ctx, "unexpected error", "client", mq.Shorten(clientOf(ctx).ID), "error", err)
	return &rmqpb.Status{Code: rmqpb.Code_INTERNAL_SERVER_ERROR, Message: "internal error; the server's log has the cause"}
}
