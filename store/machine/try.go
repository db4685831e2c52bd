package machine

import (
	"slices"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// A client that got no answer asks again with the same attempt id. The messages that it
// was to have block their lanes, so it gets them again, as long as their leases last.

// A try is what is left of the delivery to one attempt id.
type try struct {
	popID mq.PopID
	refs  []keyspace.Ref
}

// tryHash is the hash of an attempt id; 0 without one. It is stored, so it never changes.
func tryHash(attempt string) uint64 { return mq.HashName(attempt) }

// noteTry notes a lease that can be asked for again.
func (m *Machine) noteTry(s *sub, ref keyspace.Ref, l keyspace.Lease) {
	if l.Try == 0 || l.State != keyspace.Leased || !m.ordered(ref.Group) && !ref.Queue.IsLite() {
		return
	}
	t := s.tries[l.Try]
	if t == nil {
		t = &try{popID: l.PopID}
		if s.tries == nil {
			s.tries = map[uint64]*try{}
		}
		s.tries[l.Try] = t
	}
	t.refs = append(t.refs, ref)
}

// forgetTry undoes noteTry.
func (s *sub) forgetTry(ref keyspace.Ref, l keyspace.Lease) {
	t := s.tries[l.Try]
	if l.Try == 0 || t == nil {
		return
	}
	if at := slices.Index(t.refs, ref); at >= 0 {
		t.refs = slices.Delete(t.refs, at, at+1)
	}
	if len(t.refs) == 0 {
		delete(s.tries, l.Try)
	}
}

// forgetTries forgets what can be asked for again, but of lite topics: their order does not
// depend on the group.
func (s *sub) forgetTries() {
	for hash, t := range s.tries { // each by itself
		t.refs = slices.DeleteFunc(t.refs, func(ref keyspace.Ref) bool { return !ref.Queue.IsLite() })
		if len(t.refs) == 0 {
			delete(s.tries, hash)
		}
	}
}

// popAgain delivers what is left of an earlier pop with the same attempt id once more:
// the same delivery, with the same attempts, and leases that begin again. It reports
// whether there was anything.
func (m *Machine) popAgain(p *pop) (bool, error) {
	t := p.s.tries[p.try]
	if p.try == 0 || t == nil {
		return false, nil
	}
	refs, id := slices.Clone(t.refs), t.popID
	slices.SortFunc(refs, keyspace.Ref.Compare)
	for _, ref := range refs {
		if p.full() {
			break
		}
		l, found, err := m.lease(ref)
		if err != nil || !found {
			return false, err
		}
		if err := m.lendAgain(p, ref, l); err != nil {
			return false, err
		}
	}
	if len(p.res.Popped) == 0 {
		return false, nil
	}
	p.res.PopID, p.res.Left = id, p.left()
	return true, nil
}

// lendAgain delivers one message of an earlier pop once more.
func (m *Machine) lendAgain(p *pop, ref keyspace.Ref, l keyspace.Lease) error {
	e, found, err := m.entry(keyspace.Queue{Topic: ref.Topic, Queue: ref.Queue}, ref.Offset)
	if err != nil {
		return err
	}
	if !found {
		return m.lose(p, ref, l)
	}
	next, err := m.next(p.s, ref, l)
	if err != nil {
		return err
	}
	if err := m.unindex(p.s, ref, l); err != nil {
		return err
	}
	if next {
		return m.lend(p, ref, &e, l, l.PopID)
	}
	l.Try = 0 // one before it is to be delivered again first; this one ends by itself
	return m.put(p.s, ref, l)
}

// next reports whether all that is before the message in its lane is leased by the same
// delivery and the same attempt.
func (m *Machine) next(s *sub, ref keyspace.Ref, l keyspace.Lease) (bool, error) {
	ln := s.laneOf(ref.Queue, l.Lane)
	if ln == nil {
		return true, nil
	}
	for _, offset := range ln.offsets {
		if offset >= ref.Offset {
			break
		}
		before, _, err := m.lease(keyspace.Ref{Sub: ref.Sub, Queue: ref.Queue, Offset: offset})
		if err != nil || before.State != keyspace.Leased || before.Try != l.Try {
			return false, err
		}
	}
	return true, nil
}
