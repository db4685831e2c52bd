package wire

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// DeliveryFields are what the proxy adds to a delivery. Zero values are left
// out of the message.
type DeliveryFields struct {
	ReceiptHandle     string
	StoreHost         string
	InvisibleDuration time.Duration
}

// AppendDelivery appends a whole ReceiveMessageResponse that holds the message
// of d, which is a whole PullMessageResponse too, to dst and returns the extended slice; it allocates at most once, and
// keeps no reference to d.
//
// The body digest is computed here and not at the send: a send costs a third less,
// and the stored message has a checksum of its own, verified when it is read.
//
// The stored system properties and what the server adds go out as ONE field:
// the protobuf runtime for JavaScript does not merge a second occurrence of a
// sub-message, it replaces the first.
func AppendDelivery(dst []byte, topic mq.Resource, d *mq.Delivery, f DeliveryFields) []byte {
	added := addedFields{
		lease: &d.Lease, stored: momentOf(d.StoreTime), span: spanOf(f.InvisibleDuration),
		digest: !hasDigest(d.System), body: d.Body, DeliveryFields: f,
	}
	l := layoutOf(topic, &d.Message, added.size())
	dst = slices.Grow(dst, sizeBytes(oneByteTag, l.message))
	dst = appendLen(dst, responseMessage, l.message)
	dst = l.appendHead(dst, topic, &d.Message)
	dst = added.append(dst)
	return l.appendBody(dst, &d.Message)
}

// DecodeMessage returns the message whose stored parts are m with its digest, and
// without what belongs to one delivery. The error says that the stored bytes are
// damaged.
func DecodeMessage(topic mq.Resource, m *mq.Message) (*rmqpb.Message, error) {
	added := addedFields{digest: !hasDigest(m.System), body: m.Body}
	l := layoutOf(topic, m, added.digestSize())
	data := l.appendHead(make([]byte, 0, l.message), topic, m)
	data = added.appendDigest(data)
	out := new(rmqpb.Message)
	if err := proto.Unmarshal(l.appendBody(data, m), out); err != nil {
		return nil, fmt.Errorf("stored message %q: %w", mq.Shorten(m.ID), err)
	}
	return out, nil
}

// DecodeDelivery returns the message that AppendDelivery sends for the same
// arguments. The error says that the stored bytes are damaged.
func DecodeDelivery(topic mq.Resource, d *mq.Delivery, f DeliveryFields) (*rmqpb.Message, error) {
	var out rmqpb.ReceiveMessageResponse
	if err := proto.Unmarshal(AppendDelivery(nil, topic, d, f), &out); err != nil {
		return nil, fmt.Errorf("stored message %q: %w", mq.Shorten(d.ID), err)
	}
	return out.GetMessage(), nil
}

// A layout holds the sizes of the nested parts of one Message.
type layout struct {
	topic   int // inside of the topic
	system  int // inside of the system properties, added fields included
	message int // inside of the message
}

func layoutOf(topic mq.Resource, m *mq.Message, added int) layout {
	l := layout{system: len(m.System) + added}
	if topic.Namespace != "" {
		l.topic += sizeBytes(oneByteTag, len(topic.Namespace))
	}
	if topic.Name != "" {
		l.topic += sizeBytes(oneByteTag, len(topic.Name))
	}
	l.message = sizeBytes(oneByteTag, l.topic) + len(m.Properties) + sizeBytes(oneByteTag, l.system)
	if len(m.Body) > 0 {
		l.message += sizeBytes(oneByteTag, len(m.Body))
	}
	return l
}

// appendHead appends everything up to the end of the stored system properties.
func (l layout) appendHead(b []byte, topic mq.Resource, m *mq.Message) []byte {
	b = appendLen(b, messageTopic, l.topic)
	if topic.Namespace != "" {
		b = appendString(b, resourceNamespace, topic.Namespace)
	}
	if topic.Name != "" {
		b = appendString(b, resourceName, topic.Name)
	}
	b = append(b, m.Properties...)
	b = appendLen(b, messageSystem, l.system)
	return append(b, m.System...)
}

func (l layout) appendBody(b []byte, m *mq.Message) []byte {
	if len(m.Body) == 0 {
		return b
	}
	b = protowire.AppendTag(b, messageBody, protowire.BytesType)
	return protowire.AppendBytes(b, m.Body)
}

// addedFields are the system properties the server adds at delivery.
type addedFields struct {
	lease  *mq.Lease
	stored moment
	span   moment
	digest bool   // of body is added
	body   []byte // lent
	DeliveryFields
}

// size is exactly what append appends.
func (a *addedFields) size() int {
	n := sizeBytes(oneByteTag, a.stored.size()) +
		sizeInt(oneByteTag, int64(a.lease.Offset)) +
		sizeInt(twoByteTag, int64(a.lease.Attempt))
	n += a.digestSize()
	if a.StoreHost != "" {
		n += sizeBytes(oneByteTag, len(a.StoreHost))
	}
	if a.ReceiptHandle != "" {
		n += sizeBytes(oneByteTag, len(a.ReceiptHandle))
	}
	if a.lease.Queue != 0 {
		n += sizeInt(oneByteTag, int64(a.lease.Queue))
	}
	if a.InvisibleDuration != 0 {
		n += sizeBytes(oneByteTag, a.span.size())
	}
	return n
}

func (a *addedFields) append(b []byte) []byte {
	b = a.appendDigest(b)
	b = a.stored.append(b, systemStoreTimestamp)
	if a.StoreHost != "" {
		b = appendString(b, systemStoreHost, a.StoreHost)
	}
	if a.ReceiptHandle != "" {
		b = appendString(b, systemReceiptHandle, a.ReceiptHandle)
	}
	if a.lease.Queue != 0 {
		b = appendInt(b, systemQueueID, int64(a.lease.Queue))
	}
	b = appendInt(b, systemQueueOffset, int64(a.lease.Offset))
	if a.InvisibleDuration != 0 {
		b = a.span.append(b, systemInvisible)
	}
	return appendInt(b, systemAttempt, int64(a.lease.Attempt))
}

func (a *addedFields) digestSize() int {
	if !a.digest {
		return 0
	}
	return sizeBytes(oneByteTag, digestSize)
}

func (a *addedFields) appendDigest(b []byte) []byte {
	if !a.digest {
		return b
	}
	return appendDigest(b, a.body)
}
