package store

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math"
	"slices"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// checkLog reads the log once: frames, commands, the messages in them against the
// queue entries, and the position of the views; and with the same records it
// derives the views again.
func (c *shardCheck) checkLog() {
	l := &logCheck{
		shardCheck: c, views: c.views.keys,
		topics: map[mq.TopicID]int32{}, cursors: map[keyspace.Queue]mq.QueueOffset{}, trimmed: map[keyspace.Queue]untold{},
	}
	l.derive = newDerivation(c)
	defer l.derive.close()
	sum, err := commitlog.Check(c.fs, c.logDir, l.record, func(err error) {
		l.derive.giveUp("the log is damaged")
		c.inLog(err)
	})
	c.sum.Log = sum
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = &commitlog.CorruptionError{File: c.logDir, Reason: "the log is missing"}
		fallthrough
	case err != nil:
		l.derive.giveUp("the log is damaged")
		c.inLog(err)
		return
	}
	l.beginning()
	if state := c.views.state; state.Pos > uint64(sum.End) || state.Index > sum.Last {
		c.inLog(&commitlog.CorruptionError{File: c.logDir, Reason: fmt.Sprintf(
			"the log ends with record %d at position %d, but the views have applied records up to %d at position %d: records are missing or damaged",
			sum.Last, sum.End, state.Index, state.Pos)})
	}
	l.rest()
	l.restPending()
	l.derive.compare()
}

// beginning checks that the log goes back far enough for the views, and for the base.
func (l *logCheck) beginning() {
	sum := l.sum.Log
	if sum.Segments == 0 {
		return
	}
	first := commitlog.SegmentInfo{File: l.logDir, FirstIndex: sum.First}
	for _, f := range []*folder{l.shardCheck.views, l.base} {
		switch {
		case f == nil:
		case f.state.Index == 0 && f.db == nil && !f.missing: // told already
		case f.state.Index+1 < sum.First:
			if f == l.shardCheck.views && f.missing {
				l.sum.NotDerived = "there are no views"
			}
			f.inViews(nil, "have applied records up to %d, and the log begins with record %d: they cannot be derived from it; %s",
				f.state.Index, sum.First, "perigee restore-views puts their base in their place, if there is one")
		default:
			if err := f.reach().CheckBegin(first); err != nil {
				l.inLog(err)
			}
		}
	}
	if sum.First > 1 && l.base == nil {
		l.inLog(&commitlog.CorruptionError{File: l.logDir, Reason: fmt.Sprintf(
			"the log begins with record %d, and there is no base of the views to rebuild them from", sum.First)})
	}
}

// A logCheck is the check of the records of one shard's log.
type logCheck struct {
	*shardCheck
	views  *viewsCheck          // of those in use; nil: not readable
	first  uint64               // index of the first record
	time   int64                // of the record before
	topics map[mq.TopicID]int32 // registered so far in the log, with their queues
	// cursors have the entry that the next message of a queue must have.
	cursors map[keyspace.Queue]mq.QueueOffset
	// trimmed has, of each queue, the last message that comes before its first entry:
	// a later trim must have taken it.
	trimmed map[keyspace.Queue]untold
	derive  *derivation
}

// untold is a message that has no entry, and may not need one.
type untold struct{ index, pos uint64 }

// place reports a finding about a record.
func (l *logCheck) place(rec commitlog.Record, format string, args ...any) {
	args = append([]any{rec.Index, rec.Pos}, args...)
	l.found(Finding{File: l.logDir, Offset: -1}, "record %d at position %d: "+format, args...)
}

func (l *logCheck) record(rec commitlog.Record) error {
	if l.first == 0 {
		l.first = rec.Index
	}
	if state := l.shardCheck.views.state; rec.Index == state.Index && uint64(rec.Next) != state.Pos {
		l.place(rec, "ends at position %d, but the views have applied it up to %d", rec.Next, state.Pos)
	}
	now, err := command.Time(rec.Payload)
	if err == nil {
		if now <= l.time {
			l.place(rec, "its time %d is not after %d, that of the record before", now, l.time)
		}
		l.time = now
		err = l.command(rec, now)
	}
	if err != nil {
		l.place(rec, "%v", err)
		l.sum.LogDamaged = true
		l.derive.giveUp("the log is damaged")
	}
	l.derive.apply(rec)
	return nil
}

