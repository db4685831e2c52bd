package crashtest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	grpcstatus "google.golang.org/grpc/status"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
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
	seen   map[string]map[string]map[string]*fate // by group, message and shard
	at     map[place]string
	faults []string
	cuts   *outages // while connections broke: a process was killed, or the network failed
	// deployed: there are several shards, and proxies that are killed apart from them.
	deployed bool
	outages  *outages // of shards

	failed map[string]int // sends that were not answered OK, by why

	acked, unknown, delivered, redelivered, acks, late int
	// Sends that were answered when they were tried again, recalls and ends of transactions
	// that were answered OK, and questions to producers.
	repeats, recalls, ends, questions int
	// In a deployment: sends that were repeated and are on two shards, and messages that were
	// given back at the death of a proxy although they had just reached a consumer.
	copies, handed int
	from           map[string]int // deliveries by shard

	// What must be 0, and how late a redelivery was that nobody had asked for sooner.
	lost, stuck, afterAck, twoHolders, duplicates, early, visible, other int
	lateness                                                             time.Duration
}

// queue is a queue of the topic; the shard has no name where there is one only.
type queue struct {
	shard  string
	number int32
}

// place is where a message is stored.
type place struct {
	queue
	offset int64
}

// key names what a group has of a message on a shard.
type key struct{ group, id, shard string }

func (h *history) fate(k key) *fate { return h.seen[k.group][k.id][k.shard] }

// sent is one send: a single message or a batch.
type sent struct {
	ids     []string
	tag     string
	tries   []span // when it was asked for
	acked   bool
	answers []answer // different ones
	*wait            // of a delayed or a half message
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
	return &history{msgs: map[string]*sent{}, seen: map[string]map[string]map[string]*fate{}, at: map[place]string{}, from: map[string]int{}, failed: map[string]int{}}
}

