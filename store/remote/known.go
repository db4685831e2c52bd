package remote

import (
	"bytes"
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
)

type protoNumber = protowire.Number

// maxKnown is how many topics, or groups, are kept encoded or decoded. When there are more,
// all are forgotten and made again.
const maxKnown = 1 << 16

// A memo remembers what was made of each of many things.
type memo[K comparable, V any] struct {
	mu   sync.RWMutex
	made map[K]V
}

// get returns what was made of k, if that still holds, or makes it.
func (m *memo[K, V]) get(k K, holds func(V) bool, make_ func() (V, error)) (V, error) {
	m.mu.RLock()
	v, ok := m.made[k]
	m.mu.RUnlock()
	if ok && holds(v) {
		return v, nil
	}
	v, err := make_()
	if err != nil {
		return v, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.made == nil || len(m.made) >= maxKnown {
		m.made = map[K]V{}
	}
	m.made[k] = v
	return v, nil
}

// encoded has the encodings of the topics and groups that a client has sent.
type encoded struct {
	topics memo[mq.TopicID, coded[mq.Topic]]
	groups memo[mq.GroupID, coded[mq.Group]]
}

type coded[T any] struct {
	of *T
	b  []byte
}

func (e *encoded) topic(t *mq.Topic) []byte {
	v, _ := e.topics.get(t.ID, func(v coded[mq.Topic]) bool { return v.of == t }, func() (coded[mq.Topic], error) {
		b, err := proto.Marshal(tierwire.FromTopic(t))
		return coded[mq.Topic]{t, b}, err
	})
	return v.b
}

func (e *encoded) group(g *mq.Group) []byte {
	v, _ := e.groups.get(g.ID, func(v coded[mq.Group]) bool { return v.of == g }, func() (coded[mq.Group], error) {
		b, err := proto.Marshal(tierwire.FromGroup(g))
		return coded[mq.Group]{g, b}, err
	})
	return v.b
}

// decoded has the topics and groups that a node was sent, by their encodings.
type decoded struct {
	topics memo[mq.TopicID, coded[mq.Topic]]
	groups memo[mq.GroupID, coded[mq.Group]]
}

func (d *decoded) topic(b []byte) (*mq.Topic, error) {
	return decode(&d.topics, mq.TopicID(idOf(b)), b, func() (*mq.Topic, error) {
		var m routerpb.Topic
		if err := proto.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("%w: topic: %w", errFrame, err)
		}
		return tierwire.Topic(&m)
	})
}

func (d *decoded) group(b []byte) (*mq.Group, error) {
	return decode(&d.groups, mq.GroupID(idOf(b)), b, func() (*mq.Group, error) {
		var m routerpb.Group
		if err := proto.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("%w: group: %w", errFrame, err)
		}
		return tierwire.Group(&m)
	})
}

func decode[K comparable, T any](m *memo[K, coded[T]], id K, b []byte, fn func() (*T, error)) (*T, error) {
	v, err := m.get(id, func(v coded[T]) bool { return bytes.Equal(v.b, b) }, func() (coded[T], error) {
		of, err := fn()
		return coded[T]{of, bytes.Clone(b)}, err
	})
	return v.of, err
}

// idOf returns the id in the encoding of a topic or a group, its first field.
func idOf(b []byte) uint32 {
	r := reader{b: b}
	if r.next() && r.num == 1 {
		return uint32(r.uint())
	}
	return 0
}

// readError reads an error that the other side has told.
func readError(b []byte) (refused, err error) {
	var e routerpb.Error
	if err := proto.Unmarshal(b, &e); err != nil {
		return nil, err
	}
	return tiererr.Decode(&e), nil
}

func readSettled(b []byte) (refused, err error) {
	r := reader{b: b}
	for r.next() {
		if r.num == settledError {
			return readError(r.bytes())
		}
	}
	return nil, r.err
}
