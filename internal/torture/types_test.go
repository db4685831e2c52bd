package main

import (
	"errors"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// types are what a story needs that also tells of delayed messages, half messages,
// priorities, lite topics, moves of the group's place and sends that come again.
type types struct {
	mixed, ranks, lights *mq.Topic
	halves               []string // still open
	last                 *sent    // of mixed
}

var liteNames = []string{"one", "two"}

func (y *types) topics() (list []*mq.Topic) {
	if y == nil {
		return nil
	}
	for _, t := range []*mq.Topic{y.mixed, y.ranks, y.lights} {
		if t != nil {
			list = append(list, t)
		}
	}
	return list
}

func (c *story) moreMetadata() (steps []func() error) {
	for _, t := range []struct {
		to     **mq.Topic
		name   string
		kind   mq.TopicType
		queues int32
	}{{&c.types.mixed, "mixed", mq.TopicMixed, 1}, {&c.types.ranks, "ranks", mq.TopicPriority, 2}, {&c.types.lights, "lights", mq.TopicLite, 1}} {
		steps = append(steps, func() (err error) {
			dedup := mq.DefaultDedup
			*t.to, _, err = c.router.CreateTopic(c.ctx, router.TopicSpec{Resource: mq.Resource{Name: t.name}, Type: t.kind, Queues: t.queues, Dedup: &dedup})
			return err
		})
	}
	return steps
}

// sendOf sends n messages of a type; delayed ones are due after d.
func (c *story) sendOf(topic *mq.Topic, sn *sent, n int, d time.Duration) error {
	sn.ids, sn.topic = newIDs(&c.nextID, n), topic.ID
	for _, id := range sn.ids {
		switch sn.kind {
		case mq.Delay:
			c.ledger.asked(id, time.Now().Add(d))
		case mq.Transaction:
			c.ledger.asked(id, time.Time{})
		}
	}
	c.ledger.beginSend(sn)
	return c.appendOf(topic, sn)
}

// appendOf sends the messages, for the first time or again.
func (c *story) appendOf(topic *mq.Topic, sn *sent) error {
	msgs := make([]*mq.Message, len(sn.ids))
	for i, id := range sn.ids {
		msgs[i] = message(id, "")
		msgs[i].Type, msgs[i].Lite = sn.kind, sn.lite
		if sn.kind == mq.Delay {
			msgs[i].DeliverAt = c.ledger.firstTime(id)
		}
	}
	a, err := c.store.Append(c.ctx, shardName, topic, sn.queues[0], msgs)
	if err == nil {
		c.ledger.endSend(sn, c.life, a)
	}
	return err
}

// takeOf receives from a topic and acknowledges the first message.
func (c *story) takeOf(topic *mq.Topic, client string) error {
	const invisible = 10 * time.Second
	start := time.Now()
	got, err := c.store.Receive(c.ctx, shardName, mq.Receive{Topic: topic, Group: c.readers, Max: 2, Invisible: invisible, Wait: 5 * time.Second, Lite: client})
	c.ledger.delivered(c.life, consumers{Group: c.readers}, start, invisible, got)
	if err != nil {
		return err
	}
	if len(got) == 0 {
		return errors.New("nothing received")
	}
	return c.ack(got[0])
}

func (c *story) sync(client string) error {
	c.ledger.beginSync(c.readers.ID, c.types.lights.ID, liteNames)
	_, err := syncLite(c.ctx, c.store, mq.LiteSync{Topic: c.types.lights, Group: c.readers, Client: client, Action: mq.LiteReplace, Names: liteNames})
	if err == nil {
		c.ledger.endSync(c.life, c.readers.ID, c.types.lights.ID, liteNames)
	}
	return err
}

func (c *story) endHalf(id string, commit bool) error {
	w := c.ledger.waiting[id]
	c.ledger.beginEnd(w, commit)
	err := c.store.EndTransaction(c.ctx, w.handle, commit)
	c.ledger.endEnd(c.life, id, w, commit, err)
	return err
}

func (c *story) firstOfTypes() error {
	y := c.types
	first := []mq.QueueID{0}
	y.last = &sent{kind: mq.Normal, queues: first}
	delayed := &sent{kind: mq.Delay, queues: first}
	halves := &sent{kind: mq.Transaction, queues: first}
	for _, step := range []func() error{
		func() error { return c.sendOf(y.mixed, delayed, 3, time.Second) },
		func() error { return c.sendOf(y.mixed, halves, 4, 0) },
		func() error { return c.sendOf(y.mixed, y.last, 2, 0) },
		func() error {
			w := c.ledger.waiting[delayed.ids[1]]
			c.ledger.beginRecall(w)
			err := c.store.Recall(c.ctx, []mq.PendingHandle{w.handle})[0]
			c.ledger.endRecall(c.life, delayed.ids[1], w, err)
			return err
		},
		func() error {
			w, at := c.ledger.waiting[delayed.ids[2]], time.Now().Add(8*time.Second)
			c.ledger.beginPostpone(w, at)
			err := c.store.Postpone(c.ctx, []mq.PendingHandle{w.handle}, at)[0]
			c.ledger.endPostpone(c.life, delayed.ids[2], w, err)
			return err
		},
		func() error { return c.endHalf(halves.ids[0], true) },
		func() error { return c.endHalf(halves.ids[1], false) },
		func() error { return c.takeOf(y.mixed, "") },
		func() error {
			time.Sleep(2 * time.Second) // the first one is due
			return c.takeOf(y.mixed, "")
		},
		func() error { return c.sync("before") },
		func() error {
			return c.sendOf(y.lights, &sent{kind: mq.Lite, lite: "one", queues: first}, 2, 0)
		},
		func() error { return c.takeOf(y.lights, "before") },
		func() error { return c.sendOf(y.ranks, &sent{kind: mq.Priority, queues: first}, 2, 0) },
		func() error {
			return c.sendOf(y.ranks, &sent{kind: mq.Priority, queues: []mq.QueueID{1}}, 2, 0)
		},
		func() error { return c.takeOf(y.ranks, "") },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	y.halves = halves.ids[2:]
	return nil
}

func (c *story) secondOfTypes() error {
	y := c.types
	key := moveKey{c.readers.ID, y.mixed.ID, 0}
	for _, step := range []func() error{
		func() error { return c.appendOf(y.mixed, y.last) }, // an answer that came too late
		func() error { return c.endHalf(y.halves[0], true) },
		func() error { return c.takeOf(y.ranks, "") },
		func() error {
			return c.sendOf(y.lights, &sent{kind: mq.Lite, lite: "two", queues: []mq.QueueID{0}}, 1, 0)
		},
		func() error { return c.sync("after") },
		func() error { return c.takeOf(y.lights, "after") },
		func() error {
			m := &move{to: 1, drop: true}
			c.ledger.beginMove(key, m)
			_, err := c.store.SetOffset(c.ctx, shardName, mq.OffsetSet{Topic: y.mixed, Group: c.readers, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: m.to}})
			if err == nil {
				c.ledger.endMove(c.life, key, m)
			}
			return err
		},
		func() error {
			time.Sleep(time.Second)
			return c.takeOf(y.mixed, "")
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
