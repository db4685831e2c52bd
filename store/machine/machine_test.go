package machine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// history drives a machine and the model with the same commands. Its log is a
// slice; a crash throws away what Pebble had not flushed and replays the rest.
type history struct {
	t     *rapid.T
	fs    *vfs.MemFS
	db    *pebble.DB
	m     *machine.Machine
	model *model
	log   []machine.Record
	want  []string // the answer to each record, for comparison with its replay
	now   int64
	held  []held // receipts that clients have, good and stale
	seen  int    // messages made, for their ids
	plain int    // pops that are in any order, before others may come
	// removed says that a topic or group was deleted.
	removed bool
	// narrow histories have one topic with one queue and one group, mostly FIFO.
	narrow bool
}

type held struct {
	sub keyspace.Sub
	command.LeaseRef
}

func newHistory(t *rapid.T, narrow bool) *history {
	h := &history{narrow: narrow, t: t, fs: vfs.NewCrashableMem(), model: newModel(), now: 1_700_000_000 * int64(time.Second)}
	h.plain = rapid.IntRange(0, 12).Draw(t, "plain pops")
	h.open()
	for id := mq.TopicID(1); id <= 2; id++ {
		h.topic(id, int32(id))
	}
	for id := mq.GroupID(1); id <= 3; id++ {
		h.group(id, 1, mq.StartPolicy(id-1))
	}
	return h
}

func (h *history) open() {
	db, err := pebble.Open("views", &pebble.Options{FS: h.fs, DisableWAL: true, Logger: quiet{}})
	require.NoError(h.t, err)
	m, err := machine.Open(db)
	require.NoError(h.t, err)
	h.db, h.m = db, m
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}

func (h *history) close() {
	require.NoError(h.t, h.m.Close())
	require.NoError(h.t, h.db.Close())
}

// crash keeps what Pebble has flushed, and of the rest nothing.
func (h *history) crash() {
	clone := h.fs.CrashClone(vfs.CrashCloneCfg{})
	h.close()
	h.fs = clone
	h.open()
	var res machine.Result
	for i := h.m.State().Index; i < uint64(len(h.log)); i++ {
		require.NoError(h.t, h.m.Apply(h.log[i], &res))
		require.Equal(h.t, h.want[i], answer(&res), "the answer to record %d in its replay", i+1)
		if rapid.Bool().Draw(h.t, "commit in the replay") { // it need not be where it was
			require.NoError(h.t, h.m.Commit())
		}
	}
	require.NoError(h.t, h.m.Commit())
	h.m.Effects.Reset()
}

func answer(res *machine.Result) string {
	return fmt.Sprintf("%v %v %d %v %d %v %d %v %v %d %d %v %d", res.Err, res.Stored, res.First, res.Popped, res.PopID, res.More, res.After, res.Settled, res.Full,
		res.Trimmed, res.Dropped, res.Lites, res.Ended) // Forgotten counts for deleted topics as well until a restart
}

type encoder interface{ Append([]byte) []byte }

func (h *history) apply(kind command.Kind, c encoder) machine.Result {
	payload := c.Append(nil)
	pos := uint64(0)
	if n := len(h.log); n > 0 {
		pos = h.log[n-1].Next
	}
	rec := machine.Record{
		Kind: kind, Payload: payload, PayloadPos: pos, Next: pos + uint64(len(payload)), Index: uint64(len(h.log)) + 1,
	}
	var res machine.Result
	require.NoError(h.t, h.m.Apply(rec, &res))
	h.log = append(h.log, rec)
	h.want = append(h.want, answer(&res))
	return res
}

func (h *history) tick() int64 {
	h.now += int64(rapid.SampledFrom([]time.Duration{1, time.Millisecond, 300 * time.Millisecond, 5 * time.Second}).Draw(h.t, "tick"))
	return h.now
}

func (h *history) topic(id mq.TopicID, queues int32) {
	c := &command.Topic{Time: h.tick(), ID: id, Name: mq.Resource{Name: fmt.Sprint("t", id)}, Queues: queues, Version: uint64(queues)}
	h.apply(command.KindTopic, c)
	h.model.topic(c)
}

