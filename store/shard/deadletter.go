package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Properties that a dead-letter copy gets in addition to those of the original.
const (
	DeadLetterReason   = "perigee.dead-letter.reason"
	DeadLetterTopic    = "perigee.dead-letter.topic"
	DeadLetterGroup    = "perigee.dead-letter.group"
	DeadLetterQueue    = "perigee.dead-letter.queue"
	DeadLetterOffset   = "perigee.dead-letter.offset"
	DeadLetterAttempts = "perigee.dead-letter.attempts"
	DeadLetterFirst    = "perigee.dead-letter.first-delivery"
	DeadLetterTime     = "perigee.dead-letter.time"
)

// Reasons for a dead letter.
const (
	ReasonAttempts = "attempts used up"
	ReasonForward  = "forwarded by the consumer"
)

// How long a copy that could not be made waits for the next try: twice as long
// each time.
const (
	retryDeadLetter    = 5 * time.Second
	maxRetryDeadLetter = 10 * time.Minute
)

// stuck are the used-up messages that could not be moved.
type stuck map[keyspace.Ref]stuckLetter

type stuckLetter struct {
	next time.Time     // of the next try
	wait time.Duration // before it
}

// failed notes that the message could not be moved at now.
func (st stuck) failed(ref keyspace.Ref, now time.Time) {
	wait := min(max(2*st[ref].wait, retryDeadLetter), maxRetryDeadLetter)
	st[ref] = stuckLetter{next: now.Add(wait), wait: wait}
}

// forget drops those that a look since start should have tried and did not find:
// they are settled.
func (st stuck) forget(start time.Time) {
	for ref, l := range st {
		if !l.next.After(start) {
			delete(st, ref)
		}
	}
}

// next returns how long to wait for the next try of any of them.
func (st stuck) next(now time.Time) (wait time.Duration, any bool) {
	wait = maxRetryDeadLetter
	for _, l := range st {
		wait = min(wait, max(l.next.Sub(now), 0))
	}
	return wait, len(st) > 0
}

// deadLetters moves used-up messages to the dead-letter topics of their groups,
// whether or not anyone receives. A message that cannot be moved is tried again
// later and never holds up the others.
func (s *Shard) deadLetters() {
	signal(s.usedUp) // from before the start
	timer := time.NewTimer(retryDeadLetter)
	timer.Stop()
	stuck := stuck{}
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-s.usedUp:
		case <-timer.C:
		}
		s.moveUsedUp(stuck)
		if wait, any := stuck.next(time.Now()); any {
			timer.Reset(wait)
		}
	}
}

// moveUsedUp moves every used-up message it can. Those in stuck wait for their time.
func (s *Shard) moveUsedUp(stuck stuck) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var after keyspace.Ref
	start := time.Now()
	for {
		var refs []keyspace.Ref
		err := s.look(ctx, func(m *machine.Machine) (err error) {
			refs, err = m.UsedUp(after, 64)
			return err
		})
		if err != nil {
			return
		}
		if len(refs) == 0 {
			stuck.forget(start)
			return
		}
		for _, ref := range refs {
			now := time.Now()
			if now.Before(stuck[ref].next) {
				continue
			}
			err := s.moveToDeadLetter(ctx, ref, 0, ReasonAttempts)
			switch {
			case errors.Is(err, mq.ErrStopped):
				return
			case err == nil || errors.Is(err, mq.ErrLeaseEnded):
				delete(stuck, ref)
			default:
				stuck.failed(ref, now)
				s.logger.Error("dead letter not stored", "topic_id", ref.Topic, "queue", ref.Queue, "offset", ref.Offset,
					"next_try_after", stuck[ref].wait, "error", err)
			}
		}
		after = refs[len(refs)-1]
	}
}

// DeadLetter moves a delivery to the dead-letter topic of its group, at the
// request of the consumer. When it returns nil, the copy is as durable as a
// sent message and the original is settled. An error that wraps
// mq.ErrLeaseEnded says that the delivery is over already.
func (s *Shard) DeadLetter(ctx context.Context, lease mq.Lease) error {
	ref := keyspace.Ref{
		Sub:   keyspace.Sub{Group: lease.Group, Topic: lease.Topic},
		Queue: lease.Queue, Offset: lease.Offset,
	}
	return s.moveToDeadLetter(ctx, ref, lease.PopID, ReasonForward)
}

