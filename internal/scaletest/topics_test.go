package scaletest

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store/shard"
)

// writeMetadata makes topics and groups in dir: in memory first, where a change
// costs no sync.
func writeMetadata(t *testing.T, dir string, topics, groups int, more ...router.TopicSpec) {
	t.Helper()
	mem := vfs.NewMem()
	r, err := router.Open(router.Options{FS: mem, Dir: "router", Shards: []string{"perigee-0"}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	for i := range topics {
		_, _, err := r.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: fmt.Sprint("topic-", i)}})
		require.NoError(t, err)
	}
	for _, spec := range more {
		_, _, err := r.CreateTopic(t.Context(), spec)
		require.NoError(t, err)
	}
	for i := range groups {
		_, _, err := r.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: fmt.Sprint("group-", i)}})
		require.NoError(t, err)
	}
	require.NoError(t, r.Close())
	_, err = vfs.Clone(mem, vfs.Default, "router", filepath.Join(dir, "router"))
	require.NoError(t, err)
}

// TestManyTopicsOpenQuickly measures the start of the metadata alone.
func TestManyTopicsOpenQuickly(t *testing.T) {
	topics, groups := number(100_000, 1_000), number(10_000, 100)
	dir := t.TempDir()
	writeMetadata(t, dir, topics, groups)
	before := measure()
	began := time.Now()
	r, err := router.Open(router.Options{Dir: filepath.Join(dir, "router"), Shards: []string{"perigee-0"}})
	require.NoError(t, err)
	opened := time.Since(began)
	after := measure()
	began = time.Now()
	for range 100 {
		_, err := r.Topic(t.Context(), mq.Resource{Name: fmt.Sprint("topic-", topics-1)})
		require.NoError(t, err)
	}
	lookup := time.Since(began) / 100
	began = time.Now()
	_, _, err = r.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "one-more"}})
	require.NoError(t, err)
	t.Logf("%d topics and %d groups: opened in %v, %s more heap; a look-up %v, a new topic %v",
		topics, groups, opened.Round(time.Millisecond), size(after.heap-before.heap), lookup, time.Since(began).Round(time.Microsecond))
	require.Len(t, r.ListTopics(t.Context(), router.Selection{}), topics+1)
	require.NoError(t, r.Close())
}

// TestManyQueuesInOneShard: a hundred thousand queues of many topics, and a topic
// with as many as there may be.
func TestManyQueuesInOneShard(t *testing.T) {
	bin := binary(t)
	dir := t.TempDir()
	const topics = 12_500
	start(t, bin, dir, nil, nil).stop() // a shard that has lost its log would not start
	writeMetadata(t, dir, topics, 0, router.TopicSpec{Resource: mq.Resource{Name: "wide"}, Queues: mq.MaxQueues})
	p := start(t, bin, dir, []string{"--flush", "async"}, nil)
	t.Logf("%d topics with 8 queues and one with %d: first start %v, rss %s", topics, mq.MaxQueues, p.started.Round(time.Millisecond), size(p.rested()))
	client := rmqpb.NewMessagingServiceClient(p.dial())
	name := func(i int) string { return fmt.Sprint("topic-", i) }
	each := func(what string, topics int, call func(topic string) error) {
		var took latencies
		for i := range topics {
			began := time.Now()
			require.NoError(t, call(name(i)))
			took = append(took, time.Since(began))
		}
		t.Logf("%-44s %v", what, took)
	}
	sendOne := func(topic string) error {
		resp, err := client.SendMessage(context.Background(), sendRequest(topic, 1, 100))
		if err == nil && resp.GetStatus().GetCode() != rmqpb.Code_OK {
			err = fmt.Errorf("%v", resp.GetStatus())
		}
		return err
	}
	receiveOne := func(topic string) error {
		n, err := receive(context.Background(), client, receiveRequest(topic, "group", 1, time.Hour))
		if err == nil && n != 1 {
			err = fmt.Errorf("received %d", n)
		}
		return err
	}
	each("first send to each topic", topics, sendOne)
	for range 7 {
		each("another send to each, to every queue", topics, sendOne)
	}
	each("first receive from each topic", topics, receiveOne)
	each("another receive from each topic", topics, receiveOne)
	lag := func() {
		began := time.Now()
		p.run("group", "describe", "group")
		t.Logf("backlog of a group in all topics: %v; rss %s", time.Since(began).Round(time.Millisecond), size(p.rested()))
	}
	lag()
	for range 2 * mq.MaxQueues {
		require.NoError(t, sendOne("wide"))
	}
	wide := func(string) error { return sendOne("wide") }
	each("send to the wide topic", 2000, wide)
	each("receive from the wide topic", 2000, func(string) error { return receiveOne("wide") })
	for _, how := range []string{"kill", "stop"} {
		if how == "kill" {
			p.kill()
		} else {
			p.stop()
		}
		p = start(t, bin, dir, []string{"--flush", "async"}, nil)
		t.Logf("start after a %s: %v, rss %s", how, p.started.Round(time.Millisecond), size(p.rested()))
		client = rmqpb.NewMessagingServiceClient(p.dial())
		each("first send to the wide topic", 1, wide)
		each("first receive from the wide topic", 1, func(string) error { return receiveOne("wide") })
		each("send to each topic after a restart", topics, sendOne)
		lag()
	}
}

// TestTopicWithVeryManyQueues: more than the router hands out today. What a call
// costs may follow the queues of its topic, but gently.
func TestTopicWithVeryManyQueues(t *testing.T) {
	queues := number(100_000, 2_000)
	dir := t.TempDir()
	s := openShard(t, dir, shard.FlushAsync)
	topic, group := topicOf(1, int32(queues)), groupOf(1)
	msgs := messages(1, 20, "")
	var sends latencies
	for q := range queues {
		began := time.Now()
		_, err := s.Append(t.Context(), topic, mq.QueueID(q), msgs)
		require.NoError(t, err)
		sends = append(sends, time.Since(began))
	}
	receive := func(n int) (took latencies) {
		for range n {
			began := time.Now()
			got, err := s.Receive(t.Context(), mq.Receive{Topic: topic, Group: group, Max: 32, Invisible: time.Hour, InFlight: 20_000})
			require.NoError(t, err)
			require.Len(t, got, 32)
			took = append(took, time.Since(began))
		}
		return took
	}
	pops := receive(queues / 32 / 4)
	t.Logf("%d queues: send %v; receive of 32 %v; %v", queues, sends, pops, measure())
	require.NoError(t, s.Close())
	began := time.Now()
	s = openShard(t, dir, shard.FlushAsync)
	defer func() { require.NoError(t, s.Close()) }()
	opened := time.Since(began)
	began = time.Now()
	_, err := s.Append(t.Context(), topic, 0, msgs)
	require.NoError(t, err)
	first := time.Since(began)
	began = time.Now()
	receive(1)
	t.Logf("after a restart: opened in %v, first send %v, first receive %v, then %v",
		opened.Round(time.Millisecond), first.Round(time.Microsecond), time.Since(began).Round(time.Microsecond), receive(100*queues/100_000+1))
}
