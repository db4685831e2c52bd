package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func TestSendSendsWhatTheFlagsDescribe(t *testing.T) {
	server := fake.Start(t, "orders")
	o := against(t, server, "send", "orders", "hello", "--tag", "a", "--key", "k1", "--key", "k2",
		"--property", "color=red", "--property", "empty=", "--count", "2", "--json")
	sent := o.lines(t)
	require.Len(t, sent, 2)
	messages := server.Messages("orders")
	require.Len(t, messages, 2)
	for i, m := range messages {
		system := m.GetSystemProperties()
		require.Equal(t, "hello", string(m.GetBody()))
		require.Equal(t, "a", system.GetTag())
		require.Equal(t, []string{"k1", "k2"}, system.GetKeys())
		require.Equal(t, map[string]string{"color": "red", "empty": ""}, m.GetUserProperties())
		require.Equal(t, rmqpb.MessageType_NORMAL, system.GetMessageType())
		require.WithinDuration(t, time.Now(), system.GetBornTimestamp().AsTime(), time.Minute)
		require.Len(t, system.GetMessageId(), client.MessageIDSize)
		require.Equal(t, map[string]any{"message_id": system.GetMessageId(), "topic": "orders", "offset": float64(i)}, sent[i])
	}
	require.NotEqual(t, sent[0]["message_id"], sent[1]["message_id"])
}

func TestSendTakesTheTypeFromItsFlags(t *testing.T) {
	server := fake.Start(t, "orders")
	against(t, server, "send", "orders", "x", "--message-group", "g")
	against(t, server, "send", "orders", "x", "--delay", "1h")
	against(t, server, "send", "orders", "x", "--priority", "0")
	urgent := server.Messages("orders")[2].GetSystemProperties()
	require.Equal(t, rmqpb.MessageType_PRIORITY, urgent.GetMessageType())
	require.Equal(t, new(int32(0)), urgent.Priority)
	fifo, delayed := server.Messages("orders")[0].GetSystemProperties(), server.Messages("orders")[1].GetSystemProperties()
	require.Equal(t, rmqpb.MessageType_FIFO, fifo.GetMessageType())
	require.Equal(t, "g", fifo.GetMessageGroup())
	require.Equal(t, rmqpb.MessageType_DELAY, delayed.GetMessageType())
	require.WithinDuration(t, time.Now().Add(time.Hour), delayed.GetDeliveryTimestamp().AsTime(), time.Minute)
	require.Equal(t, map[string]string{"perigee.delay": "1h0m0s"}, server.Messages("orders")[1].GetUserProperties(), "by the server's clock")
}

func TestSendReadsTheBodyFromStandardInput(t *testing.T) {
	server := fake.Start(t, "orders")
	env := []string{"PERIGEE_ENDPOINT=" + server.Addr}
	for _, args := range [][]string{{"send", "orders"}, {"send", "orders", "-"}} {
		require.Zero(t, perigee(t, env, "from\nstdin", args...).code)
	}
	for _, m := range server.Messages("orders") {
		require.Equal(t, "from\nstdin", string(m.GetBody()))
	}
	require.Len(t, server.Messages("orders"), 2)
}

func TestRefusedSendsShowCodeAndText(t *testing.T) {
	server := fake.Start(t, "orders")
	server.Fail(rmqpb.Code_MESSAGE_BODY_TOO_LARGE, "the body has 5 bytes, the limit is 4")
	o := against(t, server, "send", "orders", "hello")
	require.Equal(t, exitFailed, o.code)
	require.Equal(t, "perigee: MESSAGE_BODY_TOO_LARGE (41301): the body has 5 bytes, the limit is 4\n", o.stderr)
}

func TestReceivePrintsAndAcknowledges(t *testing.T) {
	server := fake.Start(t, "orders")
	against(t, server, "send", "orders", "one", "--tag", "a", "--key", "k", "--property", "color=red")
	against(t, server, "send", "orders", "two")
	received := against(t, server, "receive", "orders", "--group", "readers", "--json").lines(t)
	require.Len(t, received, 2)
	require.Equal(t, "one", received[0]["body"])
	require.Equal(t, "a", received[0]["tag"])
	require.Equal(t, []any{"k"}, received[0]["keys"])
	require.Equal(t, map[string]any{"color": "red"}, received[0]["properties"])
	require.Equal(t, 1.0, received[1]["offset"])
	require.Equal(t, 1.0, received[1]["attempt"])
	require.NotEmpty(t, received[1]["receipt_handle"])
	require.Equal(t, 2, server.Acked())
	require.Equal(t, "readers", server.Settings()[0].GetSubscription().GetGroup().GetName())
}

func TestReceiveStopsAtMax(t *testing.T) {
	server := fake.Start(t, "orders")
	against(t, server, "send", "orders", "x", "--count", "50")
	require.Len(t, against(t, server, "receive", "orders", "--group", "readers", "--max", "40", "--json").lines(t), 40)
	require.Equal(t, 40, server.Acked())
	require.Len(t, against(t, server, "receive", "orders", "--group", "readers", "--max", "40", "--json").lines(t), 10)
}

func TestReceiveWithoutAckLeavesTheMessages(t *testing.T) {
	server := fake.Start(t, "orders")
	against(t, server, "send", "orders", "x")
	o := against(t, server, "receive", "orders", "--group", "readers", "--no-ack")
	require.Zero(t, o.code, o.stderr)
	require.Contains(t, o.stdout, "queue 0, offset 0, attempt 1\nx\n")
	require.Zero(t, server.Acked())
}

