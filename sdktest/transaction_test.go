package sdktest

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/stretchr/testify/require"
)

// checked is what a producer was asked, and what it answers.
type checked struct {
	mu     sync.Mutex
	asked  []string
	answer map[string]rmq.TransactionResolution // by body
}

func (c *checked) check(view *rmq.MessageView) rmq.TransactionResolution {
	c.mu.Lock()
	defer c.mu.Unlock()
	body := string(view.GetBody())
	c.asked = append(c.asked, body)
	return c.answer[body]
}

func (c *checked) will(body string, r rmq.TransactionResolution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer[body] = r
}

func (c *checked) was(body string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, one := range c.asked {
		if one == body {
			n++
		}
	}
	return n
}

func startTransactionProducer(t *testing.T, endpoint, topic string) (rmq.Producer, *checked) {
	t.Helper()
	c := &checked{answer: map[string]rmq.TransactionResolution{}}
	p, err := rmq.NewProducer(&rmq.Config{Endpoint: endpoint}, rmq.WithTopics(topic),
		rmq.WithTransactionChecker(&rmq.TransactionChecker{Check: c.check}))
	require.NoError(t, err)
	require.NoError(t, p.Start())
	t.Cleanup(func() { require.NoError(t, p.GracefulStop()) })
	return p, c
}

// half sends a half message.
func half(t *testing.T, p rmq.Producer, topic, body string) rmq.Transaction {
	t.Helper()
	transaction := p.BeginTransaction()
	receipts, err := p.SendWithTransaction(t.Context(), message(topic, body, ""), transaction)
	require.NoError(t, err)
	require.Len(t, receipts, 1)
	require.NotEmpty(t, receipts[0].TransactionId)
	return transaction
}

func TestTransactionsEndAsTheirProducersSay(t *testing.T) {
	t.Parallel()
	s := ownServer(t, "--transactions-first-check=1s", "--transactions-check-interval=1s", "--transactions-max-check-interval=1s")
	topic, group := s.topic("--type", "TRANSACTION"), s.group()
	p, c := startTransactionProducer(t, s.Endpoint(), topic)
	c.will("asked, committed", rmq.COMMIT)
	c.will("asked, rolled back", rmq.ROLLBACK)

	committed := half(t, p, topic, "committed")
	require.NoError(t, committed.Commit())
	require.NoError(t, committed.Commit(), "again")
	require.Error(t, committed.RollBack(), "it has ended")
	require.NoError(t, half(t, p, topic, "rolled back").RollBack())
	for _, body := range []string{"asked, committed", "asked, rolled back", "asked, unknown"} {
		half(t, p, topic, body)
	}
	consumer := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := consumer.receive(2, longInvisible)
	list := bodies(got)
	slices.Sort(list)
	require.Equal(t, []string{"asked, committed", "committed"}, list)
	consumer.ack(got...)

	require.Eventually(t, func() bool { return c.was("asked, unknown") >= 3 }, time.Minute, 50*time.Millisecond, "asked again and again")
	c.will("asked, unknown", rmq.COMMIT)
	got = consumer.receive(1, longInvisible)
	require.Equal(t, []string{"asked, unknown"}, bodies(got))
	consumer.ack(got...)
	s.awaitSettled(group, topic)
	require.Equal(t, 1, c.was("asked, rolled back"))
	require.Equal(t, 1, c.was("asked, committed"))
	require.Zero(t, c.was("committed")+c.was("rolled back"), "nobody is asked about what is known")
}

// The server ends between the half message and the end of its transaction, and an
// operator ends what its producer does not.
func TestTransactionsSurviveTheEndOfTheServer(t *testing.T) {
	t.Parallel()
	s := ownServer(t, "--transactions-first-check=1s", "--transactions-check-interval=1s", "--transactions-max-checks=2")
	topic, group := s.topic("--type", "TRANSACTION"), s.group()
	p, _ := startTransactionProducer(t, s.Endpoint(), topic)
	kept := half(t, p, topic, "kept")
	half(t, p, topic, "orphan")
	require.NoError(t, s.Kill())
	require.NoError(t, s.Start(t.Context()))
	require.Eventually(t, func() bool { return kept.Commit() == nil }, time.Minute, 100*time.Millisecond)
	consumer := startSimpleConsumer(t, s.Endpoint(), group, topic, everything)
	got := consumer.receive(1, longInvisible)
	require.Equal(t, []string{"kept"}, bodies(got))
	consumer.ack(got...)

	// Another producer does not know, and is asked twice. The first one may take minutes
	// to find that it has no stream any more.
	_, c := startTransactionProducer(t, s.Endpoint(), topic)
	var listed struct {
		ID     string `json:"id"`
		Checks int    `json:"checks"`
	}
	require.Eventually(t, func() bool {
		out := s.perigee("transaction", "list", "--topic", topic, "--stage", "given-up", "--json")
		return strings.TrimSpace(out) != "" && json.Unmarshal([]byte(out), &listed) == nil
	}, time.Minute, 100*time.Millisecond)
	require.Equal(t, 2, listed.Checks)
	require.LessOrEqual(t, c.was("orphan"), 2)
	require.Positive(t, c.was("orphan"))
	s.perigee("transaction", "commit", listed.ID)
	got = consumer.receive(1, longInvisible)
	require.Equal(t, []string{"orphan"}, bodies(got))
	consumer.ack(got...)
	s.awaitSettled(group, topic)
}
