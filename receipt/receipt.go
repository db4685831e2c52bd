package receipt

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/perigee-mq/perigee/mq"
)

// Version 1, before base64; numbers are big-endian:
//
//	 0      1      2       6       10      14       22      30        34    35
//	+------+------+-------+-------+-------+--------+-------+---------+-----+----------+----------+
//	| vers | flag | topic | group | queue | offset | popID | attempt | len | shard    | CRC-32C  |
//	| u8=1 | u8   | u32   | u32   | i32   | i64    | u64   | i32     | u8  | len bytes| u32      |
//	+------+------+-------+-------+-------+--------+-------+---------+-----+----------+----------+
//
// The checksum covers every byte before it. All fields have a fixed width, so
// one lease has exactly one encoding.
const (
	version1 = 1

	flagAutoRenew = 1 << 0

	offVersion = 0
	offFlags   = 1
	offTopic   = 2
	offGroup   = 6
	offQueue   = 10
	offOffset  = 14
	offPopID   = 22
	offAttempt = 30
	offLength  = 34
	offShard   = 35

	sumSize = 4
	minSize = offShard + 1 + sumSize
	maxSize = offShard + MaxShard + sumSize
)

// MaxShard is the longest name of a shard a handle can carry, in bytes.
const MaxShard = 127

// MaxLen is the length of the longest handle, in characters.
const MaxLen = (maxSize*8 + 5) / 6

// Strict refuses set bits behind the last byte, so that no two texts decode to
// the same bytes.
var text = base64.RawURLEncoding.Strict()

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the handle of l. See AppendEncode.
func Encode(l mq.Lease) string {
	return string(AppendEncode(nil, l))
}

// AppendEncode appends the handle of l to dst and returns the extended slice.
// It allocates nothing when dst has room for 2*MaxLen more bytes; what lies
// between the length and the capacity of the result is undefined.
//
// The lease must be one a store hands out: the shard named in 1 to MaxShard
// bytes, queue and offset not negative, attempt at least 1. A longer shard name
// panics; Decode refuses the handle of any other impossible lease.
func AppendEncode(dst []byte, l mq.Lease) []byte {
	if len(l.Shard) > MaxShard {
		panic(fmt.Sprintf("BUG: receipt: shard name of %d bytes, the limit is %d", len(l.Shard), MaxShard))
	}
	size := offShard + len(l.Shard) + sumSize
	// The bytes are built behind the place of their text: an array of their own
	// would be moved to the heap by the checksum, on every call.
	start := len(dst)
	end := start + text.EncodedLen(size)
	dst = slices.Grow(dst, end-start+size)
	raw := dst[end : end+size : end+size]
	raw[offVersion] = version1
	raw[offFlags] = 0
	if l.AutoRenew {
		raw[offFlags] = flagAutoRenew
	}
	binary.BigEndian.PutUint32(raw[offTopic:], uint32(l.Topic))
	binary.BigEndian.PutUint32(raw[offGroup:], uint32(l.Group))
	binary.BigEndian.PutUint32(raw[offQueue:], uint32(l.Queue))
	binary.BigEndian.PutUint64(raw[offOffset:], uint64(l.Offset))
	binary.BigEndian.PutUint64(raw[offPopID:], uint64(l.PopID))
	binary.BigEndian.PutUint32(raw[offAttempt:], uint32(l.Attempt))
	raw[offLength] = byte(len(l.Shard))
	copy(raw[offShard:], l.Shard)
	sum := crc32.Checksum(raw[:size-sumSize], castagnoli)
	binary.BigEndian.PutUint32(raw[size-sumSize:], sum)
	text.Encode(dst[start:end], raw)
	return dst[:end]
}

// The ways a handle can be unreadable. All reach the caller wrapped in
// mq.ErrInvalidReceipt.
var (
	errLength   = errors.New("wrong length")
	errText     = errors.New("not URL-safe base64 in its canonical form")
	errChecksum = errors.New("checksum does not match")
	errFlags    = errors.New("unknown flags")
	errLease    = errors.New("impossible lease")
	errKind     = errors.New("no handle of a pending message")
)

// Decode returns the lease whose handle is s. It accepts exactly the texts
// AppendEncode makes: anything else, also text that differs only in padding,
// line breaks or spare bits, is refused with an error that wraps
// mq.ErrInvalidReceipt and says why without repeating s.
func Decode(s string) (mq.Lease, error) {
	l, err := decode(s)
	if err != nil {
		return mq.Lease{}, fmt.Errorf("%w: %w", mq.ErrInvalidReceipt, err)
	}
	return l, nil
}

func decode(s string) (mq.Lease, error) {
	if len(s) == 0 || len(s) > MaxLen {
		return mq.Lease{}, fmt.Errorf("%w: %d characters", errLength, len(s))
	}
	var chars [MaxLen]byte
	raw := make([]byte, text.DecodedLen(len(s)))
	n, err := text.Decode(raw, chars[:copy(chars[:], s)])
	// The decoder skips line breaks; comparing the lengths finds them.
	if err != nil || text.EncodedLen(n) != len(s) {
		return mq.Lease{}, errText
	}
	if n == 0 {
		return mq.Lease{}, errLength
	}
	if v := raw[offVersion]; v != version1 {
		return mq.Lease{}, fmt.Errorf("version %d is unknown, this server reads version %d", v, version1)
	}
	if n < minSize || n != offShard+int(raw[offLength])+sumSize {
		return mq.Lease{}, fmt.Errorf("%w: %d bytes", errLength, n)
	}
	end := n - sumSize
	if binary.BigEndian.Uint32(raw[end:]) != crc32.Checksum(raw[:end], castagnoli) {
		return mq.Lease{}, errChecksum
	}
	if raw[offFlags]&^flagAutoRenew != 0 {
		return mq.Lease{}, fmt.Errorf("%w: %#x", errFlags, raw[offFlags])
	}
	queue := binary.BigEndian.Uint32(raw[offQueue:])
	offset := binary.BigEndian.Uint64(raw[offOffset:])
	attempt := binary.BigEndian.Uint32(raw[offAttempt:])
	if queue > math.MaxInt32 || offset > math.MaxInt64 || attempt == 0 || attempt > math.MaxInt32 {
		return mq.Lease{}, errLease
	}
	return mq.Lease{
		Shard:     string(raw[offShard:end]),
		Topic:     mq.TopicID(binary.BigEndian.Uint32(raw[offTopic:])),
		Group:     mq.GroupID(binary.BigEndian.Uint32(raw[offGroup:])),
		Queue:     mq.QueueID(queue),
		Offset:    mq.QueueOffset(offset),
		PopID:     mq.PopID(binary.BigEndian.Uint64(raw[offPopID:])),
		Attempt:   mq.Attempt(attempt),
		AutoRenew: raw[offFlags]&flagAutoRenew != 0,
	}, nil
}
