package proxy

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
	"github.com/perigee-mq/perigee/router"
)

func halfMessage(topic, id string) *rmqpb.Message {
	m := message(topic, id, "body of "+id)
	m.SystemProperties.MessageType = rmqpb.MessageType_TRANSACTION
	m.SystemProperties.Tag = new("tag")
	m.SystemProperties.Keys = []string{"key"}
	m.UserProperties = map[string]string{"k": "v"}
	m.SystemProperties.BornHost = "host"
	return m
}

func (s *testServer) transactions(t testing.TB, name string) {
	s.topic(t, name, router.TopicSpec{Queues: 2, Type: mq.TopicTransaction})
}

// resolve ends a transaction as a client does.
func (s *testServer) resolve(t testing.TB, topic, messageID, transaction string, how rmqpb.TransactionResolution) *rmqpb.Status {
	t.Helper()
	res, err := s.EndTransaction(as(t, "sender"), &rmqpb.EndTransactionRequest{
		Topic: named(topic), MessageId: messageID, TransactionId: transaction, Resolution: how,
	})
	require.NoError(t, err)
	return res.GetStatus()
}

const (
	commit   = rmqpb.TransactionResolution_COMMIT
	rollback = rmqpb.TransactionResolution_ROLLBACK
	unknown  = rmqpb.TransactionResolution_TRANSACTION_RESOLUTION_UNSPECIFIED
)

func ids(got []mq.Delivery) (list []string) {
	for _, d := range got {
		list = append(list, d.ID)
	}
	return list
}

func TestAHalfMessageIsSeenWhenItIsCommittedAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		sent := s.send(t, halfMessage("orders", "m1"), halfMessage("orders", "m2"), halfMessage("orders", "m3"))
		for i, e := range sent {
			require.Equal(t, fmt.Sprint("m", i+1), e.GetMessageId())
			require.NotEqual(t, e.GetMessageId(), e.GetTransactionId())
			require.NotEmpty(t, e.GetTransactionId())
			require.Empty(t, e.GetRecallHandle())
		}
		require.Empty(t, s.leased(t, "orders", "g", 10, time.Second))
		resolve := func(i int, how rmqpb.TransactionResolution) rmqpb.Code {
			return s.resolve(t, "orders", sent[i].GetMessageId(), sent[i].GetTransactionId(), how).GetCode()
		}
		require.Equal(t, rmqpb.Code_OK, resolve(0, commit))
		require.Equal(t, rmqpb.Code_OK, resolve(1, rollback))
		require.Equal(t, rmqpb.Code_OK, resolve(2, unknown))
		got := s.leased(t, "orders", "g", 10, time.Second)
		require.Equal(t, []string{"m1"}, ids(got))
		require.Equal(t, mq.Transaction, got[0].Type)
		// The first end counts, and it can be told again.
		for range 2 {
			require.Equal(t, rmqpb.Code_OK, resolve(0, commit))
			require.Equal(t, rmqpb.Code_INVALID_TRANSACTION_ID, resolve(0, rollback))
			require.Equal(t, rmqpb.Code_OK, resolve(1, rollback))
			require.Equal(t, rmqpb.Code_INVALID_TRANSACTION_ID, resolve(1, commit))
		}
		require.Equal(t, rmqpb.Code_OK, resolve(0, unknown), "whoever does not know changes nothing")
		require.Empty(t, s.leased(t, "orders", "g", 10, time.Second))
		require.Equal(t, rmqpb.Code_OK, resolve(2, commit))
		require.Equal(t, []string{"m3"}, ids(s.leased(t, "orders", "g", 10, time.Second)))
	})
}

