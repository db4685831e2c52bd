package shard

import (
	"context"
	"errors"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/machine"
)

// A pending message is needed in the log for as long as it waits, which may be longer
// than anything around it. Before segments go it is written again, at the end of the log.
// It is never given up, however full the disk is: nobody has seen it yet.

// movePart is the part of what is to go that pending messages may take: when they are
// more of it, to write them again would free little, and again little the next time.
const movePart = 0.5

// A weighing is the last one that found pending messages to be too much of the log.
// Another is not made while nothing has happened since, and not before it has been left
// alone for weighRest times as long as it took.
type weighing struct {
	held     bool
	begin    commitlog.Pos
	position uint64 // of what was applied before it
	at       time.Time
	took     time.Duration
}

const weighRest = 50

func (w *weighing) stands(begin commitlog.Pos, position uint64) bool {
	return w.held && (w.begin == begin && w.position == position || time.Since(w.at) < weighRest*w.took)
}

// moveAway writes the pending messages again that are in the log before begin, or those
// in the first segments of that where it is worth it, and returns where the log may begin
// then: nothing pending is before.
func (r *retainer) moveAway(begin commitlog.SegmentInfo) (commitlog.SegmentInfo, error) {
	segments := r.s.log.Segments()
	worth, err := r.worthMoving(segments, begin)
	if err != nil || worth.Base <= segments[0].Base {
		return segments[0], err
	}
	for more := true; more; {
		if err := r.stopped(); err != nil {
			return begin, err
		}
		if more, err = r.moveSome(worth.Base); err != nil {
			return begin, err
		}
	}
	// What could not be read stays where it is, and so does the log from there on.
	err = r.view(func(v *machine.View) error {
		return v.Held(uint64(worth.Base), func(m machine.HeldMessage) (bool, error) {
			r.s.logger.Error("the log is kept for a pending message that cannot be read", "pending", uint64(m.ID), "position", m.Pos)
			worth = r.s.log.OldestNeeded(commitlog.Pos(m.Pos))
			return false, nil
		})
	})
	return worth, err
}

// worthMoving returns the last segment, up to begin, that the log may begin with when
// the pending messages before it are moved.
func (r *retainer) worthMoving(segments []commitlog.SegmentInfo, begin commitlog.SegmentInfo) (commitlog.SegmentInfo, error) {
	position := r.s.stats.position.Load()
	if r.weighed.stands(begin.Base, position) {
		return segments[0], nil
	}
	start := time.Now()
	bytes := make([]uint64, len(segments)) // of pending messages, by segment
	at, all := 0, uint64(0)
	err := r.view(func(v *machine.View) error {
		return v.Held(uint64(begin.Base), func(m machine.HeldMessage) (bool, error) {
			for commitlog.Pos(m.Pos) >= segments[at].End && at+1 < len(segments) {
				at++
			}
			bytes[at] += uint64(m.Size)
			return true, nil
		})
	})
	if err != nil {
		return begin, err
	}
	worth := segments[0]
	for i, seg := range segments {
		if seg.Base >= begin.Base {
			break
		}
		all += bytes[i]
		if freed := uint64(seg.End - segments[0].Base); float64(all) <= movePart*float64(freed) && i+1 < len(segments) {
			worth = segments[i+1]
		}
	}
	held := worth.Base < begin.Base
	if held && !r.weighed.held {
		r.s.logger.Warn("the log is kept for pending messages, which are most of it", "from", worth.Base, "to", begin.Base, "bytes", all)
	}
	r.weighed = weighing{held: held, begin: begin.Base, position: position, at: time.Now(), took: time.Since(start)}
	return worth, nil
}

// moveSome writes some of the pending messages again that are in the log before end, and
// reports whether there may be more that can be.
func (r *retainer) moveSome(end commitlog.Pos) (more bool, err error) {
	var messages []command.PendingMessage
	limit := min(timedBytes, int(r.s.log.MaxPayload()))
	size := command.SizePending(nil)
	err = r.view(func(v *machine.View) error {
		return v.Held(uint64(end), func(m machine.HeldMessage) (bool, error) {
			msg, err := r.s.readMessage(m.Pos, m.Size)
			if err != nil {
				r.s.logger.Error("pending message cannot be read", "pending", uint64(m.ID), "position", m.Pos, "error", err)
				return true, nil // moveAway meets it again
			}
			p := command.PendingMessage{ID: m.ID, Topic: m.Topic, Queue: m.Queue, Message: &msg}
			if size += command.SizePending([]command.PendingMessage{p}); len(messages) > 0 && size > limit {
				more = true
				return false, nil
			}
			messages = append(messages, p)
			more = len(messages) == command.MaxPending
			return !more, nil
		})
	})
	if err != nil || len(messages) == 0 {
		return false, err
	}
	req := r.s.newRequest(command.KindPendingMove)
	req.internal = true
	req.move = command.Move{Messages: messages}
	if err := r.s.do(context.Background(), req); err != nil {
		return false, err
	}
	moved := uint64(0)
	for _, err := range req.res.Settled {
		if err == nil {
			moved++
		}
	}
	r.s.release(req)
	r.s.stats.moved.Add(moved)
	return more, nil
}

// ignoreFull returns nil for an error that says that there is no room: the next pass
// tries again.
func ignoreFull(err error) error {
	if errors.Is(err, mq.ErrStoreFull) {
		return nil
	}
	return err
}
