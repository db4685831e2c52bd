package machine_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A modelLite is one life of a lite topic.
type modelLite struct {
	queue   mq.QueueID
	min     int
	msgs    []modelMessage
	written int64
	groups  map[mq.GroupID]*modelLiteGroup
}

type modelLiteGroup struct {
	known bool
	place int
	open  []*modelLiteOpen // what is not settled, in order
}

type modelLiteOpen struct {
	offset  int
	attempt mq.Attempt
	popID   mq.PopID
	leased  bool
	nacked  bool
	until   int64
	try     string // the attempt id with which it was delivered, until it is over
}

// liteHistory drives a machine and a model of lite topics with the same commands.
type liteHistory struct {
	*history
	lites map[string]*modelLite
	next  mq.QueueID
}

const (
	liteModelLimit    = 4
	liteModelAttempts = 3
)

func (h *liteHistory) drawName() string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(h.t, "lite topic")
}

func (h *liteHistory) of(name string, group mq.GroupID) *modelLiteGroup {
	l := h.lites[name]
	if l.groups[group] == nil {
		l.groups[group] = &modelLiteGroup{}
	}
	return l.groups[group]
}

func (h *liteHistory) makeLite(name string, now int64) *modelLite {
	l := &modelLite{queue: h.next, written: now, groups: map[mq.GroupID]*modelLiteGroup{}}
	h.next++
	h.lites[name] = l
	return l
}

func (h *liteHistory) send(*rapid.T) {
	name := h.drawName()
	c := &command.Send{Time: h.tick(), Topic: 1}
	for range rapid.IntRange(1, 3).Draw(h.t, "messages") {
		h.seen++
		c.Messages = append(c.Messages, &mq.Message{ID: fmt.Sprint("m", h.seen), Type: mq.Lite, Lite: name, LiteLimit: liteModelLimit, Body: []byte("x")})
	}
	res := h.apply(command.KindSend, c)
	l := h.lites[name]
	if l == nil {
		if len(h.lites) == liteModelLimit {
			require.ErrorIs(h.t, res.Err, mq.ErrLiteTopicQuota)
			return
		}
		l = h.makeLite(name, c.Time)
	}
	require.NoError(h.t, res.Err)
	l.written = c.Time
	for i, m := range c.Messages {
		require.Equal(h.t, keyspace.Sent{StoreTime: c.Time, Queue: l.queue, Offset: mq.QueueOffset(len(l.msgs))}, res.Stored[i].Sent)
		l.msgs = append(l.msgs, modelMessage{id: m.ID, time: c.Time})
	}
}

func (h *liteHistory) subscribe(*rapid.T) {
	c := &command.LiteSubscribe{Time: h.tick(), Topic: 1, Group: h.drawGroup(), Limit: liteModelLimit}
	c.Place = mq.LitePlace{
		Start: rapid.SampledFrom([]mq.LiteStart{mq.LiteDefault, mq.LiteMin, mq.LiteMax, mq.LiteOffset, mq.LiteTail, mq.LiteTime}).Draw(h.t, "start"), Again: rapid.Bool().Draw(h.t, "again"),
		Value: int64(rapid.IntRange(-1, 8).Draw(h.t, "value")),
	}
	if c.Place.Start == mq.LiteTime {
		c.Place.Value = h.now - int64(rapid.SampledFrom([]time.Duration{0, time.Second, 10 * time.Second}).Draw(h.t, "ago"))
	}
	for range rapid.IntRange(1, 2).Draw(h.t, "names") {
		c.Names = append(c.Names, h.drawName())
	}
	c.Names = slices.Compact(c.Names)
	missing := 0
	for _, name := range c.Names {
		if h.lites[name] == nil {
			missing++
		}
	}
	res := h.apply(command.KindLiteSubscribe, c)
	if missing > 0 && len(h.lites)+missing > liteModelLimit {
		require.ErrorIs(h.t, res.Err, mq.ErrLiteTopicQuota)
		return
	}
	require.NoError(h.t, res.Err)
	for i, name := range c.Names {
		l := h.lites[name]
		if l == nil {
			l = h.makeLite(name, c.Time)
		}
		require.Equal(h.t, l.queue, res.Lites[i])
		h.place(l, h.of(name, c.Group), c.Place)
	}
}

func (h *liteHistory) place(l *modelLite, g *modelLiteGroup, p mq.LitePlace) {
	if g.known && (!p.Again || p.Start == mq.LiteDefault) {
		return
	}
	within := func(n int) int { return min(max(n, l.min), len(l.msgs)) }
	to := len(l.msgs)
	switch p.Start {
	case mq.LiteMin:
		to = l.min
	case mq.LiteOffset:
		to = within(int(p.Value))
	case mq.LiteTail:
		if g.known {
			to = within(g.place)
		}
		to = within(to - max(int(p.Value), 0))
	case mq.LiteTime:
		for to = l.min; to < len(l.msgs) && l.msgs[to].time < p.Value; to++ {
		}
	}
	*g = modelLiteGroup{known: true, place: to}
}

