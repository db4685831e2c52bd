package shard

import (
	"container/list"
	"slices"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Which lite topics a client wants is known in memory only: clients say it again every half
// minute, and a client that did not for long is forgotten. What the groups have received is
// in the views.
//
// A client has a list of those of its lite topics that may have something for it. A receive
// takes some off the list, then looks, and puts back what it has left. What happens after it
// took one puts that on the list again, so no lite topic is forgotten.
//
// The loop takes the lock with every message of a lite topic. So nothing under it may follow
// the number of clients or of lite topics, but that of a single client.

// liteSilence is how long a client is known that neither syncs nor receives.
const liteSilence = 3 * time.Minute

// liteSharers is how many clients of a group may have the same lite topic: each message
// of it is noted for all of them.
const liteSharers = 1000

// sweepNames bounds how many lite topics of silent clients are forgotten at a time.
const sweepNames = 1024

// lites are the subscriptions to lite topics.
type lites struct {
	mu      sync.Mutex
	clients map[liteKey]*liteClient
	byID    map[string][]*liteClient
	seen    *list.List // of *liteClient, the one that was silent for longest first
	names   map[liteName]*liteEntry
	queues  map[mq.TopicID]map[mq.QueueID]*liteEntry
	waiting map[liteKey][]chan struct{} // receives; each channel has room for one token
	total   int                         // lite topics of all clients
	planned int                         // how many more the syncs under way will add at most
	begun   uint64                      // syncs, so far
}

type liteKey struct {
	sub    keyspace.Sub
	client string
}

type liteName struct {
	topic mq.TopicID
	name  string
}

// A liteEntry is a lite topic that somebody wants, or is about to.
type liteEntry struct {
	liteName
	queue   mq.QueueID // 0: there is none at present; when the topic was purged, it is gone
	clients []*liteClient
	plans   int // syncs under way that add it
}

// A liteClient is one client of a group with its lite topics.
type liteClient struct {
	key     liteKey
	names   map[string]liteHold
	plans   []*litePlan // under way
	at      time.Time   // when it was seen
	place   *list.Element
	version int64
	// listed are what may have something; list has them in order, and may have others
	// and the same again, which are passed over.
	list   []*liteEntry
	listed map[*liteEntry]bool
}

// A liteHold is a lite topic of a client, and the number of the sync that added it.
type liteHold struct {
	*liteEntry
	since uint64
}

func (l *lites) initLocked() {
	if l.clients == nil {
		l.clients, l.names, l.byID = map[liteKey]*liteClient{}, map[liteName]*liteEntry{}, map[string][]*liteClient{}
		l.queues, l.waiting, l.seen = map[mq.TopicID]map[mq.QueueID]*liteEntry{}, map[liteKey][]chan struct{}{}, list.New()
	}
}

// clientLocked returns the client, which is known from now on.
func (l *lites) clientLocked(key liteKey) *liteClient {
	c := l.clients[key]
	if c == nil {
		c = &liteClient{key: key, names: map[string]liteHold{}, listed: map[*liteEntry]bool{}}
		c.place = l.seen.PushBack(c)
		l.clients[key] = c
		l.byID[key.client] = append(l.byID[key.client], c)
	}
	return c
}

// sawLocked notes a sign of life.
func (l *lites) sawLocked(c *liteClient, now time.Time) {
	c.at = now
	l.seen.MoveToBack(c.place)
}

// markLocked puts a lite topic on the client's list, and wakes its receives.
func (l *lites) markLocked(c *liteClient, e *liteEntry) {
	c.putLocked(e)
	l.wakeLocked(c.key)
}

// putLocked puts one of its lite topics on the client's list.
func (c *liteClient) putLocked(e *liteEntry) {
	if c.names[e.name].liteEntry != e || c.listed[e] {
		return
	}
	if len(c.list) > 2*len(c.listed)+sweepNames {
		kept := make(map[*liteEntry]bool, len(c.listed))
		c.list = slices.DeleteFunc(c.list, func(other *liteEntry) bool {
			if !c.listed[other] || kept[other] {
				return true
			}
			kept[other] = true
			return false
		})
	}
	c.listed[e] = true
	c.list = append(c.list, e)
}

func (l *lites) wakeLocked(key liteKey) {
	for _, c := range l.waiting[key] {
		signal(c)
	}
}

// wakeAll wakes every receive.
func (l *lites) wakeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key := range l.waiting {
		l.wakeLocked(key)
	}
}

// happened notes what the loop has done.
func (l *lites) happened(e *machine.Effects) {
	if len(e.Lites)+len(e.LiteMade)+len(e.LiteGone) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.clients) == 0 {
		return
	}
	for _, id := range e.LiteGone {
		if id.Queue == 0 {
			delete(l.queues, id.Topic) // a receive that still knows one finds nothing there
			continue
		}
		if entry := l.queues[id.Topic][id.Queue]; entry != nil {
			l.unmapLocked(entry)
			entry.queue = 0
		}
	}
	for _, made := range e.LiteMade {
		if entry := l.names[liteName{made.Topic, made.Name}]; entry != nil {
			l.foundLocked(entry, made.Queue)
		}
	}
	for _, ev := range e.Lites {
		entry := l.queues[ev.Topic][ev.Queue]
		if entry == nil {
			continue
		}
		for _, c := range entry.clients {
			if ev.Group == 0 || c.key.sub.Group == ev.Group {
				l.markLocked(c, entry)
			}
		}
	}
}

