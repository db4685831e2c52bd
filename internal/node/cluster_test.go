package node_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

// deployment is tiers that are as separate as in processes of their own.
type deployment struct {
	t      *testing.T
	dir    string
	router string // its address
}

// tier changes a configuration into that of a tier with a name.
func (d *deployment) tier(tier config.Tier, name string) func(*config.Config) {
	return func(c *config.Config) {
		*c = config.DefaultOf(tier)
		c.DataDir, c.Name = fmt.Sprintf("%s/%s-%s", d.dir, tier, name), name
		c.GRPCListen, c.HTTPListen, c.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
		full := config.Watermark{Percent: 100}
		c.Retention.Disk = config.DiskRetention{Clean: full, Force: full, Refuse: full}
		if tier != config.Router {
			c.Routers = []string{d.router}
		}
		if tier == config.Store {
			c.Shard = name
		}
	}
}

func (d *deployment) start(tier config.Tier, name string, change ...func(*config.Config)) *running {
	d.t.Helper()
	return start(d.t, d.dir, slices.Concat([]func(*config.Config){d.tier(tier, name)}, change)...)
}

// deploy starts a router, which answers where it did before when it is started again.
func deploy(t *testing.T) (*deployment, *running) {
	d := &deployment{t: t, dir: t.TempDir()}
	r := d.start(config.Router, "r")
	d.router = r.info.TierAddr
	return d, r
}

func (d *deployment) startRouterAgain() *running {
	return d.start(config.Router, "r", func(c *config.Config) { c.Listen = d.router })
}

// ready waits until the topic can be created with queues on that many shards.
func (r *running) createOn(t *testing.T, name string, queues int32, shards int, typ adminpb.TopicType) {
	t.Helper()
	require.Eventually(t, func() bool {
		resp, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name, Type: typ, Queues: queues})
		if err == nil && len(resp.GetTopic().GetShards()) == shards {
			return true
		}
		_, _ = r.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: name})
		return false
	}, 20*time.Second, 50*time.Millisecond)
}

// brokers returns the brokers of a topic's route.
func (r *running) brokers(t *testing.T, topic string) (names []string) {
	t.Helper()
	resp, err := r.rmq.QueryRoute(as(t.Context()), &rmqpb.QueryRouteRequest{
		Topic: named(topic), Endpoints: &rmqpb.Endpoints{Scheme: rmqpb.AddressScheme_IPv4, Addresses: []*rmqpb.Address{{Host: "127.0.0.1", Port: 8081}}},
	})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
	for _, q := range resp.GetMessageQueues() {
		names = append(names, q.GetBroker().GetName())
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// drain receives from one broker until that has no more, and acknowledges through other
// proxies in turn.
func (r *running) drain(t *testing.T, topic, group string, brokers []string, ack ...*running) (bodies []string) {
	t.Helper()
	for _, broker := range brokers {
		for {
			got, code := r.receiveFrom(t, topic, group, broker)
			if len(got) == 0 {
				require.Contains(t, []rmqpb.Code{rmqpb.Code_OK, rmqpb.Code_MESSAGE_NOT_FOUND}, code)
				break
			}
			for i, m := range got {
				bodies = append(bodies, string(m.GetBody()))
				require.Equal(t, rmqpb.Code_OK, ack[i%len(ack)].ack(t, topic, group, m).GetCode())
			}
		}
	}
	slices.Sort(bodies)
	return bodies
}

func (r *running) ack(t *testing.T, topic, group string, m *rmqpb.Message) *rmqpb.Status {
	t.Helper()
	resp, err := r.rmq.AckMessage(as(t.Context()), &rmqpb.AckMessageRequest{
		Group: named(group), Topic: named(topic), Entries: []*rmqpb.AckMessageEntry{{ReceiptHandle: handleOf(m), MessageId: m.GetSystemProperties().GetMessageId()}},
	})
	require.NoError(t, err)
	return resp.GetStatus()
}

func (r *running) receiveFrom(t *testing.T, topic, group, broker string) (got []*rmqpb.Message, code rmqpb.Code) {
	t.Helper()
	ctx, cancel := context.WithTimeout(as(t.Context()), 20*time.Second)
	defer cancel()
	stream, err := r.rmq.ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group:     named(group),
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(0),
		MessageQueue: &rmqpb.MessageQueue{Topic: named(topic), Broker: &rmqpb.Broker{Name: broker}},
	})
	require.NoError(t, err)
	for {
		resp, err := stream.Recv()
		if err != nil {
			return got, code
		}
		if st := resp.GetStatus(); st != nil {
			code = st.GetCode()
		}
		if m := resp.GetMessage(); m != nil {
			got = append(got, m)
		}
	}
}