func (h *history) group(id mq.GroupID, version uint64, start mq.StartPolicy) {
	c := &command.Group{
		Time: h.tick(), ID: id, Name: mq.Resource{Name: fmt.Sprint("g", id)}, Start: start, StartTime: h.now + int64(10*time.Second),
		MaxAttempts: mq.Attempt(rapid.IntRange(1, 4).Draw(h.t, "max attempts")), DeadLetter: 1, Version: version,
		FIFO: id > 1 && rapid.SampledFrom([]bool{true, true, false}).Draw(h.t, "FIFO"),
	}
	h.apply(command.KindGroup, c)
	if old := h.model.groups[id]; !h.model.goneGroups[id] && (old == nil || old.Version < version) {
		h.model.setGroup(c)
	}
}

func (h *history) drawTopic() mq.TopicID {
	if h.narrow {
		return 1
	}
	return mq.TopicID(rapid.IntRange(1, 3).Draw(h.t, "topic"))
}

func (h *history) drawGroup() mq.GroupID {
	if h.narrow {
		return 2
	}
	return mq.GroupID(rapid.IntRange(1, 3).Draw(h.t, "group"))
}

func (h *history) drawQueue() mq.QueueID {
	if h.narrow {
		return 0
	}
	return mq.QueueID(rapid.IntRange(0, 3).Draw(h.t, "queue"))
}

func (h *history) send(*rapid.T) {
	c := &command.Append{Time: h.tick(), Topic: h.drawTopic(), Queue: h.drawQueue()}
	for range rapid.IntRange(1, 5).Draw(h.t, "messages") {
		h.seen++
		c.Messages = append(c.Messages, &mq.Message{
			ID: fmt.Sprint("m", h.seen), Tag: rapid.SampledFrom([]string{"", "Aa", "BB"}).Draw(h.t, "tag"), Body: []byte("x"),
			Group: rapid.SampledFrom([]string{"", "a", "a", "b", "c"}).Draw(h.t, "message group"),
		})
	}
	res := h.apply(command.KindAppend, c)
	want := h.model.append(c.Topic, c.Queue, c.Time, c.Messages...)
	if want < 0 {
		require.Error(h.t, res.Err)
		return
	}
	require.NoError(h.t, res.Err)
	require.Equal(h.t, want, res.First)
}

// drawOrder draws an order for a pop; by priority come none before some in other orders.
func (h *history) drawOrder() command.Order {
	if h.plain--; h.plain < 0 && rapid.IntRange(0, 3).Draw(h.t, "order") > 0 {
		return command.PriorityOrder
	}
	return command.GroupOrder
}