func TestTransactionIDsOfNothingAreRefusedByName(t *testing.T) {
	s := newTestServer(t)
	s.transactions(t, "orders")
	s.transactions(t, "other")
	s.topic(t, "late", router.TopicSpec{Type: mq.TopicDelay})
	sent := s.send(t, halfMessage("orders", "m"))[0].GetTransactionId()
	other := s.send(t, halfMessage("other", "m"))[0].GetTransactionId()
	recall := s.send(t, delayedMessage("late", "m", time.Hour))[0].GetRecallHandle()
	handle, err := receipt.DecodePending(sent)
	require.NoError(t, err)
	handle.ID += 5
	absent := receipt.EncodePending(handle)
	for name, c := range map[string]struct {
		topic, message, transaction string
		code                        rmqpb.Code
		text                        string
	}{
		"none":                  {"orders", "m", "", rmqpb.Code_INVALID_TRANSACTION_ID, "transaction_id of 0 characters"},
		"the message id":        {"orders", "m", "01ABCDEF", rmqpb.Code_INVALID_TRANSACTION_ID, "transaction_id of 8 characters"},
		"a changed one":         {"orders", "m", sent[:len(sent)-1] + "_", rmqpb.Code_INVALID_TRANSACTION_ID, "transaction_id"},
		"of another message":    {"orders", "n", sent, rmqpb.Code_INVALID_TRANSACTION_ID, `message_id "n"`},
		"of another topic":      {"orders", "m", other, rmqpb.Code_INVALID_TRANSACTION_ID, `"orders"`},
		"of one that never was": {"orders", "m", absent, rmqpb.Code_INVALID_TRANSACTION_ID, "unknown transaction"},
		"a recall handle":       {"late", "m", recall, rmqpb.Code_INVALID_TRANSACTION_ID, "unknown transaction"},
		"a long one":            {"orders", "m", strings.Repeat("A", 5000), rmqpb.Code_INVALID_TRANSACTION_ID, "5000 characters"},
		"no such topic":         {"missing", "m", sent, rmqpb.Code_TOPIC_NOT_FOUND, "missing"},
		"no topic":              {"", "m", sent, rmqpb.Code_ILLEGAL_TOPIC, ""},
	} {
		for _, how := range []rmqpb.TransactionResolution{commit, rollback} {
			st := s.resolve(t, c.topic, c.message, c.transaction, how)
			require.Equal(t, c.code, st.GetCode(), "%s: %s", name, st.GetMessage())
			require.Contains(t, st.GetMessage(), c.text, name)
		}
	}
	require.Equal(t, rmqpb.Code_BAD_REQUEST, s.resolve(t, "orders", "m", sent, 3).GetCode())
	require.Empty(t, s.leased(t, "orders", "g", 10, 0))
	require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", sent, commit).GetCode(), "nothing has changed")
}

// The server that took the half message is gone; another one, on the same store, ends
// the transaction.
func TestATransactionEndsOnAnotherServerAndAfterARestart(t *testing.T) {
	fs := vfs.NewMem()
	s, end := openOn(t, fs, Options{})
	s.transactions(t, "orders")
	sent := s.send(t, halfMessage("orders", "m1"), halfMessage("orders", "m2"))
	second, err := New(Options{Store: s.nodes, Router: s.meta, Transactions: s.nodes})
	require.NoError(t, err)
	another := &testServer{Server: second, nodes: s.nodes, meta: s.meta}
	require.Equal(t, rmqpb.Code_OK, another.resolve(t, "orders", "m1", sent[0].GetTransactionId(), commit).GetCode())
	require.Equal(t, []string{"m1"}, ids(s.leased(t, "orders", "g", 10, 0)))
	second.Close()
	require.NoError(t, end())
	s, end = openOn(t, fs, Options{})
	defer func() { require.NoError(t, end()) }()
	require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m1", sent[0].GetTransactionId(), commit).GetCode(), "again")
	require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m2", sent[1].GetTransactionId(), commit).GetCode())
	require.Equal(t, []string{"m2"}, ids(s.leased(t, "orders", "g", 10, 0)))
}

func TestARepeatedSendOfAHalfMessageHasTheSameTransaction(t *testing.T) {
	s := newTestServer(t)
	s.topic(t, "orders", router.TopicSpec{Queues: 2, Type: mq.TopicTransaction, Dedup: new(time.Minute)})
	first := s.send(t, halfMessage("orders", "m"))[0].GetTransactionId()
	require.Equal(t, first, s.send(t, halfMessage("orders", "m"))[0].GetTransactionId())
	require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", first, commit).GetCode())
	require.Equal(t, []string{"m"}, ids(s.leased(t, "orders", "g", 10, 0)))
}

// A producer is a client with a Telemetry stream that answers questions.
type producer struct {
	t      testing.TB
	stream clientStream
	cancel context.CancelFunc
	asked  chan *rmqpb.RecoverOrphanedTransactionCommand
}