func TestACallMayGoThroughAnyProxy(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "t", 4, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)

	require.Equal(t, []string{"a", "b"}, q.brokers(t, "t"), "at once, through the other proxy")
	var sent []string
	for i := range 40 {
		body := fmt.Sprintf("m%02d", i)
		sent = append(sent, body)
		sender := []*running{p, q}[i%2]
		resp, err := sender.rmq.SendMessage(as(t.Context()), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
			Topic: named("t"), Body: []byte(body), SystemProperties: &rmqpb.SystemProperties{MessageId: body},
		}}})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode(), resp.GetStatus().GetMessage())
	}
	require.Equal(t, sent, q.drain(t, "t", "g", []string{"a", "b"}, p, q))
	require.Empty(t, p.drain(t, "t", "g", []string{"a", "b"}, p))
	for _, r := range []*running{p, q, a, b, router} {
		r.stop(t)
	}
}

// try sends one message and returns its status.
func (r *running) try(t *testing.T, topic string, change ...func(*rmqpb.Message)) (*rmqpb.Status, *rmqpb.SendResultEntry) {
	t.Helper()
	m := &rmqpb.Message{Topic: named(topic), Body: []byte("x"), SystemProperties: &rmqpb.SystemProperties{MessageId: rand.Text()}}
	for _, c := range change {
		c(m)
	}
	ctx, cancel := context.WithTimeout(as(t.Context()), 20*time.Second)
	defer cancel()
	resp, err := r.rmq.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m}})
	require.NoError(t, err)
	if resp.GetStatus().GetCode() != rmqpb.Code_OK {
		return resp.GetStatus(), nil
	}
	return resp.GetStatus(), resp.GetEntries()[0]
}

func TestTrafficGoesOnWithoutARouter(t *testing.T) {
	d, router := deploy(t)
	a, p := d.start(config.Store, "a"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 4, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	require.Len(t, p.drain(t, "t", "g", []string{"a"}, p), 1)
	router.stop(t)

	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	require.Len(t, p.drain(t, "t", "g", []string{"a"}, p), 1)
	_, err := p.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: "new"})
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.NotEqual(t, rmqpb.Code_TOPIC_NOT_FOUND, p.send(t, "unheard-of").GetCode(), "nobody knows that it does not exist")

	// What was known outlives the proxy and the store node.
	p.stop(t)
	a.stop(t)
	a = d.start(config.Store, "a", func(c *config.Config) { c.Listen = a.info.TierAddr })
	p = d.start(config.Proxy, "p")
	require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	require.Len(t, p.drain(t, "t", "g", []string{"a"}, p), 1)

	router = d.startRouterAgain()
	p.createOn(t, "new", 1, 1, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	require.Equal(t, rmqpb.Code_OK, p.send(t, "new").GetCode())
	for _, r := range []*running{p, a, router} {
		r.stop(t)
	}
}

