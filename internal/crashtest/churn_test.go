package crashtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

const (
	churnClients = 200 // in a round
	churnAtOnce  = 40
	churnTopics  = 20
	// churnSettle bounds the wait until the server has let go of the clients.
	churnSettle = time.Minute
)

// TestClientsThatComeAndGoLeaveTheProcessAsItWas lets clients come, receive and go,
// half of them without a word, and looks at the process of the server.
func TestClientsThatComeAndGoLeaveTheProcessAsItWas(t *testing.T) {
	rounds := int(number(t, "PERIGEE_CHURN", 2))
	c := startChurn(t, binary(t), "--tls-mode", "disabled")
	c.staysAsItWas(rounds, func(round int) string {
		c.round(round)
		return fmt.Sprint(churnClients, " clients")
	})
}

// staysAsItWas calls come, which lets clients come and go, once for each round, and looks at
// what the process keeps of them.
func (c *churn) staysAsItWas(rounds int, come func(round int) string) {
	before, err := c.usage()
	require.NoError(c.t, err)
	var heap []float64
	for round := range rounds {
		came := come(round)
		var after usage
		require.Eventually(c.t, func() bool {
			if after, err = c.usage(); err != nil {
				return false // as it may be while the backlog of new connections is full
			}
			// Far below one for each client; the store's own files and goroutines vary.
			return after.waiting == 0 && after.files <= before.files+20 && after.goroutines <= before.goroutines+20
		}, churnSettle, 200*time.Millisecond, "before %+v, after %+v", before, &after)
		heap = append(heap, after.heap)
		c.t.Logf("round %d: %s; files %.0f, goroutines %.0f, live heap %.1f MiB, resident %.1f MiB", round+1, came,
			after.files, after.goroutines, after.heap/(1<<20), after.rss/(1<<20))
	}
	if third := len(heap) / 3; third >= 10 {
		// The first third fills pools and caches, and the sessions that have not ended yet.
		middle, last := mean(heap[third:2*third]), mean(heap[2*third:])
		require.LessOrEqual(c.t, last, 1.2*middle+1<<20, "it grows: %v", heap)
	}
}

func mean(list []float64) (m float64) {
	for _, v := range list {
		m += v / float64(len(list))
	}
	return m
}

// A churn is a server and the addresses of its two ports.
type churn struct {
	t          *testing.T
	grpc, http string
}

func startChurn(t *testing.T, bin string, args ...string) *churn {
	t.Helper()
	cmd := exec.Command(bin, append([]string{
		"standalone", "--json", "--data-dir", t.TempDir(), "--flush", "async",
		"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--session-timeout", "31s", "--log-level", "warn",
	}, args...)...)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		require.NoError(t, cmd.Wait(), "it stops in order")
	})
	var info struct {
		GRPC string `json:"grpc_addr"`
		HTTP string `json:"http_addr"`
	}
	lines := bufio.NewScanner(stdout)
	for info.GRPC == "" && lines.Scan() {
		_ = json.Unmarshal(lines.Bytes(), &info) // other lines are not about addresses
	}
	require.NotEmpty(t, info.GRPC, "the server ended before it was ready")
	c := &churn{t: t, grpc: info.GRPC, http: info.HTTP}
	conn := c.dial()
	defer conn.Close()
	for i := range churnTopics {
		_, err := adminpb.NewAdminServiceClient(conn).CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: topicOf(i), Queues: 2})
		require.NoError(t, err)
	}
	return c
}

func topicOf(i int) string { return fmt.Sprint("churn-", i) }

func (c *churn) dial() *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+c.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(c.t, err)
	return conn
}

// round lets clients come and go, so many at a time.
func (c *churn) round(round int) {
	var clients sync.WaitGroup
	room := make(chan struct{}, churnAtOnce)
	failures := make(chan error, churnClients)
	for i := range churnClients {
		room <- struct{}{}
		clients.Go(func() {
			defer func() { <-room }()
			failures <- c.visit(fmt.Sprintf("visitor-%d-%d", round, i), rand.IntN(2) == 0)
		})
	}
	clients.Wait()
	for range churnClients {
		require.NoError(c.t, <-failures)
	}
}

