package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Bounds of what a survey asks of the loop at a time. The requests that wait come
// in between.
const (
	surveyPage = 256
	surveyTime = 500 * time.Microsecond
)

// A Survey is what the topics hold and how far the groups are with them: those
// that are counted each by itself, and the rest together. Its pages are not of one
// instant.
type Survey struct {
	Topics      []TopicRow
	OtherTopics TopicRow // without a name
	Groups      []GroupRow
	OtherGroups GroupRow // without names; Oldest is the greatest
	// How many are in the rest.
	TopicsDropped, GroupsDropped int
}

// Survey looks at every topic and group, a few at a time: with 100,000 queues it
// takes long, but holds nobody up. It fails when the shard stops or ctx ends.
func (s *Shard) Survey(ctx context.Context) (Survey, error) {
	v := Survey{
		OtherTopics: TopicRow{TopicCounts: s.stats.series.otherTopics.load()},
		OtherGroups: GroupRow{GroupCounts: s.stats.series.otherSubs.load()},
	}
	waiting := liteSurvey{}
	if err := s.surveyTopics(ctx, &v, waiting); err != nil {
		return v, err
	}
	return v, s.surveyGroups(ctx, &v, waiting)
}

func (s *Shard) surveyTopics(ctx context.Context, v *Survey, waiting liteSurvey) error {
	after, end := keyspace.TopicKeys()
	for {
		var ids, lites []mq.TopicID
		err := s.page(&after, end, func(_, value []byte) error {
			c, err := command.DecodeTopic(value)
			ids = append(ids, c.ID)
			if has, lookErr := machine.HasLites(s.db, c.ID); has || lookErr != nil {
				lites = append(lites, c.ID)
				err = errors.Join(err, lookErr)
			}
			return err
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		rows := map[mq.TopicID]int{} // in v.Topics; those that are missing are in the rest
		err = s.inTurns(ctx, len(ids), func(m *machine.Machine, i int) error {
			stored, found, err := m.Stored(ids[i])
			if err != nil || !found {
				return err
			}
			c := s.stats.series.topic(ids[i])
			timed := m.PendingOf(ids[i], keyspace.Timed)
			half, givenUp := m.PendingOf(ids[i], keyspace.Half)+m.PendingOf(ids[i], keyspace.LastAsked), m.PendingOf(ids[i], keyspace.GivenUp)
			if c == &s.stats.series.otherTopics {
				v.TopicsDropped++
				v.OtherTopics.Stored += stored
				v.OtherTopics.Timed += timed
				v.OtherTopics.Half += half
				v.OtherTopics.GivenUp += givenUp
				return nil
			}
			name, _ := m.TopicName(ids[i])
			rows[ids[i]] = len(v.Topics)
			v.Topics = append(v.Topics, TopicRow{Topic: name, TopicCounts: c.load(), Stored: stored, Timed: timed, Half: half, GivenUp: givenUp})
			return nil
		})
		if err != nil {
			return err
		}
		for _, id := range lites {
			row := &v.OtherTopics
			if i, own := rows[id]; own {
				row = &v.Topics[i]
			}
			if err := s.surveyLites(ctx, id, row, waiting); err != nil {
				return err
			}
		}
	}
}

func (s *Shard) surveyGroups(ctx context.Context, v *Survey, waiting liteSurvey) error {
	after, end := keyspace.SubKeys()
	var heads []machine.Head
	type headsOf struct {
		row   int // in v.Groups; -1: in the rest
		until int // in heads
	}
	var list []headsOf
	for {
		var ids []keyspace.Sub
		err := s.page(&after, end, func(key, _ []byte) error {
			id, err := keyspace.DecodeSubKey(key)
			ids = append(ids, id)
			return err
		})
		if err != nil || len(ids) == 0 {
			return err
		}
		heads, list = heads[:0], list[:0]
		err = s.inTurns(ctx, len(ids), func(m *machine.Machine, i int) (err error) {
			var row GroupRow
			var found bool
			if row.SubStatus, heads, found, err = m.Status(ids[i], heads); err != nil || !found {
				return err
			}
			c := s.stats.series.sub(ids[i])
			if c == &s.stats.series.otherSubs {
				v.GroupsDropped++
				v.OtherGroups.add(row.SubStatus)
				v.OtherGroups.addLites(waiting[ids[i]])
				list = append(list, headsOf{-1, len(heads)})
				return nil
			}
			row.GroupCounts = c.load()
			row.Group, row.Topic, _ = m.SubNames(ids[i])
			row.addLites(waiting[ids[i]])
			list = append(list, headsOf{len(v.Groups), len(heads)})
			v.Groups = append(v.Groups, row)
			return nil
		})
		if err != nil {
			return err
		}
		from := 0
		for _, h := range list {
			row := &v.OtherGroups
			if h.row >= 0 {
				row = &v.Groups[h.row]
			}
			age, err := s.oldest(heads[from:h.until])
			if err != nil {
				return err
			}
			row.Oldest = max(row.Oldest, age)
			from = h.until
		}
	}
}

// add adds what another group has before it.
func (r *GroupRow) add(st machine.SubStatus) {
	r.New += st.New
	r.InFlight += st.InFlight
	r.Retrying += st.Retrying
	r.UsedUp += st.UsedUp
	r.Blocked += st.Blocked
}

// addLites adds what lite topics have for the group.
func (r *GroupRow) addLites(w mq.LiteWaiting) {
	r.New += w.Messages
	r.Lites += w.Topics
	r.Oldest = max(r.Oldest, w.Age)
}

// page calls fn for the next keys and values of the views from *after on to before
// end, and moves *after behind them.
func (s *Shard) page(after *[]byte, end []byte, fn func(key, value []byte) error) error {
	return s.withViews(func() (err error) {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: *after, UpperBound: end})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, it.Error(), it.Close()) }()
		n := 0
		for ok := it.First(); ok && n < surveyPage; ok = it.Next() {
			if err := fn(it.Key(), it.Value()); err != nil {
				return err
			}
			*after = append(append((*after)[:0:0], it.Key()...), 0)
			n++
		}
		return nil
	})
}

