package wire

import (
	"bytes"
	"crypto/sha1"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

var arrival = Arrival{Time: time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC), PeerHost: "10.1.2.3"}

// stored returns the message a reader must see for what a client sent.
func stored(sent *rmqpb.Message, topic mq.Resource) *rmqpb.Message {
	want := proto.CloneOf(sent)
	want.Topic = &rmqpb.Resource{ResourceNamespace: topic.Namespace, Name: topic.Name}
	if want.SystemProperties == nil {
		want.SystemProperties = &rmqpb.SystemProperties{}
	}
	s := want.SystemProperties
	s.BodyDigest = &rmqpb.Digest{Type: rmqpb.DigestType_SHA1, Checksum: fmt.Sprintf("%X", sha1.Sum(sent.Body))}
	if s.BodyEncoding == rmqpb.Encoding_ENCODING_UNSPECIFIED {
		s.BodyEncoding = rmqpb.Encoding_IDENTITY
	}
	if s.BornTimestamp == nil {
		s.BornTimestamp = timestamppb.New(arrival.Time)
	}
	if s.BornHost == "" {
		s.BornHost = arrival.PeerHost
	}
	s.StoreTimestamp, s.StoreHost, s.ReceiptHandle = nil, "", nil
	s.QueueId, s.QueueOffset, s.InvisibleDuration, s.DeliveryAttempt = 0, nil, nil, nil
	s.DeadLetterQueue = nil
	return want
}

func TestAnyMessageIsDeliveredAsTheFullStructWouldBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := randomMessage(t)
		topic := mq.Resource{
			Namespace: rapid.StringN(0, 20, -1).Draw(t, "namespace"),
			Name:      rapid.StringN(0, 127, -1).Draw(t, "topic"),
		}
		want := stored(sent, topic)
		m := FromProto(sent, arrival)

		plain, err := DecodeMessage(topic, m)
		if err != nil || !proto.Equal(plain, want) {
			t.Fatalf("stored %v\nwant %v\nerror %v", plain, want, err)
		}

		d := &mq.Delivery{
			Message: *m,
			Lease: mq.Lease{
				Queue:   mq.QueueID(rapid.Int32().Draw(t, "lease queue")),
				Offset:  mq.QueueOffset(rapid.Int64().Draw(t, "lease offset")),
				Attempt: mq.Attempt(rapid.Int32().Draw(t, "lease attempt")),
			},
			StoreTime: time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos")),
		}
		f := DeliveryFields{
			ReceiptHandle:     rapid.StringN(0, 222, -1).Draw(t, "receipt handle"),
			StoreHost:         rapid.StringN(0, 40, -1).Draw(t, "host"),
			InvisibleDuration: time.Duration(rapid.Int64().Draw(t, "invisible duration")),
		}
		s := want.SystemProperties
		s.StoreTimestamp = timestamppb.New(d.StoreTime)
		s.StoreHost = f.StoreHost
		if f.ReceiptHandle != "" {
			s.ReceiptHandle = &f.ReceiptHandle
		}
		s.QueueId = int32(d.Lease.Queue)
		s.QueueOffset = proto.Int64(int64(d.Lease.Offset))
		s.DeliveryAttempt = proto.Int32(int32(d.Lease.Attempt))
		if f.InvisibleDuration != 0 {
			s.InvisibleDuration = durationpb.New(f.InvisibleDuration)
		}

		frame := AppendDelivery([]byte("before"), topic, d, f)
		if string(frame[:6]) != "before" {
			t.Fatalf("the bytes before were changed: %q", frame[:6])
		}
		frame = frame[6:]
		var got rmqpb.ReceiveMessageResponse
		if err := proto.Unmarshal(frame, &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.GetMessage(), want) {
			t.Fatalf("delivered %v\nwant %v", got.GetMessage(), want)
		}
		if size := proto.Size(&got); size != len(frame) {
			t.Fatalf("frame of %d bytes, the struct encodes to %d: something is in it twice", len(frame), size)
		}
		decoded, err := DecodeDelivery(topic, d, f)
		if err != nil || !proto.Equal(decoded, want) {
			t.Fatalf("decoded %v\nwant %v\nerror %v", decoded, want, err)
		}
	})
}

func TestSystemPropertiesGoOutAsOneField(t *testing.T) {
	d := typicalDelivery(1024)
	frame := AppendDelivery(nil, typicalTopic, d, typicalFields)
	_, _, n := protowire.ConsumeTag(frame)
	message, m := protowire.ConsumeBytes(frame[n:])
	require.Equal(t, len(frame), n+m, "a frame holds one field")
	seen := map[protowire.Number]int{}
	for len(message) > 0 {
		num, _, n := protowire.ConsumeField(message)
		require.Positive(t, n)
		seen[num]++
		message = message[n:]
	}
	require.Equal(t, map[protowire.Number]int{messageTopic: 1, messageUser: 2, messageSystem: 1, messageBody: 1}, seen)
}