func (h *history) pop(*rapid.T) {
	c := command.SelectPop{Order: h.drawOrder(), Attempt: rapid.SampledFrom([]string{"", "", "x", "yy"}).Draw(h.t, "attempt")}
	c.LimitedPop = command.LimitedPop{InFlight: rapid.SampledFrom([]int32{0, 1, 2, 3}).Draw(h.t, "in-flight limit")}
	c.Pop = command.Pop{
		Time: h.tick(), Topic: h.drawTopic(), Group: h.drawGroup(),
		Max:       int32(rapid.IntRange(1, 6).Draw(h.t, "max")),
		Bytes:     rapid.SampledFrom([]uint32{0, 1, 50, 1000}).Draw(h.t, "bytes"),
		Invisible: int64(rapid.SampledFrom([]time.Duration{1, time.Second, 10 * time.Second, 0, -time.Hour}).Draw(h.t, "invisible")),
		Scan:      int32(rapid.SampledFrom([]int{1, 3, 100}).Draw(h.t, "scan")),
		Tags:      rapid.SampledFrom([][]string{nil, {"Aa"}, {"Aa", "BB"}}).Draw(h.t, "tags"),
	}
	for range 100 {
		h.tick()
		c.Time = h.now
		if rapid.Bool().Draw(h.t, "look first") {
			look := h.lookFirst(c)
			if !look.May {
				if !look.More {
					return
				}
				c.After = look.After
				continue
			}
			c.After = look.After
		}
		var res machine.Result
		switch { // pops without an attempt id keep the order of a group that is FIFO as well
		case c.Order == command.PriorityOrder || c.Attempt != "" || rapid.Bool().Draw(h.t, "newest kind"):
			res = h.apply(command.KindPopSelect, &c)
		case c.InFlight == 0 && rapid.Bool().Draw(h.t, "without a limit"):
			res = h.apply(command.KindPop, &c.Pop)
		default:
			res = h.apply(command.KindPopLimited, &c.LimitedPop)
		}
		want, ok := h.model.pop(c, uint64(len(h.log)))
		if !ok {
			require.Error(h.t, res.Err)
			return
		}
		require.NoError(h.t, res.Err)
		var got []modelPopped
		for _, p := range res.Popped {
			id := h.stored(p)
			got = append(got, modelPopped{id, p.Queue, p.Offset, p.Attempt})
			h.held = append(h.held, held{
				keyspace.Sub{Group: c.Group, Topic: c.Topic},
				command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: res.PopID},
			})
		}
		require.Equal(h.t, want, modelPop{got, res.PopID, res.More, res.Full})
		require.Nil(h.t, h.model.overtakes(keyspace.Sub{Group: c.Group, Topic: c.Topic}, res.PopID, got), "delivered before an earlier one of its message group")
		require.NoError(h.t, h.m.Commit())
		c.After = 0
		again := c
		again.Attempt = ""
		look, err := h.m.Look(&again)
		require.NoError(h.t, err)
		require.True(h.t, res.Left || res.More || res.Full || !look.May, "the pop said that it left nothing")
		if !res.More {
			return
		}
		c.After = res.After
	}
}

// lookFirst looks before a pop, and proves on a copy of the model that what the
// look leaves out comes to nothing.
func (h *history) lookFirst(c command.SelectPop) machine.Look {
	require.NoError(h.t, h.m.Commit())
	look, err := h.m.Look(&c)
	require.NoError(h.t, err)
	require.GreaterOrEqual(h.t, look.After, c.After)
	require.False(h.t, h.model.skipped(c, look.After) && !look.Full, "the look went past a redelivery for the pop")
	if look.May || look.More {
		return look
	}
	// The scan limit of a look is spent in another order.
	before := h.model.state(c)
	c.Scan = 1000
	s := h.model.subs[keyspace.Sub{Group: c.Group, Topic: c.Topic}]
	turn := s.turn
	got, ok := h.model.pop(c, uint64(len(h.log))+1)
	s.turn = turn // a look does not make it a group that receives by priority
	require.True(h.t, ok)
	require.Empty(h.t, got.popped, "the look saw nothing")
	require.Equal(h.t, got.full, look.Full)
	require.Equal(h.t, before, h.model.state(c), "the look saw no effect")
	return look
}

// stored returns the id of the message at the position a pop names.
func (h *history) stored(p machine.Popped) string {
	for _, rec := range h.log {
		if p.Pos >= rec.PayloadPos && p.Pos < rec.Next {
			start := p.Pos - rec.PayloadPos
			msg, err := command.DecodeMessage(rec.Payload[start : start+uint64(p.Size)])
			require.NoError(h.t, err)
			return msg.ID
		}
	}
	h.t.Fatalf("no record holds position %d", p.Pos)
	return ""
}

// drawHeld returns up to three receipts of one group and topic.
func (h *history) drawHeld() (keyspace.Sub, []command.LeaseRef) {
	if len(h.held) == 0 {
		return keyspace.Sub{Group: 1, Topic: 1}, []command.LeaseRef{{Offset: 7, PopID: 1}}
	}
	first := rapid.SampledFrom(h.held).Draw(h.t, "receipt")
	refs := []command.LeaseRef{first.LeaseRef}
	for _, other := range h.held[max(0, len(h.held)-2):] {
		if other.sub == first.sub {
			refs = append(refs, other.LeaseRef)
		}
	}
	return first.sub, refs
}

