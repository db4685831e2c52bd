package keyspace

import (
	"encoding/binary"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// LeaseState says in which of four places a message under delivery is.
type LeaseState uint8

// A message that was delivered and not settled is leased to a consumer, ready
// to be delivered again, or used up and waiting for its dead-letter copy. One that may
// not be delivered before an earlier message of its message group is parked, delivered
// once or never; it is in no index.
const (
	Leased LeaseState = 1
	Ready  LeaseState = 2
	UsedUp LeaseState = 3
	Parked LeaseState = 4
)

// String returns the state in words.
func (s LeaseState) String() string {
	switch s {
	case Leased:
		return "leased"
	case Ready:
		return "ready"
	case UsedUp:
		return "used up"
	case Parked:
		return "parked"
	}
	return fmt.Sprintf("LeaseState(%d)", uint8(s))
}

// A Lease is the record of a message that a group was given, or has passed because its
// message group was blocked, and has not settled.
type Lease struct {
	State   LeaseState
	Attempt mq.Attempt // of the latest delivery; 0: it was never delivered
	PopID   mq.PopID   // of the latest delivery; fences its receipts
	// When is the visible-at time in Unix nanoseconds of a leased message, and
	// the redelivery sequence of a ready one: the rest of its index key.
	When uint64
	// Nacked: the latest delivery was given up by the consumer, or given back for
	// it. The server must not renew it any more: a renewal may be on its way from
	// a proxy that has not heard.
	Nacked bool
	// First is when the group was first given the message, in Unix nanoseconds.
	First int64
	// Lane is the hash of the message group, for a group that keeps its order; 0: none.
	Lane uint64
	// Try is the hash of the attempt id of the receive that has the message; 0: none.
	Try uint64
}

const (
	leaseSize     = 1 + 4 + 8 + 8 + 8
	longLeaseSize = leaseSize + 8 + 8 // with Lane and Try
)

// nackedBit stands beside the state in the first byte.
const nackedBit = 0x80

// AppendLeaseKey appends the key of the lease record of r.
func AppendLeaseKey(dst []byte, r Ref) []byte { return appendRef(append(dst, prefixLease), r) }

// AppendLease appends the encoding of l.
func AppendLease(dst []byte, l *Lease) []byte {
	state := byte(l.State)
	if l.Nacked {
		state |= nackedBit
	}
	dst = append(dst, state)
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.Attempt))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.PopID))
	dst = binary.BigEndian.AppendUint64(dst, l.When)
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.First))
	if l.Lane == 0 && l.Try == 0 {
		return dst
	}
	dst = binary.BigEndian.AppendUint64(dst, l.Lane)
	return binary.BigEndian.AppendUint64(dst, l.Try)
}

// DecodeLease decodes what AppendLease wrote.
func DecodeLease(b []byte) (Lease, error) {
	if len(b) != leaseSize && len(b) != longLeaseSize {
		return Lease{}, corrupt("lease", b)
	}
	state := LeaseState(b[0] &^ nackedBit)
	if state < Leased || state > Parked {
		return Lease{}, corrupt("lease", b)
	}
	l := Lease{
		State:   state,
		Nacked:  b[0]&nackedBit != 0,
		Attempt: mq.Attempt(binary.BigEndian.Uint32(b[1:])),
		PopID:   mq.PopID(binary.BigEndian.Uint64(b[5:])),
		When:    binary.BigEndian.Uint64(b[13:]),
		First:   int64(binary.BigEndian.Uint64(b[21:])),
	}
	if len(b) == longLeaseSize {
		l.Lane, l.Try = binary.BigEndian.Uint64(b[29:]), binary.BigEndian.Uint64(b[37:])
		if l.Lane == 0 && l.Try == 0 { // it has a shorter form
			return Lease{}, corrupt("lease", b)
		}
	}
	return l, nil
}

// LeaseKeys returns the bounds of all lease records.
func LeaseKeys() (lower, upper []byte) { return []byte{prefixLease}, []byte{prefixLease + 1} }

// LeaseQueueEnd returns the key behind every lease record of a queue.
func LeaseQueueEnd(s Sub, queue mq.QueueID) []byte {
	return Next(binary.BigEndian.AppendUint32(appendSub([]byte{prefixLease}, s), uint32(queue)))
}

// DecodeLeaseKey decodes the key of a lease record.
func DecodeLeaseKey(b []byte) (Ref, error) {
	if len(b) != 1+refSize || b[0] != prefixLease {
		return Ref{}, corrupt("lease key", b)
	}
	return decodeRef(b[1:]), nil
}

// AppendDueKey appends the key that orders the leased messages by visible-at time.
func AppendDueKey(dst []byte, when uint64, r Ref) []byte {
	return appendRef(AppendDuePrefix(dst, when), r)
}

// AppendDuePrefix appends what every due key of that time starts with.
func AppendDuePrefix(dst []byte, when uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, prefixDue), when)
}

// DueKeys returns the range of all due keys.
func DueKeys() (lower, upper []byte) { return []byte{prefixDue}, []byte{prefixDue + 1} }

