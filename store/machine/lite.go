package machine

import (
	"fmt"
	"math"
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A lite topic is a queue of its parent, with an id above those of the ordinary ones. There
// may be a million of them under one parent, so nothing of one stays in memory but what is
// under delivery: its record, its name and the groups' places are read when they are needed.

// A lite is the record of a lite topic.
type lite struct {
	queue
	written, looked int64  // as in keyspace.Lite
	oldest          uint64 // likewise
	name            []byte
}

type liteName struct {
	topic mq.TopicID
	name  string
}

// liteCache bounds how many records and names are kept in memory between commits.
const liteCache = 1 << 14

// lites is what was last read or written of lite topics.
type lites struct {
	queues map[keyspace.Queue]*lite           // nil: it is gone, and the batch says so
	names  map[liteName]mq.QueueID            // 0: likewise
	counts map[mq.TopicID]keyspace.LiteCounts // of topics that were asked for
	gone   bool                               // queues and names have what is gone
	// low has, for an index of a topic, what none of its keys is below. What was taken off
	// the head of an index lies there as tombstones, over which every look would step.
	low map[liteIndex]uint64
}

// liteIndex is an index of the lite topics of a topic.
type liteIndex struct {
	topic mq.TopicID
	by    keyspace.LiteOrder
}

func newLites() lites {
	return lites{
		queues: map[keyspace.Queue]*lite{}, names: map[liteName]mq.QueueID{}, counts: map[mq.TopicID]keyspace.LiteCounts{},
		low: map[liteIndex]uint64{},
	}
}

// committed forgets what the views say as well, when it is much.
func (l *lites) committed() {
	if l.gone || len(l.queues) > liteCache || len(l.names) > liteCache {
		clear(l.queues)
		clear(l.names)
		l.gone = false
	}
}

// forget forgets a topic.
func (l *lites) forget(id mq.TopicID) {
	for q := range l.queues {
		if q.Topic == id {
			delete(l.queues, q)
		}
	}
	for n := range l.names {
		if n.topic == id {
			delete(l.names, n)
		}
	}
	delete(l.counts, id)
	delete(l.low, liteIndex{id, keyspace.LiteByTime})
	delete(l.low, liteIndex{id, keyspace.LiteByPos})
}

// A LiteEvent says that a lite topic may have a message for a group that it had not: a new
// one, one that is to be delivered again, or one that waited for another to be settled.
type LiteEvent struct {
	Topic mq.TopicID
	Queue mq.QueueID
	Group mq.GroupID // 0: every one
}

// liteCounts returns the counts of the topic.
func (m *Machine) liteCounts(id mq.TopicID) (keyspace.LiteCounts, error) {
	if c, ok := m.lites.counts[id]; ok {
		return c, nil
	}
	c, found, err := get(m.db, keyspace.AppendLiteCountsKey(nil, id), keyspace.DecodeLiteCounts)
	if err != nil {
		return c, err
	}
	if !found {
		c = keyspace.LiteCounts{Next: mq.FirstLiteQueue}
	}
	m.lites.counts[id] = c
	return c, nil
}

func (m *Machine) setLiteCounts(id mq.TopicID, c keyspace.LiteCounts) error {
	m.lites.counts[id] = c
	m.key = keyspace.AppendLiteCountsKey(m.key[:0], id)
	m.val = keyspace.AppendLiteCounts(m.val[:0], c)
	return m.set(m.key, m.val)
}

// lite returns the record of a lite topic; nil when there is none.
func (m *Machine) lite(id keyspace.Queue) (*lite, error) {
	if l, ok := m.lites.queues[id]; ok {
		return l, nil
	}
	m.key = keyspace.AppendLiteKey(m.key[:0], id)
	r, found, err := get(m.db, m.key, keyspace.DecodeLite)
	if !found || err != nil {
		return nil, err
	}
	l := &lite{queue: queue{min: r.Min, kept: r.Min, next: r.Next}, written: r.Written, looked: r.Looked, oldest: r.Oldest, name: r.Name}
	m.lites.queues[id] = l
	return l, nil
}

// liteNamed returns the queue of the lite topic with that name; 0 when there is none.
func (m *Machine) liteNamed(id mq.TopicID, name []byte) (mq.QueueID, error) {
	if q, ok := m.lites.names[liteName{id, string(name)}]; ok {
		return q, nil
	}
	m.key = keyspace.AppendLiteNameKey(m.key[:0], id, name)
	q, found, err := get(m.db, m.key, keyspace.DecodeQueueID)
	if found {
		m.lites.names[liteName{id, string(name)}] = q
	}
	return q, err
}

// putLite writes the record of a lite topic.
func (m *Machine) putLite(id keyspace.Queue, l *lite) error {
	m.lites.queues[id] = l
	m.key = keyspace.AppendLiteKey(m.key[:0], id)
	m.val = keyspace.AppendLite(m.val[:0], &keyspace.Lite{
		Min: l.min, Next: l.next, Written: l.written, Looked: l.looked, Oldest: l.oldest, Name: l.name,
	})
	return m.set(m.key, m.val)
}

func (m *Machine) setLiteOrder(id keyspace.Queue, by keyspace.LiteOrder, at uint64) error {
	if index := (liteIndex{id.Topic, by}); m.lites.low[index] > at {
		m.lites.low[index] = at
	}
	m.key = keyspace.AppendLiteOrderKey(m.key[:0], id, by, at)
	return m.set(m.key, nil)
}

func (m *Machine) delLiteOrder(id keyspace.Queue, by keyspace.LiteOrder, at uint64) error {
	m.key = keyspace.AppendLiteOrderKey(m.key[:0], id, by, at)
	return m.del(m.key)
}

// makeLite makes a lite topic, which is not there.
func (m *Machine) makeLite(t *topic, name []byte, now int64) (mq.QueueID, error) {
	c, err := m.liteCounts(t.ID)
	if err != nil {
		return 0, err
	}
	id := keyspace.Queue{Topic: t.ID, Queue: c.Next}
	c.Next++
	c.Count++
	if err := m.setLiteCounts(t.ID, c); err != nil {
		return 0, err
	}
	m.lites.names[liteName{t.ID, string(name)}] = id.Queue
	m.key = keyspace.AppendLiteNameKey(m.key[:0], t.ID, name)
	m.val = keyspace.AppendQueueID(m.val[:0], id.Queue)
	if err := m.set(m.key, m.val); err != nil {
		return 0, err
	}
	if err := m.setLiteOrder(id, keyspace.LiteByTime, uint64(now)); err != nil {
		return 0, err
	}
	m.Effects.LiteMade = append(m.Effects.LiteMade, LiteMade{Topic: t.ID, Queue: id.Queue, Name: string(name)})
	return id.Queue, m.putLite(id, &lite{written: now, looked: now, name: slices.Clone(name)})
}

// LiteMade is a lite topic that came into being.
type LiteMade struct {
	Topic mq.TopicID
	Queue mq.QueueID
	Name  string
}

// ensureLite returns the queue of a lite topic, which is made if there is none. The refusal
// wraps a sentinel of mq.
func (m *Machine) ensureLite(t *topic, name []byte, limit uint32, now int64) (queue mq.QueueID, refusal, err error) {
	if queue, err = m.liteNamed(t.ID, name); queue != 0 || err != nil {
		return queue, nil, err
	}
	if refusal, err = m.roomForLites(t, 1, limit); refusal != nil || err != nil {
		return 0, refusal, err
	}
	queue, err = m.makeLite(t, name, now)
	return queue, nil, err
}

// roomForLites refuses n more lite topics than there may be.
func (m *Machine) roomForLites(t *topic, n uint32, limit uint32) (refusal, err error) {
	c, err := m.liteCounts(t.ID)
	if err != nil {
		return nil, err
	}
	if limit > 0 && uint64(c.Count)+uint64(n) > uint64(limit) || int64(c.Next)+int64(n) > math.MaxInt32 {
		return fmt.Errorf("topic %s has %d lite topics, the limit is %d: %w", t.Name, c.Count, limit, mq.ErrLiteTopicQuota), nil
	}
	return nil, nil
}

// queueOf returns the ends of a queue that is there, which must be loaded if it is an
// ordinary one; nil when there is none.
func (m *Machine) queueOf(t *topic, id mq.QueueID) (*queue, error) {
	if !id.IsLite() {
		return &t.queues[id], nil
	}
	l, err := m.lite(keyspace.Queue{Topic: t.ID, Queue: id})
	if l == nil || err != nil {
		return nil, err
	}
	return &l.queue, nil
}

// wroteLite notes that a lite topic has one message more, which lies at pos.
func (m *Machine) wroteLite(id keyspace.Queue, now int64, pos uint64) error {
	l, err := m.lite(id)
	if err != nil {
		return err
	}
	l.written = max(now, l.written)
	if l.oldest == 0 {
		l.oldest = pos
		if err := m.setLiteOrder(id, keyspace.LiteByPos, pos); err != nil {
			return err
		}
	}
	m.Effects.Lites = append(m.Effects.Lites, LiteEvent{Topic: id.Topic, Queue: id.Queue})
	return m.putLite(id, l)
}

// litePlace returns how far the group is with a lite topic, of what was committed.
func (m *Machine) litePlace(s keyspace.Sub, queue mq.QueueID) (mq.QueueOffset, bool, error) {
	m.key = keyspace.AppendProgressKey(m.key[:0], s, queue)
	return get(m.db, m.key, keyspace.DecodeOffset)
}

func (m *Machine) setLitePlace(s keyspace.Sub, queue mq.QueueID, offset mq.QueueOffset) error {
	m.key = keyspace.AppendProgressKey(m.key[:0], s, queue)
	m.val = keyspace.AppendOffset(m.val[:0], offset)
	return m.set(m.key, m.val)
}

// A subscribing is one lite topic of a LiteSubscribe.
type subscribing struct {
	queue mq.QueueID // 0: it is to be made
	to    mq.QueueOffset
	move  bool
	// drop says that the group has a place already, which it leaves.
	drop bool
}

func (m *Machine) applyLiteSubscribe(rec Record, res *Result) error {
	c, err := command.DecodeLiteSubscribe(rec.Payload)
	if err != nil {
		return err
	}
	g, t := m.groups[c.Group], m.topics[c.Topic]
	switch {
	case g == nil:
		res.Err = groupNotFound(c.Group)
	case t == nil:
		res.Err = topicNotFound(c.Topic)
	}
	if res.Err != nil {
		return nil
	}
	if err := m.Commit(); err != nil {
		return err
	}
	// Everything is looked up before the first effect, as in sub.
	list := make([]subscribing, len(c.Names))
	news := map[string]bool{}
	for i, name := range c.Names {
		if list[i], err = m.subscribing(&c, t, name); err != nil {
			return err
		}
		if list[i].queue == 0 {
			news[name] = true
		}
	}
	if len(news) > 0 {
		if res.Err, err = m.roomForLites(t, uint32(len(news)), c.Limit); res.Err != nil || err != nil {
			return err
		}
	}
	s, err := m.sub(g, t)
	if err != nil {
		return err
	}
	for i, name := range c.Names {
		if err := m.subscribe(s, t, name, &list[i], c.Time); err != nil {
			return err
		}
		res.Lites = append(res.Lites, list[i].queue)
	}
	return nil
}

// subscribing returns what subscribing to one lite topic comes to.
func (m *Machine) subscribing(c *command.LiteSubscribe, t *topic, name string) (sb subscribing, err error) {
	if sb.queue, err = m.liteNamed(t.ID, []byte(name)); err != nil {
		return sb, err
	}
	if sb.queue == 0 {
		sb.move = true
		return sb, nil
	}
	id := keyspace.Queue{Topic: t.ID, Queue: sb.queue}
	l, err := m.lite(id)
	if err != nil {
		return sb, err
	}
	if l == nil {
		return sb, fmt.Errorf("%w: lite topic %q of topic %d has no record", keyspace.ErrCorrupt, name, t.ID)
	}
	place, known, err := m.litePlace(keyspace.Sub{Group: c.Group, Topic: t.ID}, sb.queue)
	if err != nil {
		return sb, err
	}
	keeps := c.Place.Start == mq.LiteDefault || !c.Place.Again
	if known && keeps {
		return sb, nil
	}
	sb.to, err = m.litePlaceAt(id, l, c.Place, place, known)
	sb.move, sb.drop = true, known
	return sb, err
}

// litePlaceAt returns where a place lies.
func (m *Machine) litePlaceAt(id keyspace.Queue, l *lite, p mq.LitePlace, place mq.QueueOffset, known bool) (mq.QueueOffset, error) {
	within := func(offset int64) mq.QueueOffset { return min(max(mq.QueueOffset(offset), l.min), l.next) }
	switch p.Start {
	case mq.LiteMin:
		return l.min, nil
	case mq.LiteOffset:
		return within(p.Value), nil
	case mq.LiteTail:
		from := l.next
		if known {
			from = within(int64(place))
		}
		return within(int64(from) - min(max(p.Value, 0), int64(from))), nil
	case mq.LiteTime:
		return m.offsetAt(id, l.queue, p.Value)
	}
	return l.next, nil
}

// subscribe carries out what subscribing has found.
func (m *Machine) subscribe(s *sub, t *topic, name string, sb *subscribing, now int64) (err error) {
	if sb.queue == 0 {
		// Of two with the same name the first has made it.
		if sb.queue, err = m.liteNamed(t.ID, []byte(name)); err != nil {
			return err
		}
		if sb.queue == 0 {
			if sb.queue, err = m.makeLite(t, []byte(name), now); err != nil {
				return err
			}
		}
	}
	if !sb.move {
		return nil
	}
	if sb.drop {
		if err := m.dropLiteDeliveries(s, sb.queue, math.MaxInt64); err != nil {
			return err
		}
	}
	return m.setLitePlace(s.id, sb.queue, sb.to)
}

// liteReady says that a group may be given something of the lite topic of ref.
func (m *Machine) liteReady(ref keyspace.Ref) {
	m.Effects.Lites = append(m.Effects.Lites, LiteEvent{Topic: ref.Topic, Queue: ref.Queue, Group: ref.Group})
}

// LiteCount returns how many lite topics the topic has.
func (m *Machine) LiteCount(id mq.TopicID) (int, error) {
	c, err := m.liteCounts(id)
	return int(c.Count), err
}

// LitesMissing returns how many of the names, each of which is there once, are of no lite
// topic of the topic. It is called after Commit.
func (m *Machine) LitesMissing(id mq.TopicID, names []string) (n int, err error) {
	if !m.dirty {
		m.lites.committed() // looks alone must not fill the memory
	}
	for _, name := range names {
		queue, err := m.liteNamed(id, []byte(name))
		if err != nil {
			return n, err
		}
		if queue == 0 {
			n++
		}
	}
	return n, nil
}
