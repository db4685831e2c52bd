package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Bounds of one slice of judging.
const (
	// sliceMessages is how many messages are judged, sliceQueue how many of one queue
	// before it is another one's turn, and sliceEnough how many wanted ones end it.
	sliceMessages = 2048
	sliceQueue    = 256
	sliceEnough   = 512
	// wholeRead is the size up to which a message is read whole, so that its checksum
	// can be verified. Of a larger one, headRead bytes are read, and more if it takes
	// more to have the properties. sliceBytes bounds what one slice reads.
	wholeRead  = 16 << 10
	headRead   = 4 << 10
	sliceBytes = 8 << 20
	// sliceRun bounds one read of several messages. A buffer of that size stays in the
	// processor's cache.
	sliceRun = 256 << 10
)

// judge judges a slice of the messages that were not judged yet, or waits until another
// receive has. It reports true when there are none left, of those that were there when
// it was asked where the group stands after the moment since.
func (s *Shard) judge(ctx context.Context, r mq.Receive, l *look, since uint64) (all bool, err error) {
	l.mu.Lock()
	before := l.judged
	l.mu.Unlock()
	select {
	case l.looking <- struct{}{}:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-s.closing:
		return true, nil
	case <-s.failed:
		return false, s.Err()
	}
	defer func() { <-l.looking }()
	l.mu.Lock()
	asked, judged := l.asked, l.judged
	l.mu.Unlock()
	if judged != before && !(asked > since && l.level()) {
		return false, nil
	}
	if asked == since || l.level() {
		if judged != before && asked > since {
			return true, nil
		}
		if err := s.askOutlook(ctx, r, l); err != nil {
			return false, err
		}
	}
	found, judgedNow, err := s.slice(l, r.Group.FIFO)
	if err != nil {
		return false, err
	}
	if judgedNow > 0 && found == 0 {
		l.fruitless = time.Now()
	}
	return l.level(), nil
}

// level reports whether all that is known to be there was judged. It is called by who
// looks.
func (l *look) level() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range l.outlook.Queues {
		if q := &l.queues[i]; q.to < r.High && len(q.wanted) < wantedAhead {
			return false
		}
	}
	return l.readyLevel
}

// askOutlook asks the loop where the group stands, and not often when it is of no use.
func (s *Shard) askOutlook(ctx context.Context, r mq.Receive, l *look) error {
	if pause := lookPause - time.Since(l.fruitless); pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.urgent:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.closing:
		case <-s.failed:
		}
	}
	for try := 0; ; try++ {
		l.mu.Lock()
		l.asked++
		pops := l.pops
		l.mu.Unlock()
		select {
		case <-l.urgent:
		default:
		}
		l.called.Store(false) // what comes from here on may be missed
		err := s.look(ctx, func(m *machine.Machine) error { return m.Outlook(l.key.sub, &l.outlook) })
		if err != nil {
			return err
		}
		if l.outlook.Known {
			l.stands(pops)
			return nil
		}
		if try > 0 {
			return fmt.Errorf("group %s has lost topic %s: %w", r.Group.Resource, r.Topic.Resource, mq.ErrTopicNotFound)
		}
		// The first pop fixes where the group starts.
		r.Attempt = ""
		if _, _, err := s.choose(ctx, r, offer{}); err != nil {
			return err
		}
	}
}

// A candidate is a message that is to be judged.
type candidate struct {
	machine.Popped
	again   bool // it is to be delivered again
	grouped bool // and is of a message group
	wanted  bool
}

// slice judges the next messages and returns how many are wanted of how many.
func (s *Shard) slice(l *look, fifo bool) (found, judged int, err error) {
	list, ready, err := s.candidates(l, fifo)
	if err != nil {
		return 0, 0, err
	}
	byPlace := make([]*candidate, 0, len(list))
	for i := range list {
		if list[i].Size > 0 {
			byPlace = append(byPlace, &list[i])
		}
	}
	slices.SortFunc(byPlace, func(a, b *candidate) int { return cmp.Compare(a.Pos, b.Pos) })
	if err := s.match(l, byPlace); err != nil {
		return 0, 0, err
	}
	return l.keep(list, ready, fifo), len(list), nil
}

