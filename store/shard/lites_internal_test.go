package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// liteSets drives lites as syncs do, without a shard.
type liteSets struct {
	*testing.T
	lites
	now   time.Time
	queue mq.QueueID
	of    map[string]mq.QueueID
}

func newLiteSets(t *testing.T) *liteSets {
	return &liteSets{T: t, now: time.Unix(1, 0), queue: mq.FirstLiteQueue, of: map[string]mq.QueueID{}}
}

var liteSub = keyspace.Sub{Group: 1, Topic: 1}

func (s *liteSets) begin(client string, r mq.LiteSync, names ...string) (*litePlan, error) {
	r.Names = names
	return s.plan(liteKey{liteSub, client}, &r, r.Action == mq.LiteReplace, s.now)
}

func (s *liteSets) end(p *litePlan) []mq.LiteLoss {
	var queues []mq.QueueID
	for _, name := range p.added {
		if s.of[name] == 0 {
			s.of[name] = s.queue
			s.queue++
		}
		queues = append(queues, s.of[name])
	}
	return s.commit(p, queues)
}

func (s *liteSets) sync(client string, r mq.LiteSync, names ...string) []mq.LiteLoss {
	p, err := s.begin(client, r, names...)
	require.NoError(s, err)
	return s.end(p)
}

// has returns the set of a client, by what a message of each of its lite topics marks.
func (s *liteSets) has(client string) []string {
	key := liteKey{liteSub, client}
	s.take(key, len(s.of)+1)
	var e machine.Effects
	for _, queue := range s.of {
		e.Lites = append(e.Lites, machine.LiteEvent{Topic: 1, Queue: queue})
	}
	s.happened(&e)
	entries, _ := s.take(key, len(s.of)+1)
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.name)
	}
	return names
}

var (
	add     = mq.LiteSync{Action: mq.LiteAdd}
	replace = mq.LiteSync{Action: mq.LiteReplace}
)

func TestWhatComesLaterThanASyncWins(t *testing.T) {
	s := newLiteSets(t)
	s.sync("c", add, "a", "b")
	p, err := s.begin("c", add, "c", "d")
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"a", "b"}, s.has("c"), "nothing before its end")
	s.remove(liteKey{liteSub, "c"}, []string{"c", "a", "never"}, false)
	s.end(p)
	require.ElementsMatch(t, []string{"b", "d"}, s.has("c"))

	// A whole set says nothing of what came in after it.
	whole, err := s.begin("c", replace, "b", "e")
	require.NoError(t, err)
	later, err := s.begin("c", add, "f")
	require.NoError(t, err)
	s.sync("c", add, "g")
	s.end(whole)
	require.ElementsMatch(t, []string{"b", "e", "g"}, s.has("c"))
	s.end(later)
	require.ElementsMatch(t, []string{"b", "e", "f", "g"}, s.has("c"))
	earlier, err := s.begin("c", add, "h")
	require.NoError(t, err)
	s.sync("c", replace, "b")
	s.end(earlier)
	require.ElementsMatch(t, []string{"b"}, s.has("c"))

	// Who has left does not come back by a sync from before.
	p, err = s.begin("c", add, "a")
	require.NoError(t, err)
	s.leave("c")
	require.Empty(t, s.end(p))
	require.Empty(t, s.has("c"))
	p, err = s.begin("c", replace, "a")
	require.NoError(t, err)
	s.leave("c")
	s.sync("c", add, "b")
	s.end(p)
	require.Equal(t, []string{"b"}, s.has("c"))
	s.leave("c")
	s.isEmpty()
}

// isEmpty checks that nothing is left of anybody.
func (s *liteSets) isEmpty() {
	require.Zero(s, s.total)
	require.Zero(s, s.planned)
	require.Empty(s, s.clients)
	require.Empty(s, s.byID)
	require.Empty(s, s.names)
	require.Empty(s, s.queues)
	require.Zero(s, s.seen.Len())
}

