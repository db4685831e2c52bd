package sdktest

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"sync/atomic"
	"testing"
	"time"

	rmqpb "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
	"github.com/stretchr/testify/require"
)

func TestClientsOutlastATopicThatIsClosedForAWhile(t *testing.T) {
	t.Parallel()
	s := commonServer(t)
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
		// Both ask for the route every 30 seconds, and for assignments more often.
		time.Sleep(40 * time.Second)
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

	var stop atomic.Bool
	sent := make(chan int, 1)
	failed := make(chan error, 1)
	go func() {
		n := 0
		for ; !stop.Load(); n++ {
			if _, err := p.Send(t.Context(), message(topic, "m", "")); err != nil {
				failed <- err
				break
			}
			time.Sleep(time.Millisecond)
		}
		sent <- n
	}()
	for range 3 {
		require.Contains(t, s.perigee("client", "reconnect", "--all"), "clients asked: 2")
		time.Sleep(time.Second)
	}
	stop.Store(true)
	n := <-sent
	require.Empty(t, failed)
	for range n {
		box.next(t)
	}
	s.awaitSettled(group, topic)
	require.Empty(t, box, "messages came again")
}
