// Package machine holds the deterministic rules of a shard: what each command
// does to the queues, the leases and the groups' progress. The same commands in
// the same order give the same state and the same answers.
//
// It has no goroutine, clock, lock, socket or configuration of its own: time
// and limits come with the commands, and everything else it knows came through
// the log. It never ranges over a map to decide. Its state lives in Pebble; what
// it keeps in memory beside that is a cache, rebuilt when it is opened.
//
// store/shard calls it from one goroutine. No method may overlap another.
package machine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A Record is one command as it stands in the log.
type Record struct {
	Kind    command.Kind
	Payload []byte
	// PayloadPos is the log position of Payload, Next that behind the record.
	PayloadPos uint64
	Next       uint64
	Index      uint64
}

// A Result is the answer to one command. The slices are reused by the next
// command that is given the same Result.
type Result struct {
	// Err is a refusal that changed nothing: a sentinel of mq, wrapped.
	Err error
	// First is the offset of the first message of an append, or of the deliveries that
	// were ended.
	First mq.QueueOffset
	// Stored says for each message of a send what it has come to.
	Stored []Stored
	// Popped are the messages of a pop, in the order of delivery, and PopID is the id of
	// that delivery: of an earlier one, when its attempt id was that of an earlier pop.
	Popped []Popped
	PopID  mq.PopID
	// More says that a pop stopped at its scan limit; the next one continues
	// behind the redelivery After.
	More  bool
	After uint64
	// Trimmed counts the messages that a trim has put below the beginnings of their
	// queues, whether or not any group still wanted them, and those of lite topics that
	// have ended. What a purge takes out of lite topics is not counted.
	Trimmed uint64
	// Settled has one answer for each delivery of an ack or change, and for each pending
	// message of a fire, move, change or question, nil or a sentinel of mq.
	Settled []error
	// Ended is how many leases an expire has ended.
	Ended int
	// Unjudged says that a pop left messages that were not looked at before it.
	Unjudged bool
	// Full says that a pop left messages in queues at their in-flight limit.
	Full bool
	// Left says that a pop delivered as much as it may, and that there is more in
	// the queues or to be delivered again, wanted or not.
	Left bool
	// Lites are the queues of the lite topics that were subscribed to, in their order, or
	// those of which a pop left something that could be delivered.
	Lites []mq.QueueID
	// Dropped is how many deliveries a set-offset or end-deliveries has ended.
	Dropped int
	// Forgotten is how many messages are no longer known to have been sent.
	Forgotten int
	// Lost is how many redeliveries a pop dropped because their message is no
	// longer stored.
	Lost uint64
}

func (r *Result) reset() {
	*r = Result{Stored: r.Stored[:0], Popped: r.Popped[:0], Settled: r.Settled[:0], Lites: r.Lites[:0]}
}

// A Popped is one message that a pop delivered, and where to read it.
type Popped struct {
	Queue     mq.QueueID
	Offset    mq.QueueOffset
	Attempt   mq.Attempt
	Pos       uint64
	Size      uint32
	StoreTime int64 // Unix nanoseconds
}

// Effects collects what commands did that others wait for, until Reset.
type Effects struct {
	// Arrived lists the new messages by topic and tag.
	Arrived []Arrival
	// Ready counts the redeliveries that groups did not have before.
	Ready []Readied
	// Freed lists the groups that a look or pop found at their in-flight limit
	// and that have settled something since.
	Freed []keyspace.Sub
	// UsedUp lists the messages that wait for a dead-letter copy.
	UsedUp []keyspace.Ref
	// Expired lists the group and topic of each lease that ended by its time.
	Expired []keyspace.Sub
	// Halves say when producers are to be asked about half messages that nobody was going
	// to ask about so soon.
	Halves []HalfDue
	// GivenUp lists the half messages whose producers are asked no more.
	GivenUp []mq.PendingID
	// Lites lists the lite topics that may have something for somebody, LiteMade those that
	// came into being, and LiteGone those whose life has ended: queue 0 is all of a topic.
	Lites    []LiteEvent
	LiteMade []LiteMade
	LiteGone []keyspace.Queue
	// Gone says that a topic or group was deleted.
	Gone bool
	// Topics says that a topic was registered, changed or deleted.
	Topics bool
	// Lost counts the deliveries that were dropped because their message is no
	// longer stored.
	Lost uint64
}

// Readied says how many messages became ready to be delivered again to a group.
type Readied struct {
	keyspace.Sub
	N int
}

// ready counts a redelivery.
func (e *Effects) ready(sub keyspace.Sub) {
	if n := len(e.Ready); n > 0 && e.Ready[n-1].Sub == sub {
		e.Ready[n-1].N++
		return
	}
	e.Ready = append(e.Ready, Readied{sub, 1})
}

