package main

import (
	"maps"
	"sync"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// A liteSet names what one client wants of lite topics, for one group.
type liteSet struct {
	group  mq.GroupID
	client string
}

// liteSets are what the clients of one life of the store want of lite topics, as they were
// answered.
type liteSets struct {
	mu   sync.Mutex
	has  map[liteSet]map[string]bool
	lost map[liteSet]map[string]time.Time // what another client has taken, and when
}

// synced notes a sync that was answered OK.
func (ls *liteSets) synced(sync mq.LiteSync, losses []mq.LiteLoss) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	key := liteSet{sync.Group.ID, sync.Client}
	if ls.has[key] == nil {
		ls.has[key], ls.lost[key] = map[string]bool{}, map[string]time.Time{}
	}
	if sync.Action == mq.LiteReplace || sync.Action == mq.LiteLeave {
		clear(ls.has[key])
	}
	for _, name := range sync.Names {
		switch sync.Action {
		case mq.LiteAdd, mq.LiteReplace:
			ls.has[key][name] = true
			delete(ls.lost[key], name)
		case mq.LiteRemove:
			delete(ls.has[key], name)
		}
	}
	for _, loss := range losses {
		of := liteSet{loss.Group, loss.Client}
		if delete(ls.has[of], loss.Name); ls.lost[of] != nil {
			ls.lost[of][loss.Name] = time.Now()
		}
	}
}

// of returns what a client wants, if nobody can take it away.
func (ls *liteSets) of(key liteSet, exclusive bool) map[string]bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if exclusive {
		return nil
	}
	return maps.Clone(ls.has[key])
}

// got judges that what a receive got that began at start is of lite topics that its client
// wants.
func (ls *liteSets) got(l *ledger, key liteSet, start time.Time, got []mq.Delivery) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, d := range got {
		sn := l.sentAs(d.ID)
		if sn == nil || ls.has[key][sn.lite] {
			continue
		}
		if at, lost := ls.lost[key][sn.lite]; lost && !at.Before(start) {
			continue // it was on its way
		}
		l.wrong("client %s of group %d got %s of the lite topic %s, which it does not want", key.client, key.group, d.ID, sn.lite)
	}
}

// sentAs returns the send of a message.
func (l *ledger) sentAs(id string) *sent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.msgs[id]
}
