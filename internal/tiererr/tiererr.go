// Package tiererr carries errors from one tier to another, so that a caller tells them
// apart as if both were one process: errors.Is finds the sentinels of mq, errors.As its
// *mq.InvalidError and *mq.OffsetError, and the text is the same.
//
// It is called by both ends of the services between tiers, and knows none of their
// calls. What it decodes comes from a peer, which may be older or newer: what it does not
// know it passes over, and it never fails.
package tiererr

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/mq"
)

// kinds is the released table: the sentinels by the number each has between tiers. The
// code is what tools that know only gRPC see of an error, by the first kind that it is of.
var kinds = []struct {
	kind     routerpb.ErrorKind
	sentinel error
	code     codes.Code
}{
	{routerpb.ErrorKind_ERROR_KIND_INVALID, mq.ErrInvalid, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_ILLEGAL_TOPIC, mq.ErrIllegalTopic, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_ILLEGAL_GROUP, mq.ErrIllegalGroup, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_TOPIC_NOT_FOUND, mq.ErrTopicNotFound, codes.NotFound},
	{routerpb.ErrorKind_ERROR_KIND_TOPIC_EXISTS, mq.ErrTopicExists, codes.AlreadyExists},
	{routerpb.ErrorKind_ERROR_KIND_GROUP_NOT_FOUND, mq.ErrGroupNotFound, codes.NotFound},
	{routerpb.ErrorKind_ERROR_KIND_GROUP_EXISTS, mq.ErrGroupExists, codes.AlreadyExists},
	{routerpb.ErrorKind_ERROR_KIND_QUEUE_NOT_FOUND, mq.ErrQueueNotFound, codes.NotFound},
	{routerpb.ErrorKind_ERROR_KIND_SHARD_NOT_FOUND, mq.ErrShardNotFound, codes.NotFound},
	{routerpb.ErrorKind_ERROR_KIND_FORBIDDEN, mq.ErrForbidden, codes.PermissionDenied},
	{routerpb.ErrorKind_ERROR_KIND_INVALID_RECEIPT, mq.ErrInvalidReceipt, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_LEASE_ENDED, mq.ErrLeaseEnded, codes.FailedPrecondition},
	{routerpb.ErrorKind_ERROR_KIND_LEASE_SUPERSEDED, mq.ErrLeaseSuperseded, codes.FailedPrecondition},
	{routerpb.ErrorKind_ERROR_KIND_ILLEGAL_OFFSET, mq.ErrIllegalOffset, codes.OutOfRange},
	{routerpb.ErrorKind_ERROR_KIND_OFFSET_NOT_FOUND, mq.ErrOffsetNotFound, codes.NotFound},
	{routerpb.ErrorKind_ERROR_KIND_ILLEGAL_FILTER, mq.ErrIllegalFilter, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_INVALID_HANDLE, mq.ErrInvalidHandle, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_NOT_PENDING, mq.ErrNotPending, codes.FailedPrecondition},
	{routerpb.ErrorKind_ERROR_KIND_UNKNOWN_TRANSACTION, mq.ErrUnknownTransaction, codes.NotFound},
	{routerpb.ErrorKind_ERROR_KIND_TRANSACTION_ENDED, mq.ErrTransactionEnded, codes.FailedPrecondition},
	{routerpb.ErrorKind_ERROR_KIND_ILLEGAL_LITE_TOPIC, mq.ErrIllegalLiteTopic, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_LITE_TOPIC_QUOTA, mq.ErrLiteTopicQuota, codes.ResourceExhausted},
	{routerpb.ErrorKind_ERROR_KIND_LITE_SUBSCRIPTION_QUOTA, mq.ErrLiteSubscriptionQuota, codes.ResourceExhausted},
	{routerpb.ErrorKind_ERROR_KIND_TOO_LARGE, mq.ErrTooLarge, codes.InvalidArgument},
	{routerpb.ErrorKind_ERROR_KIND_BUSY, mq.ErrBusy, codes.ResourceExhausted},
	{routerpb.ErrorKind_ERROR_KIND_TOO_MANY_IN_FLIGHT, mq.ErrTooManyInFlight, codes.ResourceExhausted},
	{routerpb.ErrorKind_ERROR_KIND_STORE_FULL, mq.ErrStoreFull, codes.ResourceExhausted},
	{routerpb.ErrorKind_ERROR_KIND_STOPPED, mq.ErrStopped, codes.Aborted},
	{routerpb.ErrorKind_ERROR_KIND_NOT_IMPLEMENTED, mq.ErrNotImplemented, codes.Unimplemented},
	{routerpb.ErrorKind_ERROR_KIND_UNAVAILABLE, mq.ErrUnavailable, codes.Unavailable},
	{routerpb.ErrorKind_ERROR_KIND_OUTCOME_UNKNOWN, mq.ErrOutcomeUnknown, codes.Unavailable},
	{routerpb.ErrorKind_ERROR_KIND_STALE, mq.ErrStale, codes.Unavailable},
	{routerpb.ErrorKind_ERROR_KIND_NOT_SERVING, mq.ErrNotServing, codes.Aborted},
	{routerpb.ErrorKind_ERROR_KIND_CANCELED, context.Canceled, codes.Canceled},
	{routerpb.ErrorKind_ERROR_KIND_DEADLINE_EXCEEDED, context.DeadlineExceeded, codes.DeadlineExceeded},
}

