package shard

import (
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/internal/histogram"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// stats counts what happened since the shard was opened: for the whole shard, and
// in series for topics and groups.
type stats struct {
	syncs, records                  atomic.Uint64
	appended, appendedBytes         atomic.Uint64
	repeated, forgotten             atomic.Uint64
	known                           atomic.Int64
	delivered, redelivered, settled atomic.Uint64
	refused, expired, deadLettered  atomic.Uint64
	unreadable, lost                atomic.Uint64
	trimmed, evicted, abandoned     atomic.Uint64
	full, notRemoved, pulled, moved atomic.Uint64
	timed, half, givenUp            atomic.Int64
	committed, rolledBack           atomic.Uint64

	position atomic.Uint64 // of the log, behind what is applied
	series   series
}

// open prepares the counting, before the loop runs.
func (st *stats) open(m *machine.Machine, maxSeries int) {
	st.series.open(m, maxSeries)
	st.position.Store(m.State().Pos)
	st.timed.Store(m.PendingIn(keyspace.Timed))
	st.halves(m)
	st.knows(m)
}

// knows notes how much memory it takes to know what was sent.
func (st *stats) knows(m *machine.Machine) {
	bytes, _ := m.KnownBytes()
	st.known.Store(bytes)
}

// halves notes how many half messages wait for the end of their transaction.
func (st *stats) halves(m *machine.Machine) {
	st.half.Store(m.PendingIn(keyspace.Half) + m.PendingIn(keyspace.LastAsked))
	st.givenUp.Store(m.PendingIn(keyspace.GivenUp))
}

// applied counts one command. r is nil for commands that nobody waits for.
func (st *stats) applied(kind command.Kind, res *machine.Result, r *request) {
	st.records.Add(1)
	if kind == command.KindLiteTrim || kind == command.KindLiteExpire {
		st.trimmed.Add(res.Trimmed)
	}
	st.forgotten.Add(uint64(res.Forgotten))
	if r == nil || r.internal {
		return
	}
	switch kind {
	case command.KindSend:
		bytes, repeated := 0, 0
		for i := range res.Stored {
			if res.Stored[i].Repeated {
				repeated++
			} else {
				bytes += len(r.sent.Messages[i].Body)
			}
		}
		st.appended.Add(uint64(len(res.Stored) - repeated))
		st.appendedBytes.Add(uint64(bytes))
		if repeated > 0 {
			st.repeated.Add(uint64(repeated))
		}
	case command.KindLitePop, command.KindLiteAttempt:
		st.popped(keyspace.Sub{Group: r.litePop.Group, Topic: r.litePop.Topic}, res)
	case command.KindPop, command.KindPopLimited, command.KindPopSelect:
		st.popped(keyspace.Sub{Group: r.pop.Group, Topic: r.pop.Topic}, res)
	case command.KindAck:
		refused := uint64(0)
		for _, err := range res.Settled {
			if err != nil {
				refused++
			}
		}
		settled := uint64(len(res.Settled)) - refused
		st.settled.Add(settled)
		st.refused.Add(refused)
		sub := st.series.sub(keyspace.Sub{Group: r.ack.Group, Topic: r.ack.Topic})
		sub.settled.Add(settled)
		if refused > 0 {
			sub.refused.Add(refused)
		}
	case command.KindEndTransaction:
		switch {
		case res.Err != nil:
		case r.end.Message != nil:
			st.committed.Add(1)
		default:
			st.rolledBack.Add(1)
		}
	case command.KindDeadLetter:
		if res.Err == nil {
			st.deadLettered.Add(1)
			st.series.sub(keyspace.Sub{Group: r.deadLetter.Group, Topic: r.deadLetter.Topic}).deadLettered.Add(1)
		}
	case command.KindTopicDelete:
		st.series.forget(func(id keyspace.Sub) bool { return id.Topic == r.topicDelete.ID })
	case command.KindGroupDelete:
		st.series.forget(func(id keyspace.Sub) bool { return id.Group == r.groupDelete.ID })
	case command.KindTrim:
		st.trimmed.Add(res.Trimmed)
	}
}

func (st *stats) popped(id keyspace.Sub, res *machine.Result) {
	if len(res.Popped) == 0 && res.Lost == 0 {
		return
	}
	again, bytes := uint64(0), uint64(0)
	for i := range res.Popped {
		bytes += uint64(res.Popped[i].Size)
		if res.Popped[i].Attempt > 1 {
			again++
		}
	}
	messages := uint64(len(res.Popped))
	st.delivered.Add(messages)
	st.redelivered.Add(again)
	st.lost.Add(res.Lost)
	topic := st.series.topic(id.Topic)
	topic.out.Add(messages)
	topic.outBytes.Add(bytes)
	sub := st.series.sub(id)
	sub.delivered.Add(messages)
	if again > 0 {
		sub.redelivered.Add(again)
	}
	if res.Lost > 0 {
		sub.lost.Add(res.Lost)
	}
}

// happened counts the effects of a round.
func (st *stats) happened(e *machine.Effects) {
	for i := 0; i < len(e.Arrived); {
		id, first, bytes := e.Arrived[i].Topic, i, uint64(0)
		for ; i < len(e.Arrived) && e.Arrived[i].Topic == id; i++ {
			bytes += uint64(e.Arrived[i].Size)
		}
		topic := st.series.topic(id)
		topic.in.Add(uint64(i - first))
		topic.inBytes.Add(bytes)
	}
	if len(e.Expired) > 0 {
		st.expired.Add(uint64(len(e.Expired)))
		for _, id := range e.Expired {
			st.series.sub(id).expired.Add(1)
		}
	}
}

// pulledFrom counts messages that were read without a lease.
func (st *stats) pulledFrom(topic mq.TopicID, messages, bytes int) {
	st.pulled.Add(uint64(messages))
	c := st.series.findTopic(topic)
	c.out.Add(uint64(messages))
	c.outBytes.Add(uint64(bytes))
}

// dropped counts messages of a group that were dropped because they are no longer
// stored, or will not be for long.
func (st *stats) dropped(id keyspace.Sub, messages uint64) {
	st.lost.Add(messages)
	st.series.find(id).lost.Add(messages)
}

// failedRead counts a message that could not be read for the group.
func (st *stats) failedRead(id keyspace.Sub) {
	st.unreadable.Add(1)
	st.series.find(id).unreadable.Add(1)
}

// Stats is what a shard counted since it was opened, and where its log stands.
type Stats struct {
	Appended, AppendedBytes uint64 // messages sent, and the bytes of their bodies
	Repeated                uint64 // messages sent again, and not stored again
	Forgotten               uint64 // messages that were forgotten before a send that repeats them would be
	KnownBytes              int64  // of memory for what repeats are known by
	Delivered, Redelivered  uint64 // messages; the first includes the second
	Pulled                  uint64 // messages read without a lease
	Settled, Refused        uint64 // acknowledgements by their answer
	Expired                 uint64 // leases that ended by their time
	DeadLettered            uint64
	Unreadable, Lost        uint64 // reads of messages that failed; messages dropped for want of a body
	// Trimmed messages have left their queues: past their age, purged, or Evicted for
	// want of room. Abandoned of them waited to be delivered again to a group.
	Trimmed, Evicted, Abandoned uint64
	// Timed delayed messages wait for their time; Fired were delivered when it had come,
	// Late says how late. TimedUnreadable ones could not be read then.
	Timed                  int64
	Fired, TimedUnreadable uint64
	Late                   histogram.Snapshot
	// Half messages wait for the end of their transaction, GivenUp ones for an operator.
	Half, GivenUp int64
	// Committed and RolledBack transactions have ended. Checks were handed out to be asked, of
	// which Unasked reached no producer. HalvesGivenUp counts the messages that were
	// given up, and HalvesUnreadable the questions that could not be asked
	// because the message cannot be read.
	Committed, RolledBack           uint64
	Checks, Unasked                 uint64
	HalvesGivenUp, HalvesUnreadable uint64
	// Moved counts the pending messages that were written again, so that the log could
	// be cut.
	Moved      uint64
	StoreFull  uint64 // sends and receives refused for want of disk space
	NotRemoved uint64 // removals of files no longer needed that failed; they are tried again
	// DiskUsed of the DiskCapacity bytes of the file system are in use, as last measured;
	// sends are refused from DiskRefuse on. Zeros without watermarks; DiskRefuse is
	// the greatest number without a limit.
	DiskUsed, DiskCapacity, DiskRefuse uint64
	Records, Syncs                     uint64        // log records written, and syncs of the log
	Waiting                            int           // receives and pulls that wait
	LiteClients, LiteSubscriptions     int           // clients of lite topics, and lite topics of all of them
	Woken                              uint64        // of them told to look again
	Queued                             int           // requests that wait for the loop
	Turn                               time.Duration // how long the loop has been in its turn, which is mostly waiting for the disk; 0: it is in none
	LogFirst, LogAppended              uint64        // positions in the log
	LogFlushed, LogApplied             uint64
	Segments                           int    // files of the log
	LogBytes                           uint64 // of what is in them
	Stages                             [Stages]histogram.Snapshot
	Failed                             bool // the shard has stopped for good
}

// Stats returns the counters. It reads no disk and never waits for the loop.
func (s *Shard) Stats() Stats {
	st := &s.stats
	waiting, woken := s.waiters.count()
	pulls, pullsWoken := s.pulls.count()
	waiting, woken = waiting+pulls, woken+pullsWoken
	liteClients, liteSubscriptions := s.lites.count()
	disk := s.disk.Load()
	if disk == nil {
		disk = &diskUse{}
	}
	v := Stats{
		Trimmed: st.trimmed.Load(), Evicted: st.evicted.Load(), Abandoned: st.abandoned.Load(), StoreFull: st.full.Load(), NotRemoved: st.notRemoved.Load(),
		DiskUsed: disk.used, DiskCapacity: disk.capacity, DiskRefuse: disk.refuse,
		Appended: st.appended.Load(), AppendedBytes: st.appendedBytes.Load(), Repeated: st.repeated.Load(),
		Forgotten: st.forgotten.Load(), KnownBytes: st.known.Load(),
		Delivered: st.delivered.Load(), Redelivered: st.redelivered.Load(),
		Pulled:      st.pulled.Load(),
		LiteClients: liteClients, LiteSubscriptions: liteSubscriptions,
		Settled: st.settled.Load(), Refused: st.refused.Load(),
		Expired: st.expired.Load(), DeadLettered: st.deadLettered.Load(),
		Unreadable: st.unreadable.Load(), Lost: st.lost.Load(),
		Records: st.records.Load(), Syncs: st.syncs.Load(), Waiting: waiting, Woken: woken, Queued: len(s.requests),
		LogFirst: uint64(s.log.First()), LogAppended: uint64(s.log.Appended()), LogFlushed: uint64(s.log.Flushed()),
		LogApplied: st.position.Load(), Failed: s.Err() != nil,
		Timed: st.timed.Load(), Fired: s.timed.fired.Load(), TimedUnreadable: s.timed.unreadable.Load(),
		Half: st.half.Load(), GivenUp: st.givenUp.Load(), Committed: st.committed.Load(), RolledBack: st.rolledBack.Load(),
		Checks: s.asking.asked.Load(), Unasked: s.asking.unasked.Load(),
		HalvesGivenUp: s.asking.givenUp.Load(), HalvesUnreadable: s.asking.unreadable.Load(),
		Late: s.timed.late.Snapshot(), Moved: st.moved.Load(),
	}
	if began := s.turning.Load(); began != 0 {
		v.Turn = time.Duration(max(s.clock.peek()-began, 0))
	}
	segments := s.log.Segments()
	v.Segments = len(segments)
	for _, seg := range segments {
		v.LogBytes += uint64(seg.End - seg.Base)
	}
	for i := range v.Stages {
		v.Stages[i] = s.stages.spent[i].Snapshot()
	}
	return v
}

// Views is what the views of a shard take, and what has become of them.
type Views struct {
	// Durable is the log position behind what the views on disk have applied: a
	// restart replays from there.
	Durable       uint64
	Bytes, Files  uint64 // on disk
	Sublevels     int    // tables on top of each other that wait for a compaction
	MemTable      uint64 // bytes in memory that wait to be written
	Flushes       uint64
	Compactions   uint64
	CompactionGap uint64 // bytes that compactions still have to move
}

// Views returns what the views take. It fails when the shard is closed.
func (s *Shard) Views() (v Views, err error) {
	err = s.withViews(func() error {
		m := s.db.Metrics()
		total := m.Total()
		v = Views{
			Bytes: m.DiskSpaceUsage(), Files: uint64(total.TablesCount), Sublevels: int(m.Levels[0].Sublevels),
			MemTable: m.MemTable.Size, Flushes: uint64(m.Flush.Count),
			Compactions: uint64(m.Compact.Count), CompactionGap: m.Compact.EstimatedDebt,
		}
		state, err := machine.ReadDurableState(s.db)
		v.Durable = state.Pos
		return err
	})
	return v, err
}

// TopicCounts is what was counted for one topic, or for all that are not counted
// each by itself.
type TopicCounts struct {
	In, InBytes   uint64 // messages stored, and their bytes as they are stored
	Out, OutBytes uint64 // messages leased to consumers, redeliveries included, and pulled
}

// GroupCounts is what was counted for one group with one topic, or for all that
// are not counted each by itself. The fields are as in Stats.
type GroupCounts struct {
	Delivered, Redelivered uint64
	Settled, Refused       uint64
	Expired, DeadLettered  uint64
	Unreadable, Lost       uint64
}

// A TopicRow is one topic in a Survey.
type TopicRow struct {
	Topic mq.Resource
	TopicCounts
	Stored int64 // messages in its queues and lite topics
	Lites  int64 // lite topics
	Timed  int64 // delayed messages that wait for their time
	// Half messages wait for the end of their transaction, GivenUp ones for an operator.
	Half, GivenUp int64
}

// A GroupRow is one group with one topic in a Survey.
type GroupRow struct {
	Group, Topic mq.Resource
	GroupCounts
	machine.SubStatus
	// Lites have messages that the group was never given.
	Lites int64
	// Oldest is the age in nanoseconds of the oldest message that the group was
	// never given; 0 without one.
	Oldest int64
}
