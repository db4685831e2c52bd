package mq

import (
	"errors"
	"fmt"
)

// Sentinels that two tiers know. Match with errors.Is; the text of the wrapping
// error carries the names and numbers.
var (
	// ErrInvalid is bad input for which no closer kind exists.
	ErrInvalid = errors.New("invalid input")
	// ErrIllegalTopic is a topic name that cannot exist.
	ErrIllegalTopic = errors.New("illegal topic")
	// ErrIllegalGroup is a group name that cannot exist.
	ErrIllegalGroup = errors.New("illegal consumer group")

	// ErrTopicNotFound: the topic does not exist, or was deleted since.
	ErrTopicNotFound = errors.New("topic not found")
	// ErrTopicExists: a topic of that name exists with another configuration.
	ErrTopicExists = errors.New("topic exists")
	// ErrGroupNotFound: the consumer group does not exist, or was deleted since.
	ErrGroupNotFound = errors.New("consumer group not found")
	// ErrGroupExists: a group of that name exists with another configuration.
	ErrGroupExists = errors.New("consumer group exists")
	// ErrQueueNotFound: the topic has no such queue on the shard asked.
	ErrQueueNotFound = errors.New("queue not found")
	// ErrShardNotFound: no node known here serves the shard.
	ErrShardNotFound = errors.New("shard not found")
	// ErrForbidden: the topic does not permit the operation.
	ErrForbidden = errors.New("forbidden")

	// ErrInvalidReceipt: the receipt handle cannot be read, or belongs to
	// another topic or group.
	ErrInvalidReceipt = errors.New("invalid receipt handle")
	// ErrLeaseEnded: the delivery a receipt stands for is over: acknowledged,
	// dead-lettered, or delivered again since.
	ErrLeaseEnded = errors.New("lease ended")
	// ErrLeaseSuperseded: the delivery is over because the message was delivered
	// again since, and may be in somebody else's hands. It comes with
	// ErrLeaseEnded.
	ErrLeaseSuperseded = fmt.Errorf("delivered again since: %w", ErrLeaseEnded)

	// ErrIllegalOffset: the offset lies outside of its queue. See OffsetError.
	ErrIllegalOffset = errors.New("illegal offset")
	// ErrOffsetNotFound: the group has no place in the queue yet.
	ErrOffsetNotFound = errors.New("offset not found")
	// ErrIllegalFilter: a filter expression that means nothing.
	ErrIllegalFilter = errors.New("illegal filter expression")
	// ErrInvalidHandle: a handle of a pending message cannot be read, or belongs to
	// another message or topic.
	ErrInvalidHandle = errors.New("invalid handle")
	// ErrNotPending: the message does not wait for its time, or for the end of its
	// transaction, any more.
	ErrNotPending = errors.New("not pending")

	// ErrUnknownTransaction: there is no such transaction, or it ended longer ago than is
	// remembered.
	ErrUnknownTransaction = errors.New("unknown transaction")
	// ErrTransactionEnded: the transaction has ended the other way.
	ErrTransactionEnded = errors.New("transaction has ended")

	// ErrIllegalLiteTopic is a name of a lite topic that cannot exist.
	ErrIllegalLiteTopic = errors.New("illegal lite topic")
	// ErrLiteTopicQuota: the topic has as many lite topics as it may.
	ErrLiteTopicQuota = errors.New("too many lite topics")
	// ErrLiteSubscriptionQuota: the client, or all clients together, subscribe to as many
	// lite topics as they may.
	ErrLiteSubscriptionQuota = errors.New("too many lite subscriptions")

	// ErrTooLarge: the message or request is over a size limit.
	ErrTooLarge = errors.New("too large")
	// ErrBusy: a bounded queue or table is full; trying later may succeed.
	ErrBusy = errors.New("too many requests")
	// ErrTooManyInFlight: the consumer group holds as many messages as it may. It
	// gets more when it has settled some.
	ErrTooManyInFlight = errors.New("too many messages in flight")
	// ErrStoreFull: the disk of the store has reached a limit. Nothing was stored;
	// trying later may succeed, as soon as there is room.
	ErrStoreFull = errors.New("store full")
	// ErrStopped: the store has been closed, or stopped itself after a failed
	// write. What was asked may or may not survive a restart.
	ErrStopped = errors.New("store stopped")
	// ErrNotServing: the store had stopped before. Nothing was done. It comes with ErrStopped.
	ErrNotServing = fmt.Errorf("not serving: %w", ErrStopped)
	// ErrUnavailable: nobody who could answer is reachable, no router or no node that
	// serves the shard; trying later may succeed. Nothing was done, unless
	// ErrOutcomeUnknown comes with it.
	ErrUnavailable = errors.New("unavailable")
	// ErrOutcomeUnknown: the connection to whoever was asked broke before there was an
	// answer. It may have been done or not. It comes with ErrUnavailable.
	ErrOutcomeUnknown = fmt.Errorf("outcome unknown: %w", ErrUnavailable)
	// ErrStale: who asked knows less than the shard of where the topic lies, or of the group.
	// Nothing was done; with what is known by now it may succeed. It comes with
	// ErrUnavailable.
	ErrStale = fmt.Errorf("asked by what is known no more: %w", ErrUnavailable)
	// ErrNotImplemented: the protocol has the call, this server does not yet.
	ErrNotImplemented = errors.New("not implemented")
)
