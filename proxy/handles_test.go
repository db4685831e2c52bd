package proxy

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
	"github.com/perigee-mq/perigee/router"
)

// A handleCase is one client with one handle.
type handleCase struct {
	s    *testServer
	c    *consumer
	push bool
	held *answer // what the client received: message "1"
}

func (h *handleCase) handle() string { return h.held.handle(0) }

func (h *handleCase) request(most int32, wait time.Duration) *rmqpb.ReceiveMessageRequest {
	if h.push {
		return h.c.push(most, wait)
	}
	return h.c.simple(most, 10*time.Second, wait)
}

// again lets another client of the group have the message, which then holds it.
func (h *handleCase) again(t *testing.T) (other *consumer, handle string) {
	require.Equal(t, rmqpb.Code_OK, h.c.change(t, h.handle(), time.Second).GetStatus().GetCode())
	other = h.s.consumer(h.c.topic, h.c.group)
	other.id = "heir-" + h.c.group
	a := other.receive(t, other.simple(1, 10*time.Hour, 20*time.Second))
	require.Equal(t, []string{"1"}, a.ids())
	return other, a.handle(0)
}

// forged returns the client's handle with its lease changed.
func (h *handleCase) forged(t *testing.T, change func(*mq.Lease)) string {
	l, err := receipt.Decode(h.handle())
	require.NoError(t, err)
	change(&l)
	return receipt.Encode(l)
}

