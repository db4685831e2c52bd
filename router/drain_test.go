package router

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
)

func topicOf(tb testing.TB, r *Router, topic string) *mq.Topic {
	tb.Helper()
	got, err := r.Topic(tb.Context(), name(topic))
	require.NoError(tb, err)
	return got
}

func usesOf(t *mq.Topic) string {
	var list []string
	for _, s := range t.Shards {
		list = append(list, s.Shard+" "+s.Use.String())
	}
	return strings.Join(list, ", ")
}

// placeOf returns where each of some message groups lies.
func placesOfGroups(t *mq.Topic) map[string]mq.Place {
	places := map[string]mq.Place{}
	for i := range 300 {
		group := fmt.Sprint("customer-", i)
		shard, queue, _ := t.QueueOf(group)
		places[group] = mq.Place{Shard: shard, Queue: queue}
	}
	return places
}

// TestATopicLeavesAShardInSteps: it is closed there before any message group lies elsewhere,
// and no other group moves.
func TestATopicLeavesAShardInSteps(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "a", "b")
	before := createTopic(t, r, TopicSpec{Resource: name("t"), Type: mq.TopicFIFO, Queues: 4})
	_, err := r.AddShard(t.Context(), "c")
	require.NoError(t, err)
	_, err = r.SetShard(t.Context(), "a", ShardDraining)
	require.NoError(t, err)
	closing := topicOf(t, r, "t")
	require.Equal(t, "a closing, b open, c open", usesOf(closing), "a new shard takes its place")
	require.Equal(t, closing.Version, closing.Placed)
	require.Equal(t, placesOfGroups(before), placesOfGroups(closing), "nothing lies elsewhere before the shard has closed")
	require.Equal(t, Leaving{Closing: 1}, r.Leaving("a"))

	_, err = r.RemoveShard(t.Context(), "a", false)
	require.ErrorContains(t, err, "1 are on it, t among them")
	require.NoError(t, r.ShardClosed(t.Context(), "a", []ClosedTopic{{closing.ID, closing.Placed - 1}, {99, 1}}))
	require.Equal(t, closing, topicOf(t, r, "t"), "what was said of an earlier version counts for nothing")

	require.NoError(t, r.ShardClosed(t.Context(), "a", []ClosedTopic{{closing.ID, closing.Placed}}))
	closed := topicOf(t, r, "t")
	require.Equal(t, "a closed, b open, c open", usesOf(closed))
	now := placesOfGroups(closed)
	for group, place := range placesOfGroups(before) {
		if place.Shard == "a" {
			require.NotEqual(t, "a", now[group].Shard)
		} else {
			require.Equal(t, place, now[group])
		}
	}
	require.NoError(t, r.ShardClosed(t.Context(), "a", []ClosedTopic{{closing.ID, closed.Placed}}))
	require.Equal(t, closed, topicOf(t, r, "t"), "again")

	shard, err := r.RemoveShard(t.Context(), "a", false)
	require.NoError(t, err)
	require.Equal(t, ShardRemoved, shard.State)
	left := topicOf(t, r, "t")
	require.Equal(t, "b open, c open", usesOf(left))
	require.Equal(t, now, placesOfGroups(left))
}

func TestATopicWhoseOnlyShardIsDrainedGetsAnother(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "a")
	createTopic(t, r, TopicSpec{Resource: name("t")})
	createGroup(t, r, GroupSpec{Resource: name("g")})
	_, err := r.SetShard(t.Context(), "a", ShardDraining)
	require.ErrorIs(t, err, mq.ErrInvalid)
	require.ErrorContains(t, err, "no other shard is active that could take t")
	require.Equal(t, ShardActive, r.Shards()[0].State)
	_, err = r.AddShard(t.Context(), "b")
	require.NoError(t, err)
	_, err = r.SetShard(t.Context(), "a", ShardDraining)
	require.NoError(t, err)
	require.Equal(t, "a closing, b open", usesOf(topicOf(t, r, "t")))
	g, err := r.Group(t.Context(), name("g"))
	require.NoError(t, err)
	require.Equal(t, "b", g.DeadLetterShard)
	require.EqualValues(t, 2, g.Version)
	dead, err := r.Topic(t.Context(), g.Resource.DeadLetterTopic())
	require.NoError(t, err)
	require.Equal(t, "a open, b open", usesOf(dead), "dead letters stay readable where they died")
}

