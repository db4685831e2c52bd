package shard

import (
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/machine"
)

// A request is one call on its way through the loop. It asks for one command,
// or, with query set, for a look at the machine.
type request struct {
	kind  command.Kind
	topic *mq.Topic // registered with the shard before the command, when set
	group *mq.Group // likewise
	query func(*machine.Machine) error

	// Of these the one for kind is used; its Time is set by the loop.
	sent        command.Send
	pop         command.SelectPop
	ack         command.Ack
	change      command.Change
	deadLetter  command.DeadLetter
	topicDelete command.TopicDelete
	groupDelete command.GroupDelete
	trim        command.Trim
	end         command.EndTransaction
	checked     command.Checked
	fire        command.Fire
	move        command.Move

	pendingChange command.PendingChange
	drop          command.Drop
	setOffset     command.SetOffset
	endDeliveries command.EndDeliveries
	liteSub       command.LiteSubscribe
	litePop       command.LiteAttempt // of a lite-pop, too
	liteExpire    command.LiteExpire
	liteTrim      command.LiteTrim
	place         command.Place

	submitted int64 // the shard's time when it was put into the queue; none for a query
	internal  bool  // the shard's own: not counted as somebody's call

	queued int64 // bytes counted in Shard.queued

	res  machine.Result
	err  error
	done chan struct{} // receives once; capacity 1
}

// newRequest returns a request of the kind, used before or new.
func (s *Shard) newRequest(kind command.Kind) *request {
	r, ok := s.pool.Get().(*request)
	if !ok {
		r = &request{done: make(chan struct{}, 1)}
	}
	r.kind = kind
	return r
}

// release gives r back. It must have been answered, and its result is void.
func (s *Shard) release(r *request) {
	*r = request{res: r.res, done: r.done}
	s.pool.Put(r)
}

func (r *request) answer(err error) {
	r.err = err
	r.done <- struct{}{}
}

// isPop reports whether r is a receive.
func (r *request) isPop() bool {
	return r.kind == command.KindPop || r.kind == command.KindPopLimited || r.kind == command.KindPopSelect || r.isLitePop()
}

// isLitePop reports whether r is a receive from lite topics.
func (r *request) isLitePop() bool {
	return r.kind == command.KindLitePop || r.kind == command.KindLiteAttempt
}

// givesBack reports whether r does nothing but give messages back.
func (r *request) givesBack() bool {
	return r.kind == command.KindChange && !slices.ContainsFunc(r.change.Changes, func(c command.LeaseChange) bool { return c.Reason != mq.GiveBack })
}

// Sizes of the parts of commands. Beside them a command has a few numbers of fixed size.
const (
	commandNumbers  = 64
	leaseRefSize    = 4 + 8 + 8
	leaseChangeSize = leaseRefSize + 8 + 1
	queueTrimSize   = 4 + 8 + 8
	checkRefSize    = 8 + 8 + 4 + 4 + 8
	pendingRefSize  = 8 + 8
)

// size bounds the length of the command's encoding.
func (r *request) size() int64 {
	n := commandNumbers
	switch r.kind {
	case command.KindSend:
		n = r.sent.Size()
	case command.KindPop, command.KindPopLimited, command.KindPopSelect:
		n = r.pop.Size()
	case command.KindAck:
		n += len(r.ack.Leases) * leaseRefSize
	case command.KindChange:
		n += len(r.change.Changes) * leaseChangeSize
	case command.KindDeadLetter:
		one := command.Append{Messages: []*mq.Message{r.deadLetter.Message}}
		n += one.Size()
	case command.KindSetOffset:
		n = r.setOffset.Size()
	case command.KindFire:
		n = command.SizePending(r.fire.Messages)
	case command.KindPendingMove:
		n = command.SizePending(r.move.Messages)
	case command.KindPendingChange:
		n += len(r.pendingChange.Refs) * pendingRefSize
	case command.KindEndTransaction:
		n = r.end.Size()
	case command.KindChecked:
		n += len(r.checked.Refs) * checkRefSize
	case command.KindLiteSubscribe:
		n = r.liteSub.Size()
	case command.KindLitePop, command.KindLiteAttempt:
		n = r.litePop.Size()
	case command.KindTrim:
		n += len(r.trim.Queues) * queueTrimSize
	}
	return int64(n)
}

// encoder returns the command, made at now.
func (r *request) encoder(now int64) commitlog.Encoder {
	switch r.kind {
	case command.KindSend:
		r.sent.Time = now
		return &r.sent
	case command.KindPop:
		r.pop.Time = now
		return &r.pop.Pop
	case command.KindPopLimited:
		r.pop.Time = now
		return &r.pop.LimitedPop
	case command.KindPopSelect:
		r.pop.Time = now
		return &r.pop
	case command.KindAck:
		r.ack.Time = now
		return &r.ack
	case command.KindChange:
		r.change.Time = now
		return &r.change
	case command.KindDeadLetter:
		r.deadLetter.Time = now
		return &r.deadLetter
	case command.KindTopicDelete:
		r.topicDelete.Time = now
		return &r.topicDelete
	case command.KindGroupDelete:
		r.groupDelete.Time = now
		return &r.groupDelete
	case command.KindFire:
		r.fire.Time = now
		return &r.fire
	case command.KindPendingMove:
		r.move.Time = now
		return &r.move
	case command.KindPendingChange:
		r.pendingChange.Time = now
		return &r.pendingChange
	case command.KindEndTransaction:
		r.end.Time = now
		return &r.end
	case command.KindChecked:
		r.checked.Time = now
		return &r.checked
	case command.KindTrim:
		r.trim.Time = now
		return &r.trim
	case command.KindSetOffset:
		r.setOffset.Time = now
		return &r.setOffset
	case command.KindEndDeliveries:
		r.endDeliveries.Time = now
		return &r.endDeliveries
	case command.KindLiteSubscribe:
		r.liteSub.Time = now
		return &r.liteSub
	case command.KindLitePop:
		r.litePop.Time = now
		return &r.litePop.LitePop
	case command.KindLiteAttempt:
		r.litePop.Time = now
		return &r.litePop
	case command.KindLiteExpire:
		r.liteExpire.Time = now
		return &r.liteExpire
	case command.KindLiteTrim:
		r.liteTrim.Time = now
		return &r.liteTrim
	case command.KindDrop:
		r.drop.Time = now
		return &r.drop
	case command.KindPlace:
		r.place.Time = now
		return &r.place
	}
	panic("BUG: request of kind " + r.kind.String())
}