// A redelivery is one in its sequence.
type redelivery struct {
	seq uint64
	ref keyspace.Ref
}

// candidates returns what is to be judged next, and the redeliveries that were looked
// at, judged or not, in their order.
func (s *Shard) candidates(l *look, fifo bool) (list []candidate, ready []redelivery, err error) {
	err = s.withViews(func() (err error) {
		v, err := machine.OpenView(s.db)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		if ready, list, err = l.findReady(v, fifo); err != nil {
			return err
		}
		return l.findNew(v, &list)
	})
	return list, ready, err
}

// findReady lists redeliveries.
func (l *look) findReady(v *machine.View, fifo bool) (ready []redelivery, list []candidate, err error) {
	l.mu.Lock()
	after := l.after
	l.mu.Unlock()
	l.readyMore = false
	if l.outlook.Ready == 0 || after >= l.outlook.ReadyLast {
		return nil, nil, nil
	}
	err = v.Redeliveries(l.key.sub, max(after+1, l.outlook.ReadyLow), func(seq uint64, ref keyspace.Ref) bool {
		if seq > l.outlook.ReadyLast {
			return false // it became one since
		}
		if len(ready) == readyKept {
			return false
		}
		if !l.isJudged(ref, fifo) {
			if len(list) == sliceMessages {
				l.readyMore = true
				return false
			}
			list = append(list, candidate{Popped: machine.Popped{Queue: ref.Queue, Offset: ref.Offset}, again: true})
		}
		ready = append(ready, redelivery{seq, ref})
		return true
	})
	if err != nil {
		return nil, nil, err
	}
	for i := range list {
		c := &list[i]
		e, found, err := v.Find(keyspace.Ref{Sub: l.key.sub, Queue: c.Queue, Offset: c.Offset})
		if err != nil {
			return nil, nil, err
		}
		if !found {
			c.wanted = true // whoever pops it finds that it is gone
			continue
		}
		c.Pos, c.Size, c.grouped = e.Pos, e.Size, e.Group != 0
	}
	return ready, list, nil
}

// isJudged reports whether a redelivery was judged: in a group that is FIFO as such, for
// when it was judged as a new message nobody asked for its message group.
func (l *look) isJudged(ref keyspace.Ref, fifo bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.ready[ref]; ok || fifo {
		return ok
	}
	q := &l.queues[ref.Queue]
	return ref.Offset >= q.from && ref.Offset < q.to
}

// findNew lists new messages, some of each queue in turn.
func (l *look) findNew(v *machine.View, list *[]candidate) error {
	n, bytes := len(l.outlook.Queues), uint64(0)
	next := make([]mq.QueueOffset, n)
	left := make([]bool, n)
	l.mu.Lock()
	for i, r := range l.outlook.Queues {
		next[i] = l.queues[i].to
		left[i] = next[i] < r.High && len(l.queues[i].wanted) < wantedAhead
	}
	l.mu.Unlock()
	for again := true; again; {
		again = false
		for i := range n {
			q := (l.first + i) % n
			if !left[q] {
				continue
			}
			if len(*list) >= sliceMessages || bytes >= sliceBytes {
				l.first = q
				return nil
			}
			high := min(next[q]+sliceQueue, l.outlook.Queues[q].High)
			missing := false
			err := v.Entries(l.key.sub.Topic, machine.Range{Queue: mq.QueueID(q), Low: next[q], High: high}, func(offset mq.QueueOffset, e *keyspace.Entry) bool {
				if missing = offset != next[q]; missing {
					return false
				}
				next[q]++
				bytes += uint64(readSize(e.Size))
				*list = append(*list, candidate{Popped: machine.Popped{Queue: mq.QueueID(q), Offset: offset, Pos: e.Pos, Size: e.Size}})
				return bytes < sliceBytes
			})
			if err != nil {
				return err
			}
			left[q] = !missing && next[q] == high && high < l.outlook.Queues[q].High
			again = again || left[q]
			if missing || next[q] < high && bytes < sliceBytes {
				// Trimmed meanwhile, or damage. Whoever pops it finds out.
				*list = append(*list, candidate{Popped: machine.Popped{Queue: mq.QueueID(q), Offset: next[q]}, wanted: true})
				l.outlook.Queues[q].High = next[q] + 1
			}
		}
	}
	return nil
}

