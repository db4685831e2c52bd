package crashtest

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// invisible is the lease of every delivery; margin is how long before its end an
// acknowledgement must have been answered to count as in time.
const (
	invisible = 10 * time.Second
	margin    = 2 * time.Second
	slack     = 100 * time.Millisecond
)

// A history is what the clients of one topic saw, and the judge of it.
type history struct {
	mu     sync.Mutex
	sends  []*sent
	msgs   map[string]*sent
	seen   map[string]map[string]*fate // by group and message
	at     map[place]string
	faults []string
	killed bool      // the server has been killed at least once
	cut    time.Time // when it was killed last

	acked, unknown, delivered, redelivered, acks, late int
	// Sends that were answered when they were tried again, recalls and ends of transactions
	// that were answered OK, and questions to producers.
	repeats, recalls, ends, questions int

	// What must be 0, and how late a redelivery was that nobody had asked for sooner.
	lost, stuck, afterAck, twoHolders, duplicates, early, visible, other int
	lateness                                                             time.Duration
}

// place is where a message is stored.
type place struct {
	queue  int32
	offset int64
}

// sent is one send: a single message or a batch.
type sent struct {
	ids   []string
	tag   string
	acked bool
	answer
	*wait // of a delayed or a half message
}

// answer is that to a send, of its first message.
type answer struct {
	offset int64
	handle string // of a message that waits
}

// fate is what a group saw of a message.
type fate struct {
	place    place
	attempts map[int32]bool
	last     int32     // greatest attempt seen
	lastSeen time.Time // when
	until    time.Time // its lease does not end before; zero when it was given up
	settled  bool      // an acknowledgement in time was answered OK
	acking   bool      // one was asked for
}

func newHistory() *history {
	return &history{msgs: map[string]*sent{}, seen: map[string]map[string]*fate{}, at: map[place]string{}}
}

// fault notes that something does not hold.
func (h *history) fault(kind *int, format string, args ...any) {
	*kind++
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// cutOff notes that the server was killed, and with it every receive under way.
func (h *history) cutOff() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.killed, h.cut = true, time.Now()
}

func (h *history) beginSend(tag string, ids []string, w *wait) *sent {
	h.mu.Lock()
	defer h.mu.Unlock()
	sn := &sent{ids: ids, tag: tag, wait: w}
	h.sends = append(h.sends, sn)
	for _, id := range ids {
		h.msgs[id] = sn
	}
	return sn
}

// endSend notes that a send was answered OK, at first or when it was tried again.
func (h *history) endSend(sn *sent, a answer, again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if again || sn.acked {
		h.repeats++
	}
	if sn.acked {
		if a != sn.answer {
			h.fault(&h.other, "%v was answered with %+v and, sent again, with %+v", sn.ids, sn.answer, a)
		}
		return
	}
	sn.acked, sn.answer = true, a
	h.acked += len(sn.ids)
}

// delivery is one message as a consumer got it.
type delivery struct {
	group, id string
	body      string
	place     place
	attempt   int32
	began, at time.Time // of the receive; of the arrival
}

func (h *history) deliver(d delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.delivered++
	if h.msgs[d.id] == nil {
		h.fault(&h.other, "group %s got %s, which was never sent", d.group, d.id)
		return
	}
	h.mayBeSeen(d)
	if d.body != body(d.id) {
		h.fault(&h.other, "%s has the body %.40q", d.id, d.body)
	}
	if id, ok := h.at[d.place]; ok && id != d.id {
		h.fault(&h.other, "%s and %s are both at %+v", id, d.id, d.place)
	}
	h.at[d.place] = d.id
	if h.seen[d.group] == nil {
		h.seen[d.group] = map[string]*fate{}
	}
	f := h.seen[d.group][d.id]
	if f == nil {
		h.seen[d.group][d.id] = &fate{
			place: d.place, attempts: map[int32]bool{d.attempt: true},
			last: d.attempt, lastSeen: d.at, until: d.began.Add(invisible),
		}
		return
	}
	h.redelivered++
	early := d.at.Add(slack).Before(f.until)
	if !h.killed && (f.settled || early) {
		h.duplicates++
	}
	if !f.until.IsZero() {
		// When the lease ends at the latest: a receive that a kill cut off may have
		// leased it again.
		from := f.lastSeen.Add(invisible)
		if end := h.cut.Add(invisible); h.cut.After(f.lastSeen) && end.After(from) {
			from = end
		}
		if d.began.After(from) {
			from = d.began
		}
		h.lateness = max(h.lateness, d.at.Sub(from))
	}
	if f.place != d.place {
		h.fault(&h.other, "group %s got %s from %+v and from %+v", d.group, d.id, f.place, d.place)
	}
	if f.settled {
		h.fault(&h.afterAck, "group %s got %s again (attempt %d) after its ack had been answered OK", d.group, d.id, d.attempt)
	}
	// A delivery that never reached a consumer may count or not, but two that
	// did never have the same number, and a later one has a greater.
	if f.attempts[d.attempt] {
		h.fault(&h.other, "group %s got %s twice as attempt %d", d.group, d.id, d.attempt)
	}
	if d.began.After(f.lastSeen) && d.attempt <= f.last {
		h.fault(&h.other, "group %s got %s as attempt %d after attempt %d", d.group, d.id, d.attempt, f.last)
	}
	if early {
		h.fault(&h.twoHolders, "group %s got %s %v before the lease of attempt %d ended", d.group, d.id, f.until.Sub(d.at), f.last)
	}
	f.attempts[d.attempt] = true
	if d.attempt > f.last {
		f.last, f.lastSeen, f.until = d.attempt, d.at, d.began.Add(invisible)
	}
}

