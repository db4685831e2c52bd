package shard

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Bounds of one round of the loop. What waits beyond them goes into the next
// round; larger rounds only add to the time to the first answer.
const (
	roundRequests = 1024
	roundBytes    = 4 << 20
)

// A burst of leases that end is taken in slices, so that other requests wait for
// one slice and not for the burst.
const (
	// expireLimit is how many leases one command ends at most.
	expireLimit = 1000
	// expireTime is how long one takes while there are other requests.
	expireTime = time.Millisecond
	// expirePause lies between two slices while the views have much on its way to
	// disk: they end on time or soon after, and add little.
	expirePause = 20 * time.Millisecond
	// expireAlone is for how many rounds there were none when slices grow again.
	expireAlone = 16
)

// checkpointBytes is how far the log may run ahead of what the views have on
// disk: with large messages a memtable takes long to fill, and all of the log
// behind it would have to be replayed.
const checkpointBytes = 256 << 20

// A round is one turn of the loop: requests on their way into one batch of the
// log. Its memory is reused.
type round struct {
	requests []*request
	batch    commitlog.Batch
	// staged has the request of each record of the batch, nil for commands that
	// nobody waits for.
	staged []*request
	topics map[mq.TopicID]uint64 // registered in this round, with their versions
	groups map[mq.GroupID]uint64
	places map[mq.TopicID]keyspace.Placement // likewise
	// expires says that the round begins with the end of leases.
	expires bool
	res     machine.Result // of commands that nobody waits for
}

func (rd *round) reset() {
	clear(rd.requests)
	clear(rd.staged)
	rd.requests, rd.staged = rd.requests[:0], rd.staged[:0]
	rd.batch.Reset()
	clear(rd.topics)
	clear(rd.groups)
	clear(rd.places)
}

// loop is the shard's goroutine: the only one that touches the machine and
// appends to the log.
func (s *Shard) loop() {
	rd := &round{topics: map[mq.TopicID]uint64{}, groups: map[mq.GroupID]uint64{}, places: map[mq.TopicID]keyspace.Placement{}}
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	var checkpoint commitlog.Pos
	for {
		s.arm(timer)
		select {
		case r := <-s.requests:
			rd.requests = append(rd.requests, r)
		case <-timer.C:
		case <-s.failed:
			s.refuseUntilStop()
			return
		case <-s.stop:
			if len(s.requests) == 0 {
				return
			}
		}
		s.turning.Store(s.clock.peek())
		s.gather(rd)
		err := s.Err() // what waits when the shard fails is not carried out
		if err == nil {
			err = s.room()
		}
		refusal := s.notServing
		if err == nil {
			err, refusal = s.turn(rd), s.Err // what has become of these only the log knows
		}
		s.turning.Store(0)
		if err != nil {
			s.fail(err)
			for _, r := range rd.requests {
				if r != nil {
					s.answer(r, refusal())
				}
			}
			s.waiters.wakeAll()
			s.lites.wakeAll()
			s.refuseUntilStop()
			return
		}
		rd.reset()
		if pos := s.log.Appended(); pos-checkpoint > checkpointBytes {
			checkpoint = pos
			if _, err := s.db.AsyncFlush(); err != nil {
				s.fail(err)
			}
		}
	}
}

// arm sets the timer for the next end of a lease.
func (s *Shard) arm(timer *time.Timer) {
	next := s.machine.NextDue()
	if next == math.MaxInt64 {
		timer.Stop()
		return
	}
	wait := time.Duration(max(next-s.clock.peek(), 0))
	if s.crowded {
		wait = max(wait, expirePause)
	}
	timer.Reset(wait)
}

// gather adds what waits to the round. Before it ends it lets the callers run that
// are ready to: on few cores the loop would otherwise be back for each of them, at
// the price of a write, a commit and a sync each. An idle shard loses nothing by it.
func (s *Shard) gather(rd *round) {
	size := 0
	seen := -1 // requests gathered when the callers were last let run
	for len(rd.requests) < roundRequests && size < roundBytes {
		select {
		case r := <-s.requests:
			rd.requests = append(rd.requests, r)
			if r.kind == command.KindSend {
				size += r.sent.Size()
			}
		default:
			if seen == len(rd.requests) {
				return
			}
			seen = len(rd.requests)
			runtime.Gosched()
		}
	}
}

