package sdktest

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

// The switch between TLS and cleartext belongs to the whole SDK, so the tests
// that follow run once more in a process whose SDK is left at its default: TLS.
// They use the server of this process, and the port of its cleartext clients.
var overTLS = []string{
	"TestMessageArrivesAsItWasSent",
	"TestAcknowledgedMessagesDoNotComeAgain",
	"TestPushConsumerGetsEachMessageOnce",
	"TestTransportOfThisRun",
}

func TestTLSClientsShareThePortOfCleartextClients(t *testing.T) {
	if os.Getenv(tlsVariable) != "" {
		t.Skip("this is the run over TLS")
	}
	t.Parallel()
	s := commonServer(t)
	path, err := binary()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0],
		"-test.v", "-test.timeout=5m", "-test.run=^("+strings.Join(overTLS, "|")+")$")
	cmd.Env = append(os.Environ(), tlsVariable+"="+s.Endpoint(), binaryVariable+"="+path)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range overTLS {
		require.Contains(t, string(out), "--- PASS: "+name+" ", "%s", out)
	}
}

func TestTransportOfThisRun(t *testing.T) {
	t.Parallel()
	require.Equal(t, os.Getenv(tlsVariable) != "", rmq.EnableSsl)
}

func TestAClientThatSignsItsCallsIsServed(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	config := &rmq.Config{
		Endpoint: s.Endpoint(), ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{AccessKey: "key", AccessSecret: "secret"},
	}
	p, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.GracefulStop()) })
	send(t, p, message(topic, "signed", ""))
	c, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(awaitDuration),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: everything}))
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { require.NoError(t, c.GracefulStop()) })
	consumer := simpleConsumer{c, t}
	got := consumer.receive(1, longInvisible)
	require.Equal(t, "signed", string(got[0].GetBody()))
	consumer.ack(got...)
	s.awaitSettled(group, topic)
}

func TestClientsNeedNoServerSettingBehindAPortMapping(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	for _, host := range []string{"127.0.0.1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			s := server{s.Server, t}
			f, err := harness.OpenForwarder(s.Endpoint())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, f.Close()) })
			outside := net.JoinHostPort(host, strconv.Itoa(f.Port()))
			topic, simpleGroup, pushGroup := s.topic(), s.group(), s.group()

			receipt := send(t, startProducer(t, outside, topic), message(topic, "through the mapping", ""))
			require.Len(t, receipt.Endpoints.GetAddresses(), 1)
			require.Equal(t, host, receipt.Endpoints.GetAddresses()[0].GetHost())
			require.EqualValues(t, f.Port(), receipt.Endpoints.GetAddresses()[0].GetPort())

			c := startSimpleConsumer(t, outside, simpleGroup, topic, everything)
			got := c.receive(1, longInvisible)[0]
			require.Equal(t, receipt.MessageID, got.GetMessageId())
			require.NoError(t, c.ChangeInvisibleDuration(got, 0))
			c.ack(c.receive(1, longInvisible)...)
			s.awaitSettled(simpleGroup, topic)

			box := newInbox()
			startPushConsumer(t, outside, pushGroup, topic, everything, box.accept)
			require.Equal(t, receipt.MessageID, box.next(t).GetMessageId())
			s.awaitSettled(pushGroup, topic)
			require.GreaterOrEqual(t, f.Accepted(), 3, "clients went past the mapping")
		})
	}
}
