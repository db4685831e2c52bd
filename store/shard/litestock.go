package shard

import (
	"context"
	"errors"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// liteStockPage is how many lite topics are counted in one view: views hold back what is
// deleted meanwhile.
const liteStockPage = 1024

// LiteStock counts what the lite topics of a topic hold, and what of that waits for each
// group. It walks over them beside the loop, a second for some hundreds of thousands, and its
// pages are not of one instant. It fails when the shard stops or ctx ends.
func (s *Shard) LiteStock(ctx context.Context, id mq.TopicID) (mq.LiteStock, error) {
	stock := machine.LiteStock{Groups: map[mq.GroupID]machine.LiteWaiting{}}
	err := s.inView(func(v *machine.View) error {
		groups, err := v.Subscribers(func(other mq.TopicID) bool { return other == id })
		for _, group := range groups[id] {
			stock.Groups[group] = machine.LiteWaiting{}
		}
		return err
	})
	for next := mq.FirstLiteQueue; next != 0 && err == nil; {
		if err = ctx.Err(); err != nil {
			break
		}
		err = s.inView(func(v *machine.View) (err error) {
			next, err = v.CountLites(id, next, liteStockPage, &stock)
			return err
		})
	}
	if err != nil {
		return mq.LiteStock{}, err
	}
	now := s.clock.peek()
	list := mq.LiteStock{Topics: stock.Topics, Messages: stock.Messages, Groups: map[mq.GroupID]mq.LiteWaiting{}}
	for group, w := range stock.Groups {
		waiting := mq.LiteWaiting{Messages: w.Messages, Topics: w.Topics}
		if w.Oldest != 0 {
			waiting.Age = max(0, now-w.Oldest)
		}
		list.Groups[group] = waiting
	}
	return list, nil
}

// inView runs fn with a view of the present, unless the shard is being closed.
func (s *Shard) inView(fn func(*machine.View) error) error {
	return s.withViews(func() (err error) {
		v, err := machine.OpenView(s.db)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		return fn(v)
	})
}

// liteSurvey is what a survey finds of lite topics.
type liteSurvey map[keyspace.Sub]mq.LiteWaiting

// surveyLites adds the lite topics of a topic to its row.
func (s *Shard) surveyLites(ctx context.Context, id mq.TopicID, row *TopicRow, waiting liteSurvey) error {
	stock, err := s.LiteStock(ctx, id)
	if err != nil {
		return err
	}
	row.Lites += stock.Topics
	row.Stored += stock.Messages
	for group, w := range stock.Groups {
		waiting[keyspace.Sub{Group: group, Topic: id}] = w
	}
	return nil
}
