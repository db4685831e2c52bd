package machine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A fifoStory is a story about one queue and one group that is FIFO. A message is called
// after its message group: a1 is the first of a, and -1 has none.
type fifoStory struct {
	*story
	version  uint64
	limit    mq.Attempt
	fifo     bool
	names    []string // by offset
	receipts map[string]command.LeaseRef
}

func newFIFOStory(t *testing.T) *fifoStory {
	s := &fifoStory{story: newStory(t, 1), version: 1, limit: 3, fifo: true, receipts: map[string]command.LeaseRef{}}
	s.regroup()
	return s
}

// regroup makes the group's properties known.
func (s *fifoStory) regroup() {
	s.version++
	s.apply(command.KindGroup, &command.Group{
		Time: s.tick(), ID: 1, Name: mq.Resource{Name: "g"}, MaxAttempts: s.limit, DeadLetter: 9, Version: s.version, FIFO: s.fifo,
	})
}

func (s *fifoStory) send(names []string, tag string) {
	c := &command.Append{Time: s.tick(), Topic: 1}
	for _, name := range names {
		s.names = append(s.names, name)
		c.Messages = append(c.Messages, &mq.Message{ID: name, Tag: tag, Group: strings.TrimLeft(name[:1], "-")})
	}
	require.NoError(s.t, s.apply(command.KindAppend, c).Err)
}

// receive looks first, as a shard does.
func (s *fifoStory) receive(d *datadriven.TestData) string {
	c := &command.SelectPop{Order: command.GroupOrder}
	c.Pop = command.Pop{Topic: 1, Group: 1, Max: 10, Scan: 1000, Invisible: int64(time.Minute)}
	d.MaybeScanArgs(s.t, "max", &c.Max)
	d.MaybeScanArgs(s.t, "scan", &c.Scan)
	d.MaybeScanArgs(s.t, "in-flight", &c.InFlight)
	d.MaybeScanArgs(s.t, "attempt-id", &c.Attempt)
	var tag string
	if d.MaybeScanArgs(s.t, "tag", &tag) {
		c.Tags = []string{tag}
	}
	require.NoError(s.t, s.m.Commit())
	look, err := s.m.Look(c)
	require.NoError(s.t, err)
	if !look.May {
		if look.Full {
			return "nothing is written: the limit is reached"
		}
		return "nothing is written"
	}
	c.Time = s.tick()
	res := s.apply(command.KindPopSelect, c)
	require.NoError(s.t, res.Err)
	got := "nothing"
	for i, p := range res.Popped {
		if i == 0 {
			got = ""
		} else {
			got += ", "
		}
		name := s.names[p.Offset]
		s.receipts[name] = command.LeaseRef{Queue: p.Queue, Offset: p.Offset, PopID: res.PopID}
		got += fmt.Sprintf("%s (attempt %d)", name, p.Attempt)
	}
	if res.More {
		got += ", and there may be more"
	}
	return got
}

func (s *fifoStory) change(d *datadriven.TestData, reason mq.ChangeReason) string {
	var got []string
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) > 0 {
			continue
		}
		c := command.LeaseChange{LeaseRef: s.receipt(arg.Key), Reason: reason}
		var after string
		if d.MaybeScanArgs(s.t, "for", &after) {
			invisible, err := time.ParseDuration(after)
			require.NoError(s.t, err)
			c.Invisible = int64(invisible)
		}
		res := s.apply(command.KindChange, &command.Change{Time: s.tick(), Topic: 1, Group: 1, Changes: []command.LeaseChange{c}})
		got = append(got, answerOf(arg.Key, res.Settled[0])...)
	}
	return strings.Join(got, "\n")
}

// receipt returns the latest receipt of a message; one that was never delivered has
// that which a client could make up.
func (s *fifoStory) receipt(name string) command.LeaseRef {
	if r, ok := s.receipts[name]; ok {
		return r
	}
	return command.LeaseRef{Offset: mq.QueueOffset(slices.Index(s.names, name))}
}

func answerOf(name string, err error) []string {
	if err == nil {
		return nil
	}
	return []string{name + ": " + err.Error()}
}

func (s *fifoStory) ack(d *datadriven.TestData) string {
	c := &command.Ack{Time: s.tick(), Topic: 1, Group: 1}
	for _, arg := range d.CmdArgs {
		c.Leases = append(c.Leases, s.receipt(arg.Key))
	}
	var got []string
	for i, err := range s.apply(command.KindAck, c).Settled {
		got = append(got, answerOf(d.CmdArgs[i].Key, err)...)
	}
	return strings.Join(got, "\n")
}