// The longest texts that cross, in bytes. The detail of a status travels in the headers
// of HTTP/2, which are no place for more.
const (
	maxText  = 4 << 10
	maxField = 1 << 10
)

// Encode returns err in the form in which it crosses; nil for nil. Long texts are cut.
func Encode(err error) *routerpb.Error {
	if err == nil {
		return nil
	}
	e := &routerpb.Error{Text: text(err.Error(), maxText)}
	for _, k := range kinds {
		if errors.Is(err, k.sentinel) {
			e.Kinds = append(e.Kinds, k.kind)
		}
	}
	if invalid, ok := errors.AsType[*mq.InvalidError](err); ok {
		e.Invalid = &routerpb.InvalidInput{
			Kind: kindOf(invalid.Kind), Field: text(invalid.Field, maxField),
			Value: text(invalid.Value, maxField), Reason: text(invalid.Reason, maxField),
		}
	}
	if outside, ok := errors.AsType[*mq.OffsetError](err); ok {
		e.Offset = &routerpb.OffsetOutside{
			Namespace: text(outside.Topic.Namespace, maxField), Topic: text(outside.Topic.Name, maxField),
			Queue: int32(outside.Queue), Offset: int64(outside.Offset), Min: int64(outside.Min), Next: int64(outside.Next),
		}
	}
	return e
}

// text returns s as protobuf can carry it, cut behind limit bytes.
func text(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	const more = "..."
	return strings.ToValidUTF8(s[:limit-len(more)], "") + more
}

// kindOf returns the number of a sentinel, 0 when it has none.
func kindOf(sentinel error) routerpb.ErrorKind {
	for _, k := range kinds {
		if k.sentinel == sentinel { //nolint:errorlint // what it wraps would be another row
			return k.kind
		}
	}
	return routerpb.ErrorKind_ERROR_KIND_UNSPECIFIED
}

func sentinelOf(kind routerpb.ErrorKind) error {
	for _, k := range kinds {
		if k.kind == kind {
			return k.sentinel
		}
	}
	return nil
}

// An arrived error is one that a peer has told.
type arrived struct {
	text string
	is   []error
}

func (e *arrived) Error() string { return e.text }

// Unwrap returns what the error is, for errors.Is and errors.As.
func (e *arrived) Unwrap() []error { return e.is }

// Decode returns the error that a peer has encoded; nil for nil.
func Decode(e *routerpb.Error) error {
	if e == nil {
		return nil
	}
	err := &arrived{text: e.GetText()}
	if in := e.GetInvalid(); in != nil {
		kind := sentinelOf(in.GetKind())
		if kind == nil {
			kind = mq.ErrInvalid
		}
		err.is = append(err.is, &mq.InvalidError{Kind: kind, Field: in.GetField(), Value: in.GetValue(), Reason: in.GetReason()})
	}
	if out := e.GetOffset(); out != nil {
		err.is = append(err.is, &mq.OffsetError{
			Topic: mq.Resource{Namespace: out.GetNamespace(), Name: out.GetTopic()}, Queue: mq.QueueID(out.GetQueue()),
			Offset: mq.QueueOffset(out.GetOffset()), Min: mq.QueueOffset(out.GetMin()), Next: mq.QueueOffset(out.GetNext()),
		})
	}
	for _, kind := range e.GetKinds() {
		if sentinel := sentinelOf(kind); sentinel != nil {
			err.is = append(err.is, sentinel)
		}
	}
	return err
}

// Status returns err as the error that a handler of gRPC returns; nil for nil. The whole
// error is the detail of the status; its code is for tools that know only gRPC.
func Status(err error) error {
	e := Encode(err)
	if e == nil {
		return nil
	}
	code := codes.Unknown
	if ks := e.GetKinds(); len(ks) > 0 {
		for _, k := range kinds {
			if k.kind == ks[0] {
				code = k.code
			}
		}
	}
	st, detailErr := status.New(code, e.GetText()).WithDetails(e)
	if detailErr != nil {
		panic("BUG: an error that cannot be encoded: " + detailErr.Error())
	}
	return st.Err()
}

// FromStatus returns the error that a call of gRPC ended with as the peer's handler had
// it; nil for nil. An error that no handler gave is that of gRPC, and is
// mq.ErrUnavailable when the peer cannot be reached or went away, mq.ErrNotImplemented
// when it is too old to know the call, and that of the context when the caller has given
// up. Whether a call that ended in one of these was carried out is not known.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, detail := range st.Details() {
		if e, ok := detail.(*routerpb.Error); ok {
			return Decode(e)
		}
	}
	kind := map[codes.Code]error{
		codes.Unavailable: mq.ErrOutcomeUnknown, codes.Unimplemented: mq.ErrNotImplemented,
		codes.Canceled: context.Canceled, codes.DeadlineExceeded: context.DeadlineExceeded,
	}[st.Code()]
	if kind == nil {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}
