package wire

import (
	"slices"
	"time"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// An Arrival is what the server knows about a message besides what the client
// wrote into it.
type Arrival struct {
	// Time stands in for a missing born_timestamp.
	Time time.Time
	// PeerHost stands in for a missing born_host.
	PeerHost string
}

// FromProto returns the parts of m that the store keeps. It takes over the body
// and the strings of m, which the caller must not change afterwards.
//
// Properties are the user properties sorted by key, so equal messages have
// equal bytes. System holds what the sender owns, in ascending field order. A
// missing body encoding becomes IDENTITY: several SDKs refuse a message without
// one. What the server adds at delivery (body digest, store time and host, receipt
// handle, queue and offset, invisible duration, attempt), the dead-letter origin,
// and fields this version does not know are dropped.
//
// The message type is taken as it is: a caller that derives a missing one
// writes it into m first.
func FromProto(m *rmqpb.Message, a Arrival) *mq.Message {
	var names [16]string
	keys := names[:0]
	size := 0
	for k, v := range m.GetUserProperties() {
		keys = append(keys, k)
		size += sizeBytes(oneByteTag, entrySize(k, v))
	}
	slices.Sort(keys)

	sys := m.GetSystemProperties()
	if sys == nil {
		sys = &rmqpb.SystemProperties{}
	}
	own := ownFields(sys, a)
	properties := size
	buf := make([]byte, 0, size+own.size(sys))
	for _, k := range keys {
		v := m.GetUserProperties()[k]
		buf = appendLen(buf, messageUser, entrySize(k, v))
		buf = appendString(buf, entryKey, k)
		buf = appendString(buf, entryValue, v)
	}
	buf = own.append(buf, sys)
	return &mq.Message{
		ID:         sys.GetMessageId(),
		Tag:        sys.GetTag(),
		Type:       mq.MessageType(sys.GetMessageType()),
		Group:      sys.GetMessageGroup(),
		Lite:       sys.GetLiteTopic(),
		Properties: buf[:properties:properties],
		System:     buf[properties:],
		Body:       m.GetBody(),
	}
}

func entrySize(k, v string) int {
	return sizeBytes(oneByteTag, len(k)) + sizeBytes(oneByteTag, len(v))
}

// An owned holds the sender's fields that have a stand-in, settled.
type owned struct {
	encoding int64
	born     moment
	bornHost string
}

func ownFields(sys *rmqpb.SystemProperties, a Arrival) owned {
	o := owned{encoding: int64(sys.GetBodyEncoding()), born: momentOf(a.Time), bornHost: sys.GetBornHost()}
	if sys.GetBodyEncoding() == rmqpb.Encoding_ENCODING_UNSPECIFIED {
		o.encoding = int64(rmqpb.Encoding_IDENTITY)
	}
	if t := sys.GetBornTimestamp(); t != nil {
		o.born = moment{t.GetSeconds(), t.GetNanos()}
	}
	if o.bornHost == "" {
		o.bornHost = a.PeerHost
	}
	return o
}

// size is exactly what append appends.
func (o owned) size(sys *rmqpb.SystemProperties) int {
	n := sizeInt(oneByteTag, o.encoding) + sizeBytes(oneByteTag, o.born.size())
	if sys.Tag != nil {
		n += sizeBytes(oneByteTag, len(*sys.Tag))
	}
	for _, k := range sys.Keys {
		n += sizeBytes(oneByteTag, len(k))
	}
	if sys.MessageId != "" {
		n += sizeBytes(oneByteTag, len(sys.MessageId))
	}
	if sys.MessageType != 0 {
		n += sizeInt(oneByteTag, int64(sys.MessageType))
	}
	if o.bornHost != "" {
		n += sizeBytes(oneByteTag, len(o.bornHost))
	}
	if t := sys.DeliveryTimestamp; t != nil {
		n += sizeBytes(oneByteTag, moment{t.GetSeconds(), t.GetNanos()}.size())
	}
	if sys.MessageGroup != nil {
		n += sizeBytes(twoByteTag, len(*sys.MessageGroup))
	}
	if sys.TraceContext != nil {
		n += sizeBytes(twoByteTag, len(*sys.TraceContext))
	}
	if d := sys.OrphanedTransactionRecoveryDuration; d != nil {
		n += sizeBytes(twoByteTag, moment{d.GetSeconds(), d.GetNanos()}.size())
	}
	if sys.LiteTopic != nil {
		n += sizeBytes(twoByteTag, len(*sys.LiteTopic))
	}
	if sys.Priority != nil {
		n += sizeInt(twoByteTag, int64(*sys.Priority))
	}
	return n
}

// append appends the inside of the system properties, in ascending field order.
func (o owned) append(b []byte, sys *rmqpb.SystemProperties) []byte {
	if sys.Tag != nil {
		b = appendString(b, systemTag, *sys.Tag)
	}
	for _, k := range sys.Keys {
		b = appendString(b, systemKeys, k)
	}
	if sys.MessageId != "" {
		b = appendString(b, systemMessageID, sys.MessageId)
	}
	b = appendInt(b, systemBodyEncoding, o.encoding)
	if sys.MessageType != 0 {
		b = appendInt(b, systemMessageType, int64(sys.MessageType))
	}
	b = o.born.append(b, systemBornTimestamp)
	if o.bornHost != "" {
		b = appendString(b, systemBornHost, o.bornHost)
	}
	if t := sys.DeliveryTimestamp; t != nil {
		b = moment{t.GetSeconds(), t.GetNanos()}.append(b, systemDeliveryTimestamp)
	}
	if sys.MessageGroup != nil {
		b = appendString(b, systemMessageGroup, *sys.MessageGroup)
	}
	if sys.TraceContext != nil {
		b = appendString(b, systemTraceContext, *sys.TraceContext)
	}
	if d := sys.OrphanedTransactionRecoveryDuration; d != nil {
		b = moment{d.GetSeconds(), d.GetNanos()}.append(b, systemRecovery)
	}
	if sys.LiteTopic != nil {
		b = appendString(b, systemLiteTopic, *sys.LiteTopic)
	}
	if sys.Priority != nil {
		b = appendInt(b, systemPriority, int64(*sys.Priority))
	}
	return b
}