// refuseUntilStop answers every request with the failure, before which it did not come.
func (s *Shard) refuseUntilStop() {
	for {
		select {
		case r := <-s.requests:
			s.answer(r, s.notServing())
		case <-s.stop:
			for len(s.requests) > 0 {
				s.answer(<-s.requests, s.notServing())
			}
			return
		}
	}
}

// turn carries out one round. Requests that it has answered are nil in
// rd.requests; after an error the others are still to be answered.
func (s *Shard) turn(rd *round) error {
	now := s.clock.begin()
	s.stages.begin(now, rd.requests)
	if slices.ContainsFunc(rd.requests, func(r *request) bool { return r.query == nil && !r.internal }) {
		s.timed.other.Add(1)
	}
	if err := s.stageExpire(rd, now); err != nil {
		return err
	}
	s.stageForget(rd, now)
	for i, r := range rd.requests {
		if r.query != nil {
			continue // after the commands
		}
		r.res = machine.Result{Stored: r.res.Stored[:0], Popped: r.res.Popped[:0], Settled: r.res.Settled[:0], Lites: r.res.Lites[:0]}
		staged, refusal, err := s.stageRequest(rd, r)
		if err != nil {
			return err
		}
		if !staged {
			rd.requests[i] = nil
			s.answer(r, refusal)
		}
	}
	if err := s.commit(rd); err != nil {
		return err
	}
	s.wake()
	for i, r := range rd.requests {
		if r == nil {
			continue
		}
		rd.requests[i] = nil
		if r.query != nil {
			s.answer(r, r.query(s.machine))
		} else {
			s.answer(r, r.res.Err)
		}
	}
	if rd.batch.Len() > 0 {
		s.stages.end(StageAnswer, s.clock.peek())
	}
	return nil
}

// stageExpire begins the round with the end of leases whose time has come by now. While
// the views have much on its way to disk it goes slowly: what it adds would make
// every request wait.
func (s *Shard) stageExpire(rd *round, now int64) (err error) {
	rd.expires = false
	if s.crowded && now-s.expiry.last < int64(expirePause) {
		return nil
	}
	if rd.expires, err = s.machine.Due(now); err != nil || !rd.expires {
		return err
	}
	s.expiry.last = now
	if s.expiry.alone++; len(rd.requests) > 0 {
		s.expiry.alone = 0
	}
	limit := expireLimit
	if cost := s.expiry.cost; cost > 0 && (s.crowded || s.expiry.alone < expireAlone) {
		limit = min(max(int(expireTime/cost), 1), expireLimit)
	}
	s.stage(rd, nil, command.KindExpire, &command.Expire{Time: s.clock.now(), Limit: int32(limit)})
	return nil
}

// forgetPause lies between two lines of the log about what was forgotten.
const forgetPause = time.Minute

// stageForget makes the machine forget a part of what topics were sent lately when that
// takes more memory than it may.
func (s *Shard) stageForget(rd *round, now int64) {
	bytes, first := s.machine.KnownBytes()
	if bytes <= s.opts.KnownBytes {
		return
	}
	if s.forgotten == 0 || now-s.forgotten > int64(forgetPause) {
		s.forgotten = now
		s.logger.Warn("what was sent is forgotten before the dedup window is over: it takes too much memory", "bytes", bytes, "limit", s.opts.KnownBytes)
	}
	s.stage(rd, nil, command.KindForget, &command.Forget{Time: s.clock.now(), Minute: first + 1})
}

// expiry is what the loop knows of the ends of leases.
type expiry struct {
	cost  time.Duration // of one, lately
	alone int           // rounds without another request
	last  int64         // when the latest slice was, by the shard's clock
}

// took notes how long it took to end n leases.
func (e *expiry) took(d time.Duration, n int) {
	if n > 0 {
		e.cost += (d/time.Duration(n) - e.cost) / 4
	}
}