func TestReceiveWithoutMessagesSaysSo(t *testing.T) {
	server := fake.Start(t, "orders")
	o := against(t, server, "receive", "orders", "--group", "readers", "--wait", "1ms")
	require.Zero(t, o.code)
	require.Empty(t, o.stdout)
	require.Equal(t, "no message for group readers within 1ms\n", o.stderr)
}

func TestBodiesThatAreNotTextAreBase64(t *testing.T) {
	server := fake.Start(t, "orders")
	perigee(t, []string{"PERIGEE_ENDPOINT=" + server.Addr}, "\xff\xfe", "send", "orders")
	received := against(t, server, "receive", "orders", "--group", "one", "--json").lines(t)[0]
	require.Equal(t, "//4=", received["body_base64"])
	require.NotContains(t, received, "body")
	require.Contains(t, against(t, server, "receive", "orders", "--group", "two").stdout, "(2 bytes that are not text")
}

func TestBenchCommandsReportWhatTheyMeasured(t *testing.T) {
	server := fake.Start(t, "orders", "latency")
	sent := against(t, server, "bench", "send", "orders", "--count", "100", "--batch", "10", "--size", "64B", "--json").lines(t)[0]
	require.Equal(t, 100.0, sent["messages"])
	require.Equal(t, 10.0, sent["requests"])
	require.Contains(t, sent["latency_us"], "p99_9")
	require.Empty(t, sent["errors"])
	require.NotContains(t, sent, "ack_latency_us")

	received := against(t, server, "bench", "receive", "orders", "--until-empty", "--wait", "1ms", "--json").lines(t)[0]
	require.Equal(t, 100.0, received["messages"])
	require.Contains(t, received, "ack_latency_us")
	require.Equal(t, 100, server.Acked())

	both := against(t, server, "bench", "e2e", "latency", "--count", "20", "--wait", "20ms", "--json").lines(t)
	require.Equal(t, "send", both[0]["load"])
	require.Equal(t, "end to end", both[1]["load"])
	require.Equal(t, 20.0, both[1]["messages"])

	o := against(t, server, "bench", "send", "orders", "--count", "1")
	require.Contains(t, o.stdout, "send: 1 messages")
	require.Contains(t, o.stdout, "p99.9")
}

func TestAReceiveSaysWhatItHasWhenTheServerGoesAway(t *testing.T) {
	for name, c := range map[string]struct {
		calls  int
		method string
		args   []string
		want   string
	}{
		"after messages":            {1, rmqpb.MessagingService_ReceiveMessage_FullMethodName, nil, "until then: 32 messages received and acknowledged"},
		"before any":                {0, rmqpb.MessagingService_ReceiveMessage_FullMethodName, nil, "until then: 0 messages received"},
		"between message and ack":   {1, rmqpb.MessagingService_AckMessage_FullMethodName, nil, "until then: 40 messages received, 32 of them acknowledged; the others may come again"},
		"when nothing is confirmed": {1, rmqpb.MessagingService_ReceiveMessage_FullMethodName, []string{"--no-ack"}, "until then: 32 messages received"},
	} {
		t.Run(name, func(t *testing.T) {
			server := fake.Start(t, "orders")
			require.Zero(t, against(t, server, "send", "orders", "x", "--count", "40").code)
			server.LeaveAfter(c.calls, c.method)
			o := against(t, server, append([]string{"receive", "orders", "--group", "readers", "--max", "100"}, c.args...)...)
			require.Equal(t, exitFailed, o.code)
			require.Contains(t, o.stderr, "the server at "+server.Addr+" went away (")
			require.True(t, strings.HasSuffix(o.stderr, c.want+"\n"), o.stderr)
			require.NotContains(t, o.stderr, "perigee standalone")
		})
	}
}

func TestABenchWhoseServerGoesAwayFailsWithItsCounts(t *testing.T) {
	server := fake.Start(t, "orders")
	server.LeaveAfter(5, rmqpb.MessagingService_SendMessage_FullMethodName)
	o := against(t, server, "bench", "send", "orders", "--count", "10", "--concurrency", "1")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stdout, "send: 5 messages")
	require.Contains(t, o.stderr, "the server at "+server.Addr+" went away; until then: send: 5 messages went well, what failed: map[grpc Unavailable:5]")
}

func TestABenchWithoutSuccessFails(t *testing.T) {
	server := fake.Start(t, "orders")
	server.Fail(rmqpb.Code_FORBIDDEN, "no")
	o := against(t, server, "bench", "send", "orders", "--count", "1")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "FORBIDDEN:1")
}

func TestReceiveTakesASQLFilter(t *testing.T) {
	server := startServer(t, t.TempDir())
	require.Zero(t, server.perigee(t, "topic", "create", "orders").code)
	for _, price := range []string{"3", "7", "12"} {
		require.Zero(t, server.perigee(t, "send", "orders", price, "--property", "price="+price, "--tag", "red").code)
	}
	lines := server.perigee(t, "receive", "orders", "--group", "readers", "--filter-sql", "price > 5 AND price < 10 AND TAGS = 'red'", "--json").lines(t)
	require.Len(t, lines, 1)
	require.Equal(t, "7", lines[0]["body"])
	o := server.perigee(t, "receive", "orders", "--group", "readers", "--filter-sql", "price >")
	require.Equal(t, exitFailed, o.code)
	require.Contains(t, o.stderr, "ILLEGAL_FILTER_EXPRESSION")
	require.Contains(t, o.stderr, "line 1, column 8")
}