// moveToDeadLetter copies the message and settles the original in one command.
// With popID set, only that delivery is moved.
func (s *Shard) moveToDeadLetter(ctx context.Context, ref keyspace.Ref, popID mq.PopID, reason string) error {
	var u machine.UsedUpMessage
	found := false
	err := s.look(ctx, func(m *machine.Machine) (err error) {
		u, found, err = m.Inspect(ref)
		return err
	})
	if err != nil {
		return err
	}
	if !found || popID != 0 && u.Lease.PopID != popID {
		return fmt.Errorf("message at offset %d of queue %d: %w", ref.Offset, ref.Queue, mq.ErrLeaseEnded)
	}
	if u.Missing {
		s.logger.Warn("used-up message is no longer stored", "topic", u.Topic.String(), "group", u.Group.String(), "queue", ref.Queue, "offset", ref.Offset)
		r := s.newRequest(command.KindAck)
		r.ack = command.Ack{Topic: ref.Topic, Group: ref.Group, Leases: []command.LeaseRef{{Queue: ref.Queue, Offset: ref.Offset, PopID: u.Lease.PopID}}}
		r.uncounted = true
		results, err := s.settle(ctx, r)
		if err == nil && results[0] == nil {
			s.stats.lostUsedUp(ref.Sub)
		}
		return err
	}
	buf := make([]byte, u.Entry.Size)
	if err := s.log.ReadAt(buf, commitlog.Pos(u.Entry.Pos)); err != nil {
		return err
	}
	msg, err := command.DecodeMessage(buf)
	if err != nil {
		return err
	}
	r := s.newRequest(command.KindDeadLetter)
	r.topic = &mq.Topic{
		ID: u.Target, Resource: u.Group.DeadLetterTopic(), Version: 1,
		Shards: []mq.ShardQueues{{Shard: s.opts.Name, Read: 1, Write: 1}},
	}
	r.deadLetter = command.DeadLetter{
		Lease: command.LeaseRef{Queue: ref.Queue, Offset: ref.Offset, PopID: u.Lease.PopID},
		Group: ref.Group, Topic: ref.Topic, Target: u.Target,
		Message: deadLetterCopy(&msg, u, reason, time.Now()),
	}
	if err := s.do(ctx, r); err != nil {
		return err
	}
	s.release(r)
	return nil
}

// deadLetterCopy is the original with its history added: origin in the
// protocol's own field, the rest in user properties.
func deadLetterCopy(m *mq.Message, u machine.UsedUpMessage, reason string, now time.Time) *mq.Message {
	const stamp = time.RFC3339Nano
	dead := *m
	dead.Type = mq.Normal
	dead.Group = ""
	dead.Properties = appendProperties(dropProperties(m.Properties),
		DeadLetterAttempts, fmt.Sprint(u.Lease.Attempt),
		DeadLetterFirst, time.Unix(0, u.Lease.First).UTC().Format(stamp),
		DeadLetterGroup, u.Group.Name,
		DeadLetterOffset, fmt.Sprint(u.Ref.Offset),
		DeadLetterQueue, fmt.Sprint(u.Ref.Queue),
		DeadLetterReason, reason,
		DeadLetterTime, now.UTC().Format(stamp),
		DeadLetterTopic, u.Topic.Name,
	)
	dead.System = deadLetterSystem(m, u.Topic.Name)
	return &dead
}

// Field numbers of the protocol's Message.user_properties and SystemProperties.
const (
	fieldUserProperties  = 2
	fieldMessageType     = 6
	fieldDeadLetterQueue = 20
)

// deadLetterSystem returns the system properties with the origin of the message,
// as a message of type NORMAL.
func deadLetterSystem(m *mq.Message, topic string) []byte {
	system := make([]byte, 0, len(m.System)+len(topic)+len(m.ID)+16)
	eachField(m.System, func(n protowire.Number, field []byte) {
		if n != fieldMessageType && n != fieldDeadLetterQueue {
			system = append(system, field...)
		}
	})
	var origin []byte
	origin = protowire.AppendTag(origin, 1, protowire.BytesType)
	origin = protowire.AppendString(origin, topic)
	origin = protowire.AppendTag(origin, 2, protowire.BytesType)
	origin = protowire.AppendString(origin, m.ID)
	system = protowire.AppendTag(system, fieldMessageType, protowire.VarintType)
	system = protowire.AppendVarint(system, uint64(mq.Normal))
	system = protowire.AppendTag(system, fieldDeadLetterQueue, protowire.BytesType)
	return protowire.AppendBytes(system, origin)
}

// dropProperties returns the user properties without those of an earlier death.
func dropProperties(properties []byte) []byte {
	var kept []byte
	eachField(properties, func(_ protowire.Number, field []byte) {
		_, _, n := protowire.ConsumeTag(field)
		entry, _ := protowire.ConsumeBytes(field[n:])
		_, _, n = protowire.ConsumeTag(entry)
		if n < 0 {
			return
		}
		switch key, _ := protowire.ConsumeString(entry[n:]); key {
		case DeadLetterReason, DeadLetterTopic, DeadLetterGroup, DeadLetterQueue,
			DeadLetterOffset, DeadLetterAttempts, DeadLetterFirst, DeadLetterTime:
		default:
			kept = append(kept, field...)
		}
	})
	return kept
}

// appendProperties appends user properties, given as keys and values in turn.
func appendProperties(dst []byte, pairs ...string) []byte {
	for i := 0; i < len(pairs); i += 2 {
		var entry []byte
		entry = protowire.AppendTag(entry, 1, protowire.BytesType)
		entry = protowire.AppendString(entry, pairs[i])
		entry = protowire.AppendTag(entry, 2, protowire.BytesType)
		entry = protowire.AppendString(entry, pairs[i+1])
		dst = protowire.AppendTag(dst, fieldUserProperties, protowire.BytesType)
		dst = protowire.AppendBytes(dst, entry)
	}
	return dst
}

// eachField calls fn for every field of an encoded message, tag included. It
// stops at the first malformed one.
func eachField(b []byte, fn func(n protowire.Number, field []byte)) {
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		if n < 0 {
			return
		}
		fn(num, b[:n])
		b = b[n:]
	}
}
