package machine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// look looks before a pop of the tags under an in-flight limit.
func (s *story) look(limit int32, tags ...string) machine.Look {
	require.NoError(s.t, s.m.Commit())
	look, err := s.m.Look(&command.SelectPop{LimitedPop: command.LimitedPop{
		Pop: command.Pop{Topic: 1, Group: 1, Max: 10, Scan: 1000, Tags: tags}, InFlight: limit,
	}})
	require.NoError(s.t, err)
	return look
}

// limited pops the tags under an in-flight limit.
func (s *story) limited(limit int32, tags ...string) machine.Result {
	return s.apply(command.KindPopLimited, &command.LimitedPop{
		Pop: command.Pop{
			Time: s.tick(), Topic: 1, Group: 1, Max: 10, Invisible: int64(time.Hour), Scan: 1000, Tags: tags,
		},
		InFlight: limit,
	})
}

// reopen opens a machine on the same views.
func (s *story) reopen() {
	require.NoError(s.t, s.m.Commit())
	require.NoError(s.t, s.m.Close())
	m, err := machine.Open(s.db)
	require.NoError(s.t, err)
	s.m = m
}

func (s *story) ack(p machine.Popped, id mq.PopID) {
	res := s.apply(command.KindAck, &command.Ack{Time: s.tick(), Topic: 1, Group: 1, Leases: []command.LeaseRef{
		{Queue: p.Queue, Offset: p.Offset, PopID: id},
	}})
	require.Equal(s.t, []error{nil}, res.Settled)
}

// heldUp leases a message and lets two more of the tag be ready, between unwanted ones.
func heldUp(t *testing.T) (s *story, leased machine.Popped, id mq.PopID) {
	s = newStory(t, 2)
	for _, tag := range []string{"B", "A", "A", "B", "A"} {
		s.send(0, 1, tag)
	}
	res, id := s.pop(command.Pop{Max: 10, Invisible: int64(time.Hour)})
	require.Len(t, res.Popped, 5)
	for _, p := range res.Popped[:4] {
		require.NoError(t, s.change(p, id, 0, mq.Extend))
	}
	return s, res.Popped[4], id
}

func TestWhatIsHeldUpByTheLimitIsNotPassed(t *testing.T) {
	for name, first := range map[string]func(*story){
		"a look": func(s *story) {
			look := s.look(1, "A")
			require.True(s.t, look.Full)
			require.False(s.t, look.May)
		},
		"a look in two steps": func(s *story) {
			require.NoError(s.t, s.m.Commit())
			c := &command.LimitedPop{Pop: command.Pop{Topic: 1, Group: 1, Max: 10, Scan: 3, Tags: []string{"A"}}, InFlight: 1}
			look, err := s.m.Look(&command.SelectPop{LimitedPop: *c})
			require.NoError(s.t, err)
			require.True(s.t, look.Full)
			c.After = look.After
			look, err = s.m.Look(&command.SelectPop{LimitedPop: *c})
			require.NoError(s.t, err)
			require.False(s.t, look.Full || look.More || look.May)
		},
		"a pop": func(s *story) {
			res := s.limited(1, "A")
			require.Empty(s.t, res.Popped)
			require.True(s.t, res.Full)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, leased, id := heldUp(t)
			first(s)
			first(s)
			s.ack(leased, id)
			require.Len(t, s.m.Effects.Freed, 1)
			require.True(t, s.look(1, "A").May)
			require.Len(t, s.limited(1, "A").Popped, 1)
			require.True(t, s.look(1, "A").Full)
			require.Len(t, s.limited(3, "A").Popped, 1)
			require.False(t, s.look(3, "A").Full)
			require.Len(t, s.limited(5).Popped, 2, "those of the other tag")
		})
	}
}

func TestLimitHoldsAfterAReopen(t *testing.T) {
	s, leased, id := heldUp(t)
	s.reopen()
	require.True(t, s.look(1, "A").Full)
	require.Empty(t, s.limited(1, "A").Popped)
	s.ack(leased, id)
	require.Len(t, s.limited(1, "A").Popped, 1)
}

func TestRedeliveriesAreSeenAfterAReopen(t *testing.T) {
	s, _, _ := heldUp(t)
	require.True(t, s.look(0, "A").May)
	s.reopen()
	require.True(t, s.look(0, "A").May)
	require.False(t, s.look(0, "C").May)
	require.Len(t, s.limited(0, "A").Popped, 2)
	require.False(t, s.look(0, "A").May)
	require.True(t, s.look(0, "B").May)
}

func TestLookThatEndsAtItsScanLimitGoesOnWhereItWas(t *testing.T) {
	s := newStory(t, 1)
	s.send(0, 5, "B")
	s.send(0, 1, "A")
	res, id := s.pop(command.Pop{Max: 10})
	for _, p := range res.Popped {
		require.NoError(t, s.change(p, id, 0, mq.Extend))
	}
	require.NoError(t, s.m.Commit())
	c := &command.LimitedPop{Pop: command.Pop{Topic: 1, Group: 1, Max: 1, Scan: 2, Tags: []string{"A"}}}
	looks := 0
	for ; ; looks++ {
		look, err := s.m.Look(&command.SelectPop{LimitedPop: *c})
		require.NoError(t, err)
		c.After = look.After
		if look.May {
			break
		}
		require.True(t, look.More)
	}
	require.Equal(t, 2, looks)
	c.Time, c.Invisible = s.tick(), int64(time.Hour)
	require.Len(t, s.apply(command.KindPopLimited, c).Popped, 1)
	look := s.look(0, "A")
	require.False(t, look.May || look.More, "they were all looked at")
}

func TestAnotherAttemptLimitLooksAtWhatWasPassed(t *testing.T) {
	s, _, _ := heldUp(t)
	require.False(t, s.look(0, "C").May)
	s.group(2, 1)
	require.True(t, s.look(0, "C").May, "to move what is used up now")
	require.Empty(t, s.limited(0, "C").Popped)
	require.NoError(t, s.m.Commit())
	used, err := s.m.UsedUp(keyspace.Ref{}, 10)
	require.NoError(t, err)
	require.Len(t, used, 4)
}