// visit is the life of one client.
func (c *churn) visit(id string, goodbye bool) error {
	conn := c.dial()
	defer conn.Close() // for those that say nothing this is all
	ctx, cancel := call(c.t.Context(), id, time.Minute)
	defer cancel()
	client := rmqpb.NewMessagingServiceClient(conn)
	topic := &rmqpb.Resource{Name: topicOf(rand.IntN(churnTopics))}
	group := &rmqpb.Resource{Name: fmt.Sprint("group-", rand.IntN(5))}
	if _, err := client.QueryRoute(ctx, &rmqpb.QueryRouteRequest{Topic: topic}); err != nil {
		return err
	}
	stream, err := client.Telemetry(ctx)
	if err != nil {
		return err
	}
	settings := &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PUSH_CONSUMER.Enum(),
		PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
			Group: group, Subscriptions: []*rmqpb.SubscriptionEntry{{Topic: topic}},
		}},
	}
	if err := stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: settings}}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	_, err = client.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: topic, Body: make([]byte, 1024), SystemProperties: &rmqpb.SystemProperties{MessageId: id},
	}}})
	if err != nil {
		return err
	}
	if err := receiveAndAck(ctx, client, topic, group); err != nil {
		return err
	}
	// A poll that is cut off. What it may have got comes back to others.
	poll, err := client.ReceiveMessage(ctx, request(topic, group, 20*time.Second))
	if err != nil {
		return err
	}
	if goodbye {
		_, err = client.NotifyClientTermination(ctx, &rmqpb.NotifyClientTerminationRequest{Group: group})
	}
	_ = poll // ends with the connection
	return err
}

func request(topic, group *rmqpb.Resource, wait time.Duration) *rmqpb.ReceiveMessageRequest {
	return &rmqpb.ReceiveMessageRequest{
		Group: group, MessageQueue: &rmqpb.MessageQueue{Topic: topic}, BatchSize: 8, AutoRenew: true, LongPollingTimeout: durationpb.New(wait),
	}
}

// receiveAndAck receives once and acknowledges what it got.
func receiveAndAck(ctx context.Context, client rmqpb.MessagingServiceClient, topic, group *rmqpb.Resource) error {
	stream, err := client.ReceiveMessage(ctx, request(topic, group, 0))
	if err != nil {
		return err
	}
	ack := &rmqpb.AckMessageRequest{Group: group, Topic: topic}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m := resp.GetMessage(); m != nil {
			ack.Entries = append(ack.Entries, &rmqpb.AckMessageEntry{ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()})
		}
	}
	if len(ack.Entries) == 0 {
		return nil
	}
	_, err = client.AckMessage(ctx, ack)
	return err
}

// usage is what the process uses, as it says itself.
type usage struct {
	files, goroutines, heap, rss, waiting float64
}

func (c *churn) usage() (u usage, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.http+"/metrics", nil)
	if err != nil {
		return u, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return u, err
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return u, err
	}
	value := func(name string) float64 {
		for text := range strings.Lines(string(content)) {
			if rest, ok := strings.CutPrefix(text, name); ok && (rest[0] == ' ' || rest[0] == '{') {
				v, failed := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
				err = errors.Join(err, failed)
				return v
			}
		}
		err = errors.Join(err, fmt.Errorf("no metric %s", name))
		return 0
	}
	u = usage{
		files: value("process_open_fds"), goroutines: value("go_goroutines"), waiting: value("perigee_receives_waiting"),
		// The next collection is due when the heap is twice what the last one left.
		heap: value("go_memstats_next_gc_bytes") / 2, rss: value("process_resident_memory_bytes"),
	}
	return u, err
}