// deadLetter moves messages to another topic, at the request of the consumer.
func (s *fifoStory) deadLetter(d *datadriven.TestData) string {
	s.apply(command.KindTopic, &command.Topic{Time: s.tick(), ID: 9, Name: mq.Resource{Name: "%DLQ%g"}, Queues: 1, Version: 1})
	var got []string
	for _, arg := range d.CmdArgs {
		res := s.apply(command.KindDeadLetter, &command.DeadLetter{
			Time: s.tick(), Lease: s.receipt(arg.Key), Group: 1, Topic: 1, Target: 9, Message: &mq.Message{ID: arg.Key},
		})
		got = append(got, answerOf(arg.Key, res.Err)...)
	}
	return strings.Join(got, "\n")
}

// wait lets time pass, and leases end.
func (s *fifoStory) wait(d *datadriven.TestData) {
	span, err := time.ParseDuration(d.CmdArgs[0].Key)
	require.NoError(s.t, err)
	s.now += int64(span)
	for s.due() {
		s.expire()
	}
}

// woken says whether what happened since it was last asked wakes a waiting receive.
func (s *fifoStory) woken() string {
	e := &s.m.Effects
	defer e.Reset()
	woken := len(e.Ready) > 0
	for _, a := range e.Arrived {
		woken = woken || a.Topic == 1 && !slices.Contains(a.Parked, keyspace.Sub{Group: 1, Topic: 1})
	}
	if woken {
		return "a waiting receive is woken"
	}
	return "nobody is woken"
}

// show lists what is under delivery.
func (s *fifoStory) show() string {
	require.NoError(s.t, s.m.Commit())
	view, err := machine.OpenView(s.db)
	require.NoError(s.t, err)
	var lines []string
	err = view.Deliveries(keyspace.Sub{Group: 1, Topic: 1}, []machine.Range{{High: mq.QueueOffset(len(s.names))}}, func(ref keyspace.Ref, l keyspace.Lease) error {
		lines = append(lines, fmt.Sprintf("%s %s, attempt %d", s.names[ref.Offset], l.State, l.Attempt))
		return nil
	})
	require.NoError(s.t, err)
	require.NoError(s.t, view.Close())
	list, err := s.m.Backlogs(1)
	require.NoError(s.t, err)
	if len(list) > 0 {
		b := list[0]
		lines = append(lines, fmt.Sprintf("%d to be delivered, %d in flight, %d blocked, %d used up", b.Ready, b.InFlight, b.Blocked, b.UsedUp))
	}
	return strings.Join(lines, "\n")
}

func (s *fifoStory) run(d *datadriven.TestData) string {
	switch d.Cmd {
	case "send":
		var names []string
		var tag string
		d.MaybeScanArgs(s.t, "tag", &tag)
		for _, arg := range d.CmdArgs {
			if len(arg.Vals) == 0 {
				names = append(names, arg.Key)
			}
		}
		s.send(names, tag)
	case "receive":
		return s.receive(d)
	case "ack":
		return s.ack(d)
	case "extend":
		return s.change(d, mq.Extend)
	case "nack":
		return s.change(d, mq.Nack)
	case "renew":
		return s.change(d, mq.Renew)
	case "give-back":
		return s.change(d, mq.GiveBack)
	case "dead-letter":
		return s.deadLetter(d)
	case "wait":
		s.wait(d)
	case "woken":
		return s.woken()
	case "show":
		return s.show()
	case "attempts":
		d.ScanArgs(s.t, "limit", &s.limit)
		s.regroup()
	case "fifo":
		s.fifo = d.CmdArgs[0].Key == "on"
		s.regroup()
	case "set":
		c := &command.SetOffset{Time: s.tick(), Topic: 1, Group: 1, Drop: d.HasArg("drop"), Queues: make([]command.QueueSet, 1)}
		d.ScanArgs(s.t, "to", &c.Queues[0].Offset)
		res := s.apply(command.KindSetOffset, c)
		require.NoError(s.t, res.Err)
		return fmt.Sprintf("%d deliveries ended", res.Dropped)
	case "trim":
		var begin, kept mq.QueueOffset
		d.ScanArgs(s.t, "min", &begin)
		d.ScanArgs(s.t, "kept", &kept)
		s.apply(command.KindTrim, &command.Trim{Time: s.tick(), Topic: 1, Queues: []command.QueueTrim{{Min: begin, Kept: kept}}})
	case "purge":
		s.apply(command.KindTrim, &command.Trim{Time: s.tick(), Topic: 1, Purge: true})
	case "reopen":
		s.reopen()
	case "rebuild":
		s.rebuild()
	default:
		d.Fatalf(s.t, "unknown command %s", d.Cmd)
	}
	return ""
}

// TestStoriesOfMessageGroups runs each story of testdata/fifo; -rewrite writes down what
// happens now.
func TestStoriesOfMessageGroups(t *testing.T) {
	datadriven.Walk(t, "testdata/fifo", func(t *testing.T, path string) {
		s := newFIFOStory(t)
		datadriven.RunTest(t, path, func(_ *testing.T, d *datadriven.TestData) string {
			got := s.run(d)
			if got == "" {
				return "ok"
			}
			return got
		})
	})
}
