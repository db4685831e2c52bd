package shard

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A waiter is one receive that found nothing and waits. Its channel gets one
// token when it should look again.
//
// The rule that no wake-up is lost: a receive registers first, then looks, then
// waits; and a waiter that was given a token and does not use it, because it
// ended or had found something already, passes it on to the next.
type waiter struct {
	c    chan struct{} // capacity 1
	max  int           // messages it takes
	room bool          // it waits for messages of its group to be settled, too
	list *waitList     // nil: not registered, or a token is in c
	of   *waitList     // the list it was last registered in
	next *waiter
	prev *waiter
}

// A waitList is the queue of waiters of one group with one filter on one topic.
type waitList struct {
	key         listKey
	tags        []string // none: every message
	look        *look    // of the receives with a filter that is not tags
	first, last *waiter
	n           int
	room        int // of them wait for room, too
	places      []place
	// credit is how many more messages those woken in the call take.
	credit int
	call   uint64
}

type listKey struct {
	sub    keyspace.Sub
	filter string
	sql    bool // filter is an expression
}

// A wish is what a receive waits for.
type wish struct {
	key  listKey
	tags []string
	look *look // with a filter that is not tags
}

// wishOf tells filters apart whatever their tags are; the key has none without one.
func wishOf(sub keyspace.Sub, tags []string) wish {
	var filter []byte
	for _, tag := range tags {
		filter = append(binary.AppendUvarint(filter, uint64(len(tag))), tag...)
	}
	return wish{key: listKey{sub: sub, filter: string(filter)}, tags: tags}
}

// A bucket holds the lists that one event concerns. Its order means nothing.
type bucket struct{ lists []*waitList }

// A place is where a list is in a bucket.
type place struct {
	in *bucket
	at int
}

// wanted is what a message must be for a list: of the topic, and either of the
// tag or, with any, whatever its tag.
type wanted struct {
	topic mq.TopicID
	any   bool
	tag   string
}

// waiters are all receives of the shard that wait. What happens finds those it
// concerns by a key, however many others there are.
type waiters struct {
	mu     sync.Mutex
	lists  map[listKey]*waitList
	wants  map[wanted]*bucket
	subs   map[keyspace.Sub]*bucket
	n      int    // waiters in the lists
	inside int    // receives between enter and leave
	call   uint64 // of arrived or ready, for waitList.credit
	woken  uint64 // tokens given out
}

// enter counts a receive that is about to wait. It reports false when as many as
// may do already; limit 0: any number may.
func (ws *waiters) enter(limit int) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if limit > 0 && ws.inside >= limit {
		return false
	}
	ws.inside++
	return true
}

// leave undoes enter.
func (ws *waiters) leave() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.inside--
}

// wantRoom makes w be woken when messages of its group are settled, too. It
// reports false when that was so before.
func (ws *waiters) wantRoom(w *waiter) bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.room {
		return false
	}
	w.room = true
	if w.list != nil {
		w.list.room++
	}
	return true
}

// register puts w at the end of its queue.
func (ws *waiters) register(w *waiter, what wish) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l := ws.lists[what.key]
	if l == nil {
		l = ws.addLocked(what)
	}
	w.list, w.of, w.prev, w.next = l, l, l.last, nil
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.n++
	ws.n++
	if w.room {
		l.room++
	}
}

// addLocked makes a queue.
func (ws *waiters) addLocked(what wish) *waitList {
	key, tags := what.key, what.tags
	if ws.lists == nil {
		ws.lists, ws.wants, ws.subs = map[listKey]*waitList{}, map[wanted]*bucket{}, map[keyspace.Sub]*bucket{}
	}
	l := &waitList{key: key, tags: tags, look: what.look, places: make([]place, 0, 1+max(len(tags), 1))}
	ws.lists[key] = l
	put(l, ws.subs, key.sub)
	if len(tags) == 0 {
		put(l, ws.wants, wanted{topic: key.sub.Topic, any: true})
	}
	for _, tag := range tags {
		put(l, ws.wants, wanted{topic: key.sub.Topic, tag: tag})
	}
	return l
}

// put puts l into the bucket of the key.
func put[K comparable](l *waitList, buckets map[K]*bucket, key K) {
	b := buckets[key]
	if b == nil {
		b = &bucket{}
		buckets[key] = b
	}
	l.places = append(l.places, place{b, len(b.lists)})
	b.lists = append(b.lists, l)
}