// commit appends the batch, makes it durable, applies it and makes the effects
// readable. In sync mode nothing is applied before it is durable.
func (s *Shard) commit(rd *round) error {
	if rd.batch.Len() == 0 {
		return nil
	}
	appended, err := s.log.AppendBatch(&rd.batch)
	if err != nil {
		return err
	}
	s.stages.end(StageAppend, s.clock.peek())
	if s.opts.Flush == FlushSync {
		if s.stages.since, err = s.sync(); err != nil {
			return err
		}
	} else {
		signal(s.unsynced)
	}
	for i, r := range rd.staged {
		res := &rd.res
		if r != nil {
			res = &r.res
		}
		rec := machine.Record{
			Kind: command.Kind(rd.batch.Kind(i)), Payload: rd.batch.Payload(i),
			PayloadPos: uint64(appended[i].PayloadPos), Next: uint64(appended[i].Next), Index: appended[i].Index,
		}
		err := s.apply(rec, res)
		if err != nil {
			return s.viewsHint(err)
		}
		s.stats.applied(rec.Kind, res, r)
	}
	if err := s.machine.Commit(); err != nil {
		return err
	}
	s.stats.position.Store(s.machine.Pos())
	s.stats.timed.Store(s.machine.PendingIn(keyspace.Timed))
	s.stats.halves(s.machine)
	s.stats.knows(s.machine)
	s.stages.end(StageApply, s.clock.peek())
	return nil
}

// apply applies one record, and learns what those cost that come in slices.
func (s *Shard) apply(rec machine.Record, res *machine.Result) error {
	if rec.Kind != command.KindExpire && rec.Kind != command.KindFire {
		return s.machine.Apply(rec, res)
	}
	start := time.Now()
	err := s.machine.Apply(rec, res)
	if took := time.Since(start); rec.Kind == command.KindExpire {
		s.expiry.took(took, res.Ended)
	} else {
		s.timed.took(took, len(res.Settled))
	}
	return err
}

// stage adds one command to the round.
func (s *Shard) stage(rd *round, r *request, kind command.Kind, e commitlog.Encoder) {
	rd.batch.AddEncoder(commitlog.Kind(kind), e)
	rd.staged = append(rd.staged, r)
}

// stageRequest adds the command of r, and before it what registers its topic
// and group. It reports false when there is nothing to do or the request is
// refused; then r is to be answered with the refusal.
func (s *Shard) stageRequest(rd *round, r *request) (staged bool, refusal, err error) {
	if !r.isPop() { // it may have nothing to write
		if refusal := s.admit(r.kind); refusal != nil {
			return false, refusal, nil
		}
	}
	if r.topic != nil {
		if refusal, err := s.register(rd, r.topic); refusal != nil || err != nil {
			return false, refusal, err
		}
	}
	if r.group != nil {
		if r.kind == command.KindGroup {
			return s.registerGroup(rd, r.group, r)
		}
		if _, refusal, err := s.registerGroup(rd, r.group, nil); refusal != nil || err != nil {
			return false, refusal, err
		}
	}
	if refusal := s.stagePlace(rd, r); refusal != nil {
		return false, refusal, nil
	}
	if r.kind == command.KindPlace && !s.stageClosed(rd, r) {
		return false, nil, nil
	}
	if size := r.size(); size > s.log.MaxPayload() {
		return false, fmt.Errorf("request of %d bytes, the log takes %d: %w", size, s.log.MaxPayload(), mq.ErrTooLarge), nil
	}
	if r.isPop() {
		if may, err := s.lookFirst(rd, r); !may || err != nil {
			return false, nil, err
		}
		if refusal := s.admit(r.kind); refusal != nil {
			return false, refusal, nil
		}
	}
	s.stage(rd, r, r.kind, r.encoder(s.clock.now()))
	return true, nil, nil
}

// lookFirst reports whether the pop could change anything. When it could not, the
// look is the answer, and nothing is written.
func (s *Shard) lookFirst(rd *round, r *request) (may bool, err error) {
	if r.isLitePop() {
		return s.machine.LitePoppable(&r.litePop)
	}
	if s.held[keyspace.Sub{Group: r.pop.Group, Topic: r.pop.Topic}] > 0 {
		return false, nil
	}
	look, err := s.machine.Look(&r.pop)
	if err != nil {
		return false, err
	}
	r.pop.After = look.After
	r.res.After, r.res.More, r.res.Full, r.res.Unjudged = look.After, look.More, look.Full, look.Unjudged
	// A round that ends leases may make something ready for the pops behind; for one
	// with a choice it was not judged.
	return look.May || rd.expires && !r.pop.Chosen && !look.More && s.machine.Leased(r.pop.Group, r.pop.Topic), nil
}

