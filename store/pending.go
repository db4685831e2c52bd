package store

import (
	"context"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// Recall takes delayed messages back: one that is answered with nil is never delivered.
// It answers for each. An error wraps mq.ErrNotPending when the message waits no more,
// or mq.ErrInvalidHandle when the handle is not of that message. To recall a message
// again is no error until its time of delivery, and for a day at least.
func (s *Store) Recall(ctx context.Context, handles []mq.PendingHandle) []error {
	return s.changePending(ctx, handles, command.RecallPending, time.Time{})
}

// Postpone gives delayed messages another time of delivery, earlier or later; when that
// is past they are delivered at once. It answers like Recall.
func (s *Store) Postpone(ctx context.Context, handles []mq.PendingHandle, at time.Time) []error {
	return s.changePending(ctx, handles, command.PostponePending, at)
}

// changePending calls each shard once for each topic, and answers in the order of the
// handles.
func (s *Store) changePending(ctx context.Context, handles []mq.PendingHandle, op command.PendingOp, at time.Time) []error {
	type target struct {
		shard string
		topic mq.TopicID
	}
	results := make([]error, len(handles))
	which := map[target][]int{}
	var order []target
	for i, h := range handles {
		t := target{h.Shard, h.Topic}
		if which[t] == nil {
			order = append(order, t)
		}
		which[t] = append(which[t], i)
	}
	for _, t := range order {
		sh, err := s.shard(t.shard)
		for places := which[t]; len(places) > 0; {
			page := places[:min(len(places), command.MaxPending)]
			places = places[len(page):]
			refs := make([]command.PendingRef, len(page))
			for n, i := range page {
				refs[n] = command.PendingRef{ID: handles[i].ID, Hash: mq.HashName(handles[i].MessageID)}
			}
			var answers []error
			if err == nil {
				answers, err = sh.ChangePending(ctx, t.topic, refs, op, at)
			}
			for n, i := range page {
				if results[i] = err; err == nil {
					results[i] = answers[n]
				}
			}
		}
	}
	return results
}

// Timers returns delayed messages that wait for their time on the named shard, and
// where to go on; the zero mark at the end. With a message id wanted there may be few in
// one answer, or none, and more behind.
func (s *Store) Timers(ctx context.Context, shard string, q mq.PendingQuery) ([]mq.PendingMessage, mq.PendingMark, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, mq.PendingMark{}, err
	}
	var match func(*keyspace.Pending) bool
	if q.MessageID != "" {
		hash := mq.HashName(q.MessageID)
		match = func(p *keyspace.Pending) bool { return p.ID == hash }
	}
	return sh.Pending(ctx, q.Topic, keyspace.Timed, q.From, q.Max, match)
}

// TimersOf returns how many delayed messages of a topic wait for their time on the named
// shard.
func (s *Store) TimersOf(ctx context.Context, shard string, id mq.TopicID) (int64, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return 0, err
	}
	return sh.PendingOf(ctx, id, keyspace.Timed)
}
