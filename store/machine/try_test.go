package machine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
)

// A message that somebody else has meanwhile is before the rest of the delivery: who asks
// again for that must not get it first.
func TestARepeatedAttemptGetsNothingBehindWhatAnotherOneHas(t *testing.T) {
	s := newStory(t, 1)
	s.apply(command.KindGroup, &command.Group{Time: s.tick(), ID: 1, MaxAttempts: 10, Version: 100, FIFO: true})
	s.apply(command.KindAppend, &command.Append{Time: s.tick(), Topic: 1, Messages: []*mq.Message{{ID: "a1", Group: "a"}, {ID: "a2", Group: "a"}}})
	ask := func(attempt string) (offsets []mq.QueueOffset) {
		c := &command.SelectPop{Order: command.GroupOrder, Attempt: attempt}
		c.Pop = command.Pop{Time: s.tick(), Topic: 1, Group: 1, Max: 10, Scan: 1000, Invisible: int64(time.Minute)}
		res := s.apply(command.KindPopSelect, c)
		for _, p := range res.Popped {
			offsets = append(offsets, p.Offset)
		}
		if attempt == "x" && len(res.Popped) == 2 {
			require.NoError(t, s.change(res.Popped[0], res.PopID, 0, mq.Nack))
		}
		return offsets
	}
	require.Equal(t, []mq.QueueOffset{0, 1}, ask("x"))
	require.Equal(t, []mq.QueueOffset{0}, ask("y"))
	require.Empty(t, ask("x"))
	require.Equal(t, []mq.QueueOffset{0}, ask("y"))
}