// DecodeDueKey decodes a key of the due index.
func DecodeDueKey(b []byte) (when uint64, r Ref, err error) {
	if len(b) != 1+8+refSize || b[0] != prefixDue {
		return 0, Ref{}, corrupt("due key", b)
	}
	return binary.BigEndian.Uint64(b[1:]), decodeRef(b[9:]), nil
}

// AppendReadyKey appends the key of the redelivery with the given sequence.
func AppendReadyKey(dst []byte, s Sub, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(AppendReadyPrefix(dst, s), seq)
}

// AppendReadyPrefix appends what every redelivery key of s starts with.
func AppendReadyPrefix(dst []byte, s Sub) []byte { return appendSub(append(dst, prefixReady), s) }

// DecodeReadyKey returns the sequence in a redelivery key.
func DecodeReadyKey(b []byte) (uint64, error) {
	if len(b) != 1+8+8 || b[0] != prefixReady {
		return 0, corrupt("redelivery key", b)
	}
	return binary.BigEndian.Uint64(b[9:]), nil
}

// AppendReady appends the value of a redelivery key: which message it is.
func AppendReady(dst []byte, queue mq.QueueID, offset mq.QueueOffset) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(queue))
	return binary.BigEndian.AppendUint64(dst, uint64(offset))
}

// DecodeReady decodes what AppendReady wrote.
func DecodeReady(b []byte) (mq.QueueID, mq.QueueOffset, error) {
	if len(b) != 4+8 {
		return 0, 0, corrupt("redelivery", b)
	}
	return mq.QueueID(binary.BigEndian.Uint32(b)), mq.QueueOffset(binary.BigEndian.Uint64(b[4:])), nil
}

// AppendUsedUpKey appends the key that says r waits for its dead-letter copy.
func AppendUsedUpKey(dst []byte, r Ref) []byte { return appendRef(append(dst, prefixUsedUp), r) }

// UsedUpKeys returns the bounds of all messages that wait for a dead-letter copy.
func UsedUpKeys() (lower, upper []byte) { return []byte{prefixUsedUp}, []byte{prefixUsedUp + 1} }

// DecodeUsedUpKey decodes a key of the used-up index.
func DecodeUsedUpKey(b []byte) (Ref, error) {
	if len(b) != 1+refSize || b[0] != prefixUsedUp {
		return Ref{}, corrupt("used-up key", b)
	}
	return decodeRef(b[1:]), nil
}

// AppendSubKey appends the key that says the group has received from the topic.
func AppendSubKey(dst []byte, s Sub) []byte { return appendSub(append(dst, prefixSub), s) }

// SubKeys returns the bounds of all such keys.
func SubKeys() (lower, upper []byte) { return []byte{prefixSub}, []byte{prefixSub + 1} }

// DecodeSubKey decodes such a key.
func DecodeSubKey(b []byte) (Sub, error) {
	if len(b) != 1+8 || b[0] != prefixSub {
		return Sub{}, corrupt("subscription key", b)
	}
	return decodeSub(b[1:]), nil
}

// AppendUnstartedKey appends the key that says the group has set offsets in queues of the
// topic and received nothing from it: where it starts in the others is not fixed.
func AppendUnstartedKey(dst []byte, s Sub) []byte { return appendSub(append(dst, prefixUnstarted), s) }

// UnstartedKeys returns the bounds of all such keys.
func UnstartedKeys() (lower, upper []byte) {
	return []byte{prefixUnstarted}, []byte{prefixUnstarted + 1}
}

// DecodeUnstartedKey decodes such a key.
func DecodeUnstartedKey(b []byte) (Sub, error) {
	if len(b) != 1+8 || b[0] != prefixUnstarted {
		return Sub{}, corrupt("unstarted subscription key", b)
	}
	return decodeSub(b[1:]), nil
}

// AppendProgressKey appends the key of the next offset of the queue to deliver.
func AppendProgressKey(dst []byte, s Sub, queue mq.QueueID) []byte {
	return binary.BigEndian.AppendUint32(appendSub(append(dst, prefixProgress), s), uint32(queue))
}

// AppendOffset appends the value of a progress key.
func AppendOffset(dst []byte, o mq.QueueOffset) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(o))
}

// DecodeOffset decodes what AppendOffset wrote.
func DecodeOffset(b []byte) (mq.QueueOffset, error) {
	if len(b) != 8 {
		return 0, corrupt("offset", b)
	}
	return mq.QueueOffset(binary.BigEndian.Uint64(b)), nil
}

// DeliveryPrefixes returns the prefixes of everything that s has under delivery, for
// deleting it by range: lease records, redeliveries, by priority too, and used-up messages.
func DeliveryPrefixes(s Sub) [][]byte {
	return [][]byte{
		appendSub(append([]byte(nil), prefixLease), s),
		appendSub(append([]byte(nil), prefixReady), s),
		appendSub(append([]byte(nil), prefixUsedUp), s),
		AppendPriorityPrefix(nil, s),
	}
}

// ProgressPrefix returns what the key of every progress of s starts with.
func ProgressPrefix(s Sub) []byte { return appendSub([]byte{prefixProgress}, s) }