// TestAStoreNodeThatIsAwayHoldsUpNoOther: what may go anywhere goes to the others, what
// may not is refused in words, and what it had is there again when it is.
func TestAStoreNodeThatIsAwayHoldsUpNoOther(t *testing.T) {
	d, router := deploy(t)
	a, b, p := d.start(config.Store, "a"), d.start(config.Store, "b"), d.start(config.Proxy, "p")
	p.createOn(t, "t", 4, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	p.createOn(t, "ordered", 4, 2, adminpb.TopicType_TOPIC_TYPE_FIFO)
	for range 16 {
		require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	}
	require.Len(t, p.drain(t, "t", "g", []string{"a", "b"}, p), 16)
	for range 16 {
		require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	}
	b.stop(t)
	for range 16 {
		require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	}
	here := len(p.drain(t, "t", "g", []string{"a"}, p)) - 16
	require.Positive(t, here)
	require.Less(t, here, 16)
	refused := 0
	for i := range 16 {
		st, _ := p.try(t, "ordered", func(m *rmqpb.Message) {
			group := fmt.Sprint("group", i)
			m.SystemProperties.MessageGroup, m.SystemProperties.MessageType = &group, rmqpb.MessageType_FIFO
		})
		if st.GetCode() != rmqpb.Code_OK {
			require.Equal(t, rmqpb.Code_TOO_MANY_REQUESTS, st.GetCode())
			require.Contains(t, st.GetMessage(), "unavailable")
			refused++
		}
	}
	require.Positive(t, refused)
	require.Less(t, refused, 16)

	b = d.start(config.Store, "b")
	back := 0
	require.Eventually(t, func() bool {
		st, _ := p.try(t, "ordered", func(m *rmqpb.Message) {
			m.SystemProperties.MessageGroup, m.SystemProperties.MessageType = new("group"+rand.Text()), rmqpb.MessageType_FIFO
		})
		got, _ := p.receiveFrom(t, "t", "g", "b")
		for _, m := range got {
			require.Equal(t, rmqpb.Code_OK, p.ack(t, "t", "g", m).GetCode())
			back++
		}
		return st.GetCode() == rmqpb.Code_OK && back == 16-here
	}, 20*time.Second, 100*time.Millisecond)
	for _, r := range []*running{p, a, b, router} {
		r.stop(t)
	}
}

// TestWhatOneProxyHasBegunAnotherEnds: handles name all that is needed.
func TestWhatOneProxyHasBegunAnotherEnds(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "delayed", 4, 2, adminpb.TopicType_TOPIC_TYPE_DELAY)
	p.createOn(t, "tx", 4, 2, adminpb.TopicType_TOPIC_TYPE_TRANSACTION)
	p.createOn(t, "t", 1, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)

	st, sent := p.try(t, "delayed", func(m *rmqpb.Message) {
		m.SystemProperties.MessageType, m.SystemProperties.DeliveryTimestamp = rmqpb.MessageType_DELAY, timestamppb.New(time.Now().Add(time.Hour))
	})
	require.Equal(t, rmqpb.Code_OK, st.GetCode(), st.GetMessage())
	recall, err := q.rmq.RecallMessage(as(t.Context()), &rmqpb.RecallMessageRequest{Topic: named("delayed"), RecallHandle: sent.GetRecallHandle()})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, recall.GetStatus().GetCode(), recall.GetStatus().GetMessage())

	st, sent = p.try(t, "tx", func(m *rmqpb.Message) {
		m.Body, m.SystemProperties.MessageType = []byte("half"), rmqpb.MessageType_TRANSACTION
	})
	require.Equal(t, rmqpb.Code_OK, st.GetCode(), st.GetMessage())
	end, err := q.rmq.EndTransaction(as(t.Context()), &rmqpb.EndTransactionRequest{
		Topic: named("tx"), MessageId: sent.GetMessageId(), TransactionId: sent.GetTransactionId(), Resolution: rmqpb.TransactionResolution_COMMIT,
	})
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, end.GetStatus().GetCode(), end.GetStatus().GetMessage())
	require.Equal(t, []string{"half"}, p.drain(t, "tx", "g", []string{"a", "b"}, q))

	for range 32 {
		require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	}
	for _, broker := range []string{"a", "b"} {
		got, _ := p.receiveFrom(t, "t", "g", broker)
		require.GreaterOrEqual(t, len(got), 2)
		for i, m := range got {
			if i > 1 {
				require.Equal(t, rmqpb.Code_OK, p.ack(t, "t", "g", m).GetCode())
				continue
			}
			if i == 0 {
				change, err := q.rmq.ChangeInvisibleDuration(as(t.Context()), &rmqpb.ChangeInvisibleDurationRequest{
					Group: named("g"), Topic: named("t"), ReceiptHandle: handleOf(m), InvisibleDuration: durationpb.New(time.Minute),
				})
				require.NoError(t, err)
				require.Equal(t, rmqpb.Code_OK, change.GetStatus().GetCode(), change.GetStatus().GetMessage())
				require.Equal(t, rmqpb.Code_OK, p.ack(t, "t", "g", m).GetCode())
				continue
			}
			forward, err := q.rmq.ForwardMessageToDeadLetterQueue(as(t.Context()), &rmqpb.ForwardMessageToDeadLetterQueueRequest{
				Group: named("g"), Topic: named("t"), ReceiptHandle: handleOf(m), MessageId: m.GetSystemProperties().GetMessageId(), MaxDeliveryAttempts: 1,
			})
			require.NoError(t, err)
			require.Equal(t, rmqpb.Code_OK, forward.GetStatus().GetCode(), forward.GetStatus().GetMessage())
		}
	}
	list, err := p.admin.ListDeadLetters(t.Context(), &adminpb.ListDeadLettersRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetDeadLetters(), 1)
	require.EqualValues(t, 2, list.GetDeadLetters()[0].GetMessages(), "of both shards")
	for _, r := range []*running{p, q, a, b, router} {
		r.stop(t)
	}
}