// otherLife refuses a topic or group whose id has another name here. Names never change, and
// ids are given out once: the caller goes by metadata that were brought back from an older
// copy, and have given the id out again.
func otherLife(what string, id uint64, here, there mq.Resource) error {
	return fmt.Errorf("%w: %s %s has id %d, which is that of %s here: the metadata were brought back from a copy that is older than the store", mq.ErrUnavailable, what, there, id, here)
}

// register makes the shard know the topic as the caller knows it.
func (s *Shard) register(rd *round, t *mq.Topic) (refusal, err error) {
	if name, known := s.machine.TopicName(t.ID); known && name != t.Resource {
		return otherLife("topic", uint64(t.ID), name, t.Resource), nil
	}
	if max(s.machine.TopicVersion(t.ID), rd.topics[t.ID]) >= t.Version {
		return nil, nil
	}
	gone, err := s.machine.TopicGone(t.ID)
	if err != nil {
		return nil, err
	}
	if gone {
		return fmt.Errorf("topic %s was deleted: %w", t.Resource, mq.ErrTopicNotFound), nil
	}
	queues := int32(0)
	for _, sq := range t.Shards {
		if sq.Shard == s.opts.Name {
			queues = sq.Queues()
		}
	}
	if queues == 0 {
		return fmt.Errorf("topic %s has no queue on shard %s: %w", t.Resource, s.opts.Name, mq.ErrQueueNotFound), nil
	}
	s.stage(rd, nil, command.KindTopic, &command.Topic{
		Time: s.clock.now(), ID: t.ID, Name: t.Resource, Queues: queues, Version: t.Version,
	})
	rd.topics[t.ID] = t.Version
	return nil, nil
}

// registerGroup makes the shard know the group as the caller knows it; by is
// answered when that is done, if it is set.
func (s *Shard) registerGroup(rd *round, g *mq.Group, by *request) (staged bool, refusal, err error) {
	if name, known := s.machine.GroupName(g.ID); known && name != g.Resource {
		return false, otherLife("group", uint64(g.ID), name, g.Resource), nil
	}
	if max(s.machine.GroupVersion(g.ID), rd.groups[g.ID]) >= g.Version {
		return false, nil, nil
	}
	gone, err := s.machine.GroupGone(g.ID)
	if err != nil {
		return false, nil, err
	}
	if gone {
		return false, fmt.Errorf("group %s was deleted: %w", g.Resource, mq.ErrGroupNotFound), nil
	}
	c := &command.Group{
		Time: s.clock.now(), ID: g.ID, Name: g.Resource, FIFO: g.FIFO, MaxAttempts: g.Retry.MaxAttempts,
		Start: g.Start.Policy, DeadLetter: g.DeadLetter, Version: g.Version,
	}
	if g.Start.Policy == mq.StartTimestamp {
		c.StartTime = g.Start.Time.UnixNano()
	}
	s.stage(rd, by, command.KindGroup, c)
	rd.groups[g.ID] = g.Version
	return true, nil, nil
}

// wake tells those who wait what the round has changed. It comes after Commit:
// whoever wakes must find what woke it.
func (s *Shard) wake() {
	e := &s.machine.Effects
	s.stats.happened(e)
	s.looks.hurry(e.Ready)
	s.lites.happened(e)
	s.waiters.arrived(e.Arrived)
	s.pulls.arrived(e.Arrived)
	s.waiters.ready(e.Ready)
	s.waiters.freed(e.Freed)
	if e.Gone {
		s.waiters.wakeAll()
		s.lites.wakeAll()
		s.pulls.ended()
		signal(s.sweep.wake)
	}
	if s.machine.NextForgotten() < s.sweep.next.Load() {
		signal(s.sweep.wake)
	}
	s.asking.happened(e.Halves, e.Topics)
	if next := s.machine.NextPending(keyspace.LastAsked); next < s.asking.giveUpNext.Load() {
		s.asking.giveUpNext.Store(next)
		signal(s.asking.giveUp)
	}
	if next := s.machine.NextPending(keyspace.Timed); next < s.timed.next.Load() {
		s.timed.next.Store(next)
		signal(s.timed.wake)
	}
	if e.Topics {
		s.topics.Add(1)
	}
	if len(e.UsedUp) > 0 {
		signal(s.usedUp)
	}
	if e.Lost > 0 {
		s.logger.Warn("redeliveries dropped whose messages are no longer stored", "messages", e.Lost)
	}
	e.Reset()
}

// signal puts a token into a channel of capacity 1 unless there is one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
