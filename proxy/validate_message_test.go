package proxy

import (
	"fmt"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func TestEachMessageFieldIsHeldToItsLimit(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	properties := func(n int) map[string]string {
		p := map[string]string{}
		for i := range n {
			p[fmt.Sprint("key", i)] = "v"
		}
		return p
	}
	type change = func(*rmqpb.Message)
	sys := func(set func(*rmqpb.SystemProperties)) change {
		return func(m *rmqpb.Message) { set(m.SystemProperties) }
	}
	digest := func(kind rmqpb.DigestType, sum string) change {
		return sys(func(p *rmqpb.SystemProperties) { p.BodyDigest = &rmqpb.Digest{Type: kind, Checksum: sum} })
	}
	delay := func(d time.Duration) change {
		return sys(func(p *rmqpb.SystemProperties) {
			p.MessageType = rmqpb.MessageType_DELAY
			p.DeliveryTimestamp = timestamppb.New(now.Add(d))
		})
	}
	for _, c := range []struct {
		what   string
		change change
		want   rmqpb.Code // OK: accepted
		text   string
	}{
		{"plain", func(*rmqpb.Message) {}, rmqpb.Code_OK, ""},
		{"no id", sys(func(p *rmqpb.SystemProperties) { p.MessageId = " " }), rmqpb.Code_ILLEGAL_MESSAGE_ID, "message_id"},
		{"long id", sys(func(p *rmqpb.SystemProperties) { p.MessageId = strings.Repeat("x", 256) }), rmqpb.Code_ILLEGAL_MESSAGE_ID, "255"},
		{"no system properties", func(m *rmqpb.Message) { m.SystemProperties = nil }, rmqpb.Code_ILLEGAL_MESSAGE_ID, "message_id"},
		{"empty body", func(m *rmqpb.Message) { m.Body = nil }, rmqpb.Code_MESSAGE_BODY_EMPTY, "body"},
		{"largest body", func(m *rmqpb.Message) { m.Body = make([]byte, 1000) }, rmqpb.Code_OK, ""},
		{"large body", func(m *rmqpb.Message) { m.Body = make([]byte, 1001) }, rmqpb.Code_MESSAGE_BODY_TOO_LARGE, "1001 bytes, the limit is 1000"},
		{"empty tag", sys(func(p *rmqpb.SystemProperties) { p.Tag = new("") }), rmqpb.Code_OK, ""},
		{"blank tag", sys(func(p *rmqpb.SystemProperties) { p.Tag = new(" ") }), rmqpb.Code_ILLEGAL_MESSAGE_TAG, "tag"},
		{"tag with bar", sys(func(p *rmqpb.SystemProperties) { p.Tag = new("a|b") }), rmqpb.Code_ILLEGAL_MESSAGE_TAG, "a|b"},
		{"tag with control", sys(func(p *rmqpb.SystemProperties) { p.Tag = new("a\x01") }), rmqpb.Code_ILLEGAL_MESSAGE_TAG, `a\x01`},
		{"key with blank", sys(func(p *rmqpb.SystemProperties) { p.Keys = []string{"a b"} }), rmqpb.Code_OK, ""},
		{"blank key", sys(func(p *rmqpb.SystemProperties) { p.Keys = []string{"a", " "} }), rmqpb.Code_ILLEGAL_MESSAGE_KEY, "keys"},
		{"key with control", sys(func(p *rmqpb.SystemProperties) { p.Keys = []string{"a\u0085"} }), rmqpb.Code_ILLEGAL_MESSAGE_KEY, "keys"},
		{"longest group", sys(func(p *rmqpb.SystemProperties) {
			p.MessageType, p.MessageGroup = rmqpb.MessageType_FIFO, new(strings.Repeat("g", 63))
		}), rmqpb.Code_OK, ""},
		{"long group", sys(func(p *rmqpb.SystemProperties) { p.MessageGroup = new(strings.Repeat("g", 64)) }), rmqpb.Code_ILLEGAL_MESSAGE_GROUP, "63"},
		{"group of wide letters", sys(func(p *rmqpb.SystemProperties) { p.MessageGroup = new(strings.Repeat("é", 32)) }), rmqpb.Code_ILLEGAL_MESSAGE_GROUP, "64 bytes"},
		{"blank group", sys(func(p *rmqpb.SystemProperties) { p.MessageGroup = new(" ") }), rmqpb.Code_ILLEGAL_MESSAGE_GROUP, "message_group"},
		{"group with control", sys(func(p *rmqpb.SystemProperties) { p.MessageGroup = new("a\n") }), rmqpb.Code_ILLEGAL_MESSAGE_GROUP, "control"},
		{"most properties", func(m *rmqpb.Message) { m.UserProperties = properties(128) }, rmqpb.Code_OK, ""},
		{"many properties", func(m *rmqpb.Message) { m.UserProperties = properties(129) }, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE, "128"},
		{"largest properties", func(m *rmqpb.Message) {
			m.UserProperties = map[string]string{"abcd": strings.Repeat("v", 16384-4-3-2)}
			m.SystemProperties.Tag, m.SystemProperties.Keys = new("tag"), []string{"k", "l"}
		}, rmqpb.Code_OK, ""},
		{"large properties", func(m *rmqpb.Message) {
			m.UserProperties = map[string]string{"abcd": strings.Repeat("v", 16384-4-3-1)}
			m.SystemProperties.Tag, m.SystemProperties.Keys = new("tag"), []string{"k", "l"}
		}, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE, "16385 bytes, the limit is 16384"},
		{"control in property key", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"a\x00": "v"} }, rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, `a\x00`},
		{"control in property value", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"k": "v\x7f"} }, rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, `v\x7f`},
		{"name like a reserved one", func(m *rmqpb.Message) { m.UserProperties = map[string]string{"keys": "v", "KEYS2": "v"} }, rmqpb.Code_OK, ""},
		{"delay of a day", delay(24 * time.Hour), rmqpb.Code_OK, ""},
		{"delay of more", delay(24*time.Hour + time.Millisecond), rmqpb.Code_ILLEGAL_DELIVERY_TIME, "24h"},
		{"delay into the past", delay(-time.Hour), rmqpb.Code_OK, ""},
		{"no point in time", sys(func(p *rmqpb.SystemProperties) {
			p.MessageType, p.DeliveryTimestamp = rmqpb.MessageType_DELAY, &timestamppb.Timestamp{Nanos: -1}
		}), rmqpb.Code_ILLEGAL_DELIVERY_TIME, "delivery_timestamp"},
		{"broken birth", sys(func(p *rmqpb.SystemProperties) { p.BornTimestamp = &timestamppb.Timestamp{Nanos: -1} }), rmqpb.Code_BAD_REQUEST, "born_timestamp"},
		{"recovery of an hour", sys(func(p *rmqpb.SystemProperties) { p.OrphanedTransactionRecoveryDuration = durationpb.New(time.Hour) }), rmqpb.Code_OK, ""},
		{"recovery of more", sys(func(p *rmqpb.SystemProperties) { p.OrphanedTransactionRecoveryDuration = durationpb.New(time.Hour + 1) }), rmqpb.Code_BAD_REQUEST, "orphaned_transaction_recovery_duration"},
		{"negative recovery", sys(func(p *rmqpb.SystemProperties) { p.OrphanedTransactionRecoveryDuration = durationpb.New(-1) }), rmqpb.Code_BAD_REQUEST, "orphaned_transaction_recovery_duration"},
		{"GZIP", sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = rmqpb.Encoding_GZIP }), rmqpb.Code_OK, ""},
		{"no encoding", sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = 0 }), rmqpb.Code_OK, ""},
		{"unknown encoding", sys(func(p *rmqpb.SystemProperties) { p.BodyEncoding = 3 }), rmqpb.Code_BAD_REQUEST, "body_encoding"},
		{"MD5", digest(rmqpb.DigestType_MD5, "841A2D689AD86BD1611447453C22C6FC"), rmqpb.Code_OK, ""},
		{"MD5 in small letters", digest(rmqpb.DigestType_MD5, "841a2d689ad86bd1611447453c22c6fc"), rmqpb.Code_OK, ""},
		{"SHA1", digest(rmqpb.DigestType_SHA1, "02083F4579E08A612425C0C1A17EE47ADD783B94"), rmqpb.Code_OK, ""},
		{"CRC32", digest(rmqpb.DigestType_CRC32, "DBA80BB2"), rmqpb.Code_OK, ""},
		{"wrong CRC32", digest(rmqpb.DigestType_CRC32, "1"), rmqpb.Code_MESSAGE_CORRUPTED, "CRC32"},
		{"wrong MD5", digest(rmqpb.DigestType_MD5, "00000000000000000000000000000000"), rmqpb.Code_MESSAGE_CORRUPTED, "MD5"},
		{"wrong SHA1", digest(rmqpb.DigestType_SHA1, "00"), rmqpb.Code_MESSAGE_CORRUPTED, "SHA1"},
		{"digest of no type", digest(0, "00"), rmqpb.Code_MESSAGE_CORRUPTED, "type"},
		{"empty digest", digest(0, ""), rmqpb.Code_OK, ""},
	} {
		m := message("orders", "m", "body")
		c.change(m)
		err := messageLimits{body: 1000, batch: 1000, delay: 24 * time.Hour}.validate([]*rmqpb.Message{m}, client{}, now)
		if c.want == rmqpb.Code_OK {
			require.NoError(t, err, c.what)
			continue
		}
		var ce *codeError
		require.ErrorAs(t, err, &ce, c.what)
		require.Equal(t, c.want, ce.code, "%s: %v", c.what, err)
		require.ErrorContains(t, err, c.text, c.what)
		require.Less(t, len(err.Error()), 250, c.what)
	}
}