// An Arrival is one new message. Tag aliases the command's payload; Size is that
// of the stored message. The groups in Parked cannot be given it yet.
type Arrival struct {
	Topic  mq.TopicID
	Queue  mq.QueueID
	Size   uint32
	Tag    []byte
	Parked []keyspace.Sub
}

// Reset empties e and keeps its memory.
func (e *Effects) Reset() {
	*e = Effects{
		Arrived: e.Arrived[:0], Ready: e.Ready[:0], Freed: e.Freed[:0], UsedUp: e.UsedUp[:0], Expired: e.Expired[:0],
		Halves: e.Halves[:0], GivenUp: e.GivenUp[:0], Lites: e.Lites[:0], LiteMade: e.LiteMade[:0], LiteGone: e.LiteGone[:0],
	}
}

// leaseCache bounds how many lease records are kept in memory between commits.
const leaseCache = 1 << 16

// Machine is the state of one shard.
type Machine struct {
	db    *pebble.DB
	batch *pebble.Batch
	// dues are effects too, on the keys of due and used-up leases: one such key after the other
	// is inserted at half the price. They come behind batch.
	dues  *pebble.Batch
	state keyspace.State // as of the last command applied whole
	dirty bool           // batch holds effects
	// unreadable: what the batch deletes would still be found by the next command, so
	// it is committed as soon as this one is whole.
	unreadable bool

	begin  keyspace.Begin
	topics map[mq.TopicID]*topic
	groups map[mq.GroupID]*command.Group
	subs   map[keyspace.Sub]*sub
	due    due
	// byGroup has the subs of each group, in the order of their beginning.
	byGroup map[mq.GroupID][]*sub
	// byTopic has the subs of each topic, in an order that means nothing.
	byTopic map[mq.TopicID][]*sub
	// fifo has, by topic, the subs of the groups that are FIFO.
	fifo map[mq.TopicID][]*sub
	// withUsedUp has the subs with messages that wait for a dead-letter copy.
	withUsedUp map[keyspace.Sub]*sub

	// leases caches lease records by what was last written or read; a zero
	// State says that the record was deleted by the batch.
	leases  map[keyspace.Ref]keyspace.Lease
	deleted []keyspace.Ref

	pendings pendings
	repeats  repeats
	lites    lites

	// Effects grows with every Apply; the caller resets it.
	Effects Effects
	// Written counts the bytes of effects that were committed.
	Written uint64

	key, val, tags []byte // scratch
}

// Open reads the state in db. An empty db is the state before the first command.
// The caller keeps ownership of db and closes it after the machine's last use.
func Open(db *pebble.DB) (*Machine, error) {
	m := &Machine{
		db:     db,
		batch:  db.NewBatch(),
		dues:   db.NewBatch(),
		state:  keyspace.State{Version: keyspace.Version},
		topics: map[mq.TopicID]*topic{},
		groups: map[mq.GroupID]*command.Group{},
		subs:   map[keyspace.Sub]*sub{},

		byGroup:    map[mq.GroupID][]*sub{},
		byTopic:    map[mq.TopicID][]*sub{},
		fifo:       map[mq.TopicID][]*sub{},
		withUsedUp: map[keyspace.Sub]*sub{},

		leases: map[keyspace.Ref]keyspace.Lease{},
		lites:  newLites(),
		due:    newDue(time.Second),
	}
	if err := m.load(); err != nil {
		return nil, err
	}
	return m, nil
}

// ReadState returns what the views in db say about themselves; the zero State when
// nothing was applied to them.
func ReadState(db pebble.Reader) (keyspace.State, error) {
	state, _, err := get(db, keyspace.StateKey(), keyspace.DecodeState)
	if err != nil {
		return state, fmt.Errorf("state of the views: %w", err)
	}
	return state, nil
}

// ReadBegin returns where the views in db let the log begin; the zero Begin says at its
// first record.
func ReadBegin(db pebble.Reader) (keyspace.Begin, error) {
	begin, _, err := get(db, keyspace.BeginKey(), keyspace.DecodeBegin)
	if err != nil {
		return begin, fmt.Errorf("beginning of the log: %w", err)
	}
	return begin, nil
}

