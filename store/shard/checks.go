package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Whoever has producers asks the shard what to ask them. A question is noted before it is
// handed out: of several who have producers of a topic one gets it. What is due and
// has no producer stays due, and costs nothing.

const (
	// checkBytes bounds the messages of one answer. One is handed out whatever its size.
	checkBytes = 4 << 20
	// unaskedWait is how soon a question is handed out again that reached nobody.
	unaskedWait = time.Second
	// unreadableWait is how soon a half message is looked at again that cannot be read.
	unreadableWait = 10 * time.Minute
)

// asking are those who wait for questions to ask.
type asking struct {
	mu      sync.Mutex
	waiting map[*asker]struct{}
	any     atomic.Bool // there are some
	turn    atomic.Uint64

	giveUp     chan struct{} // capacity 1: a last question is answered too late sooner than giveUpNext
	giveUpNext atomic.Int64
	asked      atomic.Uint64
	unasked    atomic.Uint64
	givenUp    atomic.Uint64
	unreadable atomic.Uint64
}

// An asker is somebody who waits for questions about half messages of some topics.
type asker struct {
	c chan struct{} // capacity 1: it should look again
	// What it waits for; guarded by asking.mu. Every topic is in topics while all is set.
	all    bool
	topics map[mq.TopicID]bool
	next   int64 // it looks again then anyway
}

func (a *asking) enter() *asker {
	w := &asker{c: make(chan struct{}, 1), all: true, next: math.MaxInt64}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waiting == nil {
		a.waiting = map[*asker]struct{}{}
	}
	a.waiting[w] = struct{}{}
	a.any.Store(true)
	return w
}

func (a *asking) leave(w *asker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, w)
	a.any.Store(len(a.waiting) > 0)
}

// waits notes what w has found that it waits for. What came since it looked has
// signalled it already.
func (a *asking) waits(w *asker, topics map[mq.TopicID]bool, next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.all, w.topics, w.next = false, topics, next
}

// happened wakes those whom it concerns what producers are to be asked, or, with topics
// set, that there are other topics than before.
func (a *asking) happened(halves []machine.HalfDue, topics bool) {
	if len(halves) == 0 && !topics || !a.any.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for w := range a.waiting {
		if topics {
			signal(w.c)
			continue
		}
		for _, h := range halves {
			if h.At < w.next && (w.all || w.topics[h.Topic]) {
				signal(w.c)
				break
			}
		}
	}
}

// Checks waits until producers of any of the topics are to be asked about half messages,
// and returns up to limit of these: each question is noted as asked, and handed out to nobody else.
// It is for whoever has producers of these topics; a question that could not be
// asked goes back with Unasked. It returns none when ctx ends.
func (s *Shard) Checks(ctx context.Context, topics []mq.Resource, limit int) ([]mq.Check, error) {
	wanted := make(map[mq.Resource]bool, len(topics))
	for _, t := range topics {
		wanted[t] = true
	}
	limit = min(max(limit, 1), command.MaxPending)
	w := s.asking.enter()
	defer s.asking.leave(w)
	l := checkLook{s: s, wanted: wanted, limit: limit}
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for {
		marks, next, err := l.look(ctx)
		if err != nil {
			return nil, ignoreEnd(ctx, err)
		}
		if len(marks) > 0 {
			checks, err := s.claim(ctx, marks)
			if len(checks) > 0 || err != nil {
				return checks, ignoreEnd(ctx, err)
			}
			continue // somebody else has them, or they are put off
		}
		s.asking.waits(w, l.ids, next)
		if next == math.MaxInt64 {
			timer.Stop()
		} else {
			timer.Reset(time.Duration(max(next-s.clock.peek(), 0)))
		}
		select {
		case <-w.c:
		case <-timer.C:
		case <-ctx.Done():
			return nil, nil
		case <-s.closing:
			return nil, fmt.Errorf("shard %s: %w", s.opts.Name, mq.ErrStopped)
		case <-s.failed:
			return nil, s.Err()
		}
	}
}

// ignoreEnd returns nil for an error that is the end of ctx.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// A checkLook finds the half messages that producers are to be asked about.
type checkLook struct {
	s      *Shard
	wanted map[mq.Resource]bool
	limit  int
	ids    map[mq.TopicID]bool // of the wanted topics; not changed once made
	order  []mq.TopicID        // of ids
	listed uint64              // Shard.topics when ids was made
}

// look returns what is due, and when something will be if nothing is.
func (l *checkLook) look(ctx context.Context) (marks []machine.PendingMark, next int64, err error) {
	err = l.s.look(ctx, func(m *machine.Machine) error {
		if now := l.s.topics.Load(); l.ids == nil || l.listed != now {
			l.list(m)
			l.listed = now
		}
		next = math.MaxInt64
		// In turns, or the half messages of one topic would hold up those of the others.
		turn := l.s.asking.turn.Add(1)
		now := l.s.clock.peek()
		for i := range l.order {
			id := l.order[(uint64(i)+turn)%uint64(len(l.order))]
			due, then, err := m.DueHalves(id, now, l.limit-len(marks))
			if err != nil {
				return err
			}
			marks, next = append(marks, due...), min(next, then)
			if len(marks) == l.limit {
				return nil
			}
		}
		return nil
	})
	return marks, next, err
}