// Whatever handle a client sends, it gets an answer on which its SDK stops
// repeating the call, and nobody loses a message that he holds.
func TestEveryKindOfHandleIsAnsweredSoThatNoSDKRepeatsForEver(t *testing.T) {
	const (
		good = rmqpb.Code_OK
		bad  = rmqpb.Code_INVALID_RECEIPT_HANDLE
	)
	languages := []string{"JAVA", "GO", "HTTP", "PYTHON", "RUST", "DOTNET", "CPP", "PHP", ""}
	// Push consumers that repeat a call until they read OK, whatever else they read.
	insisting := map[string][]string{"ack": {"RUST"}, "change": {"GO", "RUST"}}

	for name, k := range map[string]struct {
		// make returns the handle, and what has to hold after the call.
		make                 func(t *testing.T, h *handleCase) (handle string, after func())
		ack, change, forward rmqpb.Code
		// insisted: the insisting consumers get OK instead.
		insisted bool
	}{
		"of a delivery that goes on": {func(t *testing.T, h *handleCase) (string, func()) {
			return h.handle(), func() {}
		}, good, good, good, false},
		"acknowledged": {func(t *testing.T, h *handleCase) (string, func()) {
			h.c.acked(t, h.handle())
			return h.handle(), func() { h.settled(t) }
		}, good, bad, good, true},
		"given up": {func(t *testing.T, h *handleCase) (string, func()) {
			require.Equal(t, good, h.c.change(t, h.handle(), 10*time.Second).GetStatus().GetCode())
			return h.handle(), func() {}
		}, good, good, good, false},
		"forwarded": {func(t *testing.T, h *handleCase) (string, func()) {
			require.Equal(t, good, h.c.forward(t, h.handle()))
			return h.handle(), func() {
				h.settled(t)
				require.Equal(t, []string{"1"}, h.c.deadLetters(t))
			}
		}, good, bad, good, true},
		"ended, and nobody has the message": {func(t *testing.T, h *handleCase) (string, func()) {
			time.Sleep(10 * time.Minute)
			return h.handle(), func() {}
		}, good, good, good, false},
		"dead-lettered by the server": {func(t *testing.T, h *handleCase) (string, func()) {
			h.s.limit(t, h.c.group, 1)
			require.Equal(t, good, h.c.change(t, h.handle(), 0).GetStatus().GetCode())
			synctest.Wait()
			return h.handle(), func() {
				h.settled(t)
				require.Equal(t, []string{"1"}, h.c.deadLetters(t))
			}
		}, good, bad, good, true},
		"delivered again since": {func(t *testing.T, h *handleCase) (string, func()) {
			other, second := h.again(t)
			return h.handle(), func() { other.holds(t, second) }
		}, bad, bad, good, true},
		"made up, of a message that another holds": {func(t *testing.T, h *handleCase) (string, func()) {
			other, second := h.again(t)
			return h.forged(t, func(l *mq.Lease) { l.PopID++ }), func() { other.holds(t, second) }
		}, bad, bad, good, true},
		"made up, of no delivery at all": {func(t *testing.T, h *handleCase) (string, func()) {
			return h.forged(t, func(l *mq.Lease) { l.PopID = 0 }), func() { h.c.holds(t, h.handle()) }
		}, bad, bad, good, true},
		"made up, of a message that does not exist": {func(t *testing.T, h *handleCase) (string, func()) {
			return h.forged(t, func(l *mq.Lease) { l.Offset += 1000 }), func() { h.c.holds(t, h.handle()) }
		}, good, bad, good, true},
		"made up, of a queue that does not exist": {func(t *testing.T, h *handleCase) (string, func()) {
			return h.forged(t, func(l *mq.Lease) { l.Queue += 1000 }), func() { h.c.holds(t, h.handle()) }
		}, good, bad, good, true},
		"of a shard that is not the topic's": {func(t *testing.T, h *handleCase) (string, func()) {
			return h.forged(t, func(l *mq.Lease) { l.Shard = "elsewhere" }), func() { h.c.holds(t, h.handle()) }
		}, bad, bad, bad, false},
		"of another group": {func(t *testing.T, h *handleCase) (string, func()) {
			other := h.s.consumer(h.c.topic, h.c.group+"-other")
			foreign := other.receive(t, other.simple(1, 10*time.Hour, 0)).handle(0)
			return foreign, func() { other.holds(t, foreign) }
		}, bad, bad, bad, false},
		"of another topic": {func(t *testing.T, h *handleCase) (string, func()) {
			h.s.topic(t, h.c.topic+"-other")
			h.s.send(t, message(h.c.topic+"-other", "1", "x"))
			other := h.s.consumer(h.c.topic+"-other", h.c.group)
			foreign := other.receive(t, other.simple(1, 10*time.Hour, 0)).handle(0)
			return foreign, func() { other.holds(t, foreign) }
		}, bad, bad, bad, false},
		"of a topic that is gone": {func(t *testing.T, h *handleCase) (string, func()) {
			h.s.deleteTopic(t, h.c.topic)
			return h.handle(), func() {}
		}, bad, bad, good, true},
		"of a topic that was deleted and made again": {func(t *testing.T, h *handleCase) (string, func()) {
			h.s.deleteTopic(t, h.c.topic)
			h.s.topic(t, h.c.topic, router.TopicSpec{Queues: 1})
			h.s.send(t, message(h.c.topic, "new", "x"))
			fresh := h.c.receive(t, h.c.simple(1, 10*time.Hour, 0))
			require.Equal(t, []string{"new"}, fresh.ids())
			return h.handle(), func() { h.c.holds(t, fresh.handle(0)) }
		}, bad, bad, good, true},
		"of a group that is gone": {func(t *testing.T, h *handleCase) (string, func()) {
			h.s.deleteGroup(t, h.c.group)
			return h.handle(), func() {}
		}, bad, bad, good, true},
		"of a group that was deleted and made again": {func(t *testing.T, h *handleCase) (string, func()) {
			h.s.deleteGroup(t, h.c.group)
			h.s.group(t, h.c.group)
			fresh := h.c.receive(t, h.c.simple(1, 10*time.Hour, 0))
			require.Equal(t, []string{"1"}, fresh.ids())
			return h.handle(), func() { h.c.holds(t, fresh.handle(0)) }
		}, bad, bad, good, true},
		"with one character changed": {func(t *testing.T, h *handleCase) (string, func()) {
			b := []byte(h.handle())
			b[20] ^= 1
			return string(b), func() { h.c.holds(t, h.handle()) }
		}, bad, bad, bad, false},
		"empty": {func(t *testing.T, h *handleCase) (string, func()) {
			return "", func() { h.c.holds(t, h.handle()) }
		}, bad, bad, bad, false},
		"of another product": {func(t *testing.T, h *handleCase) (string, func()) {
			return "0 1700000000000 60000 1 0 broker-a 0 42 42", func() { h.c.holds(t, h.handle()) }
		}, bad, bad, bad, false},
	} {
		for call, want := range map[string]rmqpb.Code{"ack": k.ack, "change": k.change, "forward": k.forward} {
			t.Run(name+"/"+call, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newTestServer(t)
					for i, language := range languages {
						for _, push := range []bool{true, false} {
							want := want
							if push && k.insisted && slices.Contains(insisting[call], language) {
								want = good
							}
							h := s.handleCase(t, fmt.Sprintf("t-%d-%t", i, push), language, push)
							handle, after := k.make(t, h)
							for range 2 { // repeated, as after an answer that was lost
								require.Equal(t, want, h.call(t, call, handle), "%q push %t", language, push)
								if name == "of a delivery that goes on" || name == "given up" || name == "ended, and nobody has the message" {
									break // it is settled now
								}
							}
							after()
						}
					}
				})
			})
		}
	}
}

