package shard

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/machine"
)

// rollPart is the part of a segment that must be in use for it to be worth leaving:
// the file of a fresh one takes room too.
const rollPart = 64

// freshFloor is for how long it is believed that a topic still keeps what it kept. A
// purge is not heard of otherwise.
const freshFloor = time.Minute

// drop removes the segments that nothing needs any more, and reports whether there were
// any.
func (r *retainer) drop(now int64) (dropped bool, err error) {
	if err := r.leave(now); err != nil {
		return false, err
	}
	segments := r.s.log.Segments()
	for len(segments) > 1 && segments[0].Base < r.pending { // those that are to go already
		segments = segments[1:]
	}
	if len(segments) == 1 || r.known(segments[0].End, now) {
		return false, nil
	}
	var begin commitlog.SegmentInfo
	err = r.view(func(v *machine.View) error {
		floor, err := r.floor(v, segments[0].End, now)
		begin = r.s.log.OldestNeeded(floor)
		return err
	})
	if err != nil || begin.Base <= segments[0].Base {
		return false, err
	}
	begin, err = r.moveAway(begin)
	if err != nil || begin.Base <= segments[0].Base {
		return false, ignoreFull(err)
	}
	return true, r.dropBefore(begin)
}

// leave rolls the log, from the Clean level on, when nothing in the active segment is
// kept, so that it can be dropped.
func (r *retainer) leave(now int64) error {
	segments := r.s.log.Segments()
	active := segments[len(segments)-1]
	worth := int64(active.End-active.First) >= r.s.log.SegmentSize()/rollPart
	if r.level < levelClean || !worth || r.known(math.MaxUint64, now) {
		return nil
	}
	return r.view(func(v *machine.View) error {
		if kept, err := r.keeps(v, math.MaxUint64, now); kept || err != nil {
			return err
		}
		return r.s.log.Roll()
	})
}

// known reports whether a topic is known to keep an entry below pos.
func (r *retainer) known(pos commitlog.Pos, now int64) bool {
	for _, t := range r.topics {
		if t.keeps(pos, now) {
			return true
		}
	}
	return false
}

func (t *retained) keeps(pos commitlog.Pos, now int64) bool {
	return t.held && t.floor < pos && now-t.floored < int64(freshFloor)
}

// keeps reports whether a topic keeps an entry below pos. What topics without entries
// had when they were last looked at says little by now: those that matter are looked at
// again, and every topic of the view is among them.
func (r *retainer) keeps(v *machine.View, pos commitlog.Pos, now int64) (bool, error) {
	if err := r.relist(v); err != nil {
		return false, err
	}
	for _, t := range r.topics {
		if t.floor < pos && !t.keeps(pos, now) {
			if err := r.refresh(v, t, now); err != nil {
				return false, err
			}
		}
		if t.keeps(pos, now) {
			return true, nil
		}
	}
	return false, nil
}

// floor returns a position below which no topic keeps an entry, the greatest there is
// unless it is below first.
func (r *retainer) floor(v *machine.View, first commitlog.Pos, now int64) (commitlog.Pos, error) {
	if kept, err := r.keeps(v, first, now); kept || err != nil {
		return 0, err
	}
	least := commitlog.Pos(v.State.Pos)
	for _, t := range r.topics {
		if t.held {
			least = min(least, t.floor)
		}
	}
	for _, t := range r.topics {
		if t.held || t.floor >= least {
			continue
		}
		if err := r.refresh(v, t, now); err != nil {
			return 0, err
		}
		least = min(least, t.floor)
	}
	return least, nil
}

// refresh finds the floor of the topic anew.
func (r *retainer) refresh(v *machine.View, t *retained, now int64) error {
	if err := r.stopped(); err != nil {
		return err
	}
	queues, err := v.Queues(t.id)
	if err != nil {
		return err
	}
	kept := make([]mq.QueueOffset, len(queues))
	for i, q := range queues {
		kept[i] = q.Kept
	}
	return t.findFloor(v, queues, kept, now)
}

// dropBefore removes the segments before begin, in an order that a crash may interrupt
// anywhere: a command says that the log may begin there, the views reach the disk, so
// that nothing before is ever replayed again, a base of them is put aside, and then the
// files go.
func (r *retainer) dropBefore(begin commitlog.SegmentInfo) error {
	req := r.s.newRequest(command.KindDrop)
	req.drop = command.Drop{First: uint64(begin.Base), Index: begin.FirstIndex}
	if err := r.s.do(context.Background(), req); err != nil {
		return err
	}
	r.s.release(req)
	return r.remove(begin.Base)
}

// remove removes the segments before a position that the machine has let the log begin
// at. A file that cannot be removed loses nothing: it takes room until a later pass can.
func (r *retainer) remove(begin commitlog.Pos) error {
	r.pending = begin
	err := r.removeFiles(begin)
	switch {
	case err == nil:
		r.pending, r.stuck = 0, ""
	case errors.Is(err, commitlog.ErrNotRemoved) || errors.Is(err, errNotRemoved):
		r.s.stats.notRemoved.Add(1)
		if text := err.Error(); text != r.stuck || time.Since(r.stuckAt) >= betweenStuck {
			r.stuck, r.stuckAt = text, time.Now()
			r.s.logger.Warn("file that is no longer needed cannot be removed", "error", err)
		}
		return nil
	}
	return err
}

func (r *retainer) removeFiles(begin commitlog.Pos) error {
	if err := r.s.flushViews(); err != nil {
		return err
	}
	if err := r.stopped(); err != nil {
		return err
	}
	if err := r.s.saveBase(begin); err != nil {
		return err
	}
	if err := r.s.log.DropBefore(begin); err != nil {
		return err
	}
	return r.s.dropBases(begin)
}

// resume goes on where an earlier pass, or an earlier life of the shard, came to an end.
func (r *retainer) resume() error {
	if r.pending == 0 {
		return nil
	}
	return r.remove(r.pending)
}