func (h *history) ack(*rapid.T) {
	sub, refs := h.drawHeld()
	res := h.apply(command.KindAck, &command.Ack{Time: h.tick(), Topic: sub.Topic, Group: sub.Group, Leases: refs})
	require.Len(h.t, res.Settled, len(refs))
	for i, ref := range refs {
		if h.model.ack(sub, ref) {
			require.NoError(h.t, res.Settled[i])
		} else {
			require.ErrorIs(h.t, res.Settled[i], mq.ErrLeaseEnded)
		}
	}
}

func (h *history) change(*rapid.T) {
	sub, refs := h.drawHeld()
	c := &command.Change{Time: h.tick(), Topic: sub.Topic, Group: sub.Group}
	for _, ref := range refs {
		c.Changes = append(c.Changes, command.LeaseChange{
			LeaseRef:  ref,
			Invisible: int64(rapid.SampledFrom([]time.Duration{0, 1, 2 * time.Second, time.Minute}).Draw(h.t, "invisible")),
			Reason:    mq.ChangeReason(rapid.IntRange(0, 4).Draw(h.t, "reason")),
		})
	}
	res := h.apply(command.KindChange, c)
	require.Len(h.t, res.Settled, len(refs))
	for i, ch := range c.Changes {
		if h.model.change(sub, ch, c.Time) {
			require.NoError(h.t, res.Settled[i])
		} else {
			require.ErrorIs(h.t, res.Settled[i], mq.ErrLeaseEnded)
		}
	}
}

func (h *history) expire(*rapid.T) {
	require.NoError(h.t, h.m.Commit())
	now := h.tick()
	due, err := h.m.Due(now)
	require.NoError(h.t, err)
	next := h.model.nextDue()
	ended := next >= 0 && next <= now
	require.True(h.t, ended == due || h.removed && due, "next end of a lease is at %d, now is %d", next, now)
	require.True(h.t, next < 0 || h.m.NextDue() <= next, "a lease ends at %d, the machine would sleep until %d", next, h.m.NextDue())
	if !due {
		return
	}
	c := &command.Expire{Time: h.tick(), Limit: int32(rapid.SampledFrom([]int{1, 2, 1000}).Draw(h.t, "limit"))}
	if h.removed {
		c.Limit = 1000 // index keys of what was deleted count, and the model has none
	}
	h.apply(command.KindExpire, c)
	h.model.expire(c.Time, int(c.Limit))
}

func (h *history) deadLetter(*rapid.T) {
	require.NoError(h.t, h.m.Commit())
	sub, refs := h.drawHeld()
	if used, err := h.m.UsedUp(keyspace.Ref{}, 1); err == nil && len(used) > 0 && rapid.Bool().Draw(h.t, "used up") {
		u, found, err := h.m.Inspect(used[0])
		require.NoError(h.t, err)
		require.True(h.t, found)
		require.Equal(h.t, keyspace.UsedUp, u.Lease.State)
		sub, refs = used[0].Sub, []command.LeaseRef{{Queue: used[0].Queue, Offset: used[0].Offset, PopID: u.Lease.PopID}}
	}
	h.seen++
	msg := &mq.Message{ID: fmt.Sprint("m", h.seen), Tag: "dead"}
	c := &command.DeadLetter{Time: h.tick(), Lease: refs[0], Group: sub.Group, Topic: sub.Topic, Target: 1, Message: msg}
	res := h.apply(command.KindDeadLetter, c)
	_, _, l := h.model.lease(sub, refs[0])
	if l == nil || len(h.model.topics[1]) == 0 {
		require.Error(h.t, res.Err)
		return
	}
	require.NoError(h.t, res.Err)
	require.Equal(h.t, h.model.append(1, 0, c.Time, msg), res.First)
	require.True(h.t, h.model.ack(sub, refs[0]))
}

// grow changes limits and adds queues and topics.
func (h *history) grow(*rapid.T) {
	switch rapid.IntRange(0, 2).Draw(h.t, "what") {
	case 0:
		id := h.drawGroup()
		g := h.model.groups[id]
		if g == nil { // deleted: its id never comes back
			g = &command.Group{Version: 1}
		}
		h.group(id, g.Version+1, g.Start)
	case 1:
		h.topic(2, int32(len(h.model.topics[2])+1))
	case 2:
		h.topic(3, 2) // likewise
	}
}