func TestEqualMessagesHaveEqualBytes(t *testing.T) {
	first := FromProto(typicalMessage(100), arrival)
	for range 50 {
		require.Equal(t, first, FromProto(typicalMessage(100), arrival))
	}
	require.Less(t, strings.Index(string(first.Properties), "a-key"), strings.Index(string(first.Properties), "b-key"))
}

func TestPartsThatTheStoreDecidesOnAreRepeated(t *testing.T) {
	sent := typicalMessage(10)
	m := FromProto(sent, arrival)
	require.Equal(t, "01A2B3C4D5E6F708091A2B3C4D5E6F7081", m.ID)
	require.Equal(t, "tag-a", m.Tag)
	require.Equal(t, mq.FIFO, m.Type)
	require.Equal(t, "group-1", m.Group)
	require.Equal(t, sent.Body, m.Body)
}

func TestAppendingToOnePartLeavesTheOtherAlone(t *testing.T) {
	m := FromProto(typicalMessage(10), arrival)
	before := string(m.System)
	_ = append(m.Properties, 0xff, 0xff)
	require.Equal(t, before, string(m.System))
}

func TestDigestIsUpperCaseSHA1OfTheBodyAsSent(t *testing.T) {
	got, err := DecodeMessage(typicalTopic, FromProto(&rmqpb.Message{Body: []byte("hello")}, arrival))
	require.NoError(t, err)
	require.Equal(t, "AAF4C61DDCC5E8A2DABEDE0F3B482CD9AEA9434D", got.GetSystemProperties().GetBodyDigest().GetChecksum())
	require.Equal(t, rmqpb.DigestType_SHA1, got.GetSystemProperties().GetBodyDigest().GetType())
}

func TestAStoredDigestIsDeliveredOnce(t *testing.T) {
	for _, sent := range []*rmqpb.Message{typicalMessage(100), {Body: []byte("hello")}} {
		m := FromProto(sent, arrival)
		want, err := DecodeMessage(typicalTopic, m)
		require.NoError(t, err)
		digest := appendDigest(nil, m.Body)
		at := len(m.System)
		for b := m.System; len(b) > 0; { // where the digest belongs by its field number
			field, _, n := protowire.ConsumeField(b)
			if field > systemBodyDigest {
				at = len(m.System) - len(b)
				break
			}
			b = b[n:]
		}
		m.System = slices.Concat(m.System[:at], digest, m.System[at:])
		got, err := DecodeMessage(typicalTopic, m)
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "%v\n%v", want, got)
		frame := AppendDelivery(nil, typicalTopic, &mq.Delivery{Message: *m}, typicalFields)
		require.Equal(t, 1, bytes.Count(frame, digest[4:]), "the digest goes out once")
	}
}

func TestDamagedStoredBytesAreAnError(t *testing.T) {
	m := FromProto(typicalMessage(10), arrival)
	m.System = m.System[:len(m.System)-1]
	_, err := DecodeMessage(typicalTopic, m)
	require.ErrorContains(t, err, m.ID)
	_, err = DecodeDelivery(typicalTopic, &mq.Delivery{Message: *m}, typicalFields)
	require.ErrorContains(t, err, m.ID)
}

func TestExtremeDurationsAndTimesSurvive(t *testing.T) {
	d := typicalDelivery(1)
	d.StoreTime = time.Unix(-1, 999_999_999)
	for _, span := range []time.Duration{math.MinInt64, -1, 1, time.Second, math.MaxInt64} {
		got, err := DecodeDelivery(typicalTopic, d, DeliveryFields{InvisibleDuration: span})
		require.NoError(t, err)
		require.NoError(t, got.GetSystemProperties().GetInvisibleDuration().CheckValid())
		require.Equal(t, span, got.GetSystemProperties().GetInvisibleDuration().AsDuration())
		require.True(t, d.StoreTime.Equal(got.GetSystemProperties().GetStoreTimestamp().AsTime()))
	}
}