func (h *liteHistory) pop(*rapid.T) {
	c := &command.LiteAttempt{Attempt: rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(h.t, "attempt id")}
	c.Pop = command.Pop{
		Time: h.tick(), Topic: 1, Group: h.drawGroup(), Max: int32(rapid.IntRange(1, 5).Draw(h.t, "max")), Scan: 1000,
		Invisible: int64(rapid.SampledFrom([]time.Duration{1, time.Second, 10 * time.Second}).Draw(h.t, "invisible")),
	}
	var names []string
	for range rapid.IntRange(0, 4).Draw(h.t, "names") {
		name := h.drawName()
		if h.lites[name] != nil && !slices.Contains(names, name) {
			names = append(names, name)
			c.Queues = append(c.Queues, h.lites[name].queue)
		}
	}
	require.NoError(h.t, h.m.Commit())
	may, err := h.m.LitePoppable(c)
	require.NoError(h.t, err)
	var res machine.Result
	if c.Attempt == "" && rapid.Bool().Draw(h.t, "plain") {
		res = h.apply(command.KindLitePop, &c.LitePop)
	} else {
		res = h.apply(command.KindLiteAttempt, c)
	}
	require.NoError(h.t, res.Err)
	want, id := h.again(c)
	require.True(h.t, may || len(want) == 0, "the look before")
	if len(want) > 0 {
		require.Equal(h.t, want, h.took(c, &res))
		require.Equal(h.t, id, res.PopID, "the same delivery")
		require.Equal(h.t, c.Queues, append([]mq.QueueID(nil), res.Lites...), "none was looked at")
		return
	}
	for _, name := range names {
		l, g := h.lites[name], h.of(name, c.Group)
		deliver := func(o *modelLiteOpen) {
			o.attempt++
			o.leased, o.nacked, o.popID, o.until, o.try = true, false, mq.PopID(c.Time), c.Time+c.Invisible, c.Attempt
			want = append(want, modelPopped{l.msgs[o.offset].id, l.queue, mq.QueueOffset(o.offset), o.attempt})
		}
		g.known = g.known || len(want) < int(c.Max)
		known, blocked := g.known, false
		for _, o := range g.open {
			if o.leased || len(want) == int(c.Max) {
				blocked = true
				break
			}
			deliver(o)
		}
		if !known {
			continue // a full pop has not looked
		}
		for g.place = max(g.place, l.min); !blocked && g.place < len(l.msgs) && len(want) < int(c.Max); g.place++ {
			o := &modelLiteOpen{offset: g.place}
			g.open = append(g.open, o)
			deliver(o)
		}
	}
	require.Equal(h.t, want, h.took(c, &res))
	require.True(h.t, may == (len(want) > 0) || may && c.Attempt != "", "the look before")
	for _, name := range names {
		g, l := h.of(name, c.Group), h.lites[name]
		more := len(g.open) > 0 && !g.open[0].leased || len(g.open) == 0 && max(g.place, l.min) < len(l.msgs)
		if more || len(want) < int(c.Max) { // a full pop has not looked
			require.Equal(h.t, more, slices.Contains(res.Lites, l.queue), "%s has more", name)
		}
	}
}

// took returns what was delivered, which is held from now on.
func (h *liteHistory) took(c *command.LiteAttempt, res *machine.Result) (got []modelPopped) {
	for _, p := range res.Popped {
		got = append(got, modelPopped{h.stored(p), p.Queue, p.Offset, p.Attempt})
		h.held = append(h.held, held{keyspace.Sub{Group: c.Group, Topic: 1}, command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: res.PopID}})
	}
	return got
}

// again delivers what is left of an earlier pop with the same attempt id: messages behind
// others that are no part of it any more are no part either.
func (h *liteHistory) again(c *command.LiteAttempt) (want []modelPopped, id mq.PopID) {
	if c.Attempt == "" {
		return nil, 0
	}
	for _, l := range slices.SortedFunc(maps.Values(h.lites), func(a, b *modelLite) int { return cmp.Compare(a.queue, b.queue) }) {
		g := l.groups[c.Group]
		if g == nil {
			continue
		}
		whole := true
		for _, o := range g.open {
			switch mine := o.leased && o.try == c.Attempt; {
			case !mine:
				whole = false
			case len(want) == int(c.Max):
				return want, id
			case !whole:
				o.try = ""
			default:
				o.until, id = c.Time+c.Invisible, o.popID
				want = append(want, modelPopped{l.msgs[o.offset].id, l.queue, mq.QueueOffset(o.offset), o.attempt})
			}
		}
	}
	return want, id
}