func (h *history) remove(*rapid.T) {
	if !rapid.SampledFrom([]bool{true, false, false, false}).Draw(h.t, "really") {
		return
	}
	h.removed = true
	if rapid.Bool().Draw(h.t, "topic or group") {
		h.apply(command.KindTopicDelete, &command.TopicDelete{Time: h.tick(), ID: 3})
		h.model.deleteTopic(3)
	} else {
		h.apply(command.KindGroupDelete, &command.GroupDelete{Time: h.tick(), ID: 3})
		h.model.deleteGroup(3)
	}
}

// trim moves beginnings. Mostly it keeps what is under delivery, as a shard does that
// has room; now and then it does not, and what is not stored is not delivered again.
func (h *history) trim(*rapid.T) {
	c := &command.Trim{Time: h.tick(), Topic: h.drawTopic()}
	hard := rapid.SampledFrom([]bool{false, false, true}).Draw(h.t, "hard")
	for range rapid.IntRange(0, 3).Draw(h.t, "queues") {
		q := keyspace.Queue{Topic: c.Topic, Queue: mq.QueueID(rapid.IntRange(-1, 4).Draw(h.t, "queue"))}
		least := rapid.IntRange(-1, 30).Draw(h.t, "min")
		kept := rapid.IntRange(0, 30).Draw(h.t, "kept")
		if held := h.model.held(q); held >= 0 && !hard {
			kept = min(kept, held)
		}
		c.Queues = append(c.Queues, command.QueueTrim{Queue: q.Queue, Min: mq.QueueOffset(least), Kept: mq.QueueOffset(kept)})
	}
	h.trimmed(c)
}

func (h *history) purge(*rapid.T) {
	if rapid.SampledFrom([]bool{true, false, false}).Draw(h.t, "really") {
		h.trimmed(&command.Trim{Time: h.tick(), Topic: h.drawTopic(), Purge: true})
		h.removed = true // the index keys of what was under delivery stay until their time
	}
}

func (h *history) trimmed(c *command.Trim) {
	res := h.apply(command.KindTrim, c)
	want := h.model.trim(c)
	if want < 0 {
		require.ErrorIs(h.t, res.Err, mq.ErrTopicNotFound)
		return
	}
	require.NoError(h.t, res.Err)
	require.Equal(h.t, uint64(want), res.Trimmed)
}

// setOffset moves the progress of a group, now and then to where there is nothing.
func (h *history) setOffset(*rapid.T) {
	c := &command.SetOffset{Time: h.tick(), Topic: h.drawTopic(), Group: h.drawGroup(), Drop: rapid.Bool().Draw(h.t, "drop")}
	for queue := range mq.QueueID(len(h.model.topics[c.Topic]) + 1) {
		if !rapid.Bool().Draw(h.t, "in the queue") {
			continue
		}
		least, end := 0, 2
		if int(queue) < len(h.model.topics[c.Topic]) {
			least, end = h.model.begin(c.Topic, int(queue)).min, len(h.model.topics[c.Topic][queue])
		} else if !rapid.SampledFrom([]bool{false, false, false, true}).Draw(h.t, "in no queue") {
			continue
		}
		if rapid.SampledFrom([]bool{false, false, false, true}).Draw(h.t, "out of range") {
			least, end = least-1, end+1
		}
		c.Queues = append(c.Queues, command.QueueSet{Queue: queue, Offset: mq.QueueOffset(rapid.IntRange(least, end).Draw(h.t, "offset"))})
	}
	res := h.apply(command.KindSetOffset, c)
	want := h.model.setOffset(c)
	if want < 0 {
		require.Error(h.t, res.Err)
		return
	}
	require.NoError(h.t, res.Err)
	require.Equal(h.t, want, res.Dropped)
}

