package receipt

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/perigee-mq/perigee/mq"
)

// The handle of a pending message, version 1, before base64; numbers are big-endian:
//
//	 0      1      2       6      14    15
//	+------+------+-------+------+-----+----------+-------------+----------+
//	| kind | vers | topic | id   | len | shard    | message id  | CRC-32C  |
//	| 'p'  | u8=1 | u32   | u64  | u8  | len bytes| the rest    | u32      |
//	+------+------+-------+------+-----+----------+-------------+----------+
//
// The kind keeps it apart from a receipt, whose first byte is a version. The checksum
// covers every byte before it.
const (
	kindPending     = 'p'
	pendingVersion1 = 1

	offPendingTopic  = 2
	offPendingID     = 6
	offPendingLength = 14
	offPendingShard  = 15

	maxMessageID   = 255
	minPendingSize = offPendingShard + 1 + 1 + sumSize
	maxPendingSize = offPendingShard + MaxShard + maxMessageID + sumSize
)

// MaxPendingLen is the length of the longest handle of a pending message, in characters.
const MaxPendingLen = (maxPendingSize*8 + 5) / 6

// EncodePending returns the handle of a pending message as opaque text. The shard must be
// named in 1 to MaxShard bytes, and the message in 1 to 255; longer ones panic.
func EncodePending(h mq.PendingHandle) string {
	if len(h.Shard) > MaxShard || len(h.MessageID) > maxMessageID {
		panic(fmt.Sprintf("BUG: receipt: shard name of %d bytes, message id of %d bytes", len(h.Shard), len(h.MessageID)))
	}
	raw := make([]byte, 0, offPendingShard+len(h.Shard)+len(h.MessageID)+sumSize)
	raw = append(raw, kindPending, pendingVersion1)
	raw = binary.BigEndian.AppendUint32(raw, uint32(h.Topic))
	raw = binary.BigEndian.AppendUint64(raw, uint64(h.ID))
	raw = append(raw, byte(len(h.Shard)))
	raw = append(append(raw, h.Shard...), h.MessageID...)
	raw = binary.BigEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli))
	return text.EncodeToString(raw)
}

// DecodePending returns the pending message whose handle is s. It accepts exactly the
// texts that EncodePending makes: anything else is refused with an error that wraps
// mq.ErrInvalidHandle and says why without repeating s.
func DecodePending(s string) (mq.PendingHandle, error) {
	h, err := decodePending(s)
	if err != nil {
		return mq.PendingHandle{}, fmt.Errorf("%w: %w", mq.ErrInvalidHandle, err)
	}
	return h, nil
}

func decodePending(s string) (h mq.PendingHandle, err error) {
	if len(s) == 0 || len(s) > MaxPendingLen {
		return h, fmt.Errorf("%w: %d characters, the limit is %d", errLength, len(s), MaxPendingLen)
	}
	raw, err := text.DecodeString(s)
	// The decoder skips line breaks; comparing the lengths finds them.
	if err != nil || text.EncodedLen(len(raw)) != len(s) {
		return h, errText
	}
	if len(raw) < 2 || raw[0] != kindPending {
		return h, errKind
	}
	if v := raw[1]; v != pendingVersion1 {
		return h, fmt.Errorf("version %d is unknown, this server reads version %d", v, pendingVersion1)
	}
	if len(raw) < minPendingSize {
		return h, fmt.Errorf("%w: %d bytes", errLength, len(raw))
	}
	end := len(raw) - sumSize
	if binary.BigEndian.Uint32(raw[end:]) != crc32.Checksum(raw[:end], castagnoli) {
		return h, errChecksum
	}
	name := offPendingShard + int(raw[offPendingLength])
	if n := raw[offPendingLength]; n == 0 || n > MaxShard || name >= end || end-name > maxMessageID {
		return h, fmt.Errorf("%w: %d bytes", errLength, len(raw))
	}
	return mq.PendingHandle{
		Shard: string(raw[offPendingShard:name]), Topic: mq.TopicID(binary.BigEndian.Uint32(raw[offPendingTopic:])),
		ID: mq.PendingID(binary.BigEndian.Uint64(raw[offPendingID:])), MessageID: string(raw[name:end]),
	}, nil
}