func producing(topics ...string) *rmqpb.Settings {
	p := &rmqpb.Publishing{}
	for _, topic := range topics {
		p.Topics = append(p.Topics, named(topic))
	}
	return &rmqpb.Settings{ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: p}}
}

func connect(t testing.TB, conn *grpc.ClientConn, id string, settings *rmqpb.Settings) *producer {
	t.Helper()
	ctx, cancel := context.WithCancel(from(t, id))
	p := &producer{t: t, cancel: cancel, asked: make(chan *rmqpb.RecoverOrphanedTransactionCommand, 1000)}
	p.stream = open(t, rmqpb.NewMessagingServiceClient(conn), ctx)
	offer(t, p.stream, settings)
	reply(t, p.stream)
	go func() {
		for {
			cmd, err := p.stream.Recv()
			if err != nil {
				close(p.asked)
				return
			}
			if q := cmd.GetRecoverOrphanedTransactionCommand(); q != nil {
				p.asked <- q
			}
		}
	}()
	return p
}

// questions returns those that have come by now.
func (p *producer) questions() (got []string) {
	synctest.Wait()
	for {
		select {
		case q, more := <-p.asked:
			if !more {
				return got
			}
			got = append(got, q.GetMessage().GetSystemProperties().GetMessageId())
		default:
			return got
		}
	}
}

func (p *producer) leave() {
	p.cancel()
	synctest.Wait()
}

func TestAProducerIsAskedAboutItsOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		p := connect(t, s.dial(t), "p", producing("orders"))
		m := halfMessage("orders", "m")
		m.SystemProperties.OrphanedTransactionRecoveryDuration = durationpb.New(2 * time.Second)
		sent := s.send(t, m)[0]
		time.Sleep(time.Second)
		require.Empty(t, p.questions())
		time.Sleep(1001 * time.Millisecond)
		synctest.Wait()
		q := <-p.asked
		require.Equal(t, sent.GetTransactionId(), q.GetTransactionId())
		got := q.GetMessage()
		sys := got.GetSystemProperties()
		require.Equal(t, "orders", got.GetTopic().GetName())
		require.Equal(t, "body of m", string(got.GetBody()))
		require.Equal(t, map[string]string{"k": "v"}, got.GetUserProperties())
		require.Equal(t, "m", sys.GetMessageId())
		require.Equal(t, "tag", sys.GetTag())
		require.Equal(t, []string{"key"}, sys.GetKeys())
		require.Equal(t, rmqpb.MessageType_TRANSACTION, sys.GetMessageType())
		require.Equal(t, rmqpb.Encoding_IDENTITY, sys.GetBodyEncoding())
		require.NotEmpty(t, sys.GetBodyDigest().GetChecksum())
		require.NotNil(t, sys.GetBornTimestamp())
		require.NotEmpty(t, sys.GetBornHost())
		require.NotNil(t, sys.GetStoreTimestamp())

		time.Sleep(31 * time.Second)
		require.Equal(t, []string{"m"}, p.questions(), "it has not answered")
		require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", q.GetTransactionId(), unknown).GetCode())
		time.Sleep(time.Minute)
		require.Equal(t, []string{"m"}, p.questions(), "it does not know")
		require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", q.GetTransactionId(), commit).GetCode())
		time.Sleep(24 * time.Hour)
		require.Empty(t, p.questions(), "nobody is asked when it is known")
		require.Equal(t, []string{"m"}, ids(s.leased(t, "orders", "g", 10, 0)))
	})
}

// A producer that answers three times that it does not know, and commits then.
func TestAProducerIsAskedUntilItKnowsAndNotAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		p := connect(t, s.dial(t), "p", producing("orders"))
		sent := s.send(t, halfMessage("orders", "m"))[0].GetTransactionId()
		for range 3 {
			q := <-p.asked
			require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", q.GetTransactionId(), unknown).GetCode())
		}
		require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", sent, commit).GetCode())
		require.Equal(t, []string{"m"}, ids(s.leased(t, "orders", "g", 10, 0)), "at once")
		for range 3 {
			st := s.resolve(t, "orders", "m", sent, rollback)
			require.Equal(t, rmqpb.Code_INVALID_TRANSACTION_ID, st.GetCode())
			require.Contains(t, st.GetMessage(), "committed")
			time.Sleep(time.Minute) // of an hour in which it is known
		}
		time.Sleep(time.Hour)
		require.Empty(t, p.questions())
		require.Equal(t, []string{"m"}, ids(s.leased(t, "orders", "g", 10, 0)), "the same one, again")
		require.Equal(t, rmqpb.Code_INVALID_TRANSACTION_ID, s.resolve(t, "orders", "m", sent, rollback).GetCode())
		require.Equal(t, []string{"m"}, ids(s.leased(t, "orders", "other", 10, 0)))
	})
}

func TestOnlyProducersOfTheTopicAreAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		s.transactions(t, "other")
		conn := s.dial(t)
		other := connect(t, conn, "other", producing("other"))
		consumer := connect(t, conn, "consumer", &rmqpb.Settings{
			ClientType: rmqpb.ClientType_PUSH_CONSUMER.Enum(),
			PubSub: &rmqpb.Settings_Subscription{Subscription: &rmqpb.Subscription{
				Group: named("g"), Subscriptions: []*rmqpb.SubscriptionEntry{{Topic: named("orders"), Expression: &rmqpb.FilterExpression{Expression: "*", Type: rmqpb.FilterType_TAG}}},
			}},
		})
		s.send(t, halfMessage("orders", "m"))
		time.Sleep(100 * time.Hour)
		require.Empty(t, other.questions())
		require.Empty(t, consumer.questions())
		require.Zero(t, s.nodes.Stats()[testShard].Checks, "what nobody was asked does not count")

		// Its topics grow, as it sends to more.
		offer(t, other.stream, producing("other", "orders"))
		time.Sleep(time.Second)
		require.Equal(t, []string{"m"}, other.questions(), "asked at once")

		offer(t, other.stream, producing("other"))
		time.Sleep(100 * time.Hour)
		require.Empty(t, other.questions(), "it is no producer of the topic any more")
	})
}

// Of two services that publish to one topic the one is asked that has sent the message,
// while it is there.
func TestTheProducerThatHasSentTheMessageIsAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		conn := s.dial(t)
		p2 := connect(t, conn, "box@4711@0@x", producing("orders"))
		p1 := connect(t, conn, "box@70000@0@x", producing("orders")) // 70000 is 0x11170
		p3 := connect(t, conn, "pod@70000@0@x", producing("orders"))
		m := halfMessage("orders", "01"+"AABBCCDDEEFF"+"1170"+"0102030405060708")
		m.SystemProperties.BornHost = "box"
		s.send(t, m)
		for range 3 {
			time.Sleep(10 * time.Minute)
			require.NotEmpty(t, p1.questions())
			require.Empty(t, append(p2.questions(), p3.questions()...))
		}
		p1.leave()
		time.Sleep(time.Hour)
		require.NotEmpty(t, p2.questions(), "one of the same host is next")
		p2.leave()
		time.Sleep(time.Hour)
		require.NotEmpty(t, p3.questions(), "and then any")
	})
}

func TestProducersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		conn := s.dial(t)
		p1, p2 := connect(t, conn, "p1", producing("orders")), connect(t, conn, "p2", producing("orders"))
		for i := range 40 {
			s.send(t, halfMessage("orders", fmt.Sprint("m", i)))
		}
		time.Sleep(10 * time.Second)
		require.Len(t, p1.questions(), 20)
		require.Len(t, p2.questions(), 20)
	})
}

// Two servers have producers of the topic.
func TestTwoServersDoNotAskTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		second, err := New(Options{Store: s.nodes, Router: s.meta, Transactions: s.nodes})
		require.NoError(t, err)
		defer second.Close()
		another := &testServer{Server: second, nodes: s.nodes, meta: s.meta}
		p1, p2 := connect(t, s.dial(t), "p1", producing("orders")), connect(t, another.dial(t), "p2", producing("orders"))
		for i := range 100 {
			s.send(t, halfMessage("orders", fmt.Sprint("m", i)))
		}
		time.Sleep(10 * time.Second)
		got := map[string]int{}
		for _, id := range append(p1.questions(), p2.questions()...) {
			got[id]++
		}
		require.Len(t, got, 100)
		for id, n := range got {
			require.Equal(t, 1, n, id)
		}
	})
}