// handleCase returns a client that holds one message of a topic of its own.
func (s *testServer) handleCase(t *testing.T, name, language string, push bool) *handleCase {
	s.topic(t, name, router.TopicSpec{Queues: 1})
	s.send(t, message(name, "1", "x"))
	h := &handleCase{s: s, c: s.consumer(name, "g-"+name, headerLanguage, language), push: push}
	h.held = h.c.receive(t, h.request(1, 0))
	require.Equal(t, []string{"1"}, h.held.ids())
	return h
}

func (h *handleCase) call(t *testing.T, call, handle string) rmqpb.Code {
	switch call {
	case "ack":
		resp := h.c.ack(t, handle)
		require.Len(t, resp.GetEntries(), 1)
		require.Equal(t, resp.GetStatus().GetCode(), resp.GetEntries()[0].GetStatus().GetCode())
		require.Equal(t, handle, resp.GetEntries()[0].GetReceiptHandle())
		return resp.GetStatus().GetCode()
	case "change":
		resp := h.c.change(t, handle, time.Second)
		require.Equal(t, handle, resp.GetReceiptHandle())
		return resp.GetStatus().GetCode()
	default:
		return h.c.forward(t, handle)
	}
}

// settled requires that the message is never delivered again.
func (h *handleCase) settled(t *testing.T) {
	require.Empty(t, h.c.receive(t, h.request(1, 20*time.Second)).messages)
}

// holds requires that the client still holds the message of the handle, and
// settles it.
func (c *consumer) holds(t *testing.T, handle string) {
	t.Helper()
	time.Sleep(2 * time.Second) // a stolen one would be back by now
	require.Empty(t, c.receive(t, c.simple(1, 10*time.Second, 0)).messages)
	honest := *c
	honest.headers = nil // is told when the delivery is over
	require.Equal(t, rmqpb.Code_OK, honest.change(t, handle, time.Minute).GetStatus().GetCode())
	c.acked(t, handle)
}

// deleteTopic deletes a topic everywhere, as the wiring of a node does.
func (s *testServer) deleteTopic(t testing.TB, name string) {
	t.Helper()
	topic, err := s.meta.DeleteTopic(t.Context(), mq.Resource{Name: name})
	require.NoError(t, err)
	require.NoError(t, s.nodes.DeleteTopic(t.Context(), topic.ID))
}

func (s *testServer) deleteGroup(t testing.TB, name string) {
	t.Helper()
	group, err := s.meta.DeleteGroup(t.Context(), mq.Resource{Name: name})
	require.NoError(t, err)
	require.NoError(t, s.nodes.DeleteGroup(t.Context(), group.ID))
}

// limit changes the attempt limit of a group everywhere.
func (s *testServer) limit(t testing.TB, name string, attempts mq.Attempt) {
	t.Helper()
	retry := mq.DefaultRetryPolicy()
	retry.MaxAttempts = attempts
	s.retry(t, name, retry)
}

// retry changes the retry policy of a group everywhere.
func (s *testServer) retry(t testing.TB, name string, policy mq.RetryPolicy) {
	t.Helper()
	group, err := s.meta.UpdateGroup(t.Context(), mq.Resource{Name: name}, router.GroupUpdate{Retry: &policy})
	require.NoError(t, err)
	require.NoError(t, s.nodes.UpdateGroup(t.Context(), group))
}