// take takes a list out of the bucket of the key, where it is at the place.
func take[K comparable](p place, buckets map[K]*bucket, key K) {
	last := len(p.in.lists) - 1
	moved := p.in.lists[last]
	for i := range moved.places {
		if moved.places[i].in == p.in {
			moved.places[i].at = p.at
		}
	}
	p.in.lists[p.at], p.in.lists[last] = moved, nil
	if p.in.lists = p.in.lists[:last]; last == 0 {
		delete(buckets, key)
	}
}

// removeListLocked undoes addLocked.
func (ws *waiters) removeListLocked(l *waitList) {
	delete(ws.lists, l.key)
	take(l.places[0], ws.subs, l.key.sub)
	if len(l.tags) == 0 {
		take(l.places[1], ws.wants, wanted{topic: l.key.sub.Topic, any: true})
	}
	for i, tag := range l.tags {
		take(l.places[1+i], ws.wants, wanted{topic: l.key.sub.Topic, tag: tag})
	}
}

// unregister takes w out of its queue. When w had been woken meanwhile, the
// token goes to the next in the queue.
func (ws *waiters) unregister(w *waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.list != nil {
		ws.removeLocked(w)
		return
	}
	select {
	case <-w.c:
		ws.wakeLocked(ws.lists[w.of.key])
	default:
	}
}

// passOn wakes the next receive that waits for the same: there is more than its
// caller took, or its caller took nothing.
func (ws *waiters) passOn(key listKey) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.wakeLocked(ws.lists[key])
}

func (ws *waiters) removeLocked(w *waiter) {
	l := w.list
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.list, w.next, w.prev = nil, nil, nil
	l.n--
	ws.n--
	if w.room {
		l.room--
	}
	if l.n == 0 {
		ws.removeListLocked(l)
	}
}

// wakeLocked wakes the first of the queue, if there is one.
func (ws *waiters) wakeLocked(l *waitList) {
	if l == nil || l.first == nil {
		return
	}
	w := l.first
	ws.removeLocked(w)
	ws.woken++
	w.c <- struct{}{}
}

// wakeForLocked wakes as many of the queue as it takes to receive n messages more
// than what was woken for in the same call. One that gets as much as it takes
// wakes the next, so it does no harm when they are too few.
//
// What a filter says of them is not known here. So one receive looks for all that have
// the same filter, and until it does no other is woken.
func (ws *waiters) wakeForLocked(l *waitList, n int) {
	if l.look != nil {
		if l.look.called.CompareAndSwap(false, true) {
			ws.wakeLocked(l)
		}
		return
	}
	if l.call != ws.call {
		l.call, l.credit = ws.call, 0
	}
	for l.credit < n && l.first != nil {
		l.credit += l.first.max
		ws.wakeLocked(l)
	}
	l.credit -= n
}

// arrived wakes, for new messages, receives of each group and filter that wants
// them, and may be given them now.
func (ws *waiters) arrived(list []machine.Arrival) {
	if len(list) == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.n == 0 {
		return
	}
	ws.call++
	for _, a := range list {
		wake := func(l *waitList) {
			if !slices.Contains(a.Parked, l.key.sub) {
				ws.wakeForLocked(l, 1)
			}
		}
		ws.wants[wanted{topic: a.Topic, any: true}].each(wake)
		ws.wants[wanted{topic: a.Topic, tag: string(a.Tag)}].each(wake)
	}
}

// each calls fn for every list of b, which may take itself out.
func (b *bucket) each(fn func(*waitList)) {
	if b == nil {
		return
	}
	// Backwards: a list that is taken out is replaced by the last one.
	for i := len(b.lists) - 1; i >= 0; i-- {
		fn(b.lists[i])
	}
}

// ready wakes, for redeliveries, receives of the group with each of its filters:
// the tag of a redelivery is not known here.
func (ws *waiters) ready(list []machine.Readied) {
	if len(list) == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.n == 0 {
		return
	}
	ws.call++
	for _, r := range list {
		ws.subs[r.Sub].each(func(l *waitList) { ws.wakeForLocked(l, r.N) })
	}
}

// freed wakes one receive of the group with each of its filters that waits for
// room. It wakes the next when it finds more than it takes.
func (ws *waiters) freed(list []keyspace.Sub) {
	if len(list) == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, sub := range list {
		ws.subs[sub].each(func(l *waitList) {
			if l.room > 0 {
				ws.wakeLocked(l)
			}
		})
	}
}

// wakeAll wakes every receive: something was deleted, or the shard failed.
func (ws *waiters) wakeAll() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, l := range ws.lists {
		for l.n > 0 {
			ws.wakeLocked(l)
		}
	}
}

// count returns how many receives wait, and how many were woken so far.
func (ws *waiters) count() (n int, woken uint64) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.n, ws.woken
}
