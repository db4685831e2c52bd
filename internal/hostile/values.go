package hostile

import (
	"fmt"
	"math"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const (
	// manyElements is above every limit that a server should have on a list.
	manyElements = 3000
	longString   = 70_000
	longBytes    = 5 << 20
	// A field number that no message uses, and how much is in it.
	unknownField = 9999
	unknownSize  = 100_000
)

// texts are strings that no name, id or handle may be, and some that it may.
var texts = []string{
	"", " ", "\n", "a\x00b", "a|b", "%DLQ%", "%RETRY%g", "../../etc/passwd", "*", "-1", "SCHEDULE_TOPIC_XXXX",
	"\u202e\ufeff", strings.Repeat("\u00e9", 100), strings.Repeat("x", longString),
}

// extremes returns the values a scalar field is set to.
func extremes(f protoreflect.FieldDescriptor) []protoreflect.Value {
	switch f.Kind() {
	case protoreflect.StringKind:
		return values(protoreflect.ValueOfString, texts...)
	case protoreflect.BytesKind:
		return values(protoreflect.ValueOfBytes, []byte{}, []byte{0}, make([]byte, longBytes))
	case protoreflect.BoolKind:
		return values(protoreflect.ValueOfBool, false, true)
	case protoreflect.EnumKind:
		numbers := []protoreflect.EnumNumber{-1, 99, math.MinInt32, math.MaxInt32}
		for i := range f.Enum().Values().Len() {
			numbers = append(numbers, f.Enum().Values().Get(i).Number())
		}
		return values(protoreflect.ValueOfEnum, numbers...)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return values(protoreflect.ValueOfInt32, 0, 1, -1, math.MinInt32, math.MaxInt32)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return values(protoreflect.ValueOfInt64, 0, 1, -1, math.MinInt64, math.MaxInt64)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return values(protoreflect.ValueOfUint32, 0, 1, math.MaxUint32)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return values(protoreflect.ValueOfUint64, 0, 1, math.MaxUint64)
	case protoreflect.FloatKind:
		return values(protoreflect.ValueOfFloat32, 0, -1, math.MaxFloat32, float32(math.NaN()), float32(math.Inf(1)))
	case protoreflect.DoubleKind:
		return values(protoreflect.ValueOfFloat64, 0, -1, math.MaxFloat64, math.NaN(), math.Inf(1))
	default:
		panic("BUG: no values for a field of kind " + f.Kind().String())
	}
}

func values[T any](of func(T) protoreflect.Value, list ...T) []protoreflect.Value {
	out := make([]protoreflect.Value, len(list))
	for i, v := range list {
		out[i] = of(v)
	}
	return out
}

// show returns a value for a description.
func show(v protoreflect.Value) string {
	switch v := v.Interface().(type) {
	case string:
		if len(v) > 40 {
			return fmt.Sprintf("%d bytes of text", len(v))
		}
		return fmt.Sprintf("%q", v)
	case []byte:
		return fmt.Sprintf("%d bytes", len(v))
	default:
		return fmt.Sprint(v)
	}
}

// A moment is the content of a Timestamp or a Duration.
type moment struct {
	seconds int64
	nanos   int32
}

func (v moment) set(m protoreflect.Message) {
	fields := m.Descriptor().Fields()
	m.Set(fields.ByName("seconds"), protoreflect.ValueOfInt64(v.seconds))
	m.Set(fields.ByName("nanos"), protoreflect.ValueOfInt32(v.nanos))
}

// wellKnown returns what times and durations are set to: nothing, the least that
// there is, negative, absurd, and not normalised. For other messages it is nil.
func wellKnown(name protoreflect.FullName) []moment {
	switch name {
	case "google.protobuf.Timestamp", "google.protobuf.Duration":
		return []moment{
			{0, 0},
			{0, 1},
			{-1, 0},
			{0, -1},
			{1, -1},
			{-1, 1},
			{1, 1_000_000_000},
			{1, math.MaxInt32},
			{0, math.MinInt32},
			{86_400, 0},
			{253_402_300_799, 999_999_999},
			{315_576_000_000, 0},
			{-315_576_000_000, 0},
			{math.MaxInt64, 0},
			{math.MinInt64, 0},
			{math.MaxInt64, math.MaxInt32},
			{math.MinInt64, math.MinInt32},
		}
	}
	return nil
}
