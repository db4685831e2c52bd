package store

import (
	"context"
	"errors"
	"sync"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/shard"
)

// EndTransaction commits a half message or rolls it back; see shard.EndTransaction.
func (s *Store) EndTransaction(ctx context.Context, h mq.PendingHandle, commit bool) error {
	sh, err := s.shard(h.Shard)
	if err != nil {
		return err
	}
	return sh.EndTransaction(ctx, h, commit)
}

// Checks waits until producers of any of the topics are to be asked about half messages
// of any shard, and returns what to ask; see shard.Checks.
func (s *Store) Checks(ctx context.Context, topics []mq.Resource, limit int) ([]mq.Check, error) {
	if len(s.names) == 1 {
		return s.shards[s.names[0]].Checks(ctx, topics, limit)
	}
	// The first shard with questions ends the wait for the others; what those have
	// handed out by then is part of the answer.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var found struct {
		sync.Mutex
		checks []mq.Check
		errs   []error
	}
	var asking sync.WaitGroup
	for _, name := range s.names {
		asking.Go(func() {
			checks, err := s.shards[name].Checks(ctx, topics, limit)
			found.Lock()
			defer found.Unlock()
			found.checks, found.errs = append(found.checks, checks...), append(found.errs, err)
			if len(checks) > 0 || err != nil {
				cancel()
			}
		})
	}
	asking.Wait()
	if len(found.checks) > 0 {
		return found.checks, nil
	}
	return nil, errors.Join(found.errs...)
}

// Unasked takes questions back that reached no producer; see shard.Unasked.
func (s *Store) Unasked(ctx context.Context, checks []mq.Check) error {
	of := map[string][]mq.Check{}
	for _, c := range checks {
		of[c.Shard] = append(of[c.Shard], c)
	}
	var errs []error
	for _, name := range s.names {
		if len(of[name]) > 0 {
			errs = append(errs, s.shards[name].Unasked(ctx, of[name]))
		}
	}
	return errors.Join(errs...)
}

// CheckAgain makes the producers of half messages be asked at once, as if they never
// were. It answers for each; see shard.CheckAgain.
func (s *Store) CheckAgain(ctx context.Context, handles []mq.PendingHandle) []error {
	results := make([]error, len(handles))
	for i, h := range handles {
		sh, err := s.shard(h.Shard)
		if err == nil {
			err = checkAgain(ctx, sh, h)
		}
		results[i] = err
	}
	return results
}

func checkAgain(ctx context.Context, sh *shard.Shard, h mq.PendingHandle) error {
	answers, err := sh.CheckAgain(ctx, []mq.PendingHandle{h})
	if err != nil {
		return err
	}
	return answers[0]
}

// Transactions returns half messages of a topic on the named shard that are at the
// stage, and where to go on; the zero mark at the end. With a message id wanted there
// may be few in one answer, or none, and more behind.
func (s *Store) Transactions(ctx context.Context, shard string, q mq.PendingQuery, stage mq.HalfStage) ([]mq.PendingMessage, mq.PendingMark, error) {
	sh, err := s.shard(shard)
	if err != nil {
		return nil, mq.PendingMark{}, err
	}
	state := keyspace.Half
	switch stage {
	case mq.HalfLastAsked:
		state = keyspace.LastAsked
	case mq.HalfGivenUp:
		state = keyspace.GivenUp
	}
	var match func(*keyspace.Pending) bool
	if q.MessageID != "" {
		hash := mq.HashName(q.MessageID)
		match = func(p *keyspace.Pending) bool { return p.ID == hash }
	}
	return sh.Pending(ctx, q.Topic, state, q.From, q.Max, match)
}