// ReadDurableState is ReadState for what of the views is on disk already: what it
// has applied survives, even when the log is all that is kept besides.
func ReadDurableState(db *pebble.DB) (state keyspace.State, err error) {
	lower := keyspace.StateKey()
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: lower, UpperBound: append(slices.Clone(lower), 0), OnlyReadGuaranteedDurable: true,
	})
	if err != nil {
		return state, err
	}
	if it.First() {
		state, err = keyspace.DecodeState(it.Value())
	}
	if err = errors.Join(err, it.Error(), it.Close()); err != nil {
		err = fmt.Errorf("state of the views on disk: %w", err)
	}
	return state, err
}

func (m *Machine) load() error {
	state, err := ReadState(m.db)
	if err != nil {
		return err
	}
	if state.Index > 0 {
		m.state = state
	}
	if m.begin, err = ReadBegin(m.db); err != nil {
		return err
	}
	lower, upper := keyspace.TopicKeys()
	err = m.scan(lower, upper, func(_, v []byte) error {
		c, err := command.DecodeTopic(v)
		m.topics[c.ID] = &topic{Topic: c}
		return err
	})
	if err != nil {
		return err
	}
	lower, upper = keyspace.GroupKeys()
	err = m.scan(lower, upper, func(_, v []byte) error {
		c, err := command.DecodeGroup(v)
		m.groups[c.ID] = &c
		return err
	})
	if err != nil {
		return err
	}
	lower, upper = keyspace.SubKeys()
	err = m.scan(lower, upper, func(k, _ []byte) error {
		id, err := keyspace.DecodeSubKey(k)
		m.addSub(id)
		return err
	})
	if err != nil {
		return err
	}
	if err := errors.Join(m.loadPlacements(), m.loadUnstarted(), m.loadTurns(), m.loadPendings(), m.loadRepeats(), m.loadDue()); err != nil {
		return err
	}
	lower, upper = keyspace.LeaseKeys()
	return m.scan(lower, upper, func(k, v []byte) error {
		ref, err := keyspace.DecodeLeaseKey(k)
		if err != nil {
			return err
		}
		l, err := keyspace.DecodeLease(v)
		if err != nil {
			return err
		}
		s := m.subs[ref.Sub]
		if s == nil {
			return fmt.Errorf("%w: lease of group %d without a subscription to topic %d", keyspace.ErrCorrupt, ref.Group, ref.Topic)
		}
		m.count(s, l.State, ref, 1)
		if l.Lane != 0 && l.State != keyspace.UsedUp && (m.ordered(ref.Group) || ref.Queue.IsLite()) {
			s.join(ref, l.Lane)
		}
		switch l.State {
		case keyspace.Leased:
			m.noteTry(s, ref, l)
		case keyspace.Ready:
			s.readyLast = max(s.readyLast, l.When)
		}
		return nil
	})
}

// scan calls fn for every key from lower to before upper.
func (m *Machine) scan(lower, upper []byte, fn func(k, v []byte) error) error {
	return scan(m.db, lower, upper, fn)
}

func scan(views pebble.Reader, lower, upper []byte, fn func(k, v []byte) error) (err error) {
	it, err := views.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return err
		}
		if err := fn(it.Key(), v); err != nil {
			return err
		}
	}
	return it.Error()
}

// get reads and decodes one value.
func get[T any](db pebble.Reader, key []byte, decode func([]byte) (T, error)) (v T, found bool, err error) {
	b, closer, err := db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	v, err = decode(b)
	return v, true, errors.Join(err, closer.Close())
}

// LogBegin returns where the log may begin; the zero Begin says at its first record.
func (m *Machine) LogBegin() keyspace.Begin { return m.begin }

// State returns what the views say about themselves after the last command.
func (m *Machine) State() keyspace.State { return m.state }

// Pos returns the log position behind the last command.
func (m *Machine) Pos() uint64 { return m.state.Pos }