// readSize is how much of a message of that size is read at first.
func readSize(size uint32) uint32 {
	if size > wholeRead {
		return headRead
	}
	return size
}

// match reads the messages, which are in the order of the log, and asks the filter. One
// that cannot be read is wanted: whoever it is delivered to says what is wrong with it.
func (s *Shard) match(l *look, list []*candidate) error {
	if len(list) == 0 {
		return nil
	}
	buf := make([]byte, sliceRun)
	for i := 0; i < len(list); {
		run, size := readRunOf(list[i:])
		err := s.log.ReadAt(buf[:size], commitlog.Pos(list[i].Pos))
		for _, c := range list[i : i+run] {
			var head []byte
			if err == nil {
				at := c.Pos - list[i].Pos
				head = buf[at : at+uint64(readSize(c.Size))]
			} else {
				// No read crosses the end of a segment.
				head = make([]byte, readSize(c.Size))
				if err := s.log.ReadAt(head, commitlog.Pos(c.Pos)); err != nil {
					if stopped := s.stopped(); stopped != nil {
						return stopped
					}
					c.wanted = true
					continue
				}
			}
			c.wanted = s.wants(l.filter, c, head)
		}
		i += run
	}
	return nil
}

// readRunOf returns how many of the messages one read fetches, and its size.
func readRunOf(list []*candidate) (n, size int) {
	start := list[0].Pos
	end := start + uint64(readSize(list[0].Size))
	for n = 1; n < len(list); n++ {
		c := list[n]
		to := c.Pos + uint64(readSize(c.Size))
		if c.Pos < end || c.Pos-end > gap || to-start > sliceRun {
			break
		}
		end = to
	}
	return n, int(end - start)
}

// wants asks the filter about a message of which head is the beginning.
func (s *Shard) wants(filter mq.Filter, c *candidate, head []byte) bool {
	if len(head) == int(c.Size) && !command.Intact(head) {
		return true
	}
	for {
		properties, system, need, ok := command.Properties(head)
		switch {
		case !ok || need > int(c.Size):
			return true
		case need <= len(head):
			return filter.Matches(properties, system)
		}
		head = make([]byte, need)
		if s.log.ReadAt(head, commitlog.Pos(c.Pos)) != nil {
			return true
		}
	}
}

// stopped returns an error when the shard is closed or has failed.
func (s *Shard) stopped() error {
	if err := s.Err(); err != nil {
		return err
	}
	select {
	case <-s.closing:
		return fmt.Errorf("shard %s: %w", s.opts.Name, mq.ErrStopped)
	default:
		return nil
	}
}

// keep notes what was judged, and returns how much of it is wanted.
func (l *look) keep(list []candidate, ready []redelivery, fifo bool) (found int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.judged++
	kept := make(map[keyspace.Ref]judgement, len(ready))
	for i := range list {
		c := &list[i]
		if c.wanted {
			found++
		}
		if c.again {
			l.ready[keyspace.Ref{Sub: l.key.sub, Queue: c.Queue, Offset: c.Offset}] = judgement{c.wanted, c.grouped}
			continue
		}
		q := &l.queues[c.Queue]
		if c.Offset != q.to {
			continue // the group has moved meanwhile
		}
		q.to++
		if c.wanted {
			q.wanted = append(q.wanted, c.Offset)
		} else {
			l.unsent++
		}
	}
	// The first ones that are not wanted need not be remembered.
	passed := true
	for _, r := range ready {
		v, ok := l.ready[r.ref]
		if !ok {
			q := &l.queues[r.ref.Queue]
			if fifo || r.ref.Offset < q.from || r.ref.Offset >= q.to {
				break // forgotten meanwhile
			}
			_, v.wanted = slices.BinarySearch(q.wanted, r.ref.Offset)
		}
		if passed = passed && !v.wanted && !v.blocks(fifo); passed {
			l.after = r.seq
			continue
		}
		kept[r.ref] = v
	}
	l.ready = kept
	l.readyLevel = !l.readyMore
	return found
}
