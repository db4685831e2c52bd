package command

import (
	"encoding/binary"

	"github.com/perigee-mq/perigee/mq"
)

// Place makes a shard know where a topic lies. From then on it refuses what follows from
// an earlier placement, see machine.Machine.Placement.
type Place struct {
	Time  int64
	Topic mq.TopicID
	// Placed is the version of the topic that brought the placement.
	Placed uint64
	// Closed says that nothing is sent to the shard any more.
	Closed bool
}

// Append appends the encoding of c.
func (c *Place) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(c.Time))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Topic))
	dst = binary.BigEndian.AppendUint64(dst, c.Placed)
	return append(dst, boolByte(c.Closed))
}

// DecodePlace decodes what Place.Append wrote.
func DecodePlace(b []byte) (Place, error) {
	r := reader{b: b}
	c := Place{Time: int64(r.u64()), Topic: mq.TopicID(r.u32()), Placed: r.u64(), Closed: r.u8() != 0}
	return c, r.done(KindPlace)
}