// fault notes that something does not hold.
func (h *history) fault(kind *int, format string, args ...any) {
	*kind++
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// handover is how far apart the arrival of messages and the end of the connection that brought
// them may be, so that a store node does not know that they have arrived.
const handover = 500 * time.Millisecond

// handedOver reports whether what arrived then may have been given back at the death of a
// proxy.
func (h *history) handedOver(at time.Time) bool {
	around := span{at.Add(-handover), at.Add(handover)}
	return h.deployed && h.cuts.met([]span{around}, anything)
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

// tried notes that a send was asked for meanwhile, once more perhaps.
func (h *history) tried(sn *sent, try span) {
	h.mu.Lock()
	defer h.mu.Unlock()
	sn.tries = append(sn.tries, try)
}

// answeredWith counts a send that was not answered OK.
func (h *history) answeredWith(status *rmqpb.Status, err error) {
	if err == nil && status.GetCode() == rmqpb.Code_OK {
		return
	}
	why := "without an answer: " + grpcstatus.Code(err).String()
	if err == nil {
		why = status.GetCode().String() + ": " + status.GetMessage()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failed[why]++
}

// endSend notes that a send was answered OK, at first or when it was tried again.
func (h *history) endSend(sn *sent, a answer, again bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if again || sn.acked {
		h.repeats++
	}
	known := slices.Contains(sn.answers, a)
	if sn.acked && !known && !h.deployed {
		h.fault(&h.other, "%v was answered with %+v and, sent again, with %+v", sn.ids, sn.answers[0], a)
		return
	}
	if !known {
		sn.answers = append(sn.answers, a)
	}
	if !sn.acked {
		sn.acked = true
		h.acked += len(sn.ids)
	}
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
	h.from[d.place.shard]++
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
		h.seen[d.group] = map[string]map[string]*fate{}
	}
	if h.seen[d.group][d.id] == nil {
		h.seen[d.group][d.id] = map[string]*fate{}
	}
	f := h.fate(d.key())
	if f == nil {
		h.seen[d.group][d.id][d.place.shard] = &fate{
			place: d.place, attempts: map[int32]bool{d.attempt: true},
			last: d.attempt, lastSeen: d.at, until: d.began.Add(invisible),
		}
		return
	}
	h.redelivered++
	early := d.at.Add(slack).Before(f.until)
	if !h.cuts.any() && (f.settled || early) {
		h.duplicates++
	}
	if !f.until.IsZero() {
		// When the lease ends at the latest: a receive that a kill cut off may have
		// leased it again.
		from := f.lastSeen.Add(invisible)
		if cut := h.cuts.last(); cut.After(f.lastSeen) && cut.Add(invisible).After(from) {
			from = cut.Add(invisible)
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
	twice, back := f.attempts[d.attempt], d.began.After(f.lastSeen) && d.attempt <= f.last
	handed := (twice || back || early) && h.handedOver(f.lastSeen)
	switch {
	case handed:
		h.handed++
	case twice:
		h.fault(&h.other, "group %s got %s twice as attempt %d", d.group, d.id, d.attempt)
	case back:
		h.fault(&h.other, "group %s got %s as attempt %d after attempt %d", d.group, d.id, d.attempt, f.last)
	}
	if early && !handed {
		h.fault(&h.twoHolders, "group %s got %s %v before the lease of attempt %d ended", d.group, d.id, f.until.Sub(d.at), f.last)
	}
	f.attempts[d.attempt] = true
	if d.attempt > f.last || handed {
		f.last, f.lastSeen, f.until = d.attempt, d.at, d.began.Add(invisible)
	}
}

// key names what was delivered.
func (d delivery) key() key { return key{d.group, d.id, d.place.shard} }

// giveUp notes that the lease may end at any time from now on.
func (h *history) giveUp(k key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fate(k).until = time.Time{}
}

// beginAck notes an acknowledgement that is about to be asked for.
func (h *history) beginAck(k key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fate(k).acking = true
}

// endAck notes that one was answered OK, for a receive that began so.
func (h *history) endAck(k key, began time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(began) < invisible-margin {
		h.fate(k).settled = true
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
			if len(h.seen[group][id]) == 0 {
				n++
			}
		}
	}
	return n
}

// judge checks what must hold when everything has been received. filters are the
// groups with their tags; queues has the number of messages of each queue, if these are
// known.
func (h *history) judge(filters map[string]string, queues map[queue]int64) []string {
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
		if n := len(h.shardsOf(filters, sn)); n > 1 {
			h.copies += n - 1
		}
	}
	if queues == nil {
		return h.faults
	}
	stored := int64(0)
	for q, n := range queues {
		stored += n
		for offset := range n {
			if h.at[place{q, offset}] == "" {
				h.fault(&h.lost, "nothing was received from offset %d of queue %+v", offset, q)
			}
		}
	}
	if int64(len(h.at)) != stored {
		h.fault(&h.other, "messages came from %d places, the queues hold %d", len(h.at), stored)
	}
	return h.faults
}

// shardsOf returns the shards from which groups got something of a send, in order.
func (h *history) shardsOf(groups map[string]string, sn *sent) []string {
	shards := map[string]bool{}
	for group := range groups {
		for _, id := range sn.ids {
			for shard := range h.seen[group][id] {
				shards[shard] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(shards))
}

func (h *history) judgeSend(group, tag string, sn *sent) {
	shards := h.shardsOf(map[string]string{group: tag}, sn)
	switch {
	case tag != "" && sn.tag != tag:
		if len(shards) > 0 {
			h.fault(&h.other, "group %s got something of %v, whose tag it does not want", group, sn.ids)
		}
		return
	case len(shards) == 0 && (!sn.acked || sn.wait != nil && !sn.must()):
		return
	case len(shards) == 0:
		h.fault(&h.lost, "group %s got 0 messages of the send %v (answered OK: %t)", group, sn.ids, sn.acked)
		return
	case len(shards) > max(len(sn.tries), 1):
		h.fault(&h.other, "the send %v is on the shards %v and was asked for %d times", sn.ids, shards, len(sn.tries))
	case len(shards) > 1 && !h.outages.met(sn.tries, shards):
		h.fault(&h.other, "the send %v is on the shards %v, none of which was away when it was asked for", sn.ids, shards)
	}
	if len(sn.answers) > 1 && len(shards) == 1 {
		h.fault(&h.other, "%v was answered with %+v, and is on the shard %v only", sn.ids, sn.answers, shards)
	}
	var firsts []int64
	for _, shard := range shards {
		if first, ok := h.judgeCopy(group, shard, sn); ok {
			firsts = append(firsts, first.offset)
		}
	}
	for _, a := range sn.answers {
		if sn.wait == nil && len(firsts) == len(shards) && !slices.Contains(firsts, a.offset) {
			h.fault(&h.other, "send of %v was answered with offset %d and is at %v of the shards %v", sn.ids, a.offset, firsts, shards)
		}
	}
}

// judgeCopy judges what a group got of a send from one shard, and returns where it begins.
func (h *history) judgeCopy(group, shard string, sn *sent) (first place, ok bool) {
	var places []place
	for _, id := range sn.ids {
		if f := h.fate(key{group, id, shard}); f != nil {
			places = append(places, f.place)
		}
	}
	if len(places) != len(sn.ids) {
		h.fault(&h.lost, "group %s got %d messages of the send %v (answered OK: %t)", group, len(places), sn.ids, sn.acked)
		return first, false
	}
	for i, p := range places {
		if p.queue != places[0].queue || p.offset != places[0].offset+int64(i) {
			h.fault(&h.other, "the batch %v is not in one piece: %v", sn.ids, places)
			return first, false
		}
	}
	if i := slices.IndexFunc(sn.ids, func(id string) bool {
		f := h.fate(key{group, id, shard})
		return !f.settled && !f.acking
	}); i >= 0 {
		h.fault(&h.stuck, "group %s never acknowledged %s, and nothing of it is left", group, sn.ids[i])
	}
	return places[0], true
}

// body is what the message with this id carries.
func body(id string) string { return "body of " + id }
