package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// recalledKept is how long it is known at least that a message was recalled; until its
// time of delivery in any case.
const recalledKept = 24 * time.Hour

// ChangePending recalls or postpones delayed messages of one topic, and answers for
// each: nil, or an error that wraps mq.ErrNotPending when it waits no more, or
// mq.ErrInvalidHandle when it is another message. To recall a message again is no error,
// as long as that is known: until its time of delivery, and a day at least. at is the new time
// of delivery of those that are postponed; when it has come they are delivered at once.
func (s *Shard) ChangePending(ctx context.Context, topic mq.TopicID, refs []command.PendingRef, op command.PendingOp, at time.Time) ([]error, error) {
	if len(refs) == 0 || len(refs) > command.MaxPending {
		return nil, fmt.Errorf("change of %d pending messages, the limit is %d: %w", len(refs), command.MaxPending, mq.ErrInvalid)
	}
	c := command.PendingChange{Op: op, Topic: topic, Refs: refs}
	switch op {
	case command.RecallPending:
		c.At = s.wall() + int64(recalledKept)
	case command.PostponePending:
		c.At = at.UnixNano()
	}
	results, any, err := s.judgeChange(&c)
	if err != nil || !any {
		return results, err
	}
	r := s.newRequest(command.KindPendingChange)
	r.pendingChange = c
	return s.settle(ctx, r)
}

// judgeChange answers a change as it would be answered now, and reports whether it would change
// anything: what does not is not worth a record of the log. Who knows a pending message
// knows it since it could be read.
func (s *Shard) judgeChange(c *command.PendingChange) (results []error, any bool, err error) {
	results = make([]error, len(c.Refs))
	for i, ref := range c.Refs {
		err := s.withViews(func() error {
			p, found, err := machine.ReadPending(s.db, ref.ID)
			if err != nil {
				return err
			}
			change, refusal := machine.JudgePendingChange(c, ref, &p, found)
			results[i], any = refusal, any || change
			return nil
		})
		if err != nil {
			return nil, false, err
		}
	}
	return results, any, s.Err()
}

// Pending returns up to limit pending messages of a topic that are in the state, from a
// mark on, the first whose state ends first, and the mark to go on from; the zero mark
// at the end. Their bodies are not part of them. match, when set, says which records are
// wanted at all; those that are looked at are bounded, so there may be few.
func (s *Shard) Pending(ctx context.Context, topic mq.TopicID, state keyspace.PendingState, from machine.PendingMark, limit int, match func(*keyspace.Pending) bool) (list []mq.PendingMessage, next machine.PendingMark, err error) {
	var marks []machine.PendingMark
	look := limit
	if match != nil {
		look = max(limit, pendingLook)
	}
	err = s.withViews(func() error {
		v, err := machine.OpenView(s.db)
		if err != nil {
			return err
		}
		marks, err = v.PendingOf(topic, state, from, look)
		return errors.Join(err, v.Close())
	})
	if err != nil {
		return nil, next, err
	}
	for i, mark := range marks {
		if err := ctx.Err(); err != nil {
			return nil, next, err
		}
		if len(list) == limit {
			return list, marks[i], nil
		}
		m, wanted, err := s.describePending(mark.ID, state, match)
		if err != nil {
			return nil, next, err
		}
		if wanted {
			list = append(list, m)
		}
	}
	if len(marks) == look {
		next = marks[len(marks)-1].Next()
	}
	return list, next, nil
}

// PendingOf returns how many messages of a topic are in the state.
func (s *Shard) PendingOf(ctx context.Context, topic mq.TopicID, state keyspace.PendingState) (n int64, err error) {
	err = s.look(ctx, func(m *machine.Machine) error {
		n = m.PendingOf(topic, state)
		return nil
	})
	return n, err
}

// pendingLook is how many records a search goes through in one call.
const pendingLook = 10_000

