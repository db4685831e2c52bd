package client

import (
	"crypto/rand"
	"encoding/binary"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// A message id of version 1 is 17 bytes, written as 34 upper-case hexadecimal
// digits:
//
//	| version | MAC address | process id | seconds since 2021-01-01 | sequence |
//	|    1    |      6      |     2      |            4             |    4     |
//
// The numbers are big-endian; the process id is cut to its lower 16 bits.
const (
	idVersion = 1
	idBytes   = 17
	idPrefix  = 1 + 6 + 2

	// MessageIDSize is the number of characters of a message id.
	MessageIDSize = 2 * idBytes
)

// idEpoch is 2021-01-01 00:00:00 UTC in seconds since 1970.
const idEpoch = 1609459200

// MessageIDs makes the ids of the messages of one process. Its methods may be
// called from several goroutines at once.
type MessageIDs struct {
	prefix   [idPrefix]byte
	started  time.Time
	seconds  uint32
	sequence atomic.Uint32
}

// NewMessageIDs returns a source of ids that begins at a random sequence
// number, so that two processes with one address and process id, as in
// containers, do not make the same ids.
func NewMessageIDs() *MessageIDs {
	now := time.Now()
	ids := &MessageIDs{started: now, seconds: uint32(now.Unix() - idEpoch)}
	ids.prefix[0] = idVersion
	copy(ids.prefix[1:7], hardwareAddress())
	binary.BigEndian.PutUint16(ids.prefix[7:], uint16(os.Getpid()))
	var first [4]byte
	_, _ = rand.Read(first[:]) // never fails
	ids.sequence.Store(binary.BigEndian.Uint32(first[:]))
	return ids
}

// Next returns a new id.
func (m *MessageIDs) Next() string {
	var id [MessageIDSize]byte
	m.Put(id[:])
	return string(id[:])
}

// Put writes a new id into the first MessageIDSize bytes of dst.
func (m *MessageIDs) Put(dst []byte) {
	var raw [idBytes]byte
	copy(raw[:], m.prefix[:])
	binary.BigEndian.PutUint32(raw[9:], m.seconds+uint32(time.Since(m.started)/time.Second))
	binary.BigEndian.PutUint32(raw[13:], m.sequence.Add(1))
	const digits = "0123456789ABCDEF"
	_ = dst[MessageIDSize-1]
	for i, b := range raw {
		dst[2*i], dst[2*i+1] = digits[b>>4], digits[b&15]
	}
}

// hardwareAddress returns the first hardware address of this host, or random
// bytes when there is none.
func hardwareAddress() []byte {
	interfaces, _ := net.Interfaces() // without permission to look, none
	for _, i := range interfaces {
		if len(i.HardwareAddr) >= 6 && i.Flags&net.FlagLoopback == 0 {
			return i.HardwareAddr[:6]
		}
	}
	random := make([]byte, 6)
	_, _ = rand.Read(random) // never fails
	return random
}
