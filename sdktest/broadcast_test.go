package sdktest

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryClientOfABroadcastGroupGetsEveryMessage has simple and push consumers in one
// group. A consumer begins at the end when it first receives, and on each shard when it
// first receives from there.
func TestEveryClientOfABroadcastGroupGetsEveryMessage(t *testing.T) {
	t.Parallel()
	s := oneShardServer(t)
	topic, group := s.topic(), s.group("--broadcast")
	p := startProducer(t, s.Endpoint(), topic)
	var simple []simpleConsumer
	for range 2 {
		c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
		views, err := c.poll(longInvisible)
		require.NoError(t, err)
		require.Empty(t, views)
		simple = append(simple, c)
	}
	pushed := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, pushed.accept)
	s.await("all three are known", func() bool {
		return s.instances(group) == 3
	})
	sent := sendAll(t, p, topic, 20)
	for _, c := range simple {
		got := c.receive(len(sent), longInvisible)
		require.ElementsMatch(t, sent, bodies(got))
		c.ack(got...)
	}
	var got []string
	for range sent {
		got = append(got, string(pushed.next(t).GetBody()))
	}
	require.ElementsMatch(t, sent, got)
}

// instances returns by how many instances the clients of a group receive.
func (s server) instances(group string) int {
	s.t.Helper()
	var described struct {
		Group struct {
			Instances int `json:"instances"`
		} `json:"group"`
	}
	require.NoError(s.t, json.Unmarshal([]byte(s.perigee("group", "describe", group, "--json")), &described))
	return described.Group.Instances
}
