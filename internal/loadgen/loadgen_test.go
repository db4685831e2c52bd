package loadgen

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func target(t *testing.T, server *fake.Server) *Target {
	t.Helper()
	target, err := Dial(client.Options{Endpoint: server.Addr, Version: "5.1.4"}, 2)
	require.NoError(t, err)
	t.Cleanup(target.Close)
	return target
}

func sendLoad(count int64, batch int) SendLoad {
	return SendLoad{Load: Load{Topic: "orders", Concurrency: 3, Limit: Limit{Count: count}}, Size: 100, Batch: batch, Tag: "a"}
}

func receiveLoad(count int64) ReceiveLoad {
	return ReceiveLoad{
		Load:  Load{Topic: "orders", Concurrency: 2, Limit: Limit{Count: count}},
		Group: "readers", Batch: 32, Invisible: 30 * time.Second,
	}
}

func TestSendSendsExactlyTheCountWithUniqueIDs(t *testing.T) {
	server := fake.Start(t, "orders")
	result, err := target(t, server).Send(t.Context(), sendLoad(100, 7))
	require.NoError(t, err)
	require.Empty(t, result.Errors)
	require.EqualValues(t, 100, result.Messages)
	require.EqualValues(t, 100*100, result.Bytes)
	require.Equal(t, result.Requests, result.Latency.TotalCount())

	ids := map[string]bool{}
	for _, m := range server.Messages("orders") {
		ids[m.GetSystemProperties().GetMessageId()] = true
		require.Len(t, m.GetBody(), 100)
		require.Equal(t, "a", m.GetSystemProperties().GetTag())
		require.Len(t, m.GetSystemProperties().GetMessageId(), client.MessageIDSize)
	}
	require.Len(t, ids, 100)
}

func TestJoinedTargetsTakeTurns(t *testing.T) {
	one, other := fake.Start(t, "orders"), fake.Start(t, "orders")
	joined := Join(target(t, one), target(t, other))
	require.Len(t, joined.conns, 4)
	load := sendLoad(100, 1)
	load.Concurrency = 2
	_, err := joined.Send(t.Context(), load)
	require.NoError(t, err)
	require.Positive(t, len(one.Messages("orders")))
	require.Positive(t, len(other.Messages("orders")))
	require.Equal(t, 100, len(one.Messages("orders"))+len(other.Messages("orders")))
}

func TestReceiveAcknowledgesEverythingItReceives(t *testing.T) {
	server := fake.Start(t, "orders")
	load := target(t, server)
	_, err := load.Send(t.Context(), sendLoad(100, 10))
	require.NoError(t, err)
	receive := receiveLoad(0)
	receive.AckBatch, receive.UntilEmpty = 7, true
	result, err := load.Receive(t.Context(), receive)
	require.NoError(t, err)
	require.Empty(t, result.Errors)
	require.EqualValues(t, 100, result.Messages)
	require.EqualValues(t, 100*100, result.Bytes)
	require.Equal(t, 100, server.Acked())
	require.Empty(t, result.Handles)
}

func TestReceiveStopsAtTheCount(t *testing.T) {
	server := fake.Start(t, "orders")
	load := target(t, server)
	_, err := load.Send(t.Context(), sendLoad(100, 10))
	require.NoError(t, err)
	result, err := load.Receive(t.Context(), receiveLoad(40))
	require.NoError(t, err)
	require.EqualValues(t, 40, result.Messages)
	require.Zero(t, server.Acked())
}

func TestKeptHandlesAreAcknowledgedOnce(t *testing.T) {
	server := fake.Start(t, "orders")
	load := target(t, server)
	_, err := load.Send(t.Context(), sendLoad(100, 10))
	require.NoError(t, err)
	receive := receiveLoad(100)
	receive.Keep = true
	received, err := load.Receive(t.Context(), receive)
	require.NoError(t, err)
	require.Len(t, received.Handles, 100)

	ack := AckLoad{Load: Load{Topic: "orders", Concurrency: 3}, Group: "readers", Batch: 8, Handles: received.Handles}
	result, err := load.Ack(t.Context(), ack)
	require.NoError(t, err)
	require.EqualValues(t, 100, result.Messages)
	require.Equal(t, 100, server.Acked())

	again, err := load.Ack(t.Context(), ack)
	require.NoError(t, err)
	require.Zero(t, again.Messages)
	require.Equal(t, map[string]int64{"INVALID_RECEIPT_HANDLE": 100}, again.Errors)
}