// describePending returns what is to be known of a pending message. One that cannot be
// read has no message id: whoever looks for it must find it all the same.
func (s *Shard) describePending(id mq.PendingID, state keyspace.PendingState, match func(*keyspace.Pending) bool) (m mq.PendingMessage, wanted bool, err error) {
	var p keyspace.Pending
	err = s.withViews(func() (err error) {
		p, wanted, err = machine.ReadPending(s.db, id)
		return err
	})
	if err != nil || !wanted || p.State != state || match != nil && !match(&p) {
		return m, false, err
	}
	m = mq.PendingMessage{
		PendingHandle: mq.PendingHandle{Shard: s.opts.Name, Topic: p.Topic, ID: id},
		Queue:         p.Queue, StoreTime: time.Unix(0, p.StoreTime), Size: int(p.Size), Checks: int(p.Checks),
	}
	if p.At != math.MaxInt64 {
		m.At = time.Unix(0, p.At)
	}
	if !p.State.Holds() {
		return m, true, nil
	}
	msg, err := s.readMessage(p.Pos, p.Size)
	if err != nil {
		s.logger.Error("pending message cannot be read", "pending", uint64(id), "error", err)
		return m, true, nil
	}
	m.MessageID, m.Tag, m.Keys = msg.ID, msg.Tag, messageKeys(msg.System)
	m.BornHost = bornHost(msg.System)
	return m, true, nil
}

// readMessage reads a stored message.
func (s *Shard) readMessage(pos uint64, size uint32) (mq.Message, error) {
	buf := make([]byte, size)
	if err := s.log.ReadAt(buf, commitlog.Pos(pos)); err != nil {
		return mq.Message{}, err
	}
	msg, err := command.DecodeMessage(buf)
	if err != nil {
		file, offset := s.log.Place(commitlog.Pos(pos))
		return mq.Message{}, fmt.Errorf("%s:%d: %w", file, offset, err)
	}
	return msg, nil
}

func errTrimmed(err error) bool { return errors.Is(err, commitlog.ErrTrimmed) }

// sweepPending forgets what became of pending messages, when its time has come, and
// drops those of deleted topics. It does so in small commands: there may be millions.
func (s *Shard) sweepPending() { s.background(s.sweep.wake, s.sweepOnce) }

// sweep is what the loop and the goroutine of sweepPending share.
type sweep struct {
	next atomic.Int64  // a time, by the wall clock, before which nothing is to be forgotten
	wake chan struct{} // capacity 1: there is an earlier one, or a topic was deleted
}

// How long the sweep waits at most, and how many messages one of its commands drops.
const (
	sweepPause = time.Minute // a step of the wall clock may go unnoticed for as long
	sweepDrops = 256
)

// sweepOnce drops all that is to be dropped, and returns when to look again.
func (s *Shard) sweepOnce() (time.Duration, error) {
	for {
		var drops []command.PendingChange
		now := s.wall()
		err := s.look(context.Background(), func(m *machine.Machine) (err error) {
			drops, err = pendingDrops(m, now)
			s.sweep.next.Store(m.NextForgotten())
			return err
		})
		if err != nil {
			return 0, err
		}
		if topic, found, err := s.orphan(); err != nil {
			return 0, err
		} else if found {
			drops = append(drops, topic)
		}
		if len(drops) == 0 {
			next := s.sweep.next.Load()
			if next == math.MaxInt64 {
				return math.MaxInt64, nil
			}
			return time.Duration(min(max(next-now, int64(time.Second)), int64(sweepPause))), nil
		}
		for _, drop := range drops {
			if err := s.dropPending(drop); err != nil {
				return 0, err
			}
		}
	}
}

// pendingDrops returns commands that forget what is over.
func pendingDrops(m *machine.Machine, now int64) (drops []command.PendingChange, err error) {
	for _, state := range machine.Forgotten {
		due, _, err := m.PendingDue(state, now)
		if err != nil {
			return nil, err
		}
		if !due {
			continue
		}
		marks, err := m.DuePending(state, machine.PendingMark{}, now, sweepDrops)
		if err != nil {
			return nil, err
		}
		of := map[mq.TopicID]int{} // in drops
		for _, mark := range marks {
			p, found, err := m.Pending(mark.ID)
			if err != nil || !found {
				return nil, err
			}
			i, known := of[p.Topic]
			if !known {
				i = len(drops)
				of[p.Topic] = i
				drops = append(drops, command.PendingChange{Op: command.DropPending, Topic: p.Topic, State: uint8(state)})
			}
			drops[i].Refs = append(drops[i].Refs, command.PendingRef{ID: mark.ID})
		}
	}
	return drops, nil
}

// orphan returns a command that drops pending messages of a topic that was deleted.
func (s *Shard) orphan() (drop command.PendingChange, found bool, err error) {
	err = s.look(context.Background(), func(m *machine.Machine) error {
		drop.Topic, found = m.OrphanedPending()
		return nil
	})
	if err != nil || !found {
		return drop, false, err
	}
	drop.Op = command.DropPending
	for state := keyspace.Timed; state < keyspace.PendingStates && len(drop.Refs) == 0; state++ {
		if drop.Refs, _, err = s.pendingRefs(drop.Topic, state, machine.PendingMark{}, math.MaxUint64); err != nil {
			return drop, false, err
		}
	}
	return drop, len(drop.Refs) > 0, err
}

