package shard

import (
	"context"
	"fmt"
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Where a topic lies is the router's to say, and each caller says by which version it asks. A
// shard takes part in a move by refusing what follows from an earlier version than it has
// heard of: mq.ErrStale. What it has heard is in its log, so that no restart undoes it.

// Place makes the shard know where the topic lies by this version of it. On a shard that is
// not open for the topic nothing is accepted from then on that is sent to it, by any
// version up to this one; what was accepted before lies in front of it. It is durable when it
// returns, in async mode too: others build on it.
func (s *Shard) Place(ctx context.Context, topic *mq.Topic) error {
	on, err := topic.On(s.opts.Name)
	if err != nil {
		return err
	}
	r := s.newRequest(command.KindPlace)
	r.topic, r.internal = topic, true
	r.place = command.Place{Topic: topic.ID, Placed: topic.Placed, Closed: on.Use != mq.ShardOpen}
	if err := s.do(ctx, r); err != nil {
		return err // r may still be under way: it is not reused
	}
	s.release(r)
	if s.opts.Flush == FlushSync {
		return nil
	}
	_, err = s.sync()
	if err != nil {
		s.fail(err)
		return s.Err()
	}
	return nil
}

// placement returns what the shard will know behind the commands of the round.
func (s *Shard) placement(rd *round, id mq.TopicID) keyspace.Placement {
	if p, ok := rd.places[id]; ok {
		return p
	}
	return s.machine.Placement(id)
}

// stagePlace adds what the request says about where its topic lies, when that is news to
// the shard and counts, or refuses what follows from what is known no more.
func (s *Shard) stagePlace(rd *round, r *request) (refusal error) {
	if r.topic == nil {
		return nil
	}
	known := s.placement(rd, r.topic.ID)
	stale := func(what string, by, newer uint64) error {
		return fmt.Errorf("shard %s: topic %s: %w: %s by version %d of it, version %d is known here", s.opts.Name, r.topic.Resource, mq.ErrStale, what, by, newer)
	}
	switch {
	case r.kind == command.KindSend:
		on, _ := r.topic.On(s.opts.Name) // a topic that the shard knows may be elsewhere by now
		switch {
		case on.Shard == "" || on.Use != mq.ShardOpen:
			return fmt.Errorf("shard %s: topic %s: %w: nothing is sent there any more", s.opts.Name, r.topic.Resource, mq.ErrStale)
		case known.Closed && r.topic.Placed <= known.Placed, r.topic.Placed < known.Placed && placedByName(r.sent.Messages):
			return stale("sent", r.topic.Placed, known.Placed)
		case r.topic.Placed > known.Placed:
			s.stage(rd, nil, command.KindPlace, &command.Place{Time: s.clock.now(), Topic: r.topic.ID, Placed: r.topic.Placed})
			rd.places[r.topic.ID] = keyspace.Placement{Placed: r.topic.Placed}
		}
	case r.kind == command.KindSetOffset && r.group != nil && r.group.FIFO && r.topic.Placed < known.Placed:
		return stale("set back", r.topic.Placed, known.Placed) // in an order that is none any more
	case r.isPop() && !r.isLitePop() && r.group != nil && r.group.FIFO && known.Placed > 0:
		// Who received has asked the closed shards first, by what it knew.
		if r.topic.Placed < known.Placed {
			return stale("received", r.topic.Placed, known.Placed)
		}
		if version := max(s.machine.GroupVersion(r.group.ID), rd.groups[r.group.ID]); r.group.Version < version {
			return fmt.Errorf("shard %s: group %s: %w: received by version %d of it, version %d is known here",
				s.opts.Name, r.group.Resource, mq.ErrStale, r.group.Version, version)
		}
	}
	return nil
}

// stageClosed adds the place request, unless the shard knows as much.
func (s *Shard) stageClosed(rd *round, r *request) (staged bool) {
	known := s.placement(rd, r.place.Topic)
	if known.Placed > r.place.Placed || known.Placed == r.place.Placed && (known.Closed || !r.place.Closed) {
		return false
	}
	rd.places[r.place.Topic] = keyspace.Placement{Placed: r.place.Placed, Closed: r.place.Closed}
	return true
}

// placedByName reports whether the messages have a place of their own: a message group or a
// lite topic.
func placedByName(msgs []*mq.Message) bool {
	for _, m := range msgs {
		if m.Group != "" || m.Lite != "" {
			return true
		}
	}
	return false
}

// Owed reports whether a group has anything of a topic left to settle here; see
// machine.Machine.Owed.
func (s *Shard) Owed(ctx context.Context, topic mq.TopicID, group mq.GroupID) (owed bool, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		owed, err = m.Owed(keyspace.Sub{Group: group, Topic: topic})
		return err
	})
	return owed, err
}

// Remains counts what is left on the shard, a few topics at a time, so that its parts are
// not of one instant.
func (s *Shard) Remains(ctx context.Context) (mq.Remains, error) {
	var remains mq.Remains
	after, end := keyspace.TopicKeys()
	for {
		var ids []mq.TopicID
		err := s.page(&after, end, func(_, value []byte) error {
			c, err := command.DecodeTopic(value)
			ids = append(ids, c.ID)
			return err
		})
		if err != nil || len(ids) == 0 {
			return remains, err
		}
		err = s.inTurns(ctx, len(ids), func(m *machine.Machine, i int) error { return m.Remains(ids[i], &remains) })
		if err != nil {
			return remains, err
		}
		for _, id := range ids {
			if err := s.liteRemains(ctx, id, &remains); err != nil {
				return remains, err
			}
		}
	}
}

// liteRemains adds what the lite topics of a topic hold.
func (s *Shard) liteRemains(ctx context.Context, id mq.TopicID, r *mq.Remains) error {
	if has, err := machine.HasLites(s.db, id); !has || err != nil {
		return err
	}
	stock, err := s.LiteStock(ctx, id)
	if err != nil || stock.Messages == 0 {
		return err
	}
	r.Topics++
	r.Queues += stock.Topics
	r.Messages += stock.Messages
	for _, w := range stock.Groups {
		if w.Messages > 0 {
			r.Owing++
		}
	}
	return nil
}

// litesThere returns those of the names that the topic has as lite topics on the shard.
func (s *Shard) litesThere(id mq.TopicID, names []string) (there []string, err error) {
	for part := range slices.Chunk(names, liteSlice) {
		err := s.look(context.Background(), func(m *machine.Machine) error {
			for _, name := range part {
				n, err := m.LitesMissing(id, []string{name})
				if err != nil {
					return err
				}
				if n == 0 {
					there = append(there, name)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return there, nil
}
