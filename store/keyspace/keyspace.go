// Package keyspace holds the layout of a shard's Pebble views: every key prefix,
// every key and every value, encoded and decoded by pure functions. It does no
// I/O and knows no rule of the queue; store/machine is its only writer.
//
// All keys are a prefix byte followed by big-endian integers, so that Pebble's
// byte order is the numeric order. docs/format/keyspace.md shows the layout.
package keyspace

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

// Version is the version of the layout, stored under the state key. A store
// with a greater version belongs to a newer program and is left alone.
const Version = 1

// The prefixes. One letter each; never reused for another meaning.
const (
	prefixState     = 'a' // the one state record
	prefixBegin     = 'b' // the one record of where the log may begin
	prefixEntry     = 'c' // ConsumeQueue: topic, queue, offset -> Entry
	prefixPending   = 'd' // pending id -> Pending
	prefixPendingOf = 'e' // topic, state, time, pending id -> empty
	prefixPlacement = 'f' // topic -> Placement
	prefixGroup     = 'g' // group -> registration (a command.Group payload)
	prefixUnstarted = 'i' // group, topic -> empty: the group has set offsets and received nothing
	prefixHeld      = 'j' // log position of a pending message -> pending id
	prefixRepeat    = 'k' // minute, topic, record -> what it has stored, so that repeats are known
	prefixLease     = 'l' // in flight: group, topic, queue, offset -> Lease
	prefixGone      = 'n' // kind, id of a deleted topic or group -> empty
	prefixPriority  = 'o' // what groups have beside that receive by priority, see priority.go
	prefixProgress  = 'p' // group, topic, queue -> next offset to deliver
	prefixEnds      = 'q' // topic, queue -> Ends, once a trim has moved them
	prefixReady     = 'r' // redelivery: group, topic, sequence -> queue, offset
	prefixSub       = 's' // group, topic -> empty: the group has received from the topic
	prefixTopic     = 't' // topic -> registration (a command.Topic payload)
	prefixLiteName  = 'u' // topic, name of a lite topic -> its queue; without a name: how many there are
	prefixDue       = 'v' // visible-at, group, topic, queue, offset -> empty
	prefixPendingAt = 'w' // state, time, pending id -> empty
	prefixUsedUp    = 'x' // waiting for dead-lettering: group, topic, queue, offset -> empty
	prefixLite      = 'y' // topic, queue of a lite topic -> Lite
	prefixLiteOrder = 'z' // topic, what it is ordered by, time or position, queue of a lite topic -> empty
)

// ErrCorrupt is the kind of every error about bytes that are no valid key or value.
var ErrCorrupt = errors.New("corrupt view")

func corrupt(what string, b []byte) error {
	return fmt.Errorf("%w: %s of %d bytes: %x", ErrCorrupt, what, len(b), b[:min(len(b), 64)])
}

// A Queue names one queue of one topic of the shard.
type Queue struct {
	Topic mq.TopicID
	Queue mq.QueueID
}

// A Sub names what one group does with one topic of the shard.
type Sub struct {
	Group mq.GroupID
	Topic mq.TopicID
}

// A Ref names one message under delivery to one group.
type Ref struct {
	Sub
	Queue  mq.QueueID
	Offset mq.QueueOffset
}

// Compare orders subs as their keys are ordered.
func (s Sub) Compare(other Sub) int {
	return cmp.Or(cmp.Compare(s.Group, other.Group), cmp.Compare(s.Topic, other.Topic))
}

// Compare orders refs as their keys are ordered.
func (r Ref) Compare(other Ref) int {
	return cmp.Or(r.Sub.Compare(other.Sub), cmp.Compare(r.Queue, other.Queue), cmp.Compare(r.Offset, other.Offset))
}

// State is what the views say about themselves. It is written in the same batch
// as the effects it describes.
type State struct {
	Version uint32
	// Pos is the log position behind the last command applied, Index its index.
	Pos   uint64
	Index uint64
	// Time is the time of the last command applied, in Unix nanoseconds.
	Time int64
	// Ready numbers the redeliveries queued so far.
	Ready uint64
}

// StateKey is the key of the State.
func StateKey() []byte { return []byte{prefixState} }

// AppendState appends the encoding of s.
func AppendState(dst []byte, s State) []byte {
	dst = binary.BigEndian.AppendUint32(dst, s.Version)
	dst = binary.BigEndian.AppendUint64(dst, s.Pos)
	dst = binary.BigEndian.AppendUint64(dst, s.Index)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Time))
	return binary.BigEndian.AppendUint64(dst, s.Ready)
}

// DecodeState decodes what AppendState wrote. The version comes first, so a
// value of a newer version is still recognised as such.
func DecodeState(b []byte) (State, error) {
	if len(b) < 4 {
		return State{}, corrupt("state", b)
	}
	s := State{Version: binary.BigEndian.Uint32(b)}
	if s.Version != Version {
		return s, fmt.Errorf("the views were written by a newer version of perigee: they have version %d, this one reads version %d", s.Version, Version)
	}
	if len(b) != 4+4*8 {
		return State{}, corrupt("state", b)
	}
	s.Pos = binary.BigEndian.Uint64(b[4:])
	s.Index = binary.BigEndian.Uint64(b[12:])
	s.Time = int64(binary.BigEndian.Uint64(b[20:]))
	s.Ready = binary.BigEndian.Uint64(b[28:])
	return s, nil
}

// A Begin says where the log may begin: what came before is needed no more. A log that
// begins later has lost segments; without a Begin it has its first record.
type Begin struct {
	// Pos is the position of a segment, Index that of its first record.
	Pos   uint64
	Index uint64
}

// BeginKey is the key of the Begin.
func BeginKey() []byte { return []byte{prefixBegin} }

// AppendBegin appends the encoding of b.
func AppendBegin(dst []byte, b Begin) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, b.Pos), b.Index)
}

// DecodeBegin decodes what AppendBegin wrote.
func DecodeBegin(b []byte) (Begin, error) {
	if len(b) != 8+8 {
		return Begin{}, corrupt("beginning of the log", b)
	}
	return Begin{Pos: binary.BigEndian.Uint64(b), Index: binary.BigEndian.Uint64(b[8:])}, nil
}

func appendSub(dst []byte, s Sub) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(s.Group))
	return binary.BigEndian.AppendUint32(dst, uint32(s.Topic))
}

func decodeSub(b []byte) Sub {
	return Sub{
		Group: mq.GroupID(binary.BigEndian.Uint32(b)),
		Topic: mq.TopicID(binary.BigEndian.Uint32(b[4:])),
	}
}

func appendRef(dst []byte, r Ref) []byte {
	dst = appendSub(dst, r.Sub)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Queue))
	return binary.BigEndian.AppendUint64(dst, uint64(r.Offset))
}

const refSize = 4 + 4 + 4 + 8

func decodeRef(b []byte) Ref {
	return Ref{
		Sub:    decodeSub(b),
		Queue:  decodeQueue(b[8:]),
		Offset: mq.QueueOffset(binary.BigEndian.Uint64(b[12:])),
	}
}

func decodeQueue(b []byte) mq.QueueID { return mq.QueueID(binary.BigEndian.Uint32(b)) }

// Next returns the smallest key greater than every key that starts with prefix.
// It reuses prefix's memory.
func Next(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		prefix[i]++
		if prefix[i] != 0 {
			return prefix[:i+1]
		}
	}
	return nil
}
