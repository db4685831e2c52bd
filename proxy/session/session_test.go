package session

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

var command = &rmqpb.TelemetryCommand{}

func TestCommandsGoToTheNewestOpenStream(t *testing.T) {
	s := NewTable(time.Minute, Limits{}, nil).Touch("c")
	require.False(t, s.Send(command))
	first, second := NewStream(), NewStream()
	s.Attach(first)
	s.Attach(second)
	require.True(t, s.Send(command))
	require.Len(t, second.Commands(), 1)
	require.Empty(t, first.Commands())

	s.Detach(second)
	require.True(t, s.Send(command))
	require.Len(t, first.Commands(), 1)
	s.Detach(first)
	s.Detach(first)
	require.False(t, s.Connected())
	require.False(t, s.Send(command))
}

func TestLateEndOfAnEarlierStreamChangesNothing(t *testing.T) {
	s := NewTable(time.Minute, Limits{}, nil).Touch("c")
	first, second := NewStream(), NewStream()
	s.Attach(first)
	s.Attach(second)
	s.Detach(first)
	require.True(t, s.Send(command))
	require.Len(t, second.Commands(), 1)
}

func TestFullQueueDropsCommands(t *testing.T) {
	st := NewStream()
	for range queueLength {
		require.True(t, st.Send(command))
	}
	require.False(t, st.Send(command))
	st.Took(<-st.Commands())
	require.True(t, st.Send(command))
}

func TestAQueueOfLargeCommandsIsFullEarly(t *testing.T) {
	sized := func(bytes int) *rmqpb.TelemetryCommand {
		return &rmqpb.TelemetryCommand{Status: &rmqpb.Status{Message: strings.Repeat("x", bytes)}}
	}
	st := NewStream()
	require.True(t, st.Send(sized(2*queueBytes)), "one command may be of any size")
	require.False(t, st.Send(sized(1)))
	st.Took(<-st.Commands())
	for range 3 {
		require.True(t, st.Send(sized(queueBytes/4)))
	}
	require.False(t, st.Send(sized(queueBytes/2)))
	require.True(t, st.Send(sized(queueBytes/8)))
	for range 4 {
		st.Took(<-st.Commands())
	}
	require.True(t, st.Send(sized(2*queueBytes)))
}

func TestSilentSessionsEndAndOthersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ended []string
		table := NewTable(90*time.Second, Limits{}, func(s *Session) { ended = append(ended, s.ID) })
		table.Touch("silent")
		table.Touch("beating")
		table.Touch("connected").Attach(NewStream())
		require.Nil(t, table.Seen("unknown"), "only Touch makes sessions")
		for range 20 {
			time.Sleep(30 * time.Second)
			require.NotNil(t, table.Seen("beating"))
		}
		synctest.Wait()
		require.Equal(t, []string{"silent"}, ended)
		require.Equal(t, 2, table.Len())
		table.Close()
	})
}

func TestTimeoutCountsFromTheEndOfTheLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(90*time.Second, Limits{}, func(*Session) {})
		st := NewStream()
		s := table.Touch("c")
		s.Attach(st)
		time.Sleep(time.Hour)
		s.Detach(st)
		time.Sleep(89 * time.Second)
		require.NotNil(t, table.Get("c"))
		time.Sleep(time.Minute + 91*time.Second)
		require.Nil(t, table.Get("c"))
		require.Zero(t, table.Len())
		table.Touch("c") // the sweeps begin again
		time.Sleep(3 * time.Minute)
		require.Zero(t, table.Len())
	})
}

func TestGoodbyeEndsASessionWithoutTheCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(time.Minute, Limits{}, func(s *Session) { t.Errorf("ended %s", s.ID) })
		s := table.Touch("c")
		require.Same(t, s, table.Remove("c"))
		require.Nil(t, table.Remove("c"))
		require.NotSame(t, s, table.Touch("c"))
		table.Close()
		time.Sleep(time.Hour)
		require.Equal(t, 1, table.Len(), "a closed table ends nothing")
	})
}

func TestAFullTableMakesNoSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(time.Minute, Limits{Sessions: 2}, func(*Session) {})
		defer table.Close()
		require.NotNil(t, table.Touch("a"))
		require.NotNil(t, table.Touch("b"))
		require.Nil(t, table.Touch("c"))
		require.NotNil(t, table.Touch("a"), "who is there stays")
		require.NotNil(t, table.Remove("b"))
		require.NotNil(t, table.Touch("c"))
		time.Sleep(3 * time.Minute)
		require.Zero(t, table.Len())
		require.NotNil(t, table.Touch("d"))
	})
}

func TestTheSettingsOfAllSessionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sized := func(bytes int) *rmqpb.Settings {
			return &rmqpb.Settings{UserAgent: &rmqpb.UA{Hostname: strings.Repeat("x", bytes)}}
		}
		table := NewTable(time.Minute, Limits{Settings: 1000}, func(*Session) {})
		defer table.Close()
		a, b := table.Touch("a"), table.Touch("b")
		first := sized(500)
		require.True(t, a.SetSettings(first))
		require.False(t, a.SetSettings(sized(1000)))
		require.Same(t, first, a.Settings(), "they stay as they were")
		require.False(t, b.SetSettings(sized(500)))
		require.True(t, a.SetSettings(sized(100)))
		require.True(t, b.SetSettings(sized(500)))

		table.Remove("b")
		require.True(t, b.SetSettings(sized(5000)), "it goes with its last stream")
		require.True(t, a.SetSettings(sized(900)))
		time.Sleep(3 * time.Minute)
		require.Zero(t, table.Len())
		require.Zero(t, table.settings.Load())
	})
}