func TestFieldNumbersAreThoseOfTheDescriptors(t *testing.T) {
	for _, tc := range []struct {
		message proto.Message
		fields  map[string]protoreflect.FieldNumber
	}{
		{&rmqpb.ReceiveMessageResponse{}, map[string]protoreflect.FieldNumber{"message": responseMessage}},
		{&rmqpb.PullMessageResponse{}, map[string]protoreflect.FieldNumber{"message": responseMessage}},
		{&rmqpb.Message{}, map[string]protoreflect.FieldNumber{
			"topic": messageTopic, "user_properties": messageUser, "system_properties": messageSystem, "body": messageBody,
		}},
		{&rmqpb.Resource{}, map[string]protoreflect.FieldNumber{
			"resource_namespace": resourceNamespace, "name": resourceName,
		}},
		{&rmqpb.Digest{}, map[string]protoreflect.FieldNumber{"type": digestType, "checksum": digestChecksum}},
		{&timestamppb.Timestamp{}, map[string]protoreflect.FieldNumber{"seconds": timeSeconds, "nanos": timeNanos}},
		{&durationpb.Duration{}, map[string]protoreflect.FieldNumber{"seconds": timeSeconds, "nanos": timeNanos}},
		{&rmqpb.SystemProperties{}, map[string]protoreflect.FieldNumber{
			"tag": systemTag, "keys": systemKeys, "message_id": systemMessageID, "body_digest": systemBodyDigest,
			"body_encoding": systemBodyEncoding, "message_type": systemMessageType, "born_timestamp": systemBornTimestamp,
			"born_host": systemBornHost, "store_timestamp": systemStoreTimestamp, "store_host": systemStoreHost,
			"delivery_timestamp": systemDeliveryTimestamp, "receipt_handle": systemReceiptHandle, "queue_id": systemQueueID,
			"queue_offset": systemQueueOffset, "invisible_duration": systemInvisible, "delivery_attempt": systemAttempt,
			"message_group": systemMessageGroup, "trace_context": systemTraceContext,
			"orphaned_transaction_recovery_duration": systemRecovery, "lite_topic": systemLiteTopic, "priority": systemPriority,
			"dead_letter_queue": 20, // dropped
		}},
	} {
		fields := tc.message.ProtoReflect().Descriptor().Fields()
		require.Equal(t, fieldNames(fields, tc.fields), tc.fields, "%T", tc.message)
		if _, ok := tc.message.(*rmqpb.SystemProperties); ok {
			require.Len(t, tc.fields, fields.Len(), "a new system property must be kept or dropped on purpose")
		}
	}
}

func fieldNames(fields protoreflect.FieldDescriptors, want map[string]protoreflect.FieldNumber) map[string]protoreflect.FieldNumber {
	got := map[string]protoreflect.FieldNumber{}
	for name := range want {
		if f := fields.ByName(protoreflect.Name(name)); f != nil {
			got[name] = f.Number()
		}
	}
	return got
}

func TestEndpointsCarryTheSchemeOfTheirHost(t *testing.T) {
	for _, tc := range []struct {
		hostport, host string
		port           int32
		scheme         rmqpb.AddressScheme
	}{
		{"127.0.0.1:8081", "127.0.0.1", 8081, rmqpb.AddressScheme_IPv4},
		{"[::1]:1", "::1", 1, rmqpb.AddressScheme_IPv6},
		{"[fe80::1%eth0]:8081", "fe80::1%eth0", 8081, rmqpb.AddressScheme_IPv6},
		{"localhost:65535", "localhost", 65535, rmqpb.AddressScheme_DOMAIN_NAME},
		{"mq.example.com:8081", "mq.example.com", 8081, rmqpb.AddressScheme_DOMAIN_NAME},
		{"1.2.3:8081", "1.2.3", 8081, rmqpb.AddressScheme_DOMAIN_NAME},
	} {
		got, err := EndpointsFor(tc.hostport)
		require.NoError(t, err, tc.hostport)
		require.Len(t, got.GetAddresses(), 1)
		require.Equal(t, tc.scheme, got.GetScheme(), tc.hostport)
		require.Equal(t, tc.host, got.GetAddresses()[0].GetHost())
		require.Equal(t, tc.port, got.GetAddresses()[0].GetPort())
	}
}

func TestEndpointsWithoutHostOrPortAreRefused(t *testing.T) {
	for _, hostport := range []string{
		"", "IPAuthority", "localhost", ":8081", "::1:8081", "[::1]", "h:0", "h:65536", "h:http", "h:-1", "h:",
		"a b:1", "a\n:1", "a/b:1", "\x7f:1", strings.Repeat("h", 254) + ":1",
	} {
		_, err := EndpointsFor(hostport)
		require.ErrorIs(t, err, mq.ErrInvalid, "%q", hostport)
		require.ErrorContains(t, err, "endpoint")
	}
}