// endDeliveries ends the last deliveries of a part of a queue.
func (h *history) endDeliveries(*rapid.T) {
	c := &command.EndDeliveries{
		Time: h.tick(), Topic: h.drawTopic(), Group: h.drawGroup(), Queue: h.drawQueue(), From: mq.QueueOffset(rapid.IntRange(0, 10).Draw(h.t, "from")),
		Limit: uint32(rapid.IntRange(1, 4).Draw(h.t, "limit")), Back: rapid.Bool().Draw(h.t, "back"),
	}
	c.To = c.From + mq.QueueOffset(rapid.SampledFrom([]int{0, 3, 1 << 40}).Draw(h.t, "to"))
	require.NoError(h.t, h.m.Commit())
	sub := keyspace.Sub{Group: c.Group, Topic: c.Topic}
	under := h.m.Unsettled(sub, c.Queue)
	res := h.apply(command.KindEndDeliveries, c)
	want := h.model.endDeliveries(c)
	require.NoError(h.t, res.Err)
	require.Equal(h.t, len(want), res.Dropped)
	if len(want) > 0 {
		require.Equal(h.t, want[len(want)-1].Offset, res.First)
		require.Equal(h.t, under-int64(len(want)), h.m.Unsettled(sub, c.Queue))
	}
}

func (h *history) commit(*rapid.T) {
	require.NoError(h.t, h.m.Commit())
	h.m.Effects.Reset()
	if rapid.SampledFrom([]bool{true, false, false}).Draw(h.t, "flush") {
		require.NoError(h.t, h.db.Flush())
	}
}

func (h *history) restart(*rapid.T) {
	if rapid.SampledFrom([]bool{true, false, false}).Draw(h.t, "really") {
		h.crash()
	}
}

// look checks after some of the steps, so that there are batches of several commands.
func (h *history) look(t *rapid.T) {
	if rapid.Bool().Draw(h.t, "look") {
		h.check(t)
	}
}

// check compares what can be counted.
func (h *history) check(*rapid.T) {
	require.NoError(h.t, h.m.Commit())
	require.Nil(h.t, h.model.stuck(), "parked for ever, or ready behind others")
	for id := mq.GroupID(1); id <= 3; id++ {
		got, err := h.m.Backlogs(id)
		require.NoError(h.t, err)
		require.Equal(h.t, h.model.backlogs(id), got, "backlog of group %d", id)
		for topic := mq.TopicID(1); topic <= 3; topic++ {
			sub := keyspace.Sub{Group: id, Topic: topic}
			positions, err := h.m.Positions(sub)
			require.NoError(h.t, err)
			require.ElementsMatch(h.t, h.model.positions(sub), positions, "group %d in topic %d", id, topic)
		}
	}
	for id := mq.TopicID(1); id <= 3; id++ {
		h.checkQueues(id)
	}
	var used []keyspace.Ref
	for after := (keyspace.Ref{}); ; after = used[len(used)-1] {
		page, err := h.m.UsedUp(after, 2)
		require.NoError(h.t, err)
		if used = append(used, page...); len(page) == 0 {
			break
		}
	}
	require.Equal(h.t, h.model.usedUp(), used)
	h.checkKnown()
	h.checkPriority()
}

// checkQueues compares the ends of the queues, and which entries there are.
func (h *history) checkQueues(id mq.TopicID) {
	got, err := h.m.Queues(id)
	require.NoError(h.t, err)
	queues := h.model.topics[id]
	require.Len(h.t, got, len(queues))
	stored := map[mq.QueueID][]mq.QueueOffset{}
	it, err := h.db.NewIter(&pebble.IterOptions{
		LowerBound: keyspace.AppendTopicEntriesPrefix(nil, id), UpperBound: keyspace.Next(keyspace.AppendTopicEntriesPrefix(nil, id)),
	})
	require.NoError(h.t, err)
	for ok := it.First(); ok; ok = it.Next() {
		q, offset, err := keyspace.DecodeEntryKey(it.Key())
		require.NoError(h.t, err)
		stored[q.Queue] = append(stored[q.Queue], offset)
	}
	require.NoError(h.t, it.Close())
	for i, q := range queues {
		begin := h.model.begin(id, i)
		require.Equal(h.t, mq.QueueRange{
			Queue: mq.QueueID(i), Min: mq.QueueOffset(begin.min), Next: mq.QueueOffset(len(q)),
		}, got[i])
		var want []mq.QueueOffset
		for offset := begin.kept; offset < len(q); offset++ {
			want = append(want, mq.QueueOffset(offset))
		}
		require.Equal(h.t, want, stored[mq.QueueID(i)], "entries of queue %d of topic %d", i, id)
	}
}

