package sdktest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"io"
	"testing"
	"time"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/sdktest/internal/harness"
)

func TestClientsOutlastATopicThatIsClosedForAWhile(t *testing.T) {
	t.Parallel()
	s := ownServer(t, "--long-polling-max", commonPolling)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	box := newInbox()
	startPushConsumer(t, s.Endpoint(), group, topic, everything, box.accept)
	send(t, p, message(topic, "before", ""))
	require.Equal(t, "before", string(box.next(t).GetBody()))

	s.perigee("topic", "update", topic, "--permission", "NONE")
	_, err := p.Send(t.Context(), message(topic, "meanwhile", ""))
	requireCode(t, err, rmqpb.Code_FORBIDDEN, topic)
	if !testing.Short() {
		// Each asks for the route again within half a minute, and learns that there
		// is nothing to send to or to receive from.
		routes := s.answered("QueryRoute")
		s.await("both to see the closed route", func() bool { return s.answered("QueryRoute") >= routes+2 })
	}
	s.perigee("topic", "update", topic, "--permission", "READ_WRITE")
	require.Eventually(t, func() bool {
		_, err := p.Send(t.Context(), message(topic, "after", ""))
		return err == nil
	}, generousTimeout, 500*time.Millisecond, "the producer was not started anew")
	require.Equal(t, "after", string(box.next(t).GetBody()))
}

func TestAMessageSentOnWithItsPropertiesIsTaken(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	from, to, group := s.topic(), s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), from, to)
	m := message(from, "body", "tag")
	m.SetKeys("key")
	m.AddProperty("k", "v")
	send(t, p, m)
	got := startSimpleConsumer(t, s.Endpoint(), group, from, everything).receive(1, longInvisible)[0]

	again := message(to, string(got.GetBody()), *got.GetTag())
	again.SetKeys(got.GetKeys()...)
	for k, v := range got.GetProperties() {
		again.AddProperty(k, v)
	}
	send(t, p, again)
	c := startSimpleConsumer(t, s.Endpoint(), s.group(), to, everything)
	view := c.receive(1, longInvisible)[0]
	require.Equal(t, m.GetProperties(), view.GetProperties())
	c.ack(view)
}

func TestTheFirstSendCreatesATopicWhereThatIsConfigured(t *testing.T) {
	t.Parallel()
	s := ownServer(t, "--auto-create-topics", "--default-queues", "3")
	topic := s.name("new")
	p := startProducer(t, s.Endpoint(), topic)
	send(t, p, message(topic, "first", ""))
	require.Contains(t, s.perigee("topic", "describe", topic), "3 to read, 3 to write")
	c := startSimpleConsumer(t, s.Endpoint(), s.group(), topic, everything)
	require.Equal(t, []string{"first"}, bodies(c.receive(1, longInvisible)))
}

func TestCompressedBodiesAreReadWhateverTheirFraming(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
	topic, group := s.topic(), s.group()
	plain := bytes.Repeat([]byte("perigee! "), 100<<10/9)
	for name, open := range map[string]func(io.Writer) io.WriteCloser{
		"zlib": func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) },
		"gzip": func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) },
	} {
		var packed bytes.Buffer
		w := open(&packed)
		_, err := w.Write(plain)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.Equal(t, rmqpb.Code_OK, sendEncoded(t, s, topic, packed.Bytes(), rmqpb.Encoding_GZIP).GetCode(), name)
	}
	c := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	for _, view := range c.receive(2, longInvisible) {
		require.True(t, bytes.Equal(plain, view.GetBody()), "the bodies differ")
		c.ack(view)
	}
	s.awaitSettled(group, topic)
}

func TestClientsThatAreAskedToReconnectGoOn(t *testing.T) {
	t.Parallel()
	s := ownServer(t, "--long-polling-max", commonPolling)
	topic, group := s.topic(), s.group()
	p := startProducer(t, s.Endpoint(), topic)
	box := newInbox()
	consumer := newPushConsumer(t, s.Endpoint(), group, topic, everything, box.accept)
	t.Cleanup(func() { require.NoError(t, consumer.GracefulStop()) })

	const rounds, each = 3, 200
	for range rounds {
		asked := make(chan error, 1)
		go func() { // the command and the sends overlap
			out, err := s.Perigee(t.Context(), "client", "reconnect", "--all")
			// A proxy asks those that are connected to it.
			if err == nil && out != "clients asked: 2\n" && !harness.Hosts() {
				err = errors.New(out)
			}
			asked <- err
		}()
		for range each {
			send(t, p, message(topic, "m", ""))
		}
		require.NoError(t, <-asked)
	}
	for range rounds * each {
		box.next(t)
	}
	s.awaitSettled(group, topic)
	require.Empty(t, box, "messages came again")
}