// count compares what the lite topics hold, and what of it waits for the groups.
func (h *liteHistory) count(page int) {
	require.NoError(h.t, h.m.Commit())
	v, err := machine.OpenView(h.db)
	require.NoError(h.t, err)
	defer func() { require.NoError(h.t, v.Close()) }()
	got, want := machine.LiteStock{Groups: map[mq.GroupID]machine.LiteWaiting{}}, machine.LiteStock{Groups: map[mq.GroupID]machine.LiteWaiting{}}
	for id := mq.GroupID(1); id <= 3; id++ {
		got.Groups[id] = machine.LiteWaiting{}
		waiting := machine.LiteWaiting{}
		for _, l := range h.lites {
			g := l.groups[id]
			if g == nil || !g.known || max(g.place, l.min) >= len(l.msgs) {
				continue
			}
			head := max(g.place, l.min)
			waiting.Add(machine.LiteWaiting{Messages: int64(len(l.msgs) - head), Topics: 1, Oldest: l.msgs[head].time})
		}
		want.Groups[id] = waiting
	}
	for _, l := range h.lites {
		want.Topics++
		want.Messages += int64(len(l.msgs) - l.min)
	}
	for next := mq.FirstLiteQueue; next != 0; {
		next, err = v.CountLites(1, next, page, &got)
		require.NoError(h.t, err)
	}
	require.Equal(h.t, want, got)
	has, err := machine.HasLites(h.db, 1)
	require.NoError(h.t, err)
	require.Equal(h.t, want.Topics > 0, has)
}

// find returns what the receipt is of.
func (h *liteHistory) find(sub keyspace.Sub, ref command.LeaseRef) (g *modelLiteGroup, at int) {
	for _, l := range h.lites {
		if g := l.groups[sub.Group]; l.queue == ref.Queue && g != nil {
			at := slices.IndexFunc(g.open, func(o *modelLiteOpen) bool { return o.offset == int(ref.Offset) && o.popID == ref.PopID })
			return g, at
		}
	}
	return nil, -1
}

func (g *modelLiteGroup) remove(at int) { g.open = slices.Delete(g.open, at, at+1) }

// fail ends a delivery.
func (g *modelLiteGroup) fail(at int) {
	g.open[at].try = ""
	if g.open[at].leased = false; g.open[at].attempt >= liteModelAttempts {
		g.remove(at)
	}
}

func (h *liteHistory) ack(*rapid.T) {
	sub, refs := h.drawHeld()
	refs = refs[:1]
	if !refs[0].Queue.IsLite() {
		return
	}
	res := h.apply(command.KindAck, &command.Ack{Time: h.tick(), Topic: 1, Group: sub.Group, Leases: refs})
	g, at := h.find(sub, refs[0])
	if at < 0 {
		// A used-up one may be acknowledged.
		return
	}
	require.NoError(h.t, res.Settled[0])
	g.remove(at)
}

func (h *liteHistory) change(*rapid.T) {
	sub, refs := h.drawHeld()
	if !refs[0].Queue.IsLite() {
		return
	}
	c := command.LeaseChange{
		LeaseRef: refs[0], Reason: mq.ChangeReason(rapid.IntRange(0, 4).Draw(h.t, "reason")),
		Invisible: int64(rapid.SampledFrom([]time.Duration{0, 2 * time.Second, time.Minute}).Draw(h.t, "invisible")),
	}
	now := h.tick()
	res := h.apply(command.KindChange, &command.Change{Time: now, Topic: 1, Group: sub.Group, Changes: []command.LeaseChange{c}})
	g, at := h.find(sub, refs[0])
	if at < 0 || g.open[at].nacked && c.Reason == mq.Renew {
		require.Error(h.t, res.Settled[0])
		return
	}
	require.NoError(h.t, res.Settled[0])
	o := g.open[at]
	switch {
	case c.Reason == mq.GiveBack && o.nacked:
		return
	case c.Reason == mq.GiveBack:
		o.attempt--
		o.leased, o.nacked, o.try = false, true, ""
		return
	case c.Reason == mq.Suspend && !o.nacked:
		o.attempt--
	}
	o.nacked = o.nacked || c.Reason == mq.Nack || c.Reason == mq.Suspend
	if c.Invisible == 0 || c.Reason == mq.Nack && o.attempt >= liteModelAttempts {
		g.fail(at)
		return
	}
	if o.leased, o.until = true, now+c.Invisible; o.nacked {
		o.try = ""
	}
}