// drain proves that nothing is stuck: with time passing, every message that a
// group has not settled is delivered or used up.
func (h *history) drain() {
	for round := 0; ; round++ {
		require.Less(h.t, round, 1000, "still not drained")
		h.now += int64(time.Hour)
		h.expireAll()
		left := int64(0)
		for g := mq.GroupID(1); g <= 3; g++ {
			if h.model.groups[g] == nil {
				continue
			}
			for topic := mq.TopicID(1); topic <= 3; topic++ {
				if h.model.topics[topic] == nil {
					continue
				}
				c := command.SelectPop{Order: command.Order(round % 2 * int(command.PriorityOrder))}
				c.Pop = command.Pop{Time: h.tick(), Topic: topic, Group: g, Max: 1000, Invisible: 1, Scan: 100_000}
				h.apply(command.KindPopSelect, &c)
				h.model.pop(c, uint64(len(h.log)))
			}
			for _, b := range h.model.backlogs(g) {
				left += b.Ready + b.InFlight + b.Blocked
			}
		}
		h.check(nil)
		if left == 0 {
			return
		}
	}
}

func (h *history) expireAll() {
	for {
		require.NoError(h.t, h.m.Commit())
		due, err := h.m.Due(h.now)
		require.NoError(h.t, err)
		if !due {
			return
		}
		h.now++
		h.apply(command.KindExpire, &command.Expire{Time: h.now, Limit: 10})
		h.model.expire(h.now, 10)
	}
}

// TestRandomHistoriesAgreeWithTheModel is the proof of the machine's rules. A
// failure prints the seed and the shortest history found; rapid's flags
// -rapid.seed and -rapid.checks repeat and extend it.
func TestRandomHistoriesAgreeWithTheModel(t *testing.T) {
	// A check has some 30 steps; ten times rapid's number of checks take seconds.
	for i := range 10 {
		t.Run(fmt.Sprint(i), rapid.MakeCheck(func(t *rapid.T) {
			h := newHistory(t, false)
			defer func() { h.close() }()
			t.Repeat(map[string]func(*rapid.T){
				"send": h.send, "send again": h.send, "pop": h.pop, "pop again": h.pop, "ack": h.ack,
				"change": h.change, "expire": h.expire, "dead letter": h.deadLetter, "grow": h.grow,
				"send known": h.sendKnown, "send known again": h.sendKnown, "sleep": h.sleep, "forget": h.forget, "remove": h.remove, "set offset": h.setOffset,
				"end deliveries": h.endDeliveries,
				"trim":           h.trim, "purge": h.purge, "commit": h.commit, "crash": h.restart, "": h.look,
			})
			h.drain()
		}))
	}
}

// TestRandomHistoriesOfFewMessageGroupsAgreeWithTheModel has everything happen to the same
// few message groups of one queue.
func TestRandomHistoriesOfFewMessageGroupsAgreeWithTheModel(t *testing.T) {
	for i := range 10 {
		t.Run(fmt.Sprint(i), rapid.MakeCheck(func(t *rapid.T) {
			h := newHistory(t, true)
			defer func() { h.close() }()
			t.Repeat(map[string]func(*rapid.T){
				"send": h.send, "pop": h.pop, "pop again": h.pop, "ack": h.ack, "ack again": h.ack,
				"change": h.change, "change again": h.change, "expire": h.expire, "dead letter": h.deadLetter, "grow": h.grow,
				"choose": h.popChosen, "set offset": h.setOffset, "end deliveries": h.endDeliveries, "purge": h.purge, "trim": h.trim, "commit": h.commit, "crash": h.restart, "": h.look,
			})
			h.drain()
		}))
	}
}