func TestEndToEndMeasuresEveryMessage(t *testing.T) {
	server := fake.Start(t, "orders")
	load := target(t, server)
	_, err := load.Send(t.Context(), sendLoad(10, 10)) // of another load
	require.NoError(t, err)
	receive := receiveLoad(0)
	receive.AckBatch, receive.Wait = 1, 20*time.Millisecond
	sent, received, err := load.EndToEnd(t.Context(), EndToEndLoad{Send: sendLoad(50, 5), Receive: receive, From: target(t, server), Drain: 10 * time.Second})
	require.NoError(t, err)
	require.EqualValues(t, 50, sent.Messages)
	require.EqualValues(t, 50, received.Messages)
	require.EqualValues(t, 50, received.Latency.TotalCount())
	require.Equal(t, 60, server.Acked())
	require.Empty(t, received.Errors)
}

func TestRefusedSendsAreCountedByCode(t *testing.T) {
	server := fake.Start(t, "orders")
	server.Fail(rmqpb.Code_TOO_MANY_REQUESTS, "slow down")
	result, err := target(t, server).Send(t.Context(), sendLoad(3, 1))
	require.NoError(t, err)
	require.Zero(t, result.Messages)
	require.Equal(t, map[string]int64{"TOO_MANY_REQUESTS": 3}, result.Errors)
	require.EqualValues(t, 3, result.Failures())
}

func TestAMissingTopicIsAnErrorBeforeTheLoad(t *testing.T) {
	server := fake.Start(t)
	_, err := target(t, server).Send(t.Context(), sendLoad(1, 1))
	var refused *client.StatusError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, refused.Code)
}

func TestALoadEndsWithItsContext(t *testing.T) {
	server := fake.Start(t, "orders")
	ctx, cancel := context.WithCancel(t.Context())
	receive := receiveLoad(0)
	receive.Wait = time.Hour
	receive.Progress = func(Progress) { cancel() }
	result, err := target(t, server).Receive(ctx, receive)
	require.NoError(t, err)
	require.Empty(t, result.Errors)
}

func TestLoadsThatMakeNoSenseAreRefused(t *testing.T) {
	server := fake.Start(t, "orders")
	load := target(t, server)
	for name, change := range map[string]func(*SendLoad){
		"size": func(l *SendLoad) { l.Size = 0 }, "batch": func(l *SendLoad) { l.Batch = 0 },
		"concurrency": func(l *SendLoad) { l.Concurrency = 0 }, "rate": func(l *SendLoad) { l.Rate = -1 },
	} {
		l := sendLoad(1, 1)
		change(&l)
		_, err := load.Send(t.Context(), l)
		require.ErrorContains(t, err, name)
	}
	_, err := Dial(client.Options{Endpoint: server.Addr}, 0)
	require.ErrorContains(t, err, "connections")
	small := sendLoad(1, 1)
	small.Size = stampSize - 1
	_, _, err = load.EndToEnd(t.Context(), EndToEndLoad{Send: small, Receive: receiveLoad(0)})
	require.ErrorContains(t, err, "size")
}

func TestAPacerSpacesCallsEvenly(t *testing.T) {
	start := time.Now().Add(-time.Hour) // everything is due
	p := newPacer(10, start)
	var due []time.Duration
	for range 3 {
		at, ok := p.wait(t.Context(), 2, time.Time{})
		require.True(t, ok)
		due = append(due, at.Sub(start))
	}
	require.Equal(t, []time.Duration{0, 200 * time.Millisecond, 400 * time.Millisecond}, due)
	_, ok := p.wait(t.Context(), 2, start.Add(600*time.Millisecond))
	require.False(t, ok, "due at the deadline")
}

