package keyspace

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// A Placement is what a shard knows of where a topic lies.
type Placement struct {
	// Placed is the version of the topic that brought it.
	Placed uint64
	// Closed says that nothing is sent to the shard any more.
	Closed bool
}

// AppendPlacementKey appends the key of the placement of a topic.
func AppendPlacementKey(dst []byte, id mq.TopicID) []byte {
	return binary.BigEndian.AppendUint32(append(dst, prefixPlacement), uint32(id))
}

// PlacementKeys returns the bounds of the keys of all placements.
func PlacementKeys() (lower, upper []byte) {
	return []byte{prefixPlacement}, []byte{prefixPlacement + 1}
}

// DecodePlacementKey decodes the key of a placement.
func DecodePlacementKey(b []byte) (mq.TopicID, error) {
	if len(b) != 1+4 || b[0] != prefixPlacement {
		return 0, corrupt("placement key", b)
	}
	return mq.TopicID(binary.BigEndian.Uint32(b[1:])), nil
}

// AppendPlacement appends the encoding of p.
func AppendPlacement(dst []byte, p Placement) []byte {
	closed := byte(0)
	if p.Closed {
		closed = 1
	}
	return append(binary.BigEndian.AppendUint64(dst, p.Placed), closed)
}

// DecodePlacement decodes what AppendPlacement wrote.
func DecodePlacement(b []byte) (Placement, error) {
	if len(b) != 8+1 || b[8] > 1 {
		return Placement{}, corrupt("placement", b)
	}
	return Placement{Placed: binary.BigEndian.Uint64(b), Closed: b[8] == 1}, nil
}