func TestAShardThatIsActiveAgainKeepsWhatHasNotLeft(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "a", "b")
	createTopic(t, r, TopicSpec{Resource: name("fifo"), Type: mq.TopicFIFO})
	createTopic(t, r, TopicSpec{Resource: name("plain")})
	createTopic(t, r, TopicSpec{Resource: name("late"), Type: mq.TopicFIFO})
	set := func(state ShardState) {
		_, err := r.SetShard(t.Context(), "a", state)
		require.NoError(t, err)
	}
	set(ShardDraining)
	for _, topic := range []string{"fifo", "plain"} {
		closing := topicOf(t, r, topic)
		require.NoError(t, r.ShardClosed(t.Context(), "a", []ClosedTopic{{closing.ID, closing.Placed}}))
	}
	set(ShardActive)
	require.Equal(t, "a closed, b open", usesOf(topicOf(t, r, "fifo")), "its groups lie on b by now")
	require.Equal(t, "a open, b open", usesOf(topicOf(t, r, "plain")))
	late := topicOf(t, r, "late")
	require.Equal(t, "a open, b open", usesOf(late))
	require.NoError(t, r.ShardClosed(t.Context(), "a", []ClosedTopic{{late.ID, late.Placed - 1}}))
	require.Equal(t, late, topicOf(t, r, "late"), "a word that comes late closes nothing")
}

func TestATopicIsSpreadOverNewShards(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "b")
	before := createTopic(t, r, TopicSpec{Resource: name("t"), Type: mq.TopicFIFO, Queues: 3})
	for _, s := range []string{"a", "c"} {
		_, err := r.AddShard(t.Context(), s)
		require.NoError(t, err)
	}
	_, err := r.SetShard(t.Context(), "c", ShardDraining)
	require.NoError(t, err)
	after, err := r.UpdateTopic(t.Context(), name("t"), TopicUpdate{Spread: true})
	require.NoError(t, err)
	require.Equal(t, "a open, b open", usesOf(after))
	require.EqualValues(t, 3, after.Shards[0].Write)
	require.Equal(t, placesOfGroups(before), placesOfGroups(after))
	again, err := r.UpdateTopic(t.Context(), name("t"), TopicUpdate{Spread: true})
	require.NoError(t, err)
	require.Equal(t, after, again)
	reached := map[string]bool{}
	for i := range 50 {
		shard, _, ok := after.QueueFor(fmt.Sprint(i))
		require.True(t, ok)
		reached[shard] = true
	}
	require.Len(t, reached, 2, "what has no message group goes to both")
}

// TestMessageGroupsMoveOnlyWithTheirShard: whatever shards come and go, a group moves when
// its own has closed, and never before.
func TestMessageGroupsMoveOnlyWithTheirShard(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := cluster(t, vfs.NewMem(), "s0", "s1", "s2")
		createTopic(t, r, TopicSpec{Resource: name("t"), Type: mq.TopicFIFO, Queues: int32(rapid.IntRange(1, 4).Draw(rt, "queues"))})
		shards := 3
		for range rapid.IntRange(1, 15).Draw(rt, "steps") {
			before := topicOf(t, r, "t")
			shard := fmt.Sprint("s", rapid.IntRange(0, shards-1).Draw(rt, "shard"))
			closes := ""
			switch step := rapid.SampledFrom([]string{"add", "drain", "activate", "close", "remove", "lose", "spread"}).Draw(rt, "step"); step {
			case "add":
				_, err := r.AddShard(t.Context(), fmt.Sprint("s", shards))
				require.NoError(rt, err)
				shards++
			case "drain", "activate":
				state := ShardDraining
				if step == "activate" {
					state = ShardActive
				}
				if _, err := r.SetShard(t.Context(), shard, state); err != nil {
					require.ErrorIs(rt, err, mq.ErrInvalid)
				}
			case "close":
				closes = shard
				require.NoError(rt, r.ShardClosed(t.Context(), shard, []ClosedTopic{{before.ID, before.Placed}}))
			case "remove", "lose":
				if step == "lose" {
					closes = shard
				}
				if _, err := r.RemoveShard(t.Context(), shard, step == "lose"); err != nil {
					require.ErrorIs(rt, err, mq.ErrInvalid)
				}
			case "spread":
				_, err := r.UpdateTopic(t.Context(), name("t"), TopicUpdate{Spread: true})
				require.NoError(rt, err)
			}
			after := topicOf(t, r, "t")
			require.NoError(rt, checkTopic(after))
			require.Positive(rt, openShards(after, ""), "a topic that nobody can send to")
			if before.Version == after.Version {
				require.Equal(rt, before, after)
				continue
			}
			now := placesOfGroups(after)
			for group, place := range placesOfGroups(before) {
				if place.Shard != closes {
					require.Equal(rt, place, now[group])
				}
				on, err := after.On(now[group].Shard)
				require.NoError(rt, err)
				require.NotEqual(rt, mq.ShardClosed, on.Use)
			}
		}
		require.NoError(rt, r.Close())
	})
}