func (h *liteHistory) expire(*rapid.T) {
	require.NoError(h.t, h.m.Commit())
	now := h.tick()
	res := h.apply(command.KindExpire, &command.Expire{Time: now, Limit: 1000})
	ended := 0
	for _, l := range h.lites {
		for _, g := range l.groups {
			for at := len(g.open) - 1; at >= 0; at-- {
				if g.open[at].leased && g.open[at].until <= now {
					ended++
					g.fail(at)
				}
			}
		}
	}
	require.GreaterOrEqual(h.t, res.Ended, ended)
}

func (h *liteHistory) endLives(*rapid.T) {
	now := h.tick()
	before := now - int64(rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second}).Draw(h.t, "time to live"))
	want, messages := 0, 0
	for name, l := range h.lites {
		if l.written < before {
			want++
			messages += len(l.msgs) - l.min
			delete(h.lites, name)
		}
	}
	limit := int32(rapid.IntRange(1, 3).Draw(h.t, "limit"))
	for got := 0; ; now = h.tick() {
		res := h.apply(command.KindLiteExpire, &command.LiteExpire{Time: now, Topic: 1, Before: before, Limit: limit})
		require.NoError(h.t, res.Err)
		require.LessOrEqual(h.t, res.Ended, int(limit))
		messages -= int(res.Trimmed)
		if got += res.Ended; !res.More {
			require.Equal(h.t, want, got)
			require.Zero(h.t, messages, "messages of lite topics that have ended")
			return
		}
	}
}

func (h *liteHistory) trim(*rapid.T) {
	now := h.tick()
	before := now - int64(rapid.SampledFrom([]time.Duration{0, time.Second, 20 * time.Second}).Draw(h.t, "age"))
	want := 0
	for _, l := range h.lites {
		for ; l.min < len(l.msgs) && l.msgs[l.min].time < before; l.min++ {
			want++
		}
		for _, g := range l.groups {
			g.open = slices.DeleteFunc(g.open, func(o *modelLiteOpen) bool { return o.offset < l.min })
		}
	}
	for got := 0; ; now = h.tick() {
		res := h.apply(command.KindLiteTrim, &command.LiteTrim{Time: now, Topic: 1, Before: before, Limit: int32(rapid.IntRange(1, 4).Draw(h.t, "limit"))})
		if got += int(res.Trimmed); !res.More {
			require.Equal(h.t, want, got)
			return
		}
	}
}

func (h *liteHistory) purge(*rapid.T) {
	if rapid.IntRange(0, 4).Draw(h.t, "purge") == 0 {
		h.apply(command.KindTrim, &command.Trim{Time: h.tick(), Topic: 1, Purge: true})
		clear(h.lites)
	}
}

func (h *liteHistory) reopen(*rapid.T) {
	if rapid.Bool().Draw(h.t, "flushed") {
		require.NoError(h.t, h.m.Commit())
		require.NoError(h.t, h.db.Flush())
	}
	h.crash()
}

// Whatever happens to lite topics, and however often the machine crashes, it answers as
// plain slices would.
func TestLiteTopicsAgreeWithTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &liteHistory{history: newHistory(t, false), lites: map[string]*modelLite{}, next: mq.FirstLiteQueue}
		defer func() { h.close() }()
		for id := mq.GroupID(1); id <= 3; id++ { // FIFO or not
			h.apply(command.KindGroup, &command.Group{
				Time: h.tick(), ID: id, Name: mq.Resource{Name: fmt.Sprint("g", id)}, MaxAttempts: liteModelAttempts, DeadLetter: 1, Version: 2, FIFO: id == 2,
			})
		}
		version := uint64(2)
		t.Repeat(map[string]func(*rapid.T){
			"send": h.send, "send again": h.send, "subscribe": h.subscribe, "pop": h.pop, "pop again": h.pop, "ack": h.ack, "change": h.change,
			"expire": h.expire, "end lives": h.endLives, "trim": h.trim, "purge": h.purge, "crash": h.reopen,
			"group": func(t *rapid.T) {
				version++
				h.apply(command.KindGroup, &command.Group{
					Time: h.tick(), ID: 2, Name: mq.Resource{Name: "g2"}, MaxAttempts: liteModelAttempts, DeadLetter: 1, Version: version,
					FIFO: rapid.Bool().Draw(t, "FIFO"),
				})
			},
			"": func(t *rapid.T) {
				n, err := h.m.LiteCount(1)
				require.NoError(h.t, err)
				require.Equal(h.t, len(h.lites), n)
				if rapid.IntRange(0, 3).Draw(t, "count") == 0 {
					h.count(rapid.IntRange(1, 3).Draw(t, "page"))
				}
			},
		})
	})
}
