package shard

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
)

// Lite topics end in slices, so that what else waits for the loop waits for that many: each
// is some reads in places of their own, and a look at each of the groups.
const (
	// liteExpireLimit is how many lite topics one command looks at, liteTrimLimit how many
	// messages of lite topics one removes.
	liteExpireLimit = 64
	liteTrimLimit   = 128
	// With every so many groups a slice is smaller once more.
	liteGroups = 100
)

// liteShare returns how much of a limit one command does for the topic.
func (s *Shard) liteShare(ctx context.Context, id mq.TopicID, limit int) (share int32, err error) {
	err = s.look(ctx, func(m *machine.Machine) error {
		share = int32(max(limit/(1+m.GroupsOf(id)/liteGroups), 1))
		return nil
	})
	return share, err
}

// Between two slices of what is never urgent the loop is left alone for several times as
// long as one took: it fills the views as well, on which everything waits.
const (
	liteRest    = 4
	liteRestMax = 50 * time.Millisecond
)

// rest waits after a slice that began then, and reports whether the shard still serves.
func (s *Shard) rest(began time.Time) bool {
	timer := time.NewTimer(min(liteRest*time.Since(began), liteRestMax))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.closing:
	case <-s.failed:
	}
	return false
}

// A liteEnder ends the lives of lite topics. It reads the views beside the loop.
type liteEnder struct {
	s      *Shard
	listed uint64 // Shard.topics when topics were listed
	topics []mq.TopicID
	low    map[mq.TopicID]uint64 // what no time in the index of a topic is below
}

// endLites is the goroutine of a liteEnder.
func (s *Shard) endLites() {
	e := &liteEnder{s: s, low: map[mq.TopicID]uint64{}}
	timer := time.NewTicker(s.opts.LiteInterval)
	defer timer.Stop()
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-timer.C:
		}
		if err := e.pass(s.serving); err != nil && s.serving.Err() == nil && s.Err() == nil {
			s.logger.Warn("lite topics not ended", "error", err)
		}
	}
}

// pass ends what is past its time.
func (e *liteEnder) pass(ctx context.Context) error {
	now := e.s.clock.peek()
	before, err := e.due(now)
	if err != nil {
		return err
	}
	for _, id := range e.topics {
		at, due := before[id]
		if !due {
			continue
		}
		if err := e.end(ctx, id, at); err != nil && !errors.Is(err, mq.ErrTopicNotFound) {
			return err
		}
	}
	return nil
}

// due returns the topics that have lite topics to look at, and since when those must not
// have been written to that end.
func (e *liteEnder) due(now int64) (before map[mq.TopicID]int64, err error) {
	v, err := machine.OpenView(e.s.db)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	if changes := e.s.topics.Load(); changes != e.listed {
		e.topics = e.topics[:0]
		err := v.Topics(func(t command.Topic) error {
			e.topics = append(e.topics, t.ID)
			return nil
		})
		if err != nil {
			return nil, err
		}
		e.listed = changes
		maps.DeleteFunc(e.low, func(id mq.TopicID, _ uint64) bool {
			_, found := slices.BinarySearch(e.topics, id)
			return !found
		})
	}
	before = map[mq.TopicID]int64{}
	for _, id := range e.topics {
		ttl := e.s.opts.LiteTTL(id)
		if ttl <= 0 {
			continue
		}
		at := now - int64(ttl)
		first, due, err := v.LiteDue(id, e.low[id], at)
		if err != nil {
			return nil, err
		}
		if e.low[id] = first; due {
			before[id] = at
		}
	}
	return before, nil
}

// end ends lite topics of one topic.
func (e *liteEnder) end(ctx context.Context, id mq.TopicID, before int64) error {
	limit, err := e.s.liteShare(ctx, id, liteExpireLimit)
	if err != nil {
		return err
	}
	ended := 0
	for more := true; more; {
		began := time.Now()
		req := e.s.newRequest(command.KindLiteExpire)
		req.internal = true
		req.liteExpire = command.LiteExpire{Topic: id, Before: before, Limit: limit}
		if err := e.s.do(ctx, req); err != nil {
			return err
		}
		more, ended = req.res.More, ended+req.res.Ended
		e.s.release(req)
		if more && !e.s.rest(began) {
			break
		}
	}
	if ended > 0 {
		e.s.logger.Info("lite topics ended that nobody has written to", "topic_id", id, "lite_topics", ended)
	}
	return nil
}