func TestAnOlderWholeSetIsPassedOver(t *testing.T) {
	s := newLiteSets(t)
	s.sync("c", mq.LiteSync{Action: mq.LiteReplace, Version: 5}, "a")
	p, err := s.begin("c", mq.LiteSync{Action: mq.LiteReplace, Version: 4}, "b")
	require.NoError(t, err)
	require.Nil(t, p)
	six, err := s.begin("c", mq.LiteSync{Action: mq.LiteReplace, Version: 6}, "six")
	require.NoError(t, err)
	s.sync("c", mq.LiteSync{Action: mq.LiteReplace, Version: 7}, "seven")
	s.end(six)
	require.Equal(t, []string{"seven"}, s.has("c"))
	s.leave("c")
	s.isEmpty()
}

func TestSyncsUnderWayKeepRoomWithinTheQuotas(t *testing.T) {
	s := newLiteSets(t)
	bounded := mq.LiteSync{Action: mq.LiteAdd, ClientQuota: 3, TotalQuota: 4}
	first, err := s.begin("c", bounded, "a", "b")
	require.NoError(t, err)
	_, err = s.begin("c", bounded, "c", "d")
	require.ErrorIs(t, err, mq.ErrLiteSubscriptionQuota)
	_, err = s.begin("d", bounded, "a", "b", "c")
	require.ErrorIs(t, err, mq.ErrLiteSubscriptionQuota)
	require.Len(t, s.clients, 1, "nothing is left of who was refused")
	s.abort(first)
	s.isEmpty()
	s.sync("d", bounded, "a", "b", "c")
	s.sync("c", bounded, "a")
	// What goes makes room for what comes.
	bounded.Action = mq.LiteReplace
	s.sync("d", bounded, "x", "y", "z")
	_, err = s.begin("c", bounded, "x", "y")
	require.ErrorIs(t, err, mq.ErrLiteSubscriptionQuota)
	require.Equal(t, []string{"a"}, s.has("c"))
	// So does what is taken from others.
	bounded.Action, bounded.Exclusive = mq.LiteAdd, true
	require.Len(t, s.sync("c", bounded, "x", "y"), 2)
	require.ElementsMatch(t, []string{"a", "x", "y"}, s.has("c"))
	require.Equal(t, []string{"z"}, s.has("d"))
}

// Two clients that both say again and again that they have a lite topic do not take it from
// each other: one has it, and the other is told so until it believes it.
func TestAWholeSetTakesNothingFromOthers(t *testing.T) {
	s := newLiteSets(t)
	exclusive := func(action mq.LiteAction) mq.LiteSync { return mq.LiteSync{Action: action, Exclusive: true} }
	loss := func(client string) mq.LiteLoss { return mq.LiteLoss{Client: client, Topic: 1, Group: 1, Name: "a"} }
	require.Empty(t, s.sync("one", exclusive(mq.LiteReplace), "a", "b"))
	require.Equal(t, []mq.LiteLoss{loss("one")}, s.sync("two", exclusive(mq.LiteAdd), "a"))
	for range 3 {
		require.Equal(t, []mq.LiteLoss{loss("one")}, s.sync("one", exclusive(mq.LiteReplace), "a", "b"))
		require.Empty(t, s.sync("two", exclusive(mq.LiteReplace), "a"))
		require.Equal(t, []string{"b"}, s.has("one"))
		require.Equal(t, []string{"a"}, s.has("two"))
	}
	require.Equal(t, []mq.LiteLoss{loss("two")}, s.sync("one", exclusive(mq.LiteAdd), "a"))
	s.leave("one")
	require.Empty(t, s.sync("two", exclusive(mq.LiteReplace), "a"), "nobody has it")
	require.Equal(t, []string{"a"}, s.has("two"))

	// One that is taken while the whole set is under way stays with who took it.
	s.leave("two")
	p, err := s.begin("one", exclusive(mq.LiteReplace), "a")
	require.NoError(t, err)
	require.Empty(t, s.sync("two", exclusive(mq.LiteAdd), "a"))
	require.Equal(t, []mq.LiteLoss{loss("one")}, s.end(p))
	require.Equal(t, []string{"a"}, s.has("two"))
	s.leave("one")
	s.leave("two")
	s.isEmpty()
}

