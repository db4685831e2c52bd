package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Transactions say when producers are asked about half messages. Zero values mean the
// documented defaults.
type Transactions struct {
	// First is how long after it was stored a half message is asked about for the first
	// time, unless its sender has said: 6 s by default.
	First time.Duration
	// Interval is how long the first question is given to be answered before the next, 30 s
	// by default; every other one is given twice as long as the one before, and MaxInterval
	// at most, 10 min by default.
	Interval    time.Duration
	MaxInterval time.Duration
	// MaxChecks is how often a producer is asked at most: 15 times by default. When the
	// last question is not answered in time the message is given up.
	MaxChecks int
	// Remember is for how long it is known how a transaction ended: 1 h by default.
	Remember time.Duration
}

func (t Transactions) withDefaults() Transactions {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&t.First, 6*time.Second)
	def(&t.Interval, 30*time.Second)
	def(&t.MaxInterval, max(10*time.Minute, t.Interval))
	def(&t.Remember, time.Hour)
	if t.MaxChecks == 0 {
		t.MaxChecks = 15
	}
	return t
}

// Validate returns what is wrong with the values, or nil.
func (t Transactions) Validate() error {
	t = t.withDefaults()
	switch {
	case t.First < 0 || t.Interval < 0 || t.Remember < 0 || t.MaxChecks < 0:
		return fmt.Errorf("%w: transactions: negative values", mq.ErrInvalid)
	case t.MaxInterval < t.Interval:
		return fmt.Errorf("%w: transactions: longest interval %s is below the first one, %s", mq.ErrInvalid, t.MaxInterval, t.Interval)
	}
	return nil
}

// wait returns how long question n, from 1, is given.
func (t *Transactions) wait(n uint32) time.Duration {
	d := t.Interval
	for ; n > 1 && d < t.MaxInterval; n-- {
		d = min(2*d, t.MaxInterval)
	}
	return d
}

// EndTransaction commits a half message, which becomes a message of its queue, or rolls
// it back. When it returns that is as durable as the flush mode says. To end a
// transaction again the same way is no error as long as it is remembered. An error
// wraps mq.ErrTransactionEnded when it has ended the other way, or
// mq.ErrUnknownTransaction when there is none that the handle names; an operator's handle
// may have no topic and no message id. When ctx ends first the outcome is unknown.
func (s *Shard) EndTransaction(ctx context.Context, h mq.PendingHandle, commit bool) error {
	rec, msg, err := s.readHalf(h.ID)
	if err != nil {
		return err
	}
	if rec.State == 0 || h.Topic != 0 && rec.Topic != h.Topic || h.MessageID != "" && rec.ID != mq.HashName(h.MessageID) {
		return fmt.Errorf("pending message %d: %w", h.ID, mq.ErrUnknownTransaction)
	}
	// A look is enough for what does not change any more.
	switch {
	case rec.State == keyspace.Committed && commit, rec.State == keyspace.RolledBack && !commit:
		return nil
	case rec.State == keyspace.Committed, rec.State == keyspace.RolledBack:
		return fmt.Errorf("pending message %d is %s: %w", h.ID, rec.State, mq.ErrTransactionEnded)
	case msg == nil:
		return fmt.Errorf("pending message %d is no half message: %w", h.ID, mq.ErrUnknownTransaction)
	}
	r := s.newRequest(command.KindEndTransaction)
	r.end = command.EndTransaction{
		ID: h.ID, Topic: rec.Topic, Queue: rec.Queue, Hash: rec.ID, Keep: int64(s.opts.Transactions.Remember),
	}
	if commit {
		r.end.Message = msg
	}
	if err := s.do(ctx, r); err != nil {
		return err
	}
	s.release(r)
	return nil
}

// readHalf reads the record of a pending message; the zero one without any. The message
// is read while its transaction is open.
func (s *Shard) readHalf(id mq.PendingID) (rec keyspace.Pending, msg *mq.Message, err error) {
	for tries := 0; ; tries++ {
		found := false
		err := s.withViews(func() (err error) {
			rec, found, err = machine.ReadPending(s.db, id)
			return err
		})
		if err != nil || !found {
			return keyspace.Pending{}, nil, err
		}
		if !rec.State.Open() {
			return rec, nil, nil
		}
		m, err := s.readMessage(rec.Pos, rec.Size)
		if errTrimmed(err) && tries < 3 {
			continue // it was moved meanwhile
		}
		if err != nil {
			return rec, nil, fmt.Errorf("pending message %d of topic id %d: %w", id, rec.Topic, err)
		}
		return rec, &m, nil
	}
}

// CheckAgain makes the producers of half messages be asked at once, as if they never
// were. It answers for each: nil, or an error that wraps mq.ErrUnknownTransaction or
// mq.ErrNotPending when its transaction has ended.
func (s *Shard) CheckAgain(ctx context.Context, handles []mq.PendingHandle) ([]error, error) {
	refs := make([]command.CheckRef, len(handles))
	for i, h := range handles {
		refs[i] = command.CheckRef{ID: h.ID, Hash: mq.HashName(h.MessageID)}
	}
	return s.note(ctx, command.CheckAgain, refs)
}

// note notes questions, or that there are to be no more.
func (s *Shard) note(ctx context.Context, op command.CheckOp, refs []command.CheckRef) ([]error, error) {
	if len(refs) == 0 || len(refs) > command.MaxPending {
		return nil, fmt.Errorf("%d half messages, the limit is %d: %w", len(refs), command.MaxPending, mq.ErrInvalid)
	}
	r := s.newRequest(command.KindChecked)
	r.checked = command.Checked{Op: op, Max: uint32(s.opts.Transactions.MaxChecks), Refs: refs}
	return s.settle(ctx, r)
}
