package shard

import (
	"fmt"
	"math"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
)

// A level says which watermark of the file system is reached.
type level int

const (
	levelFree level = iota
	levelClean
	levelForce
	levelRefuse
)

// String returns the name of the watermark.
func (l level) String() string { return [...]string{"free", "clean", "force", "refuse"}[l] }

// diskUse is what was last known of the file system. It is never changed.
type diskUse struct {
	path           string
	used, capacity uint64
	// Sends are refused from refuse bytes used on, and from reserve on receives too.
	force, refuse, reserve uint64
	// at is where the log ended when used was measured.
	at commitlog.Pos
}

// limit returns the bytes used at which the watermark is reached, never when it is not set.
func (w Watermark) limit(capacity uint64) uint64 {
	limit := uint64(math.MaxUint64)
	if w.Used > 0 {
		limit = uint64(w.Used * float64(capacity))
	}
	if w.Free > 0 {
		limit = min(limit, capacity-min(uint64(w.Free), capacity))
	}
	return limit
}

// reserved is the part of the room left at Refuse that is kept for what frees memory and
// disk: acknowledgements, ends of leases and trims.
const reserved = 0.3

// measure finds out how full the file system is, and lets the loop know. What it cannot
// find out stays as it was.
func (r *retainer) measure() {
	opts := r.s.opts.Retention
	if !opts.Clean.set() && !opts.Force.set() && !opts.Refuse.set() {
		return
	}
	at := r.s.log.Appended()
	usage, err := r.s.opts.FS.GetDiskUsage(r.s.opts.Dir)
	if err != nil {
		if text := err.Error(); text != r.unknown { // not every ten seconds
			r.unknown = text
			r.s.logger.Warn("disk usage not known", "dir", r.s.opts.Dir, "error", err)
		}
		return
	}
	r.unknown = ""
	m := &diskUse{path: r.s.opts.Dir, used: usage.UsedBytes, capacity: usage.UsedBytes + usage.AvailBytes, at: at}
	m.force, m.refuse, m.reserve = opts.Force.limit(m.capacity), opts.Refuse.limit(m.capacity), math.MaxUint64
	if opts.Refuse.set() {
		left := m.capacity - min(m.refuse, m.capacity)
		m.reserve = m.capacity - uint64(reserved*float64(left))
	}
	before := r.level
	switch {
	case m.used >= m.refuse:
		r.level = levelRefuse
	case m.used >= m.force:
		r.level = levelForce
	case m.used >= opts.Clean.limit(m.capacity):
		r.level = levelClean
	default:
		r.level = levelFree
	}
	if r.level > before && r.level >= levelForce {
		r.s.logger.Warn("disk is getting full", "level", r.level.String(), "dir", m.path, "used", m.used, "capacity", m.capacity)
	} else if r.level < before && before >= levelForce {
		r.s.logger.Info("disk has room again", "level", r.level.String(), "dir", m.path, "used", m.used, "capacity", m.capacity)
	}
	r.s.disk.Store(m)
}

// excess returns how many bytes must be freed for the level to be below Force, and how
// many of them for it to be below Refuse. Without Force nothing is removed for want of
// room: who turns it off wants sends refused rather than messages gone.
func (r *retainer) excess() (over, hard uint64) {
	m := r.s.disk.Load()
	if m == nil || !r.s.opts.Retention.Force.set() {
		return 0, 0
	}
	if m.used >= m.refuse {
		hard = m.used - m.refuse + 1
	}
	if m.used >= m.force {
		over = m.used - m.force + 1
	}
	return max(over, hard), hard
}

// AdmitNew returns why no topic or group may be created for want of disk space, or nil.
// It reads no disk. What is there can be changed and deleted all the same.
func (s *Shard) AdmitNew() error { return s.admit(command.KindTopic) }

// admit returns why a command of the kind is refused for want of disk space, or nil. What
// was appended since the room was measured counts as used.
func (s *Shard) admit(kind command.Kind) error {
	m := s.disk.Load()
	if m == nil {
		return nil
	}
	limit, what := uint64(math.MaxUint64), ""
	switch kind {
	case command.KindSend:
		limit, what = m.refuse, "sends"
	case command.KindTopic:
		limit, what = m.refuse, "new topics and groups"
	case command.KindPop, command.KindPopLimited, command.KindPopSelect, command.KindDeadLetter, command.KindLiteSubscribe,
		command.KindLitePop, command.KindLiteAttempt:
		limit, what = m.reserve, "receives"
	case command.KindEndTransaction:
		limit, what = m.reserve, "ends of transactions"
	case command.KindFire, command.KindPendingMove:
		limit, what = m.reserve, "delayed messages"
	}
	used := m.used + uint64(s.log.Appended()-m.at)
	if used < limit {
		return nil
	}
	if m.used < limit {
		signal(s.scarce) // it may be less by now
	}
	s.stats.full.Add(1)
	return fmt.Errorf("shard %s: %w: the file system of %s has %d of %d bytes in use, %s are refused from %d on",
		s.opts.Name, mq.ErrStoreFull, m.path, used, m.capacity, what, limit)
}
