package proxy

import (
	"cmp"
	"crypto/md5"
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"time"
	"unicode"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// The limits of one message. Those that an SDK checks itself are those of
// RocketMQ.
const (
	maxBatchMessages  = 1024
	maxMessageID      = 255      // bytes
	maxMessageGroup   = 63       // bytes
	maxUserProperties = 128      // entries
	maxProperties     = 16 << 10 // bytes: keys, values, tag and message keys
	maxRecovery       = time.Hour
	// maxStoredProperties bounds what the limits above leave open, as the trace
	// context, in the form it is stored in.
	maxStoredProperties = 32 << 10
)

// reservedKeys are the property names that RocketMQ keeps for itself. They match
// exactly; other names with the same beginning are the user's.
var reservedKeys = func() map[string]bool {
	keys := map[string]bool{}
	for key := range strings.FieldsSeq(`
		TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
		BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES
		CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO
		INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
		INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
		TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
		DLQ_ORIGIN_MESSAGE_ID __CRC32# _SYS_MSG_PRIORITY_ ORIGIN_GROUP __LITE_TOPIC
		__SHARDINGKEY TRACE_CONTEXT CHECK_IMMUNITY_TIME_IN_SECONDS __transactionId__ TRANSACTION_CHECK_TIMES`) {
		keys[key] = true
	}
	return keys
}()

// deadLetterKeys are the properties that a dead letter has besides those of the
// message it was. They do not count: whoever sends it again with all that it came
// with must not be refused for what the server has added.
var deadLetterKeys = func() map[string]bool {
	keys := map[string]bool{}
	for name := range strings.FieldsSeq("reason topic group queue offset attempts first-delivery time") {
		keys["perigee.dead-letter."+name] = true
	}
	return keys
}()

// messageLimits are the limits that an operator sets.
type messageLimits struct {
	body  int // bytes of one body
	batch int // bytes of all bodies of a request
	delay time.Duration
}

// validate checks all messages of a request; the first fault found is the
// answer to all of them. It looks at nothing but the messages.
func (l messageLimits) validate(msgs []*rmqpb.Message, c client, now time.Time) error {
	switch {
	case len(msgs) == 0:
		return refuse(rmqpb.Code_MESSAGE_CORRUPTED, "messages: must not be empty")
	case len(msgs) > maxBatchMessages:
		return refuse(rmqpb.Code_PAYLOAD_TOO_LARGE, "messages: %d in one request, the limit is %d", len(msgs), maxBatchMessages)
	}
	topic := c.resource(msgs[0].GetTopic())
	if err := validateTopic(topic); err != nil {
		return err
	}
	total := 0
	for i, m := range msgs {
		if other := c.resource(m.GetTopic()); other != topic {
			return refuse(rmqpb.Code_MESSAGE_CORRUPTED, "%stopic %q: differs from %q of the first message",
				position(i, len(msgs)), mq.Shorten(other.String()), mq.Shorten(topic.String()))
		}
		if err := l.validateOne(m, now); err != nil {
			err.text = position(i, len(msgs)) + err.text
			return err
		}
		total += len(m.GetBody())
	}
	if total > l.batch {
		return refuse(rmqpb.Code_PAYLOAD_TOO_LARGE, "messages: bodies of %d bytes in one request, the limit is %d", total, l.batch)
	}
	return nil
}

// position begins the text about one of several messages.
func position(i, n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf("message %d of %d: ", i+1, n)
}

func (l messageLimits) validateOne(m *rmqpb.Message, now time.Time) *codeError {
	sys := m.GetSystemProperties()
	body := len(m.GetBody())
	switch id := sys.GetMessageId(); {
	case isBlank(id):
		return fault(rmqpb.Code_ILLEGAL_MESSAGE_ID, "message_id", id, "must not be blank")
	case len(id) > maxMessageID:
		return fault(rmqpb.Code_ILLEGAL_MESSAGE_ID, "message_id", id, fmt.Sprintf("has %d bytes, the limit is %d", len(id), maxMessageID))
	case body == 0:
		return &codeError{rmqpb.Code_MESSAGE_BODY_EMPTY, "body: must not be empty"}
	case body > l.body:
		return &codeError{rmqpb.Code_MESSAGE_BODY_TOO_LARGE, fmt.Sprintf("body: has %d bytes, the limit is %d", body, l.body)}
	}
	return cmp.Or(
		validateTag(sys.GetTag()),
		validateKeys(sys.GetKeys()),
		validateMessageGroup(sys.GetMessageGroup()),
		validateLiteTopic(sys.GetLiteTopic()),
		validateProperties(m),
		l.validateDelay(m),
		l.validateTimes(m, now),
		validateEncoding(sys.GetBodyEncoding()),
		validatePriority(sys.GetPriority()),
		verifyDigest(sys.GetBodyDigest(), m.GetBody()),
		validateType(sys),
	)
}

func fault(code rmqpb.Code, field, value, rule string) *codeError {
	return &codeError{code, fmt.Sprintf("%s %q: %s", field, mq.Shorten(value), rule)}
}

func isBlank(s string) bool { return strings.TrimSpace(s) == "" }

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func validateTag(tag string) *codeError {
	const code = rmqpb.Code_ILLEGAL_MESSAGE_TAG
	switch {
	case tag == "":
		return nil
	case isBlank(tag):
		return fault(code, "tag", tag, "must not be blank")
	case strings.Contains(tag, "|"):
		return fault(code, "tag", tag, "must not hold the character |")
	case hasControl(tag):
		return fault(code, "tag", tag, "must not hold control characters")
	}
	return nil
}

func validateKeys(keys []string) *codeError {
	for _, key := range keys {
		switch {
		case isBlank(key):
			return fault(rmqpb.Code_ILLEGAL_MESSAGE_KEY, "keys", key, "must not be blank")
		case hasControl(key):
			return fault(rmqpb.Code_ILLEGAL_MESSAGE_KEY, "keys", key, "must not hold control characters")
		}
	}
	return nil
}

func validateMessageGroup(group string) *codeError {
	const code = rmqpb.Code_ILLEGAL_MESSAGE_GROUP
	switch {
	case group == "":
		return nil
	case isBlank(group):
		return fault(code, "message_group", group, "must not be blank")
	case len(group) > maxMessageGroup:
		return fault(code, "message_group", group, fmt.Sprintf("has %d bytes, the limit is %d", len(group), maxMessageGroup))
	case hasControl(group):
		return fault(code, "message_group", group, "must not hold control characters")
	}
	return nil
}

func validateProperties(m *rmqpb.Message) *codeError {
	const field = "user_properties"
	properties := m.GetUserProperties()
	n, size := 0, len(m.GetSystemProperties().GetTag())
	for _, key := range m.GetSystemProperties().GetKeys() {
		size += len(key)
	}
	for key, value := range properties {
		switch {
		case reservedKeys[key]:
			return fault(rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, field, key, "is a name reserved for the system")
		case hasControl(key):
			return fault(rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, field, key, "must not hold control characters")
		case hasControl(value):
			return fault(rmqpb.Code_ILLEGAL_MESSAGE_PROPERTY_KEY, field, key,
				fmt.Sprintf("its value %q must not hold control characters", mq.Shorten(value)))
		}
		if !deadLetterKeys[key] {
			n++
			size += len(key) + len(value)
		}
	}
	if n > maxUserProperties {
		return &codeError{
			rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE,
			fmt.Sprintf("%s: has %d entries, the limit is %d", field, n, maxUserProperties),
		}
	}
	if size > maxProperties {
		return &codeError{
			rmqpb.Code_MESSAGE_PROPERTIES_TOO_LARGE,
			fmt.Sprintf("%s: with tag and keys %d bytes, the limit is %d", field, size, maxProperties),
		}
	}
	return nil
}

func (l messageLimits) validateTimes(m *rmqpb.Message, now time.Time) *codeError {
	sys := m.GetSystemProperties()
	if t := sys.GetDeliveryTimestamp(); t != nil {
		if err := t.CheckValid(); err != nil {
			return fault(rmqpb.Code_ILLEGAL_DELIVERY_TIME, "delivery_timestamp", t.String(), "is no point in time")
		}
		if _, relative := m.GetUserProperties()[delayProperty]; !relative && t.AsTime().After(now.Add(l.delay)) {
			return fault(rmqpb.Code_ILLEGAL_DELIVERY_TIME, "delivery_timestamp", t.AsTime().Format(time.RFC3339Nano),
				fmt.Sprintf("lies %s ahead of the server's clock, the limit is %s (max_delay)", ahead(t.AsTime(), now), l.delay))
		}
	}
	if d := sys.GetOrphanedTransactionRecoveryDuration(); d != nil {
		if !d.IsValid() || d.AsDuration() < 0 || d.AsDuration() > maxRecovery {
			return fault(rmqpb.Code_BAD_REQUEST, "orphaned_transaction_recovery_duration", d.AsDuration().String(),
				fmt.Sprintf("must lie between 0s and %s", maxRecovery))
		}
	}
	if t := sys.GetBornTimestamp(); t != nil && !t.IsValid() {
		return fault(rmqpb.Code_BAD_REQUEST, "born_timestamp", t.String(), "is no point in time")
	}
	return nil
}

// ahead tells how far a time is ahead, also when it is further than a duration can tell.
func ahead(at, now time.Time) string {
	if years := at.Year() - now.Year(); years > 100 {
		return fmt.Sprint(years, " years")
	}
	return at.Sub(now).Round(time.Millisecond).String()
}

// validateEncoding refuses an encoding that no consumer could undo. None at all
// counts as IDENTITY.
func validateEncoding(e rmqpb.Encoding) *codeError {
	if _, known := rmqpb.Encoding_name[int32(e)]; !known {
		return fault(rmqpb.Code_BAD_REQUEST, "body_encoding", e.String(), "must be IDENTITY or GZIP")
	}
	return nil
}

func validatePriority(p int32) *codeError {
	if p < 0 {
		return fault(rmqpb.Code_BAD_REQUEST, "priority", strconv.Itoa(int(p)), "must not be negative")
	}
	return nil
}

// verifyDigest compares the digest that the client computed, if it sent one,
// with the body as it arrived. Hex digits count in either case, and a CRC-32
// with or without leading zeros.
func verifyDigest(d *rmqpb.Digest, body []byte) *codeError {
	sent := d.GetChecksum()
	if sent == "" {
		return nil
	}
	var sum []byte
	switch d.GetType() {
	case rmqpb.DigestType_MD5:
		s := md5.Sum(body)
		sum = s[:]
	case rmqpb.DigestType_SHA1:
		s := sha1.Sum(body)
		sum = s[:]
	case rmqpb.DigestType_CRC32:
		have := fmt.Sprintf("%X", crc32.ChecksumIEEE(body))
		if !strings.EqualFold(strings.TrimLeft(sent, "0"), strings.TrimLeft(have, "0")) {
			return fault(rmqpb.Code_MESSAGE_CORRUPTED, "body_digest", sent, "the CRC32 of the body is "+have)
		}
		return nil
	default:
		return fault(rmqpb.Code_MESSAGE_CORRUPTED, "body_digest", sent, "its type must be CRC32, MD5 or SHA1")
	}
	if have := hex.EncodeToString(sum); !strings.EqualFold(sent, have) {
		return fault(rmqpb.Code_MESSAGE_CORRUPTED, "body_digest", sent, fmt.Sprintf("the %s of the body is %s", d.GetType(), have))
	}
	return nil
}