// list finds the ids of the wanted topics.
func (l *checkLook) list(m *machine.Machine) {
	l.ids, l.order = map[mq.TopicID]bool{}, nil
	ids, _ := m.Registered()
	for _, id := range ids {
		if name, found := m.TopicName(id); found && l.wanted[name] {
			l.ids[id] = true
			l.order = append(l.order, id)
		}
	}
}

// claim reads half messages and notes that their producers are asked. It returns those
// that nobody else has noted.
func (s *Shard) claim(ctx context.Context, marks []machine.PendingMark) ([]mq.Check, error) {
	ctx = context.WithoutCancel(ctx) // a question that is noted must be handed out
	var checks, claimed []mq.Check
	var refs []command.CheckRef
	var unreadable []command.CheckRef
	size := 0
	for _, mark := range marks {
		rec, msg, err := s.readHalf(mark.ID)
		if errors.Is(err, mq.ErrStopped) {
			return nil, err
		}
		if err != nil {
			s.asking.unreadable.Add(1)
			s.logger.Error("half message cannot be read", "pending", uint64(mark.ID), "next_try_after", unreadableWait, "error", err)
			unreadable = append(unreadable, command.CheckRef{ID: mark.ID, From: rec.Checks, To: rec.Checks, Wait: int64(unreadableWait)})
			continue
		}
		if rec.State != keyspace.Half || rec.At != mark.At {
			continue
		}
		if size += int(rec.Size); len(checks) > 0 && size > checkBytes {
			break
		}
		n := rec.Checks + 1
		refs = append(refs, command.CheckRef{ID: mark.ID, From: rec.Checks, To: n, Wait: int64(s.opts.Transactions.wait(n))})
		checks = append(checks, mq.Check{
			PendingHandle: mq.PendingHandle{Shard: s.opts.Name, Topic: rec.Topic, ID: mark.ID, MessageID: msg.ID},
			Message:       *msg, Queue: rec.Queue, StoreTime: time.Unix(0, rec.StoreTime), Checks: int(n),
		})
	}
	if len(unreadable) > 0 {
		if _, err := s.note(ctx, command.CheckAsked, unreadable); err != nil {
			return nil, err
		}
	}
	if len(refs) == 0 {
		return nil, nil
	}
	answers, err := s.note(ctx, command.CheckAsked, refs)
	if err != nil {
		return nil, err
	}
	for i, err := range answers {
		if err == nil {
			claimed = append(claimed, checks[i])
		}
	}
	s.asking.asked.Add(uint64(len(claimed)))
	return claimed, nil
}

// Unasked takes questions back that reached no producer: they do not count, and are handed out again
// soon. What has ended or was asked again since is passed over.
func (s *Shard) Unasked(ctx context.Context, checks []mq.Check) error {
	refs := make([]command.CheckRef, len(checks))
	for i := range checks {
		n := uint32(checks[i].Checks)
		refs[i] = command.CheckRef{ID: checks[i].ID, From: n, To: n - 1, Wait: int64(unaskedWait)}
	}
	answers, err := s.note(ctx, command.CheckAsked, refs)
	for _, refusal := range answers {
		if refusal == nil {
			s.asking.unasked.Add(1)
		}
	}
	return err
}

// giveUpHalves is the goroutine that gives half messages up whose producers did not
// answer the last question in time.
func (s *Shard) giveUpHalves() {
	s.background(s.asking.giveUp, func() (time.Duration, error) {
		next, err := s.giveUpDue()
		if next == math.MaxInt64 {
			return math.MaxInt64, err
		}
		return time.Duration(max(next-s.clock.peek(), 0)), err
	})
}

// giveUpDue gives up what is due, and returns when the next one is.
func (s *Shard) giveUpDue() (next int64, err error) {
	for {
		var refs []command.CheckRef
		err := s.look(context.Background(), func(m *machine.Machine) error {
			now := s.clock.peek()
			due, then, err := m.PendingDue(keyspace.LastAsked, now)
			next = then
			s.asking.giveUpNext.Store(then)
			if !due || err != nil {
				return err
			}
			marks, err := m.DuePending(keyspace.LastAsked, machine.PendingMark{}, now, command.MaxPending)
			for _, mark := range marks {
				refs = append(refs, command.CheckRef{ID: mark.ID})
			}
			return err
		})
		if err != nil || len(refs) == 0 {
			return next, err
		}
		answers, err := s.note(context.Background(), command.CheckGiveUp, refs)
		if err != nil {
			return next, err
		}
		n := uint64(0)
		for _, refusal := range answers {
			if refusal == nil {
				n++
			}
		}
		s.asking.givenUp.Add(n)
		if n > 0 {
			s.logger.Warn("half messages given up: their producers did not end their transactions when asked",
				"messages", n, "pending", uint64(refs[0].ID), "checks", s.opts.Transactions.MaxChecks)
		}
	}
}