// Apply carries out one command and fills res. Records must come in the order
// of the log. A command that is refused sets res.Err and changes nothing; an
// error returned means that the state can no longer be trusted.
func (m *Machine) Apply(rec Record, res *Result) error {
	res.reset()
	if rec.Index != m.state.Index+1 {
		return fmt.Errorf("BUG: record %d applied after record %d", rec.Index, m.state.Index)
	}
	now, err := command.Time(rec.Payload)
	if err != nil {
		return fmt.Errorf("record %d: %w", rec.Index, err)
	}
	switch rec.Kind {
	case command.KindTopic:
		err = m.applyTopic(rec)
	case command.KindTopicDelete:
		err = m.applyTopicDelete(rec, res)
	case command.KindGroup:
		err = m.applyGroup(rec)
	case command.KindGroupDelete:
		err = m.applyGroupDelete(rec, res)
	case command.KindAppend:
		err = m.applyAppend(rec, res)
	case command.KindSend:
		err = m.applySend(rec, res)
	case command.KindFire:
		err = m.applyFire(rec, res)
	case command.KindPendingChange:
		err = m.applyPendingChange(rec, res)
	case command.KindPendingMove:
		err = m.applyPendingMove(rec, res)
	case command.KindEndTransaction:
		err = m.applyEndTransaction(rec, res)
	case command.KindChecked:
		err = m.applyChecked(rec, res)
	case command.KindPopSelect:
		err = m.applySelectPop(rec, res)
	case command.KindPop:
		err = m.applyPop(rec, res)
	case command.KindAck:
		err = m.applyAck(rec, res)
	case command.KindChange:
		err = m.applyChange(rec, res)
	case command.KindExpire:
		err = m.applyExpire(rec, res)
	case command.KindPopLimited:
		err = m.applyLimitedPop(rec, res)
	case command.KindDeadLetter:
		err = m.applyDeadLetter(rec, res)
	case command.KindTrim:
		err = m.applyTrim(rec, res)
	case command.KindDrop:
		err = m.applyDrop(rec)
	case command.KindSetOffset:
		err = m.applySetOffset(rec, res)
	case command.KindLiteSubscribe:
		err = m.applyLiteSubscribe(rec, res)
	case command.KindLitePop:
		err = m.applyLitePop(rec, res)
	case command.KindLiteAttempt:
		err = m.applyLiteAttempt(rec, res)
	case command.KindLiteExpire:
		err = m.applyLiteExpire(rec, res)
	case command.KindLiteTrim:
		err = m.applyLiteTrim(rec, res)
	case command.KindEndDeliveries:
		err = m.applyEndDeliveries(rec, res)
	case command.KindForget:
		err = m.applyForget(rec, res)
	case command.KindPlace:
		err = m.applyPlace(rec)
	default:
		err = &command.NewerError{Kind: rec.Kind}
	}
	if err != nil {
		return fmt.Errorf("record %d (%s): %w", rec.Index, rec.Kind, err)
	}
	m.state.Pos, m.state.Index, m.state.Time = rec.Next, rec.Index, max(now, m.state.Time)
	m.dirty = true
	if m.unreadable {
		m.unreadable = false
		return m.Commit()
	}
	return nil
}

// Commit makes the effects so far readable through Pebble, together with the
// position they are good for. Pebble's WAL is off: a crash loses a suffix of
// commits, and the log brings them back.
func (m *Machine) Commit() error {
	if !m.dirty {
		return nil
	}
	if err := m.writeRepeats(); err != nil {
		return err
	}
	if err := m.writeDues(); err != nil {
		return err
	}
	m.key = append(m.key[:0], keyspace.StateKey()...)
	m.val = keyspace.AppendState(m.val[:0], m.state)
	if err := m.batch.Set(m.key, m.val, nil); err != nil {
		return err
	}
	size := m.batch.Len() // Apply may take the contents away
	if err := m.db.Apply(m.batch, pebble.NoSync); err != nil {
		return err
	}
	m.Written += uint64(size)
	if err := m.batch.Close(); err != nil {
		return err
	}
	m.batch, m.dirty = m.db.NewBatch(), false
	for _, ref := range m.deleted {
		if m.leases[ref].State == 0 {
			delete(m.leases, ref)
		}
	}
	m.deleted = m.deleted[:0]
	m.repeats.committed()
	clear(m.pendings.fresh)
	m.lites.committed()
	if len(m.leases) > leaseCache {
		clear(m.leases)
	}
	return nil
}

func (m *Machine) set(key, val []byte) error { return m.batch.Set(key, val, nil) }
func (m *Machine) del(key []byte) error      { return m.batch.Delete(key, nil) }

func (m *Machine) setDue(key, val []byte) error { return m.dues.Set(key, val, nil) }
func (m *Machine) delDue(key []byte) error      { return m.dues.Delete(key, nil) }

// writeDues puts the effects on due leases into the batch.
func (m *Machine) writeDues() error {
	if m.dues.Empty() {
		return nil
	}
	if err := m.batch.Apply(m.dues, nil); err != nil {
		return err
	}
	m.dues.Reset()
	return nil
}

// delRange deletes every key that starts with prefix.
func (m *Machine) delRange(prefix []byte) error {
	if err := m.writeDues(); err != nil { // what came before is deleted
		return err
	}
	upper := keyspace.Next(append([]byte(nil), prefix...))
	return m.batch.DeleteRange(prefix, upper, nil)
}

// never is later than every time.
const never = math.MaxInt64

// Close drops what was not committed; the log still has it.
func (m *Machine) Close() error { return errors.Join(m.dues.Close(), m.batch.Close()) }