// foundLocked notes the queue of a lite topic. Of two the later one has the greater id.
func (l *lites) foundLocked(e *liteEntry, queue mq.QueueID) {
	if queue <= e.queue {
		return
	}
	l.unmapLocked(e)
	e.queue = queue
	of := l.queues[e.topic]
	if of == nil {
		of = map[mq.QueueID]*liteEntry{}
		l.queues[e.topic] = of
	}
	of[queue] = e
}

// unmapLocked undoes foundLocked.
func (l *lites) unmapLocked(e *liteEntry) {
	of := l.queues[e.topic]
	if of[e.queue] != e {
		return
	}
	if delete(of, e.queue); len(of) == 0 {
		delete(l.queues, e.topic)
	}
}

// entryLocked returns the lite topic, which is known from now on.
func (l *lites) entryLocked(id liteName) *liteEntry {
	e := l.names[id]
	if e == nil {
		e = &liteEntry{liteName: id}
		l.names[id] = e
	}
	return e
}

// unusedLocked forgets a lite topic that nobody wants.
func (l *lites) unusedLocked(e *liteEntry) {
	if len(e.clients) == 0 && e.plans == 0 {
		l.unmapLocked(e)
		delete(l.names, e.liteName)
	}
}

// remove takes names out of a client's set; with all, the whole set, and the client is gone.
func (l *lites) remove(key liteKey, names []string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[key]
	if c == nil {
		return
	}
	if all {
		l.dropLocked(c)
		return
	}
	for _, name := range names {
		l.removeLocked(c, name)
		for _, p := range c.plans {
			l.forgetLocked(p, name)
		}
	}
}

// leave forgets a client in all its groups.
func (l *lites) leave(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range slices.Clone(l.byID[client]) {
		l.dropLocked(c)
	}
}

// dropLocked forgets a client. What its syncs under way were to add is not added.
func (l *lites) dropLocked(c *liteClient) {
	for name := range c.names {
		l.removeLocked(c, name)
	}
	delete(l.clients, c.key)
	l.seen.Remove(c.place)
	of := slices.DeleteFunc(l.byID[c.key.client], func(other *liteClient) bool { return other == c })
	if l.byID[c.key.client] = of; len(of) == 0 {
		delete(l.byID, c.key.client)
	}
}

func (l *lites) removeLocked(c *liteClient, name string) {
	e := c.names[name].liteEntry
	if e == nil {
		return
	}
	delete(c.names, name)
	delete(c.listed, e)
	l.total--
	e.clients = slices.DeleteFunc(e.clients, func(other *liteClient) bool { return other == c })
	l.unusedLocked(e)
}

// sweep forgets some of the clients that were silent for long, and reports whether there
// may be more of them.
func (l *lites) sweep(now time.Time) (more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.initLocked()
	for n := 0; n < sweepNames; n++ {
		front := l.seen.Front()
		if front == nil {
			return false
		}
		c, ok := front.Value.(*liteClient)
		if !ok || now.Sub(c.at) <= liteSilence {
			return false
		}
		if len(l.waiting[c.key]) > 0 || len(c.plans) > 0 {
			l.sawLocked(c, now)
			continue
		}
		n += len(c.names)
		l.dropLocked(c)
	}
	return true
}

// wait registers a receive of the client.
func (l *lites) wait(key liteKey, c chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.initLocked()
	l.waiting[key] = append(l.waiting[key], c)
}

// unwait undoes wait.
func (l *lites) unwait(key liteKey, c chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := slices.DeleteFunc(l.waiting[key], func(other chan struct{}) bool { return other == c })
	if l.waiting[key] = list; len(list) == 0 {
		delete(l.waiting, key)
	}
	if client := l.clients[key]; client != nil {
		l.sawLocked(client, time.Now())
		if len(client.listed) > 0 {
			l.wakeLocked(key) // it may have had the token for them
		}
	}
}

// take takes up to n lite topics off the client's list.
func (l *lites) take(key liteKey, n int) (entries []*liteEntry, queues []mq.QueueID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[key]
	if c == nil {
		return nil, nil
	}
	for len(c.list) > 0 && len(queues) < n {
		e := c.list[0]
		c.list[0] = nil
		c.list = c.list[1:]
		if !c.listed[e] {
			continue
		}
		delete(c.listed, e)
		if e.queue != 0 {
			entries, queues = append(entries, e), append(queues, e.queue)
		}
	}
	return entries, queues
}

// putBack puts lite topics on the client's list that it took off: those with the queues, or
// all.
func (l *lites) putBack(key liteKey, entries []*liteEntry, queues []mq.QueueID, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[key]
	if c == nil {
		return
	}
	for _, e := range entries {
		if all || slices.Contains(queues, e.queue) {
			c.putLocked(e)
		}
	}
}

// count returns how many clients there are, and lite topics of all of them.
func (l *lites) count() (clients, names int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.clients), l.total
}

// use returns how many lite topics a client has or is about to get, and how many all have.
func (l *lites) use(key liteKey) (client, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.clients[key]; c != nil {
		client = len(c.names)
		for _, p := range c.plans {
			client += p.own
		}
	}
	return client, l.total + l.planned
}