// command decodes the command of a record as a whole.
func (l *logCheck) command(rec commitlog.Record, now int64) error {
	switch kind := command.Kind(rec.Kind); kind {
	case command.KindAppend:
		v, err := command.ViewAppend(rec.Payload)
		if err != nil {
			return err
		}
		for range v.Count {
			if err := l.message(rec, v.Topic, v.Queue, now, v.Next()); err != nil {
				return err
			}
		}
		return v.Done()
	case command.KindSend:
		v, err := command.ViewSend(rec.Payload)
		if err != nil {
			return err
		}
		for range v.Count {
			if err := l.sent(rec, &v, v.Next()); err != nil {
				return err
			}
		}
		return v.Done()
	case command.KindFire:
		v, err := command.ViewFire(rec.Payload)
		if err != nil {
			return err
		}
		for range v.Count {
			m := v.Next()
			if err := l.moved(rec, keyspace.Queue{Topic: m.Topic, Queue: m.Queue}, now, m.StoredMessage); err != nil {
				return err
			}
		}
		return v.Done()
	case command.KindPendingMove:
		v, err := command.ViewMove(rec.Payload)
		if err != nil {
			return err
		}
		for range v.Count {
			m := v.Next()
			if err := l.pending(rec, m.StoredMessage); err != nil {
				return err
			}
		}
		return v.Done()
	case command.KindEndTransaction:
		v, err := command.ViewEndTransaction(rec.Payload)
		if err != nil || !v.Commit {
			return err
		}
		return l.moved(rec, keyspace.Queue{Topic: v.Topic, Queue: v.Queue}, now, v.Message)
	case command.KindDeadLetter:
		v, err := command.ViewDeadLetter(rec.Payload)
		if err != nil {
			return err
		}
		return l.moved(rec, keyspace.Queue{Topic: v.Target, Queue: v.Queue}, now, v.Message)
	case command.KindTrim:
		c, err := command.DecodeTrim(rec.Payload)
		for id := range l.trimmed {
			if id.Topic == c.Topic && (c.Purge || slices.ContainsFunc(c.Queues, func(q command.QueueTrim) bool { return q.Queue == id.Queue })) {
				delete(l.trimmed, id)
			}
		}
		return err
	case command.KindTopic:
		t, err := command.DecodeTopic(rec.Payload)
		l.topics[t.ID] = max(l.topics[t.ID], t.Queues)
		return err
	case command.KindGroup:
		_, err := command.DecodeGroup(rec.Payload)
		return err
	default:
		_, err := command.Describe(kind, rec.Payload)
		return err
	}
}

// sent checks one message of a send. One that waits for something has no entry, and
// neither has one that was sent before; whether it was, only a derivation can tell.
func (l *logCheck) sent(rec commitlog.Record, v *command.SendView, m command.SentMessage) error {
	if m.Lite != nil {
		return l.sentLite(rec, v, m)
	}
	if m.Type == mq.Transaction || m.Type == mq.Delay && m.DeliverAt != 0 {
		return l.pending(rec, m.StoredMessage)
	}
	if v.Window > 0 && l.views != nil {
		id := keyspace.Queue{Topic: v.Topic, Queue: v.Queue}
		e, found, err := l.nextEntry(rec, id)
		if err != nil || !found || e.Pos != uint64(rec.PayloadPos)+uint64(m.Start) {
			_, decodeErr := l.decode(rec, m.StoredMessage)
			return errors.Join(err, decodeErr)
		}
	}
	return l.message(rec, v.Topic, v.Queue, v.Time, m.StoredMessage)
}

// moved checks the message of a command that puts into a queue what was elsewhere, a
// dead letter for instance. The command is refused when that is not there any more, and
// then there is no entry.
func (l *logCheck) moved(rec commitlog.Record, id keyspace.Queue, now int64, m command.StoredMessage) error {
	if _, err := l.decode(rec, m); err != nil {
		return err
	}
	e, found, err := l.nextEntry(rec, id)
	if err != nil || !found || e.Pos != uint64(rec.PayloadPos)+uint64(m.Start) {
		return err
	}
	l.match(rec, id, e, now, m)
	return nil
}

// decode verifies a stored message by its own checksum.
func (l *logCheck) decode(rec commitlog.Record, m command.StoredMessage) (mq.Message, error) {
	l.sum.Messages++
	if m.Start < 0 || m.Size < 0 || m.Start+m.Size > len(rec.Payload) {
		return mq.Message{}, fmt.Errorf("%w: message at byte %d", command.ErrCorrupt, m.Start)
	}
	return command.DecodeMessage(rec.Payload[m.Start : m.Start+m.Size])
}

