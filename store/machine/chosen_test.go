package machine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// drawJudged draws ranges that were looked at.
func (h *history) drawJudged(topic mq.TopicID) (judged []command.JudgedRange) {
	for q, messages := range h.model.topics[topic] {
		at := 0
		for at < len(messages) {
			at += rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(h.t, "gap")
			j := command.JudgedRange{Queue: mq.QueueID(q), From: mq.QueueOffset(at)}
			n := rapid.SampledFrom([]int{1, 2, 5, 40}).Draw(h.t, "judged")
			every := rapid.SampledFrom([]int{1, 2, 3, 100}).Draw(h.t, "one wanted of")
			for i := range n {
				if (at+i)%every == every-1 {
					j.Wanted = append(j.Wanted, mq.QueueOffset(at+i))
				}
			}
			at += n
			j.To = mq.QueueOffset(at)
			judged = append(judged, j)
			if rapid.IntRange(0, 3).Draw(h.t, "enough") == 0 {
				break
			}
		}
	}
	return judged
}

// popChosen pops a random choice, now and then after a look, and compares with the model.
func (h *history) popChosen(*rapid.T) {
	c := command.SelectPop{Chosen: true, Order: h.drawOrder()}
	c.InFlight = rapid.SampledFrom([]int32{0, 1, 2, 3}).Draw(h.t, "in-flight limit")
	c.Pop = command.Pop{
		Time: h.tick(), Topic: h.drawTopic(), Group: h.drawGroup(), Max: int32(rapid.IntRange(1, 6).Draw(h.t, "max")),
		Invisible: int64(rapid.SampledFrom([]time.Duration{1, time.Second, 10 * time.Second}).Draw(h.t, "invisible")),
		Scan:      int32(rapid.SampledFrom([]int{1, 3, 100}).Draw(h.t, "scan")),
	}
	if h.model.fifo(c.Group) {
		c.Attempt = rapid.SampledFrom([]string{"", "", "x", "yy"}).Draw(h.t, "attempt")
	}
	c.Judged = h.drawJudged(c.Topic)
	if rapid.Bool().Draw(h.t, "look first") {
		require.NoError(h.t, h.m.Commit())
		look, err := h.m.Look(&c)
		require.NoError(h.t, err)
		if !look.May && !look.More {
			before := h.model.state(c)
			free := c
			free.Scan = 1000
			s := h.model.subs[keyspace.Sub{Group: c.Group, Topic: c.Topic}]
			turn := s.turn
			got, unjudged, ok := h.model.popChosen(free, uint64(len(h.log))+1)
			s.turn = turn // a look does not make it a group that receives by priority
			require.True(h.t, ok)
			require.Empty(h.t, got.popped, "the look saw nothing")
			require.Equal(h.t, got.full, look.Full)
			require.True(h.t, !unjudged || look.Unjudged || look.Full, "the look saw nothing to judge")
			require.Equal(h.t, before, h.model.state(c), "the look saw no effect")
			return
		}
		c.After = look.After
	}
	res := h.apply(command.KindPopSelect, &c)
	want, unjudged, ok := h.model.popChosen(c, uint64(len(h.log)))
	if !ok {
		require.Error(h.t, res.Err)
		return
	}
	require.NoError(h.t, res.Err)
	var got []modelPopped
	for _, p := range res.Popped {
		got = append(got, modelPopped{h.stored(p), p.Queue, p.Offset, p.Attempt})
		wanted, judged := c.Judge(p.Queue, p.Offset)
		require.True(h.t, wanted && judged || res.PopID != mq.PopID(c.Time), "what was delivered before is not judged again")
		h.held = append(h.held, held{
			keyspace.Sub{Group: c.Group, Topic: c.Topic},
			command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: res.PopID},
		})
	}
	require.Equal(h.t, want, modelPop{popped: got, id: res.PopID, more: res.More, full: res.Full})
	require.Equal(h.t, unjudged, res.Unjudged)
	require.Nil(h.t, h.model.overtakes(keyspace.Sub{Group: c.Group, Topic: c.Topic}, res.PopID, got), "delivered before an earlier one of its message group")
	h.checkOutlook(keyspace.Sub{Group: c.Group, Topic: c.Topic})
}