// inTurns calls fn in the loop for 0 to n-1, as many in one look as take little time.
func (s *Shard) inTurns(ctx context.Context, n int, fn func(m *machine.Machine, i int) error) error {
	for i := 0; i < n; {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := s.look(ctx, func(m *machine.Machine) error {
			for start := time.Now(); i < n; {
				if err := fn(m, i); err != nil {
					return err
				}
				if i++; time.Since(start) > surveyTime {
					break
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// oldest returns the age of the oldest of the messages. Those that are no longer
// stored count as none.
func (s *Shard) oldest(heads []machine.Head) (age int64, err error) {
	if len(heads) == 0 {
		return 0, nil
	}
	now := s.clock.peek()
	err = s.withViews(func() error {
		var key []byte
		for _, h := range heads {
			key = keyspace.AppendEntryKey(key[:0], h.Queue, h.Offset)
			value, closer, err := s.db.Get(key)
			if errors.Is(err, pebble.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			e, err := keyspace.DecodeEntry(value)
			if err = errors.Join(err, closer.Close()); err != nil {
				return err
			}
			age = max(age, now-e.StoreTime)
		}
		return nil
	})
	return age, err
}

// withViews runs fn, which may read the views, unless the shard is being closed;
// Close waits for it. What it reads is committed, and may be behind the loop. When the
// shard has failed by then the error is that failure.
func (s *Shard) withViews(fn func() error) error {
	s.submit.RLock()
	defer s.submit.RUnlock()
	if s.submit.closed {
		return fmt.Errorf("shard %s: %w", s.opts.Name, mq.ErrStopped)
	}
	err := fn()
	if failure := s.Err(); failure != nil {
		return failure // what Pebble says after it means nothing
	}
	return err
}
