package wire

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The field numbers of the protocol that are written by hand here; a test
// compares them with the generated descriptors.
const (
	responseMessage = 2 // of ReceiveMessageResponse and of PullMessageResponse

	messageTopic  = 1
	messageUser   = 2
	messageSystem = 3
	messageBody   = 4

	resourceNamespace = 1
	resourceName      = 2

	digestType     = 1
	digestChecksum = 2

	systemTag               = 1
	systemKeys              = 2
	systemMessageID         = 3
	systemBodyDigest        = 4
	systemBodyEncoding      = 5
	systemMessageType       = 6
	systemBornTimestamp     = 7
	systemBornHost          = 8
	systemStoreTimestamp    = 9
	systemStoreHost         = 10
	systemDeliveryTimestamp = 11
	systemReceiptHandle     = 12
	systemQueueID           = 13
	systemQueueOffset       = 14
	systemInvisible         = 15
	systemAttempt           = 16
	systemMessageGroup      = 17
	systemTraceContext      = 18
	systemRecovery          = 19
	systemLiteTopic         = 21
	systemPriority          = 22

	// Timestamp and Duration share their layout, a map entry its own.
	timeSeconds = 1
	timeNanos   = 2
	entryKey    = 1
	entryValue  = 2
)

// Every field number above takes one byte up to 15 and two from 16 on.
const (
	oneByteTag = 1
	twoByteTag = 2
)

func sizeBytes(tag, n int) int { return tag + protowire.SizeBytes(n) }

func sizeInt(tag int, v int64) int { return tag + protowire.SizeVarint(uint64(v)) }

func appendString(b []byte, num protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}

func appendLen(b []byte, num protowire.Number, n int) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(n))
}

func appendInt(b []byte, num protowire.Number, v int64) []byte {
	b = protowire.AppendTag(b, num, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(v))
}

// A moment is the content of a Timestamp or a Duration.
type moment struct {
	seconds int64
	nanos   int32
}

func momentOf(t time.Time) moment { return moment{t.Unix(), int32(t.Nanosecond())} }

func spanOf(d time.Duration) moment {
	return moment{int64(d / time.Second), int32(d % time.Second)}
}

func (m moment) size() int {
	n := 0
	if m.seconds != 0 {
		n += sizeInt(oneByteTag, m.seconds)
	}
	if m.nanos != 0 {
		n += sizeInt(oneByteTag, int64(m.nanos))
	}
	return n
}

// append appends m as field num. Zeros are left out, as proto3 does.
func (m moment) append(b []byte, num protowire.Number) []byte {
	b = appendLen(b, num, m.size())
	if m.seconds != 0 {
		b = appendInt(b, timeSeconds, m.seconds)
	}
	if m.nanos != 0 {
		b = appendInt(b, timeNanos, int64(m.nanos))
	}
	return b
}