// checkOutlook compares what a group has before it with the model, and reads it.
func (h *history) checkOutlook(id keyspace.Sub) {
	require.NoError(h.t, h.m.Commit())
	var o machine.Outlook
	require.NoError(h.t, h.m.Outlook(id, &o))
	s := h.model.subs[id]
	require.True(h.t, o.Known)
	v, err := machine.OpenView(h.db)
	require.NoError(h.t, err)
	defer func() { require.NoError(h.t, v.Close()) }()
	for i, q := range h.model.topics[id.Topic] {
		start := h.model.begin(id.Topic, i).min
		if i < len(s.progress) {
			start = max(start, s.progress[i])
		}
		require.Equal(h.t, machine.Range{Queue: mq.QueueID(i), Low: mq.QueueOffset(start), High: mq.QueueOffset(len(q))}, o.Queues[i])
		next := o.Queues[i].Low
		require.NoError(h.t, v.Entries(id.Topic, o.Queues[i], func(offset mq.QueueOffset, e *keyspace.Entry) bool {
			require.Equal(h.t, next, offset)
			require.Equal(h.t, q[offset].tag, string(e.Tag))
			next++
			return true
		}))
		require.Equal(h.t, o.Queues[i].High, next)
	}
	var ready []keyspace.Ref
	require.NoError(h.t, v.Redeliveries(id, o.ReadyLow, func(seq uint64, ref keyspace.Ref) bool {
		require.LessOrEqual(h.t, seq, o.ReadyLast)
		ready = append(ready, ref)
		return true
	}))
	require.Equal(h.t, s.in(keyspace.Ready), ready)
	require.EqualValues(h.t, len(ready), o.Ready)
}

// TestChosenPopsAgreeWithTheModel lets pops with random choices run among all others.
func TestChosenPopsAgreeWithTheModel(t *testing.T) {
	for range 5 {
		rapid.Check(t, func(t *rapid.T) {
			h := newHistory(t, false)
			defer func() { h.close() }()
			t.Repeat(map[string]func(*rapid.T){
				"send": h.send, "send again": h.send, "choose": h.popChosen, "choose again": h.popChosen, "pop": h.pop, "ack": h.ack,
				"change": h.change, "expire": h.expire, "grow": h.grow, "remove": h.remove, "trim": h.trim, "purge": h.purge, "set offset": h.setOffset,
				"commit": h.commit, "crash": h.restart, "": h.look,
			})
			h.drain()
		})
	}
}

func (s *story) choose(max int32, limit int32, judged ...command.JudgedRange) machine.Result {
	c := &command.SelectPop{Chosen: true, Judged: judged}
	c.InFlight = limit
	c.Pop = command.Pop{Time: s.tick(), Topic: 1, Group: 1, Max: max, Invisible: int64(time.Minute), Scan: 1000}
	return s.apply(command.KindPopSelect, c)
}

func (s *story) progress() (list []mq.QueueOffset) {
	require.NoError(s.t, s.m.Commit())
	var o machine.Outlook
	require.NoError(s.t, s.m.Outlook(keyspace.Sub{Group: 1, Topic: 1}, &o))
	for _, q := range o.Queues {
		list = append(list, q.Low)
	}
	return list
}

func TestAChoiceMovesPastWhatIsNotWantedAndNoFurtherThanItWasJudged(t *testing.T) {
	s := newStory(t, 2)
	s.send(0, 5000, "")
	s.send(1, 5000, "")
	// Far more than the scan limit, at once.
	res := s.choose(10, 0, command.JudgedRange{Queue: 0, To: 4000, Wanted: []mq.QueueOffset{17, 3999}}, command.JudgedRange{Queue: 1, To: 3000})
	require.Len(t, res.Popped, 2)
	require.True(t, res.Unjudged)
	require.False(t, res.More)
	require.Equal(t, []mq.QueueOffset{4000, 3000}, s.progress())
	// Judged, but not from where the group stands: nothing moves.
	res = s.choose(10, 0, command.JudgedRange{Queue: 0, From: 4001, To: 5000, Wanted: []mq.QueueOffset{4500}})
	require.Empty(t, res.Popped)
	require.True(t, res.Unjudged)
	require.Equal(t, []mq.QueueOffset{4000, 3000}, s.progress())
	// At its limit a queue moves up to the first that is wanted.
	res = s.choose(10, 2, command.JudgedRange{Queue: 0, From: 4000, To: 5000, Wanted: []mq.QueueOffset{4500}}, command.JudgedRange{Queue: 1, From: 3000, To: 5000})
	require.Empty(t, res.Popped)
	require.True(t, res.Full)
	require.False(t, res.Unjudged)
	require.Equal(t, []mq.QueueOffset{4500, 5000}, s.progress())
}

func TestARepeatedChoiceChangesNothing(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 10, "")
	judged := command.JudgedRange{To: 10, Wanted: []mq.QueueOffset{3, 7}}
	require.Len(t, s.choose(10, 0, judged).Popped, 2)
	require.NoError(t, s.m.Commit())
	look, err := s.m.Look(&command.SelectPop{
		LimitedPop: command.LimitedPop{Pop: command.Pop{Topic: 1, Group: 1, Max: 10, Scan: 1000}}, Chosen: true, Judged: []command.JudgedRange{judged},
	})
	require.NoError(t, err)
	require.False(t, look.May)
	require.Empty(t, s.choose(10, 0, judged).Popped)
	require.Equal(t, []mq.QueueOffset{10}, s.progress())
}
