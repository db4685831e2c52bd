package shard

import (
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// Retention says how long a shard keeps messages. The zero value keeps everything for
// ever. Whether a group has received a message makes no difference to its life; one
// that is under delivery is kept until the delivery is over, unless Refuse says
// otherwise.
//
// What is past its time is no longer delivered, and no backlog counts it. The bytes
// leave with the segment that holds them, when nothing in it is kept any more.
type Retention struct {
	// Age is how long a message is kept after it was stored, by the shard's own
	// clock; 0: for ever.
	Age time.Duration
	// Of, when set, is asked for the age of each topic instead; 0: for ever. A topic
	// that it does not know is left alone for the moment. It is called often, from a
	// goroutine of each shard: it must be quick, wait for nothing, and may run
	// several times at once.
	Of func(mq.TopicID) (age time.Duration, known bool)
	// Size is how many bytes the log may take; beyond, the oldest segments go,
	// whatever their age. The active segment always stays. 0: no limit.
	Size int64
	// Clean, Force and Refuse are levels of the file system that holds the shard, in
	// this order. From Clean on, what is past its time leaves at once; below it the
	// work may be put off for a while. From Force on, the oldest segments go whatever
	// their age, until the level is below it. From Refuse on, sends are refused with
	// mq.ErrStoreFull, and the oldest segments go even if a delivery needs them,
	// which is counted and logged; sends are taken again as soon as there is room.
	// Without Force nothing goes for want of room, and sends are only refused.
	// Receives are refused too when of the room left at Refuse less than a third is
	// left; acknowledgements never are.
	Clean, Force, Refuse Watermark
	// Interval is how often the shard looks: 10 s by default.
	Interval time.Duration
}

// A Watermark is a level of a file system. It is reached when either of its limits is.
type Watermark struct {
	// Used is the part of the file system in use, above 0 and below 1; 0: no limit.
	// What only the system's administrator may use counts as absent.
	Used float64
	// Free is the number of bytes that are left; 0: no limit.
	Free int64
}

func (w Watermark) set() bool { return w.Used > 0 || w.Free > 0 }

// Enabled reports whether anything may ever be removed or refused.
func (r Retention) Enabled() bool {
	return r.Age > 0 || r.Of != nil || r.Size > 0 || r.Clean.set() || r.Force.set() || r.Refuse.set()
}

// Validate returns an error that names what makes no sense and why; it wraps
// mq.ErrInvalid.
func (r Retention) Validate() error {
	invalid := func(field string, value any, reason string) error {
		return &mq.InvalidError{Kind: mq.ErrInvalid, Field: field, Value: fmt.Sprint(value), Reason: reason}
	}
	switch {
	case r.Age < 0:
		return invalid("retention age", r.Age, "must not be negative")
	case r.Size < 0:
		return invalid("retention size", r.Size, "must not be negative")
	case r.Interval < 0:
		return invalid("retention interval", r.Interval, "must not be negative")
	}
	var before Watermark
	for _, w := range []struct {
		name string
		Watermark
	}{{"clean", r.Clean}, {"force", r.Force}, {"refuse", r.Refuse}} {
		switch {
		case !(w.Used >= 0 && w.Used < 1): // also when it is no number
			return invalid(w.name+" watermark", w.Used, "must lie between 0 and 1")
		case w.Free < 0:
			return invalid(w.name+" watermark in bytes free", w.Free, "must not be negative")
		case w.Used > 0 && w.Used < before.Used:
			return invalid(w.name+" watermark", w.Used, fmt.Sprintf("must not be below the one before it, %v", before.Used))
		case w.Free > 0 && before.Free > 0 && w.Free > before.Free:
			return invalid(w.name+" watermark in bytes free", w.Free, fmt.Sprintf("must not be above the one before it, %d", before.Free))
		}
		if w.Used > 0 {
			before.Used = w.Used
		}
		if w.Free > 0 {
			before.Free = w.Free
		}
	}
	return nil
}