func TestCRC32CountsWithAndWithoutLeadingZeros(t *testing.T) {
	for i := 0; ; i++ { // the first body whose sum begins with a zero
		body := fmt.Appendf(nil, "body %d", i)
		if sum := fmt.Sprintf("%08x", crc32.ChecksumIEEE(body)); sum[0] == '0' {
			for _, sent := range []string{sum, strings.ToUpper(sum), strings.TrimLeft(sum, "0")} {
				require.Nil(t, verifyDigest(&rmqpb.Digest{Type: rmqpb.DigestType_CRC32, Checksum: sent}, body))
			}
			return
		}
	}
}

func TestReservedPropertyNamesAreRefused(t *testing.T) {
	require.Len(t, reservedKeys, 60)
	for key := range reservedKeys {
		m := message("orders", "m", "body")
		m.UserProperties = map[string]string{"fine": "v", key: "v"}
		err := validateProperties(m)
		require.NotNil(t, err, key)
		require.Equal(t, rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, err.code, key)
		require.Contains(t, err.text, key)
	}
}

func TestMessagesOfOneRequestShareTheirTopic(t *testing.T) {
	limits := messageLimits{body: 10, batch: 10, delay: 24 * time.Hour}
	in := func(namespace string) *rmqpb.Message {
		m := message("orders", "m", "body")
		m.Topic.ResourceNamespace = namespace
		return m
	}
	require.NoError(t, limits.validate([]*rmqpb.Message{in(""), in("shop")}, client{Namespace: "shop"}, time.Now()))
	for _, msgs := range [][]*rmqpb.Message{nil, {in(""), in("shop")}, {in(""), message("other", "m", "body")}} {
		var ce *codeError
		require.ErrorAs(t, limits.validate(msgs, client{}, time.Now()), &ce)
		require.Equal(t, rmqpb.Code_MESSAGE_CORRUPTED, ce.code)
	}
}

func TestWhatNoOtherLimitBoundsIsBoundInItsStoredForm(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders")
	m := message("orders", "m", "body")
	m.SystemProperties.TraceContext = new(strings.Repeat("t", maxStoredProperties))
	res := s.try(t, m)
	require.Equal(t, rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE, res.GetStatus().GetCode())
	s.requireNothingStored(t, "orders")
}