func TestClientsOfABroadcastGroupMayUseAnyProxy(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "t", 1, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	_, err := p.admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: "g", Broadcast: true})
	require.NoError(t, err)
	brokers := []string{"a", "b"}
	require.Empty(t, p.drain(t, "t", "g", brokers, p))
	for range 4 {
		require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	}
	require.Len(t, p.drain(t, "t", "g", brokers, q), 4, "through one proxy, and acknowledged through the other")
	require.Empty(t, q.drain(t, "t", "g", brokers, q), "it is the same client")
	got, err := q.admin.GetGroup(t.Context(), &adminpb.GetGroupRequest{Name: "g"})
	require.NoError(t, err)
	require.True(t, got.GetGroup().GetBroadcast())
	require.EqualValues(t, 1, got.GetGroup().GetInstances())
	for _, r := range []*running{p, q, a, b, router} {
		r.stop(t)
	}
}

// TestASendThatComesAgainIsStoredOnceOnSeveralShards: through whatever proxy.
func TestASendThatComesAgainIsStoredOnceOnSeveralShards(t *testing.T) {
	d, router := deploy(t)
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p"), d.start(config.Proxy, "q")
	p.createOn(t, "t", 4, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	for i := range 16 {
		for _, r := range []*running{p, q, p} {
			st, _ := r.try(t, "t", func(m *rmqpb.Message) { m.SystemProperties.MessageId = fmt.Sprint("message", i) })
			require.Equal(t, rmqpb.Code_OK, st.GetCode())
		}
	}
	require.Len(t, p.drain(t, "t", "g", []string{"a", "b"}, q), 16)
	for _, r := range []*running{p, q, a, b, router} {
		r.stop(t)
	}
}

func TestAHandlerKeepsItsMessagesThroughAnotherProxy(t *testing.T) {
	d, router := deploy(t)
	slice := func(c *config.Config) { c.Renew.Slice = 20 * time.Second }
	a, b := d.start(config.Store, "a"), d.start(config.Store, "b")
	p, q := d.start(config.Proxy, "p", slice), d.start(config.Proxy, "q", slice)
	p.createOn(t, "t", 1, 2, adminpb.TopicType_TOPIC_TYPE_NORMAL)
	var held []*rmqpb.Message
	for range 8 {
		require.Equal(t, rmqpb.Code_OK, p.send(t, "t").GetCode())
	}
	for len(held) < 8 {
		for _, broker := range []string{"a", "b"} {
			held = append(held, p.push(t, "t", "g", broker)...)
		}
	}
	// renewing has a heartbeat sent, and returns what the proxy renews for the client.
	renewing := func(r *running) int64 {
		beat, err := r.rmq.Heartbeat(as(t.Context()), &rmqpb.HeartbeatRequest{Group: named("g"), ClientType: rmqpb.ClientType_PUSH_CONSUMER})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, beat.GetStatus().GetCode())
		list, err := adminpb.NewClientServiceClient(r.conn).ListClients(t.Context(), &adminpb.ListClientsRequest{Group: "g"})
		require.NoError(t, err)
		require.Len(t, list.GetClients(), 1)
		return list.GetClients()[0].GetRenewedLeases()
	}
	for start := time.Now(); time.Since(start) < time.Second; { // so that it is known to have them
		require.EqualValues(t, 8, renewing(p))
	}
	p.stop(t)
	require.Eventually(t, func() bool { return renewing(q) == 8 }, time.Minute, 100*time.Millisecond)
	for i, m := range held {
		require.Equal(t, rmqpb.Code_OK, q.ack(t, "t", "g", m).GetCode())
		require.EqualValues(t, 7-i, renewing(q))
	}
	for _, r := range []*running{q, a, b, router} {
		r.stop(t)
	}
}

// push receives from one broker as a push consumer does.
func (r *running) push(t *testing.T, topic, group, broker string) (got []*rmqpb.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(as(t.Context()), 20*time.Second)
	defer cancel()
	stream, err := r.rmq.ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group: named(group), BatchSize: 32, AutoRenew: true, LongPollingTimeout: durationpb.New(0),
		MessageQueue: &rmqpb.MessageQueue{Topic: named(topic), Broker: &rmqpb.Broker{Name: broker}},
	})
	require.NoError(t, err)
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		if m := resp.GetMessage(); m != nil {
			got = append(got, m)
		}
	}
}
