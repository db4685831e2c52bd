package shard

import (
	"sync"
	"sync/atomic"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Other is what the topics and groups that are counted together are called in
// metrics. A topic of that name, and a group with it, is always one of them.
const Other = "_other"

// series are the counters of single topics, and of single groups with single
// topics. There are at most max of either; what comes beyond is counted together,
// and gets a series of its own when it is seen after one was given up. Those of
// what is deleted are given up at once. They live in memory only.
type series struct {
	machine *machine.Machine // the loop's alone
	max     int

	// The loop alone changes the maps, with mu held; it reads them without. All
	// others hold mu to read them.
	mu struct {
		sync.RWMutex
		topics map[mq.TopicID]*topicCounts
		subs   map[keyspace.Sub]*subCounts
	}
	otherTopics topicCounts
	otherSubs   subCounts
}

type topicCounts struct {
	in, inBytes, out, outBytes atomic.Uint64
}

type subCounts struct {
	delivered, redelivered, settled, refused atomic.Uint64
	expired, deadLettered, unreadable, lost  atomic.Uint64
}

func (se *series) open(m *machine.Machine, most int) {
	se.machine, se.max = m, most
	se.mu.topics = map[mq.TopicID]*topicCounts{}
	se.mu.subs = map[keyspace.Sub]*subCounts{}
}

// topic returns the counters of a topic, new ones if need be. It is the loop's.
func (se *series) topic(id mq.TopicID) *topicCounts {
	if c := se.mu.topics[id]; c != nil {
		return c
	}
	name, known := se.machine.TopicName(id)
	if !known || len(se.mu.topics) >= se.max || name.String() == Other {
		return &se.otherTopics
	}
	c := new(topicCounts)
	se.mu.Lock()
	defer se.mu.Unlock()
	se.mu.topics[id] = c
	return c
}

// sub returns the counters of a group with a topic, new ones if need be. It is the
// loop's.
func (se *series) sub(id keyspace.Sub) *subCounts {
	if c := se.mu.subs[id]; c != nil {
		return c
	}
	group, topic, known := se.machine.SubNames(id)
	if !known || len(se.mu.subs) >= se.max || group.String() == Other && topic.String() == Other {
		return &se.otherSubs
	}
	c := new(subCounts)
	se.mu.Lock()
	defer se.mu.Unlock()
	se.mu.subs[id] = c
	return c
}

// find returns the counters of a group with a topic for callers outside the loop.
func (se *series) find(id keyspace.Sub) *subCounts {
	se.mu.RLock()
	defer se.mu.RUnlock()
	if c := se.mu.subs[id]; c != nil {
		return c
	}
	return &se.otherSubs
}

// findTopic returns the counters of a topic for callers outside the loop.
func (se *series) findTopic(id mq.TopicID) *topicCounts {
	se.mu.RLock()
	defer se.mu.RUnlock()
	if c := se.mu.topics[id]; c != nil {
		return c
	}
	return &se.otherTopics
}

// forget gives up the series that match: those of a topic without its groups have
// group 0. It is the loop's.
func (se *series) forget(match func(keyspace.Sub) bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	for id := range se.mu.topics {
		if match(keyspace.Sub{Topic: id}) {
			delete(se.mu.topics, id)
		}
	}
	for id := range se.mu.subs {
		if match(id) {
			delete(se.mu.subs, id)
		}
	}
}

func (c *topicCounts) load() TopicCounts {
	return TopicCounts{In: c.in.Load(), InBytes: c.inBytes.Load(), Out: c.out.Load(), OutBytes: c.outBytes.Load()}
}

func (c *subCounts) load() GroupCounts {
	return GroupCounts{
		Delivered: c.delivered.Load(), Redelivered: c.redelivered.Load(),
		Settled: c.settled.Load(), Refused: c.refused.Load(),
		Expired: c.expired.Load(), DeadLettered: c.deadLettered.Load(),
		Unreadable: c.unreadable.Load(), Lost: c.lost.Load(),
	}
}