func TestStampsTellLoadsApart(t *testing.T) {
	one, two := newStamp(), newStamp()
	body := make([]byte, stampSize)
	one.put(body, time.Now())
	_, ok := one.age(body)
	require.True(t, ok)
	_, ok = two.age(body)
	require.False(t, ok)
	_, ok = one.age(slices.Clone(body)[:stampSize-1])
	require.False(t, ok)
}

func FuzzResultsNeverPanic(f *testing.F) {
	f.Add([]byte{0x0a, 0x04, 0x08, 0xa0, 0x9c, 0x01})
	f.Fuzz(func(_ *testing.T, data []byte) {
		r := results{entries: 2, status: 1}
		_ = r.read(data)
		receiver := &receiver{meter: newMeter(), acks: &acker{}}
		_ = (&frame{receiver: receiver}).read(data)
	})
}

func TestRequestsToALiteTopicGoToItsLiteTopicsInTurn(t *testing.T) {
	server := fake.Start(t, "orders")
	server.SetType("orders", rmqpb.MessageType_LITE)
	load := target(t, server)
	send := sendLoad(300, 1)
	send.Lites = 100
	result, err := load.Send(t.Context(), send)
	require.NoError(t, err)
	require.Empty(t, result.Errors)
	counts := map[string]int{}
	for _, m := range server.Messages("orders") {
		require.Equal(t, rmqpb.MessageType_LITE, m.GetSystemProperties().GetMessageType())
		counts[m.GetSystemProperties().GetLiteTopic()]++
	}
	require.Len(t, counts, 100)
	for i := range 100 {
		require.Equal(t, 3, counts[LiteName(i)])
	}
	receive := receiveLoad(0)
	receive.UntilEmpty, receive.Lites = true, []string{LiteName(0), LiteName(7)}
	result, err = load.Receive(t.Context(), receive)
	require.NoError(t, err)
	require.EqualValues(t, 300, result.Messages, "this server does not mind")
	synced := server.Synced()
	require.Len(t, synced, 2, "each connection is a client of its own")
	require.Equal(t, receive.Lites, synced[0].GetLiteTopicSet())
	_, err = load.Receive(t.Context(), ReceiveLoad{Load: Load{Topic: "none", Concurrency: 1}, Group: "g", Batch: 1, Lites: receive.Lites})
	require.Error(t, err)
}

func TestDelayedMessagesAreDueOverATime(t *testing.T) {
	server := fake.Start(t, "orders")
	server.SetType("orders", rmqpb.MessageType_DELAY)
	from := time.Unix(1_900_000_000, 0)
	send := sendLoad(600, 4)
	send.DeliverFrom, send.DeliverOver = from, time.Minute
	_, err := target(t, server).Send(t.Context(), send)
	require.NoError(t, err)
	times := map[time.Duration]bool{}
	for _, m := range server.Messages("orders") {
		times[m.GetSystemProperties().GetDeliveryTimestamp().AsTime().Sub(from)] = true
	}
	require.NotEmpty(t, times)
	for at := range times {
		require.GreaterOrEqual(t, at, time.Duration(0))
		require.Less(t, at, time.Minute)
		require.Zero(t, at%(5*time.Second), "one moment for each message of each of three workers")
	}
}

func TestOneResultOfABatchStandsForAllOfItsMessages(t *testing.T) {
	m := newMeter()
	s := &sender{meter: m, results: results{entries: 2, status: 1}, whole: true}
	one := func(code rmqpb.Code) {
		answer, err := proto.Marshal(&rmqpb.SendMessageResponse{
			Status: &rmqpb.Status{Code: code}, Entries: []*rmqpb.SendResultEntry{{Status: &rmqpb.Status{Code: code}}},
		})
		require.NoError(t, err)
		require.NoError(t, s.results.read(answer))
	}
	one(rmqpb.Code_OK)
	require.Equal(t, 32, s.count(32))
	one(rmqpb.Code_MESSAGE_BODY_TOO_LARGE)
	require.Zero(t, s.count(32))
	require.Equal(t, map[string]int64{"MESSAGE_BODY_TOO_LARGE": 32}, m.errors)

	s.whole = false
	one(rmqpb.Code_OK)
	require.Equal(t, 1, s.count(32))
	require.EqualValues(t, 31, m.errors["missing result"])
}