// pendingRefs returns the next pending messages of a topic from a mark on that are not
// above the id last, and where to go on; the zero mark at the end.
func (s *Shard) pendingRefs(topic mq.TopicID, state keyspace.PendingState, from machine.PendingMark, last mq.PendingID) (refs []command.PendingRef, next machine.PendingMark, err error) {
	var marks []machine.PendingMark
	err = s.withViews(func() error {
		v, err := machine.OpenView(s.db)
		if err != nil {
			return err
		}
		marks, err = v.PendingOf(topic, state, from, sweepDrops)
		return errors.Join(err, v.Close())
	})
	for _, mark := range marks {
		if mark.ID <= last {
			refs = append(refs, command.PendingRef{ID: mark.ID})
		}
	}
	if len(marks) == sweepDrops {
		next = marks[len(marks)-1].Next()
	}
	return refs, next, err
}

// dropPending carries out one command of the sweep.
func (s *Shard) dropPending(drop command.PendingChange) error {
	r := s.newRequest(command.KindPendingChange)
	r.internal = true
	r.pendingChange = drop
	if err := s.do(context.Background(), r); err != nil {
		return err
	}
	s.release(r)
	return nil
}

// purgePending drops the delayed messages of a topic that were stored so far.
func (s *Shard) purgePending(ctx context.Context, topic mq.TopicID) error {
	var last mq.PendingID
	err := s.look(ctx, func(m *machine.Machine) error {
		last = m.LastPending()
		return nil
	})
	for from := (machine.PendingMark{}); err == nil; {
		var refs []command.PendingRef
		if refs, from, err = s.pendingRefs(topic, keyspace.Timed, from, last); err != nil {
			return err
		}
		if len(refs) > 0 {
			err = s.dropPending(command.PendingChange{Op: command.DropPending, Topic: topic, State: uint8(keyspace.Timed), Refs: refs})
		}
		if from == (machine.PendingMark{}) || err != nil {
			return err
		}
		err = ctx.Err()
	}
	return err
}

// Field numbers of the protocol's SystemProperties and of Timestamp.
const (
	fieldKeys              = 2
	fieldBornHost          = 8
	fieldDeliveryTimestamp = 11
	fieldSeconds           = 1
	fieldNanos             = 2
)

// messageKeys returns the keys in system properties.
func messageKeys(system []byte) (keys []string) {
	eachField(system, func(n protowire.Number, field []byte) {
		if n == fieldKeys {
			if key, ok := fieldBytes(field); ok {
				keys = append(keys, string(key))
			}
		}
	})
	return keys
}

// bornHost returns the host of the sender in system properties.
func bornHost(system []byte) (host string) {
	eachField(system, func(n protowire.Number, field []byte) {
		if b, ok := fieldBytes(field); n == fieldBornHost && ok {
			host = string(b)
		}
	})
	return host
}

// fieldBytes returns the value of a field with a length.
func fieldBytes(field []byte) ([]byte, bool) {
	_, typ, n := protowire.ConsumeTag(field)
	if n < 0 || typ != protowire.BytesType {
		return nil, false
	}
	v, n := protowire.ConsumeBytes(field[n:])
	return v, n >= 0
}

// setDeliveryTime makes the message say that at is its time of delivery, if it says
// another one: it was postponed.
func setDeliveryTime(m *mq.Message, at int64) {
	var ts []byte
	if sec := at / int64(time.Second); sec != 0 {
		ts = protowire.AppendTag(ts, fieldSeconds, protowire.VarintType)
		ts = protowire.AppendVarint(ts, uint64(sec))
	}
	if nanos := at % int64(time.Second); nanos != 0 {
		ts = protowire.AppendTag(ts, fieldNanos, protowire.VarintType)
		ts = protowire.AppendVarint(ts, uint64(nanos))
	}
	system := make([]byte, 0, len(m.System)+8)
	changed := false
	eachField(m.System, func(n protowire.Number, field []byte) {
		if was, ok := fieldBytes(field); n == fieldDeliveryTimestamp && ok && string(was) != string(ts) {
			changed = true
			system = protowire.AppendTag(system, fieldDeliveryTimestamp, protowire.BytesType)
			system = protowire.AppendBytes(system, ts)
			return
		}
		system = append(system, field...)
	})
	if changed {
		m.System = system
	}
}
