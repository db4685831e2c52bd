package shard

import (
	"encoding/binary"
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
	list *waitList     // nil: not registered, or a token is in c
	of   *waitList     // the list it was last registered in
	next *waiter
	prev *waiter
}

// A waitList is the queue of waiters of one group with one filter on one topic.
type waitList struct {
	key         listKey
	tags        []string // none: every message
	first, last *waiter
	n           int
}

type listKey struct {
	sub    keyspace.Sub
	filter string
}

// keyOf tells filters apart whatever their tags are; it is empty without one.
func keyOf(sub keyspace.Sub, tags []string) listKey {
	var filter []byte
	for _, tag := range tags {
		filter = append(binary.AppendUvarint(filter, uint64(len(tag))), tag...)
	}
	return listKey{sub: sub, filter: string(filter)}
}

// waiters are all receives of the shard that wait.
type waiters struct {
	mu     sync.Mutex
	lists  map[listKey]*waitList
	topics map[mq.TopicID][]*waitList
	n      int
}

func (l *waitList) matches(tag []byte) bool {
	if len(l.tags) == 0 {
		return true
	}
	for _, want := range l.tags {
		if want == string(tag) {
			return true
		}
	}
	return false
}

// register puts w at the end of its queue.
func (ws *waiters) register(w *waiter, sub keyspace.Sub, tags []string) {
	key := keyOf(sub, tags)
	ws.mu.Lock()
	defer ws.mu.Unlock()
	l := ws.lists[key]
	if l == nil {
		l = &waitList{key: key, tags: tags}
		if ws.lists == nil {
			ws.lists, ws.topics = map[listKey]*waitList{}, map[mq.TopicID][]*waitList{}
		}
		ws.lists[key] = l
		ws.topics[sub.Topic] = append(ws.topics[sub.Topic], l)
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
func (ws *waiters) passOn(sub keyspace.Sub, tags []string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.wakeLocked(ws.lists[keyOf(sub, tags)])
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
	if l.n > 0 {
		return
	}
	delete(ws.lists, l.key)
	lists := ws.topics[l.key.sub.Topic]
	for i := range lists {
		if lists[i] == l {
			lists[i] = lists[len(lists)-1]
			lists[len(lists)-1] = nil
			lists = lists[:len(lists)-1]
			break
		}
	}
	if len(lists) == 0 {
		delete(ws.topics, l.key.sub.Topic)
	} else {
		ws.topics[l.key.sub.Topic] = lists
	}
}

// wakeLocked wakes the first of the queue, if there is one.
func (ws *waiters) wakeLocked(l *waitList) {
	if l == nil || l.first == nil {
		return
	}
	w := l.first
	ws.removeLocked(w)
	w.c <- struct{}{}
}

// arrived wakes, for every new message, one receive of each group and filter
// that wants it.
func (ws *waiters) arrived(list []machine.Arrival) {
	if len(list) == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.n == 0 {
		return
	}
	for _, a := range list {
		lists := ws.topics[a.Topic]
		// Backwards: a queue that becomes empty is replaced by the last one.
		for i := len(lists) - 1; i >= 0; i-- {
			if l := lists[i]; l.matches(a.Tag) {
				ws.wakeLocked(l)
			}
		}
	}
}

// ready wakes, for every redelivery, one receive of the group with each of its
// filters: the tag of a redelivery is not known here.
func (ws *waiters) ready(list []keyspace.Sub) {
	if len(list) == 0 {
		return
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.n == 0 {
		return
	}
	for _, sub := range list {
		lists := ws.topics[sub.Topic]
		for i := len(lists) - 1; i >= 0; i-- {
			if l := lists[i]; l.key.sub == sub {
				ws.wakeLocked(l)
			}
		}
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

// count returns how many receives wait.
func (ws *waiters) count() int {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.n
}