// message checks one message of an append against the entry it must have.
func (l *logCheck) message(rec commitlog.Record, topic mq.TopicID, queue mq.QueueID, now int64, m command.StoredMessage) error {
	if _, err := l.decode(rec, m); err != nil {
		return err
	}
	id := keyspace.Queue{Topic: topic, Queue: queue}
	e, found, err := l.nextEntry(rec, id)
	if err != nil || l.views == nil {
		return err
	}
	pos := uint64(rec.PayloadPos) + uint64(m.Start)
	if found && e.Pos == pos {
		l.match(rec, id, e, now, m)
		return nil
	}
	// An append to what the shard did not know then was refused.
	t, registered := l.views.topics[topic]
	queues := t.Queues // as the log says, or if it begins later as the views do
	if seen, ok := l.topics[topic]; ok || l.first <= 1 {
		queues = seen
	}
	if !registered || int32(queue) >= queues || pos >= l.views.state.Pos {
		return nil
	}
	if ends, ok := l.views.ends[id]; ok && l.cursors[id] <= ends.Kept {
		l.trimmed[id] = untold{rec.Index, pos}
		return nil
	}
	l.viewsDamaged = true
	l.place(rec, "its message for offset %d of queue %d, topic %d, has no entry there", l.cursors[id], queue, topic)
	return nil
}

// nextEntry returns the next entry of a queue that is not before the record.
// Entries that are passed over point at no message.
func (l *logCheck) nextEntry(rec commitlog.Record, id keyspace.Queue) (e keyspace.Entry, found bool, err error) {
	if l.views == nil {
		return e, false, nil
	}
	q := l.views.queues[id]
	if q == nil {
		l.cursors[id] = l.views.ends[id].Kept
		return e, false, nil
	}
	if _, ok := l.cursors[id]; !ok {
		l.cursors[id] = q.min
	}
	for ; l.cursors[id] < q.next; l.cursors[id]++ {
		if e, found, err = l.entry(id, l.cursors[id]); err != nil {
			return e, false, err
		}
		if found && e.Pos >= uint64(rec.PayloadPos) {
			return e, true, nil
		}
		if found {
			l.orphan(id, e)
		}
	}
	return e, false, nil
}

func (l *logCheck) entry(id keyspace.Queue, offset mq.QueueOffset) (e keyspace.Entry, found bool, err error) {
	err = readonly.Catch(func() (err error) {
		e, found, err = get(l.views.db, keyspace.AppendEntryKey(nil, id, offset), func(b []byte) (keyspace.Entry, error) {
			e, err := keyspace.DecodeEntry(b)
			e.Tag = append([]byte(nil), e.Tag...)
			return e, err
		})
		return err
	})
	if errors.Is(err, keyspace.ErrCorrupt) {
		return e, false, nil // told already
	}
	return e, found, err
}

func (l *logCheck) orphan(id keyspace.Queue, e keyspace.Entry) {
	l.views.inViews(keyspace.AppendEntryKey(nil, id, l.cursors[id]),
		"entry %d of queue %d, topic %d, points at position %d of the log, where there is no message of it", l.cursors[id], id.Queue, id.Topic, e.Pos)
}

// match compares an entry with the message it points at, and goes to the next one.
func (l *logCheck) match(rec commitlog.Record, id keyspace.Queue, e keyspace.Entry, now int64, m command.StoredMessage) {
	if e.Size != uint32(m.Size) || e.StoreTime != now || string(e.Tag) != string(m.Tag) || e.Group != groupHash(m.Group) && !id.Queue.IsLite() {
		l.views.inViews(keyspace.AppendEntryKey(nil, id, l.cursors[id]),
			"entry %d of queue %d, topic %d, does not agree with its message in record %d: size %d and %d, time %d and %d, tag %q and %q, or message group",
			l.cursors[id], id.Queue, id.Topic, rec.Index, e.Size, m.Size, e.StoreTime, now, e.Tag, m.Tag)
	}
	l.cursors[id]++
}

// groupHash is that of the queue entries: FNV-1a, and 0 for no message group.
func groupHash(group []byte) uint64 {
	if len(group) == 0 {
		return 0
	}
	h := fnv.New64a()
	_, _ = h.Write(group) // it never fails
	return max(h.Sum64(), 1)
}

// rest reports the entries that no message of the log has led to.
func (l *logCheck) rest() {
	if l.views == nil {
		return
	}
	end := commitlog.Record{PayloadPos: math.MaxInt64}
	for _, id := range l.views.order {
		if _, _, err := l.nextEntry(end, id); err != nil {
			l.views.inViews(nil, "cannot be read: %v", err)
			return
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(l.trimmed), compareQueues) {
		l.views.inViews(keyspace.AppendEndsKey(nil, id), "the message of record %d at position %d is not in queue %d of topic %d, and no trim has taken it",
			l.trimmed[id].index, l.trimmed[id].pos, id.Queue, id.Topic)
	}
}
