package client_test

import (
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/client/fake"
)

func dial(t *testing.T, opts client.Options) *client.Conn {
	t.Helper()
	conn, err := client.Dial(opts)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestMessageIDsAreVersionOneAndUnique(t *testing.T) {
	ids := client.NewMessageIDs()
	before := time.Now()
	form := regexp.MustCompile(`^01[0-9A-F]{32}$`)
	var mu sync.Mutex
	seen := map[string]bool{}
	var done sync.WaitGroup
	for range 4 {
		done.Go(func() {
			for range 1000 {
				id := ids.Next()
				mu.Lock()
				seen[id] = true
				mu.Unlock()
			}
		})
	}
	done.Wait()
	require.Len(t, seen, 4000)
	for id := range seen {
		require.Regexp(t, form, id)
		var seconds int64
		for _, c := range id[18:26] {
			digit := int64(c - '0')
			if c >= 'A' {
				digit = int64(c-'A') + 10
			}
			seconds = seconds<<4 | digit
		}
		made := time.Date(2021, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
		require.WithinDuration(t, before, made, time.Minute)
	}
}

func TestCallsCarryTheHeadersOfAnSDK(t *testing.T) {
	server := fake.Start(t, "orders")
	conn := dial(t, client.Options{Endpoint: server.Addr, Namespace: "shop", Version: "5.1.4"})
	queues, err := conn.Queues(t.Context(), "orders", rmqpb.Permission_READ)
	require.NoError(t, err)
	require.Equal(t, "shop", queues[0].GetTopic().GetResourceNamespace())
	first := server.Headers(rmqpb.MessagingService_QueryRoute_FullMethodName)
	require.Equal(t, []string{"GO"}, first.Get("x-mq-language"))
	require.Equal(t, []string{"v2"}, first.Get("x-mq-protocol"))
	require.Equal(t, []string{"5.1.4"}, first.Get("x-mq-client-version"))
	require.Equal(t, []string{"shop"}, first.Get("x-mq-namespace"))
	require.Equal(t, []string{conn.ID()}, first.Get("x-mq-client-id"))
	require.Regexp(t, `^\d{8}T\d{6}Z$`, first.Get("x-mq-date-time")[0])

	_, err = conn.Queues(t.Context(), "orders", rmqpb.Permission_READ)
	require.NoError(t, err)
	second := server.Headers(rmqpb.MessagingService_QueryRoute_FullMethodName)
	require.NotEqual(t, first.Get("x-mq-request-id"), second.Get("x-mq-request-id"))
	require.Equal(t, first.Get("x-mq-client-id"), second.Get("x-mq-client-id"))
}

func TestTwoConnectionsAreTwoClients(t *testing.T) {
	one := dial(t, client.Options{Endpoint: "127.0.0.1:1"})
	two := dial(t, client.Options{Endpoint: "127.0.0.1:1"})
	require.NotEqual(t, one.ID(), two.ID())
}

func TestEndpointsWithoutPortAreRefused(t *testing.T) {
	_, err := client.Dial(client.Options{Endpoint: "localhost"})
	require.EqualError(t, err, `endpoint "localhost": must be host:port`)
}

func TestRouteErrorsCarryTheServersCode(t *testing.T) {
	server := fake.Start(t)
	conn := dial(t, client.Options{Endpoint: server.Addr})
	_, err := conn.Queues(t.Context(), "orders", rmqpb.Permission_WRITE)
	var refused *client.StatusError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, refused.Code)
	require.EqualError(t, err, "TOPIC_NOT_FOUND (40402): topic orders not found")
}

func TestAnswersWithoutStatusAreErrors(t *testing.T) {
	require.Error(t, client.Check(nil))
	require.NoError(t, client.Check(&rmqpb.Status{Code: rmqpb.Code_OK}))
}

func TestSessionsAnnounceTheClient(t *testing.T) {
	server := fake.Start(t, "orders")
	conn := dial(t, client.Options{Endpoint: server.Addr, Version: "5.1.4"})
	filter := &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"}
	session := conn.StartConsumer(t.Context(), "readers", "orders", filter, 5*time.Second)
	settings := server.Settings()
	require.Len(t, settings, 1)
	require.Equal(t, rmqpb.ClientType_SIMPLE_CONSUMER, settings[0].GetClientType())
	require.Equal(t, "readers", settings[0].GetSubscription().GetGroup().GetName())
	require.Equal(t, "orders", settings[0].GetSubscription().GetSubscriptions()[0].GetTopic().GetName())
	require.Zero(t, server.HungUp())
	session.Close()
	require.NotNil(t, server.Headers(rmqpb.MessagingService_NotifyClientTermination_FullMethodName))
	require.Equal(t, 1, server.HungUp(), "the server has ended the stream when the session is closed")
}

func TestASessionWithoutServerFailsSilently(t *testing.T) {
	conn := dial(t, client.Options{Endpoint: "127.0.0.1:1"})
	conn.StartProducer(t.Context(), "orders").Close()
}
