package machine_test

import (
	"bytes"
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

func (s *story) setOffset(drop bool, queues ...command.QueueSet) machine.Result {
	return s.apply(command.KindSetOffset, &command.SetOffset{Time: s.tick(), Topic: 1, Group: 1, Drop: drop, Queues: queues})
}

// TestOffsetsInStories tells what set-offset does to a group that receives and to one
// that does not. The stories are in testdata/offsets; -rewrite writes down what happens
// instead of comparing it.
//
//	topic queues=N start=earliest|latest   begins anew
//	send queue=N n=N                       messages
//	pop max=N                              a receive of up to N
//	ack queue/offset ...                   settles what was delivered last at that place
//	nack queue/offset ...                  gives it up
//	set [drop] queue=offset ...            moves the progress
//	pass d=DURATION                        time passes, and leases end
//	positions                              what the group is at
//	rebuild                                the views are derived anew from the log
//	delete topic|group
//	keys                                   the kinds of keys in the views, and how many
func TestOffsetsInStories(t *testing.T) {
	datadriven.Walk(t, "testdata/offsets", func(t *testing.T, path string) {
		var s *story
		popped := map[string]mq.PopID{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "topic" {
				var queues int32
				var start string
				d.ScanArgs(t, "queues", &queues)
				d.MaybeScanArgs(t, "start", &start)
				s = newStory(t, queues)
				policy := slices.Index([]string{"", "latest"}, start)
				s.apply(command.KindGroup, &command.Group{
					Time: s.tick(), ID: 1, Name: mq.Resource{Name: "g"}, MaxAttempts: 3, DeadLetter: 9, Version: 2, Start: mq.StartPolicy(policy),
				})
				return ""
			}
			return s.step(t, d, popped)
		})
	})
}

func (s *story) step(t *testing.T, d *datadriven.TestData, popped map[string]mq.PopID) string {
	var out strings.Builder
	switch d.Cmd {
	case "send":
		var queue, n int
		d.ScanArgs(t, "queue", &queue)
		d.ScanArgs(t, "n", &n)
		res := s.send(mq.QueueID(queue), n, "")
		fmt.Fprintf(&out, "%d/%d and on\n", queue, res.First)
	case "pop":
		var most int32
		d.ScanArgs(t, "max", &most)
		res, id := s.pop(command.Pop{Max: most})
		slices.SortFunc(res.Popped, func(a, b machine.Popped) int {
			return compareRefs(keyspace.Ref{Queue: a.Queue, Offset: a.Offset}, keyspace.Ref{Queue: b.Queue, Offset: b.Offset})
		})
		for _, p := range res.Popped {
			place := fmt.Sprintf("%d/%d", p.Queue, p.Offset)
			popped[place] = id
			fmt.Fprintf(&out, "%s attempt %d\n", place, p.Attempt)
		}
	case "ack", "nack":
		for _, arg := range d.CmdArgs {
			var ref command.LeaseRef
			_, err := fmt.Sscanf(arg.Key, "%d/%d", &ref.Queue, &ref.Offset)
			require.NoError(t, err)
			ref.PopID = popped[arg.Key]
			err = s.settle(d.Cmd == "ack", ref)
			fmt.Fprintf(&out, "%s: %v\n", arg.Key, err)
		}
	case "set":
		var c command.SetOffset
		for _, arg := range d.CmdArgs {
			if arg.Key == "drop" {
				c.Drop = true
				continue
			}
			var q command.QueueSet
			_, err := fmt.Sscan(arg.Key, &q.Queue)
			require.NoError(t, err)
			_, err = fmt.Sscan(arg.Vals[0], &q.Offset)
			require.NoError(t, err)
			c.Queues = append(c.Queues, q)
		}
		res := s.setOffset(c.Drop, c.Queues...)
		if res.Err != nil {
			return res.Err.Error() + "\n"
		}
		fmt.Fprintf(&out, "%d deliveries ended\n", res.Dropped)
	case "pass":
		var text string
		d.ScanArgs(t, "d", &text)
		span, err := time.ParseDuration(text)
		require.NoError(t, err)
		s.now += int64(span)
		if s.due() {
			s.expire()
		}
	case "positions":
		require.NoError(t, s.m.Commit())
		list, err := s.m.Positions(keyspace.Sub{Group: 1, Topic: 1})
		require.NoError(t, err)
		for _, p := range list {
			at := "nowhere"
			if p.Known {
				at = fmt.Sprint(p.Offset)
			}
			fmt.Fprintf(&out, "queue %d holds %d to %d: at %s, ready %d, in flight %d, used up %d\n",
				p.Queue, p.Min, p.Next, at, p.Ready(), p.InFlight, p.UsedUp)
		}
	case "rebuild":
		s.rebuild()
	case "delete":
		if d.CmdArgs[0].Key == "topic" {
			s.apply(command.KindTopicDelete, &command.TopicDelete{Time: s.tick(), ID: 1})
		} else {
			s.apply(command.KindGroupDelete, &command.GroupDelete{Time: s.tick(), ID: 1})
		}
	case "keys":
		for _, line := range s.keys() {
			fmt.Fprintln(&out, line)
		}
	default:
		d.Fatalf(t, "unknown step %q", d.Cmd)
	}
	return out.String()
}

func (s *story) settle(ack bool, ref command.LeaseRef) error {
	if ack {
		return s.apply(command.KindAck, &command.Ack{Time: s.tick(), Topic: 1, Group: 1, Leases: []command.LeaseRef{ref}}).Settled[0]
	}
	return s.apply(command.KindChange, &command.Change{Time: s.tick(), Topic: 1, Group: 1, Changes: []command.LeaseChange{
		{LeaseRef: ref, Reason: mq.Nack},
	}}).Settled[0]
}

// keys lists the kinds of keys in the views and how many there are, without the state.
func (s *story) keys() []string {
	require.NoError(s.t, s.m.Commit())
	it, err := s.db.NewIter(nil)
	require.NoError(s.t, err)
	counts := map[string]int{}
	for ok := it.First(); ok; ok = it.Next() {
		what, _, err := keyspace.Describe(it.Key(), it.Value())
		require.NoError(s.t, err)
		if !bytes.Equal(it.Key(), keyspace.StateKey()) {
			counts[what]++
		}
	}
	require.NoError(s.t, it.Close())
	var lines []string
	for what, n := range counts {
		lines = append(lines, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(lines)
	return lines
}

func TestAnOffsetThatIsSetWakesTheReceivesOfTheGroup(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 4, "")
	_, _ = s.pop(command.Pop{Max: 10})
	s.m.Effects.Reset()
	s.setOffset(false, command.QueueSet{Offset: 4})
	require.Empty(t, s.m.Effects.Ready, "there is nothing more than before")
	s.setOffset(false, command.QueueSet{Offset: 1})
	require.Equal(t, []machine.Readied{{Sub: keyspace.Sub{Group: 1, Topic: 1}, N: 3}}, s.m.Effects.Ready)
}