// giveUp notes that the lease may end at any time from now on.
func (h *history) giveUp(group, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[group][id].until = time.Time{}
}

// beginAck notes an acknowledgement that is about to be asked for.
func (h *history) beginAck(group, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen[group][id].acking = true
}

// endAck notes that one was answered OK, for a receive that began so.
func (h *history) endAck(group, id string, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(began) < invisible-margin {
		h.seen[group][id].settled = true
		h.acks++
	} else {
		h.late++ // an OK may then mean that another delivery is under way
	}
}

// missing returns how many answered sends a group has not got yet. The tag is
// its filter, empty for all.
func (h *history) missing(group, tag string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, sn := range h.sends {
		if !sn.acked || tag != "" && sn.tag != tag || sn.wait != nil && !sn.must() {
			continue
		}
		for _, id := range sn.ids {
			if h.seen[group][id] == nil {
				n++
			}
		}
	}
	return n
}

// judge checks what must hold when everything has been received. filters are the
// groups with their tags; queues has the number of messages of each queue, if these are
// known.
func (h *history) judge(filters map[string]string, queues map[int32]int64) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for group, tag := range filters {
		for _, sn := range h.sends {
			h.judgeSend(group, tag, sn)
		}
	}
	h.unknown = 0
	for _, sn := range h.sends {
		if !sn.acked {
			h.unknown += len(sn.ids)
		}
	}
	if queues == nil {
		return h.faults
	}
	stored := int64(0)
	for queue, n := range queues {
		stored += n
		for offset := range n {
			if h.at[place{queue, offset}] == "" {
				h.fault(&h.lost, "nothing was received from offset %d of queue %d", offset, queue)
			}
		}
	}
	if int64(len(h.at)) != stored {
		h.fault(&h.other, "messages came from %d places, the queues hold %d", len(h.at), stored)
	}
	return h.faults
}

func (h *history) judgeSend(group, tag string, sn *sent) {
	if tag != "" && sn.tag != tag {
		for _, id := range sn.ids {
			if h.seen[group][id] != nil {
				h.fault(&h.other, "group %s got %s, whose tag it does not want", group, id)
			}
		}
		return
	}
	var places []place
	for _, id := range sn.ids {
		if f := h.seen[group][id]; f != nil {
			places = append(places, f.place)
		}
	}
	switch {
	case len(places) == 0 && (!sn.acked || sn.wait != nil && !sn.must()):
		return
	case len(places) != len(sn.ids):
		h.fault(&h.lost, "group %s got %d messages of the send %v (answered OK: %t)", group, len(places), sn.ids, sn.acked)
		return
	}
	if sn.acked && sn.wait == nil && places[0].offset != sn.offset {
		h.fault(&h.other, "send of %v was answered with offset %d and is at %+v", sn.ids, sn.offset, places[0])
	}
	for i, p := range places {
		if p.queue != places[0].queue || p.offset != places[0].offset+int64(i) {
			h.fault(&h.other, "the batch %v is not in one piece: %v", sn.ids, places)
			return
		}
	}
	if i := slices.IndexFunc(sn.ids, func(id string) bool { return !h.seen[group][id].settled && !h.seen[group][id].acking }); i >= 0 {
		h.fault(&h.stuck, "group %s never acknowledged %s, and nothing of it is left", group, sn.ids[i])
	}
}

// body is what the message with this id carries.
func body(id string) string { return "body of " + id }