func TestALiteTopicThatEndsUnderASyncIsFoundWhenItComesAgain(t *testing.T) {
	s := newLiteSets(t)
	p, err := s.begin("c", add, "a")
	require.NoError(t, err)
	s.happened(&machine.Effects{LiteMade: []machine.LiteMade{{Topic: 1, Queue: mq.FirstLiteQueue, Name: "a"}}})
	s.happened(&machine.Effects{LiteGone: []keyspace.Queue{{Topic: 1, Queue: mq.FirstLiteQueue}}})
	s.happened(&machine.Effects{LiteMade: []machine.LiteMade{{Topic: 1, Queue: mq.FirstLiteQueue + 1, Name: "a"}}})
	s.commit(p, []mq.QueueID{mq.FirstLiteQueue})
	s.of["a"] = mq.FirstLiteQueue + 1
	require.Equal(t, []string{"a"}, s.has("c"))
	s.happened(&machine.Effects{LiteGone: []keyspace.Queue{{Topic: 1}}}) // a purge
	require.Empty(t, s.has("c"))
	s.happened(&machine.Effects{LiteMade: []machine.LiteMade{{Topic: 1, Queue: mq.FirstLiteQueue + 2, Name: "a"}}})
	s.of["a"] = mq.FirstLiteQueue + 2
	require.Equal(t, []string{"a"}, s.has("c"))
	s.leave("c")
	s.isEmpty()
}

func TestNoMoreClientsOfAGroupShareALiteTopicThanMay(t *testing.T) {
	s := newLiteSets(t)
	for i := range liteSharers {
		s.sync(fmt.Sprint("c", i), add, "a")
	}
	_, err := s.begin("one more", add, "a")
	require.ErrorIs(t, err, mq.ErrLiteSubscriptionQuota)
	require.ErrorContains(t, err, "the limit is 1000")
	s.leave("c7")
	s.sync("one more", add, "a")
}

// Silent clients are forgotten a few at a time, in the order in which they fell silent: the
// loop waits for the lock meanwhile.
func TestManySilentClientsAreForgottenInSlices(t *testing.T) {
	s := newLiteSets(t)
	const clients, each = 5000, 4
	for i := range clients {
		s.sync(fmt.Sprint("c", i), add, fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i), fmt.Sprint("d", i))
	}
	s.now = s.now.Add(time.Minute)
	s.sync("late", add, "x")
	waits := make(chan struct{}, 1)
	s.wait(liteKey{liteSub, "c0"}, waits)
	require.False(t, s.sweep(s.now))
	require.Len(t, s.clients, clients+1)
	slices := 0
	for before := s.total; s.sweep(s.now.Add(liteSilence)); before = s.total {
		require.LessOrEqual(t, before-s.total, sweepNames+each)
		require.Positive(t, before-s.total)
		slices++
	}
	require.Greater(t, slices, clients*each/(sweepNames+each)-1)
	require.Equal(t, 1+each, s.total, "of a client that was seen later, and of one that waits")
	require.Len(t, s.clients, 2)

	s = newLiteSets(t)
	s.sync("silent", add, "a")
	s.sync("waits", add, "a")
	s.wait(liteKey{liteSub, "waits"}, waits)
	s.now = s.now.Add(time.Hour)
	require.False(t, s.sweep(s.now))
	require.Empty(t, s.has("silent"))
	require.Equal(t, []string{"a"}, s.has("waits"))

	// Those who are silent stand in nobody's way, however many there are.
	s = newLiteSets(t)
	for i := range clients {
		s.sync(fmt.Sprint("c", i), add, fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	s.now = s.now.Add(time.Hour)
	s.sync("c", mq.LiteSync{TotalQuota: 2}, "x", "y")
	require.ElementsMatch(t, []string{"x", "y"}, s.has("c"))
}

// A client that adds and removes the same again and again, and never receives, has no longer
// list by it.
func TestTheListOfAClientIsAsLongAsItsSet(t *testing.T) {
	s := newLiteSets(t)
	s.sync("c", add, "stays")
	for range 10 * sweepNames {
		s.sync("c", add, "goes")
		s.remove(liteKey{liteSub, "c"}, []string{"goes"}, false)
	}
	require.LessOrEqual(t, len(s.clients[liteKey{liteSub, "c"}].list), sweepNames+8)
	s.sync("c", add, "goes")
	require.ElementsMatch(t, []string{"stays", "goes"}, s.has("c"))
}
