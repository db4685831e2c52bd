package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
)

// TraceContext returns the trace_context of a stored message, "" without one.
func TraceContext(m *mq.Message) string {
	for b := m.System; len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		b = b[n:]
		if num == systemTraceContext && typ == protowire.BytesType {
			v, _ := protowire.ConsumeBytes(b)
			return string(v)
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return ""
		}
		b = b[n:]
	}
	return ""
}

// UserProperty returns a user property of a stored message, "" without it.
func UserProperty(m *mq.Message, key string) string {
	for b := m.Properties; len(b) > 0; {
		_, _, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		entry, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			return ""
		}
		b = b[n+size:]
		if k, v := keyAndValue(entry); string(k) == key {
			return string(v)
		}
	}
	return ""
}

// keyAndValue returns the parts of an entry as FromProto wrote it.
func keyAndValue(entry []byte) (key, value []byte) {
	for len(entry) > 0 {
		num, typ, n := protowire.ConsumeTag(entry)
		if n < 0 || typ != protowire.BytesType {
			return key, value
		}
		v, size := protowire.ConsumeBytes(entry[n:])
		if size < 0 {
			return key, value
		}
		if num == entryKey {
			key = v
		} else {
			value = v
		}
		entry = entry[n+size:]
	}
	return key, value
}
