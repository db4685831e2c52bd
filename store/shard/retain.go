package shard

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A retainer does the work of Options.Retention, in a goroutine of its own. It finds out
// in the views, beside the loop, what is past its time, and asks the loop for commands
// that say so. What it remembers of each topic lets a look with nothing to do read
// nothing.
type retainer struct {
	s      *Shard
	topics map[mq.TopicID]*retained
	listed uint64 // Shard.topics when topics was made
	level  level
	// weighed is the last look at the pending messages in what is to be cut.
	weighed weighing
	// unknown is why the disk usage could not be found out the last time.
	unknown string
	// pending is where the log may begin, while files from before are not removed yet.
	pending commitlog.Pos
	// stuck is why they could not be removed the last time, and when that was logged.
	stuck   string
	stuckAt time.Time
	// pinnedAt is when it was logged last that a backup keeps what should make room.
	pinnedAt time.Time
}

// retained is what is remembered of one topic.
type retained struct {
	id     mq.TopicID
	queues int32
	age    int64 // 0: for ever
	known  bool  // the age is
	// next is a time before which nothing passes its age.
	next   int64
	looked int64 // when it was last looked at closely; 0: never
	// floor is a log position below which the topic has nothing. With held set, an
	// entry is right there.
	floor   commitlog.Pos
	held    bool
	floored int64 // when that was found
	// liteLow is a log position below which its lite topics have nothing.
	liteLow uint64
	// pending: deliveries keep something that is below the beginnings of its queues.
	pending bool
	// abandoned has messages that wait to be delivered again and are past every time.
	abandoned map[keyspace.Ref]wait
}

// A wait is that of a message for its next delivery, after the one with the pop id.
type wait struct {
	after mq.PopID
	since int64 // when it was first seen
}

// betweenPasses is the least time between two passes when the disk is nearly full.
const betweenPasses = time.Second

// betweenStuck is how often it is said that the same file cannot be removed.
const betweenStuck = time.Hour

// retain is the retainer's goroutine.
func (s *Shard) retain(r *retainer) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-s.closing:
			return
		case <-s.failed:
			return
		case <-timer.C:
		case <-s.scarce:
			if time.Since(last) < betweenPasses {
				r.measure()
				continue
			}
		}
		if err := r.pass(); err != nil {
			if !errors.Is(err, mq.ErrStopped) {
				s.fail(err)
			}
			return
		}
		last = time.Now()
		timer.Reset(s.opts.Retention.Interval)
	}
}

// pass looks once at everything.
func (r *retainer) pass() error {
	if err := r.resume(); err != nil {
		return err
	}
	r.measure()
	if err := r.list(); err != nil {
		return err
	}
	now := r.s.clock.peek()
	cut := r.cut()
	if err := r.trim(r.due(now, cut), now, cut); err != nil {
		return err
	}
	dropped, err := r.drop(now)
	if dropped {
		r.measure()
	}
	return err
}

// stopped returns an error when the shard has no time for a pass any more.
func (r *retainer) stopped() error {
	select {
	case <-r.s.closing:
		return mq.ErrStopped
	default:
		return r.s.Err()
	}
}

// list makes the topics known that the shard knows, when they have changed.
func (r *retainer) list() error {
	now := r.s.topics.Load()
	if now == r.listed {
		return nil
	}
	r.listed = now
	return r.view(r.relist)
}

// relist makes the topics of the view known.
func (r *retainer) relist(v *machine.View) error {
	topics := map[mq.TopicID]*retained{}
	err := v.Topics(func(t command.Topic) error {
		old := r.topics[t.ID]
		if old == nil || old.queues != t.Queues {
			old = &retained{id: t.ID, queues: t.Queues}
		}
		topics[t.ID] = old
		return nil
	})
	if err == nil {
		r.topics = topics
	}
	return err
}

// view calls fn with the present of the views.
func (r *retainer) view(fn func(*machine.View) error) error {
	v, err := machine.OpenView(r.s.db)
	if err != nil {
		return err
	}
	return errors.Join(fn(v), v.Close())
}

// Below the Clean level a topic is looked at closely only now and then: a tenth of its
// age makes little difference to anybody, and much to the number of looks.
const (
	lazyPart    = 10
	longestLazy = 10 * time.Minute
	lazyPending = time.Minute
)

// due returns the topics that have something to trim, or may have.
func (r *retainer) due(now int64, cut cut) []*retained {
	var due []*retained
	of := r.s.opts.Retention.Of
	for _, t := range r.topics {
		age, known := r.s.opts.Retention.Age, true
		if of != nil {
			age, known = of(t.id)
		}
		if known && int64(max(age, 0)) != t.age {
			t.age, t.next, t.looked = int64(max(age, 0)), 0, 0
		}
		t.known = known
		if t.isDue(now, r.level >= levelClean) || t.floor < cut.pos {
			due = append(due, t)
		}
	}
	// In the order of the keys, so that what is read once serves the next topics too.
	slices.SortFunc(due, byID)
	return due
}

func byID(a, b *retained) int { return cmp.Compare(a.id, b.id) }

func (t *retained) isDue(now int64, eager bool) bool {
	lazy := min(t.age/lazyPart, int64(longestLazy))
	switch {
	case t.looked == 0:
		return true
	case t.known && t.age > 0 && now >= t.next:
		return eager || now-t.looked >= lazy
	case t.pending:
		return eager || now-t.looked >= int64(lazyPending)
	}
	return false
}

// passed reports whether what was stored at the time is past the topic's age.
func (t *retained) passed(stored, now int64) bool {
	return t.known && t.age > 0 && stored <= now-t.age
}

// expiry returns when what was stored at the time is past the topic's age.
func (t *retained) expiry(stored int64) int64 {
	if t.age == 0 || stored > math.MaxInt64-t.age {
		return math.MaxInt64
	}
	return stored + t.age
}

// A cut is how far the log must be emptied for want of room. 0: not at all.
type cut struct {
	// Below pos everything goes that is not under delivery, whatever its age; below
	// hard, that too. hard is not above pos.
	pos, hard commitlog.Pos
}

// cut returns what must go for want of room: whole segments, the oldest first, and never
// the active one. One that a backup links, or is copying, makes no room and stays, with all
// behind it, so that nothing is lost in vain; a limit of the log's own size takes it too.
func (r *retainer) cut() cut {
	segments := r.s.log.Segments()
	over, hard := r.excess()
	limit := r.s.opts.Retention.Size
	end := segments[len(segments)-1].End
	var c cut
	var freed uint64
	for _, seg := range segments[:len(segments)-1] {
		big := limit > 0 && int64(end-seg.Base) > limit
		if !big && freed >= over {
			break
		}
		if !big && r.s.log.Pinned(seg.Base) {
			r.tellPinned(seg)
			break
		}
		c.pos = seg.End
		if freed < hard {
			c.hard = seg.End
		}
		freed += uint64(seg.End - seg.Base)
	}
	return c
}

// tellPinned says from time to time why the disk stays full.
func (r *retainer) tellPinned(seg commitlog.SegmentInfo) {
	if time.Since(r.pinnedAt) >= betweenStuck {
		r.pinnedAt = time.Now()
		r.s.logger.Warn("the oldest of the log is not removed, as that would make no room: a backup links it, or is copying it", "file", seg.File)
	}
}
