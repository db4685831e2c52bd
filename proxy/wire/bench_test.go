package wire

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

var (
	typicalTopic  = mq.Resource{Name: "orders"}
	typicalFields = DeliveryFields{
		ReceiptHandle:     "AQEAAAAHAAAACwAAAAMAAAAAB1vNFQECAwQFBgcIAAAAAgdzaGFyZC1hBWIt-w",
		StoreHost:         "10.0.0.1:8081",
		InvisibleDuration: 30 * time.Second,
	}
)

func typicalMessage(body int) *rmqpb.Message {
	return &rmqpb.Message{
		Topic:          &rmqpb.Resource{Name: typicalTopic.Name},
		UserProperties: map[string]string{"a-key": "a-value", "b-key": "b-value"},
		SystemProperties: &rmqpb.SystemProperties{
			Tag: proto.String("tag-a"), Keys: []string{"key-1"}, MessageId: "01A2B3C4D5E6F708091A2B3C4D5E6F7081",
			MessageType: rmqpb.MessageType_FIFO, MessageGroup: proto.String("group-1"),
			BornTimestamp: timestamppb.New(time.Unix(1_780_000_000, 123_456_789)), BornHost: "producer-1",
			BodyEncoding: rmqpb.Encoding_IDENTITY,
		},
		Body: bytes.Repeat([]byte("b"), body),
	}
}

func typicalDelivery(body int) *mq.Delivery {
	return &mq.Delivery{
		Message:   *FromProto(typicalMessage(body), arrival),
		Lease:     mq.Lease{Shard: "shard-a", Topic: 7, Group: 11, Queue: 3, Offset: 123_456_789, PopID: 99, Attempt: 1},
		StoreTime: time.Unix(1_780_000_001, 987_654_321),
	}
}

func BenchmarkFromProto(b *testing.B) {
	for _, size := range []int{0, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			m := typicalMessage(size)
			b.ReportAllocs()
			for b.Loop() {
				FromProto(m, arrival)
			}
		})
	}
}

func BenchmarkAppendDelivery(b *testing.B) {
	d := typicalDelivery(1 << 10)
	buf := make([]byte, 0, 4<<10)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendDelivery(buf[:0], typicalTopic, d, typicalFields)
	}
}

// BenchmarkMarshalDelivery is what AppendDelivery saves: the same frame by way
// of the struct.
func BenchmarkMarshalDelivery(b *testing.B) {
	d := typicalDelivery(1 << 10)
	b.Run("struct at hand", func(b *testing.B) {
		m, err := DecodeDelivery(typicalTopic, d, typicalFields)
		if err != nil {
			b.Fatal(err)
		}
		r := &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}}
		buf := make([]byte, 0, 4<<10)
		b.ReportAllocs()
		for b.Loop() {
			if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf[:0], r); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decoded from the store", func(b *testing.B) {
		buf := make([]byte, 0, 4<<10)
		b.ReportAllocs()
		for b.Loop() {
			m, err := DecodeDelivery(typicalTopic, d, typicalFields)
			if err != nil {
				b.Fatal(err)
			}
			r := &rmqpb.ReceiveMessageResponse{Content: &rmqpb.ReceiveMessageResponse_Message{Message: m}}
			if buf, err = (proto.MarshalOptions{}).MarshalAppend(buf[:0], r); err != nil {
				b.Fatal(err)
			}
		}
	})
}
