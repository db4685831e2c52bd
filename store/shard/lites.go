package shard

import (
	"fmt"
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

// liteSilence is how long a client is known that neither syncs nor receives.
const liteSilence = 3 * time.Minute

// lites are the subscriptions to lite topics.
type lites struct {
	mu      sync.Mutex
	clients map[liteKey]*liteClient
	names   map[liteName]*liteEntry
	queues  map[keyspace.Queue]*liteEntry
	waiting map[liteKey][]chan struct{} // receives; each channel has room for one token
	total   int                         // lite topics of all clients
	swept   time.Time
}

type liteKey struct {
	sub    keyspace.Sub
	client string
}

type liteName struct {
	topic mq.TopicID
	name  string
}

// A liteEntry is a lite topic that somebody wants.
type liteEntry struct {
	liteName
	queue   mq.QueueID // 0: there is none at present
	clients []*liteClient
}

// A liteClient is one client of a group with its lite topics.
type liteClient struct {
	key     liteKey
	names   map[string]*liteEntry
	seen    time.Time
	version int64
	// list has what may have something, in order; each once, as listed says.
	list   []*liteEntry
	listed map[*liteEntry]bool
}

func (l *lites) initLocked() {
	if l.clients == nil {
		l.clients, l.names = map[liteKey]*liteClient{}, map[liteName]*liteEntry{}
		l.queues, l.waiting = map[keyspace.Queue]*liteEntry{}, map[liteKey][]chan struct{}{}
	}
}

// markLocked puts a lite topic on the client's list, and wakes its receives.
func (l *lites) markLocked(c *liteClient, e *liteEntry) {
	if c.names[e.name] != e {
		return
	}
	if !c.listed[e] {
		c.listed[e] = true
		c.list = append(c.list, e)
	}
	l.wakeLocked(c.key)
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
		if id.Queue != 0 {
			l.goneLocked(id)
			continue
		}
		for other := range l.queues {
			if other.Topic == id.Topic {
				l.goneLocked(other)
			}
		}
	}
	for _, made := range e.LiteMade {
		if entry := l.names[liteName{made.Topic, made.Name}]; entry != nil {
			l.foundLocked(entry, made.Queue)
		}
	}
	for _, ev := range e.Lites {
		entry := l.queues[keyspace.Queue{Topic: ev.Topic, Queue: ev.Queue}]
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

func (l *lites) goneLocked(id keyspace.Queue) {
	if entry := l.queues[id]; entry != nil {
		entry.queue = 0
		delete(l.queues, id)
	}
}

// foundLocked notes the queue of a lite topic. Of two the later one has the greater id.
func (l *lites) foundLocked(e *liteEntry, queue mq.QueueID) {
	if queue <= e.queue {
		return
	}
	delete(l.queues, keyspace.Queue{Topic: e.topic, Queue: e.queue})
	e.queue = queue
	l.queues[keyspace.Queue{Topic: e.topic, Queue: queue}] = e
}

// add adds names to a client's set, all or none, and returns those that are new to it. With
// whole the set has no others afterwards.
func (l *lites) add(key liteKey, r *mq.LiteSync, whole bool, now time.Time) (added []string, lost []mq.LiteLoss, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.initLocked()
	l.sweepLocked(now)
	c := l.clients[key]
	if c == nil {
		c = &liteClient{key: key, names: map[string]*liteEntry{}, listed: map[*liteEntry]bool{}}
	}
	if whole && r.Version > 0 && r.Version < c.version {
		c.seen = now
		return nil, nil, nil // it was overtaken
	}
	wanted := map[string]bool{}
	for _, name := range r.Names {
		if wanted[name] {
			continue
		}
		wanted[name] = true
		if c.names[name] == nil {
			added = append(added, name)
		}
	}
	var removed []string
	if whole {
		for name := range c.names {
			if !wanted[name] {
				removed = append(removed, name)
			}
		}
	}
	more := len(added) - len(removed)
	if n := len(c.names) + more; more > 0 && r.ClientQuota > 0 && n > r.ClientQuota {
		return nil, nil, fmt.Errorf("client %q would have %d lite topics, the limit is %d: %w", mq.Shorten(key.client), n, r.ClientQuota, mq.ErrLiteSubscriptionQuota)
	}
	if n := l.total + more; more > 0 && r.TotalQuota > 0 && n > r.TotalQuota {
		return nil, nil, fmt.Errorf("all clients would have %d lite topics, the limit is %d: %w", n, r.TotalQuota, mq.ErrLiteSubscriptionQuota)
	}
	l.clients[key] = c
	c.seen, c.version = now, max(c.version, r.Version)
	for _, name := range removed {
		l.removeLocked(c, name)
	}
	for _, name := range added {
		id := liteName{key.sub.Topic, name}
		e := l.names[id]
		if e == nil {
			e = &liteEntry{liteName: id}
			l.names[id] = e
		}
		if r.Exclusive {
			for _, other := range slices.Clone(e.clients) {
				if other.key.sub == key.sub {
					l.removeLocked(other, name)
					lost = append(lost, mq.LiteLoss{Client: other.key.client, Topic: key.sub.Topic, Group: key.sub.Group, Name: name})
				}
			}
			l.names[id] = e // the last client of it may just have gone
			if e.queue != 0 {
				l.queues[keyspace.Queue{Topic: e.topic, Queue: e.queue}] = e
			}
		}
		c.names[name] = e
		e.clients = append(e.clients, c)
		l.total++
	}
	return added, lost, nil
}

// resolve notes the queues of names of a client, and puts them on its list.
func (l *lites) resolve(key liteKey, names []string, queues []mq.QueueID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[key]
	if c == nil {
		return
	}
	for i, name := range names {
		if e := c.names[name]; e != nil {
			l.foundLocked(e, queues[i])
			l.markLocked(c, e)
		}
	}
}

// remove takes names out of a client's set; with all, the whole set.
func (l *lites) remove(key liteKey, names []string, all bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.clients[key]; c != nil {
		l.dropLocked(c, names, all)
	}
}

// leave forgets a client in all its groups.
func (l *lites) leave(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for key, c := range l.clients {
		if key.client == client {
			l.dropLocked(c, nil, true)
		}
	}
}

func (l *lites) dropLocked(c *liteClient, names []string, all bool) {
	if all {
		for name := range c.names {
			l.removeLocked(c, name)
		}
		delete(l.clients, c.key)
		return
	}
	for _, name := range names {
		l.removeLocked(c, name)
	}
}

func (l *lites) removeLocked(c *liteClient, name string) {
	e := c.names[name]
	if e == nil {
		return
	}
	delete(c.names, name)
	l.total--
	if c.listed[e] {
		delete(c.listed, e)
		c.list = slices.DeleteFunc(c.list, func(other *liteEntry) bool { return other == e })
	}
	e.clients = slices.DeleteFunc(e.clients, func(other *liteClient) bool { return other == c })
	if len(e.clients) == 0 {
		delete(l.names, e.liteName)
		delete(l.queues, keyspace.Queue{Topic: e.topic, Queue: e.queue})
	}
}

// sweepLocked forgets clients that were silent for long.
func (l *lites) sweepLocked(now time.Time) {
	if now.Sub(l.swept) < liteSilence/3 {
		return
	}
	l.swept = now
	for key, c := range l.clients {
		if now.Sub(c.seen) > liteSilence && len(l.waiting[key]) == 0 {
			l.dropLocked(c, nil, true)
		}
	}
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
		client.seen = time.Now()
		if len(client.list) > 0 {
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
		if (all || slices.Contains(queues, e.queue)) && c.names[e.name] == e && !c.listed[e] {
			c.listed[e] = true
			c.list = append(c.list, e)
		}
	}
}

// some reports whether there is something on the client's list.
func (l *lites) some(key liteKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.clients[key]
	return c != nil && len(c.list) > 0
}