func TestAProducerThatComesLaterIsAskedAtOnceAndUntilGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		sent := s.send(t, halfMessage("orders", "m"))[0]
		time.Sleep(300 * time.Hour)
		p := connect(t, s.dial(t), "p", producing("orders"))
		time.Sleep(time.Second)
		require.Equal(t, []string{"m"}, p.questions())
		p.leave()
		time.Sleep(300 * time.Hour)
		p = connect(t, s.dial(t), "p", producing("orders"))
		time.Sleep(48 * time.Hour)
		require.Len(t, p.questions(), 14, "fifteen in all")
		stats := s.nodes.Stats()[testShard]
		require.Equal(t, []int64{0, 1}, []int64{stats.Half, stats.GivenUp})
		require.Equal(t, uint64(1), stats.HalvesGivenUp)
		require.Equal(t, rmqpb.Code_OK, s.resolve(t, "orders", "m", sent.GetTransactionId(), commit).GetCode())
		c := s.consumer("orders", "g")
		got := c.receive(t, c.simple(10, time.Minute, 0))
		require.Equal(t, []string{"m"}, got.ids())
		require.Equal(t, "body of m", string(got.messages[0].GetBody()), "it is as it was sent")
		require.Equal(t, map[string]string{"k": "v"}, got.messages[0].GetUserProperties())
		require.Equal(t, []string{"key"}, got.messages[0].GetSystemProperties().GetKeys())
	})
}

// A producer that does not read its stream, or goes while a question is on its way to it,
// was not asked.
func TestAQuestionThatDidNotLeaveTheServerDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		s.transactions(t, "other")
		conn := s.dial(t)
		ctx, cancel := context.WithCancel(from(t, "deaf"))
		deaf := open(t, rmqpb.NewMessagingServiceClient(conn), ctx)
		offer(t, deaf, producing("orders"))
		p := connect(t, s.dial(t), "p", producing("other"))
		for i := range 40 {
			m := halfMessage("orders", fmt.Sprint("m", i))
			m.Body = make([]byte, 100<<10)
			s.send(t, m)
		}
		s.send(t, halfMessage("other", "n"))
		time.Sleep(15 * time.Second)
		require.Equal(t, []string{"n"}, p.questions(), "nobody else is held up")
		cancel()
		synctest.Wait()
		stats := s.nodes.Stats()[testShard]
		require.Positive(t, stats.Unasked)
		require.Less(t, stats.Checks-stats.Unasked, uint64(30), "what a window of the connection takes, and n")
		p2 := connect(t, s.dial(t), "p2", producing("orders"))
		time.Sleep(15 * time.Second)
		require.Greater(t, len(p2.questions()), 10, "they are asked again soon")
	})
}

func TestAClientThatSaidGoodbyeIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		s.transactions(t, "orders")
		p := connect(t, s.dial(t), "p", producing("orders"))
		s.send(t, halfMessage("orders", "m"))
		_, err := s.NotifyClientTermination(as(t, "p"), &rmqpb.NotifyClientTerminationRequest{})
		require.NoError(t, err)
		time.Sleep(time.Hour)
		require.Empty(t, p.questions())
	})
}

func TestATopicOfANamespaceHasItsOwnProducers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		_, _, err := s.meta.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Namespace: "ns", Name: "orders"}, Queues: 1, Type: mq.TopicTransaction})
		require.NoError(t, err)
		s.transactions(t, "orders")
		conn := s.dial(t)
		plain := connect(t, conn, "plain", producing("orders"))
		settings := producing("orders")
		settings.GetPublishing().Topics[0].ResourceNamespace = "ns"
		named := connect(t, conn, "named", settings)
		m := halfMessage("orders", "m")
		m.Topic.ResourceNamespace = "ns"
		s.send(t, m)
		time.Sleep(7 * time.Second)
		require.Empty(t, plain.questions())
		require.Equal(t, []string{"m"}, named.questions())
	})
}

// A stream that begins and ends again and again is no reason to lose a producer, or to
// keep one.
func TestProducersAreForgottenWithTheirLastStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		conn := s.dial(t)
		first := connect(t, conn, "p", producing("a", "b"))
		second := connect(t, conn, "p", producing("a", "b"))
		synctest.Wait()
		require.Len(t, s.producers().topics(), 2)
		first.leave()
		require.Len(t, s.producers().topics(), 2)
		second.leave()
		require.Empty(t, s.producers().topics())
		s.producers().mu.Lock()
		defer s.producers().mu.Unlock()
		require.Empty(t, s.producers().mu.of)
		require.Empty(t, s.producers().mu.topics)
	})
}