// TestManyTopicsLeaveAShardSomeAtATime: a commit is bounded.
func TestManyTopicsLeaveAShardSomeAtATime(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "a", "b")
	const topics = 2*perCommit + 5
	var closed []ClosedTopic
	for i := range topics {
		createTopic(t, r, TopicSpec{Resource: name(fmt.Sprint("t", i)), Queues: 1})
	}
	before := r.Revision()
	_, err := r.SetShard(t.Context(), "a", ShardDraining)
	require.NoError(t, err)
	require.Equal(t, before+1+3, r.Revision())
	require.Equal(t, Leaving{Closing: topics}, r.Leaving("a"))
	for i := range topics {
		closing := topicOf(t, r, fmt.Sprint("t", i))
		closed = append(closed, ClosedTopic{closing.ID, closing.Placed})
	}
	require.NoError(t, r.ShardClosed(t.Context(), "a", closed))
	require.Equal(t, Leaving{Closed: topics}, r.Leaving("a"))
	_, err = r.RemoveShard(t.Context(), "a", false)
	require.NoError(t, err)
	require.Equal(t, Leaving{}, r.Leaving("a"))
	require.Equal(t, topics, r.TopicsOn("b"))
}

// TestTopicsOfEveryVersionAreRead: fields that came later are missing from older entries.
func TestTopicsOfEveryVersionAreRead(t *testing.T) {
	lines, err := os.ReadFile("testdata/topics.txt")
	require.NoError(t, err)
	var topics []*mq.Topic
	for line := range strings.Lines(string(lines)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if key == "#" {
			continue
		}
		topic, err := decodeTopic(Entry{Key: key, Value: []byte(value)})
		require.NoError(t, err, line)
		require.Equal(t, value, string(encodeTopic(topic)), "it is written as it was")
		topics = append(topics, topic)
	}
	require.Len(t, topics, 3)
	require.Equal(t, "a open, b open", usesOf(topics[0]))
	shard, _, ok := topics[0].QueueOf("g")
	require.True(t, ok)
	require.Contains(t, []string{"a", "b"}, shard)
	require.Equal(t, "a closed, b open, c closing", usesOf(topics[2]))
	require.Equal(t, []mq.Place{{Shard: "b"}, {Shard: "b", Queue: 1}, {Shard: "c", Queue: 1}, {Shard: "b"}}, topics[2].Places)

	for _, bad := range []string{
		`"places":[{"shard":"b","queue":0,"n":2}]`, `"placed":1,"places":[{"shard":"x","queue":0}]`, `"placed":1,"places":[{"shard":"a","queue":9}]`,
		`"placed":1,"places":[{"shard":"a","queue":-1}]`, `"placed":1,"places":[{"shard":"a","queue":0,"n":2147483647}]`, `"placed":2`,
	} {
		value := `{"v":1,"id":8,"type":"FIFO","permission":4,"shards":[{"shard":"a","read":8,"write":8}],"version":1,` + bad + `}`
		_, err := decodeTopic(Entry{Key: "v1/topic//t", Value: []byte(value)})
		var damage *DamageError
		require.ErrorAs(t, err, &damage, bad)
	}
}

// TestADrainingThatWasInterruptedGoesOn: when the store node says something, and not when
// the shard is active again.
func TestADrainingThatWasInterruptedGoesOn(t *testing.T) {
	r := cluster(t, vfs.NewMem(), "a", "b")
	createTopic(t, r, TopicSpec{Resource: name("t")})
	_, err := r.setShard(t.Context(), "a", ShardDraining, func(*snapshot) error { return nil })
	require.NoError(t, err)
	require.Equal(t, Leaving{Open: 1}, r.Leaving("a"))
	require.NoError(t, r.ShardClosed(t.Context(), "a", nil))
	require.Equal(t, Leaving{Closing: 1}, r.Leaving("a"))
	_, err = r.SetShard(t.Context(), "a", ShardActive)
	require.NoError(t, err)
	require.NoError(t, r.ShardClosed(t.Context(), "a", nil))
	require.NoError(t, r.leaveShard(t.Context(), "a"))
	require.Equal(t, Leaving{Open: 1}, r.Leaving("a"))
}
