package crashtest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/torture/table"
)

// A flow is a topic with a message group whose place is on one shard, with clients that send
// to it and that receive.
type flow struct {
	d     *deployment
	topic string
	lane  string // the message group

	mu      sync.Mutex
	took    []time.Duration // of sends that were answered OK, since the last take
	refused []string
	slowest time.Duration // of those that were refused
	sent    map[string]bool
	got     map[string]bool
}

// take returns what was measured since the last time.
func (f *flow) take() (took []time.Duration, refused []string, slowest time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	took, refused, slowest = f.took, f.refused, f.slowest
	f.took, f.refused, f.slowest = nil, nil, 0
	slices.Sort(took)
	return took, refused, slowest
}

// missing returns how many messages were sent and not received.
func (f *flow) missing() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id := range f.sent {
		if !f.got[id] {
			n++
		}
	}
	return n
}

func (f *flow) send(ctx context.Context, id string) {
	conn, err := f.d.connection(ctx)
	if err != nil {
		return
	}
	began := time.Now()
	callCtx, cancel := call(ctx, f.topic, 10*time.Second)
	defer cancel()
	resp, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(callCtx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: f.topic}, Body: []byte(id),
		SystemProperties: &rmqpb.SystemProperties{MessageId: id, MessageType: rmqpb.MessageType_FIFO, MessageGroup: &f.lane},
	}}})
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && resp.GetStatus().GetCode() == rmqpb.Code_OK {
		f.sent[id] = true
		f.took = append(f.took, time.Since(began))
		return
	}
	f.slowest = max(f.slowest, time.Since(began))
	f.refused = append(f.refused, fmt.Sprint(err, resp.GetStatus()))
}

func (f *flow) receive(ctx context.Context) {
	conn, err := f.d.connection(ctx)
	if err != nil {
		return
	}
	callCtx, cancel := call(ctx, f.topic, 10*time.Second)
	defer cancel()
	client := rmqpb.NewMessagingServiceClient(conn)
	group, topic := &rmqpb.Resource{Name: "readers"}, &rmqpb.Resource{Name: f.topic}
	stream, err := client.ReceiveMessage(callCtx, &rmqpb.ReceiveMessageRequest{
		Group: group, MessageQueue: &rmqpb.MessageQueue{Topic: topic}, BatchSize: 32,
		InvisibleDuration: durationpb.New(invisible), LongPollingTimeout: durationpb.New(time.Second),
	})
	for err == nil {
		var resp *rmqpb.ReceiveMessageResponse
		if resp, err = stream.Recv(); resp.GetMessage() == nil {
			continue
		}
		p := resp.GetMessage().GetSystemProperties()
		f.mu.Lock()
		f.got[p.GetMessageId()] = true
		f.mu.Unlock()
		_, _ = client.AckMessage(callCtx, &rmqpb.AckMessageRequest{
			Group: group, Topic: topic, Entries: []*rmqpb.AckMessageEntry{{MessageId: p.GetMessageId(), ReceiptHandle: p.GetReceiptHandle()}},
		})
	}
}

// newFlow makes a topic and lets clients work with it, in a message group whose place is on
// the shard.
func (d *deployment) newFlow(t *testing.T, sending, receiving context.Context, clients *sync.WaitGroup, shard string) *flow {
	f := &flow{d: d, topic: "on-" + shard, lane: d.homes[shard], sent: map[string]bool{}, got: map[string]bool{}}
	d.createOn(t, len(d.names), &adminpb.CreateTopicRequest{Name: f.topic, Type: adminpb.TopicType_TOPIC_TYPE_FIFO, Queues: 1})
	for n := range 2 {
		clients.Go(func() {
			for i := 0; pause(sending, 2*time.Millisecond); i++ {
				f.send(sending, fmt.Sprint(f.topic, "-", n, "-", i))
			}
		})
		clients.Go(func() {
			for pause(receiving, time.Millisecond) {
				f.receive(receiving)
			}
		})
	}
	return f
}

// TestAStoreNodeThatIsKilledTakesItsOwnMessageGroupsAwayAndNoOther: while one is away for longer
// than the lease of a node, sends of a message group of the other one all succeed, and its
// messages arrive. Sends of its own are refused in words and in time; what it had comes when it is back.
func TestAStoreNodeThatIsKilledTakesItsOwnMessageGroupsAwayAndNoOther(t *testing.T) {
	onlyForDeployments(t)
	away := routerAway
	if testing.Short() {
		away = 4 * time.Second
	}
	d := newDeployment(t, binary(t), "sync")
	_, err := d.start()
	require.NoError(t, err)
	d.prepare(t)
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	sending, stopSending := context.WithCancel(ctx)
	defer stopSending()
	a, b := d.newFlow(t, sending, ctx, &clients, "a"), d.newFlow(t, sending, ctx, &clients, "b")
	measure := func(phase string, d time.Duration) []time.Duration {
		require.True(t, pause(ctx, d))
		took, refused, _ := a.take()
		require.Empty(t, refused, "%s: of topic %s", phase, a.topic)
		require.NotEmpty(t, took, phase)
		rate := float64(len(took)) / d.Seconds()
		at := func(share float64) time.Duration {
			return took[int(share*float64(len(took)-1))].Round(100 * time.Microsecond)
		}
		t.Logf("message group of store node a, %s: %.0f sends/s, median %v, 99%% below %v, slowest %v", phase, rate, at(0.5), at(0.99), at(1))
		require.NoError(t, table.Add(
			table.Cell{Column: "one node away", Row: "sends/s of the other's message group, " + phase, Value: fmt.Sprintf("%.0f", rate)},
			table.Cell{Column: "one node away", Row: "slowest of 99%, " + phase, Value: fmt.Sprint(at(0.99))},
		))
		return took
	}
	measure("both there, first seconds", 2*time.Second)
	before := measure("both there", 3*time.Second)

	d.stores[1].down()
	b.take()
	during := measure("b is away", away)
	_, refused, slowest := b.take()
	require.NotEmpty(t, refused)
	for _, text := range refused {
		require.Contains(t, text, "TOO_MANY_REQUESTS")
	}
	require.Less(t, slowest, 5*time.Second, "a send to the node that is away is refused in time")
	t.Logf("message group of store node b, while it is away: %d sends refused, the slowest after %v: %s", len(refused), slowest.Round(time.Millisecond), refused[len(refused)-1])
	// The bounds are wide: others use the machine too, and b's clients ask in vain meanwhile.
	require.Less(t, during[len(during)/2], 20*before[len(before)/2]+100*time.Millisecond)
	require.Less(t, during[len(during)-1], 5*time.Second)

	_, err = d.stores[1].start()
	require.NoError(t, err)
	back := d.awaitReach(t, d.proxies, "b")
	measure("b is back", 2*time.Second)
	took, _, _ := b.take()
	require.NotEmpty(t, took, "sends to its topic succeed again")
	require.NoError(t, table.Add(table.Cell{Column: "one node away", Row: "until a store node was found again, max", Value: fmt.Sprint(back.Round(time.Millisecond))}))
	stopSending()
	for _, f := range []*flow{a, b} {
		require.Eventually(t, func() bool { return f.missing() == 0 }, drainTime, 50*time.Millisecond, "%s: what was acknowledged is delivered", f.topic)
	}
}
