package shard

import (
	"sync/atomic"

	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/machine"
)

// stats counts what happened since the shard was opened.
type stats struct {
	syncs, records                  atomic.Uint64
	appended, appendedBytes         atomic.Uint64
	delivered, redelivered, settled atomic.Uint64
	refused, deadLettered           atomic.Uint64
	unreadable, lost                atomic.Uint64
	trimmed, evicted, abandoned     atomic.Uint64
	full                            atomic.Uint64
}

// applied counts one command. r is nil for commands that nobody waits for.
func (st *stats) applied(kind command.Kind, res *machine.Result, r *request) {
	st.records.Add(1)
	switch kind {
	case command.KindAppend:
		if res.Err == nil && r != nil {
			bytes := 0
			for _, m := range r.append.Messages {
				bytes += len(m.Body)
			}
			st.appended.Add(uint64(len(r.append.Messages)))
			st.appendedBytes.Add(uint64(bytes))
		}
	case command.KindPop, command.KindPopLimited:
		st.delivered.Add(uint64(len(res.Popped)))
		again := uint64(0)
		for i := range res.Popped {
			if res.Popped[i].Attempt > 1 {
				again++
			}
		}
		st.redelivered.Add(again)
	case command.KindAck:
		if r != nil && r.internal {
			return
		}
		refused := uint64(0)
		for _, err := range res.Settled {
			if err != nil {
				refused++
			}
		}
		st.settled.Add(uint64(len(res.Settled)) - refused)
		st.refused.Add(refused)
	case command.KindDeadLetter:
		if res.Err == nil {
			st.deadLettered.Add(1)
		}
	case command.KindTrim:
		st.trimmed.Add(res.Trimmed)
	}
}

// Stats is what a shard counted since it was opened, and where its log stands.
type Stats struct {
	Appended, AppendedBytes uint64 // messages sent, and the bytes of their bodies
	Delivered, Redelivered  uint64 // messages; the first includes the second
	Settled, Refused        uint64 // acknowledgements by their answer
	DeadLettered            uint64
	Unreadable, Lost        uint64 // reads of messages that failed; messages dropped for want of a body
	// Trimmed messages have left their queues: past their age, purged, or Evicted for
	// want of room. Abandoned of them waited to be delivered again to a group.
	Trimmed, Evicted, Abandoned uint64
	StoreFull                   uint64 // sends and receives refused for want of disk space
	// DiskUsed of the DiskCapacity bytes of the file system are in use, as last measured;
	// sends are refused from DiskRefuse on. Zeros without watermarks; DiskRefuse is
	// the greatest number without a limit.
	DiskUsed, DiskCapacity, DiskRefuse uint64
	Records, Syncs                     uint64 // log records written, and syncs of the log
	Waiting                            int    // receives that wait
	Woken                              uint64 // receives told to look again
	LogFirst, LogAppended              uint64 // positions in the log
	LogFlushed                         uint64
}

// Stats returns the counters.
func (s *Shard) Stats() Stats {
	st := &s.stats
	waiting, woken := s.waiters.count()
	disk := s.disk.Load()
	if disk == nil {
		disk = &diskUse{}
	}
	return Stats{
		Trimmed: st.trimmed.Load(), Evicted: st.evicted.Load(), Abandoned: st.abandoned.Load(), StoreFull: st.full.Load(),
		DiskUsed: disk.used, DiskCapacity: disk.capacity, DiskRefuse: disk.refuse,
		Appended: st.appended.Load(), AppendedBytes: st.appendedBytes.Load(),
		Delivered: st.delivered.Load(), Redelivered: st.redelivered.Load(),
		Settled: st.settled.Load(), Refused: st.refused.Load(), DeadLettered: st.deadLettered.Load(),
		Unreadable: st.unreadable.Load(), Lost: st.lost.Load(),
		Records: st.records.Load(), Syncs: st.syncs.Load(), Waiting: waiting, Woken: woken,
		LogFirst: uint64(s.log.First()), LogAppended: uint64(s.log.Appended()), LogFlushed: uint64(s.log.Flushed()),
	}
}
