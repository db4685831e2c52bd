package proxy

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// A silentStore is one whose node does not answer.
type silentStore struct{ Store }

func silent(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("store node x has not answered: %w", ctx.Err())
}

func (silentStore) Append(ctx context.Context, _ string, _ *mq.Topic, _ mq.QueueID, _ []*mq.Message) ([]mq.Appended, error) {
	return nil, silent(ctx)
}

func (silentStore) Receive(ctx context.Context, _ string, _ mq.Receive) ([]mq.Delivery, error) {
	return nil, silent(ctx)
}

// TestAStoreThatDoesNotAnswerIsToldOfBeforeTheDeadline: of the client, which would else give up
// and not know why.
func TestAStoreThatDoesNotAnswerIsToldOfBeforeTheDeadline(t *testing.T) {
	for _, limit := range []time.Duration{3 * time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			s := newTestServer(t)
			s.topic(t, "t")
			s.Server.store = silentStore{s.Server.store}
			c := s.consumer("t", "g")
			conn := s.dial(t)
			told := func(status *rmqpb.Status, err error, began time.Time) {
				t.Helper()
				require.NoError(t, err)
				require.Equal(t, rmqpb.Code_PROXY_TIMEOUT, status.GetCode(), status.GetMessage())
				require.Contains(t, status.GetMessage(), "store node x has not answered")
				require.GreaterOrEqual(t, time.Since(began), limit/2, "it was given its time")
			}
			ctx, cancel := context.WithTimeout(from(t, c.id), limit)
			defer cancel()
			began := time.Now()
			sent, err := rmqpb.NewMessagingServiceClient(conn).SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{message("t", "n", "x")}})
			told(sent.GetStatus(), err, began)

			ctx, cancel = context.WithTimeout(from(t, c.id), limit)
			defer cancel()
			began = time.Now()
			got, err := receiveOver(t, ctx, conn, c.simple(1, time.Minute, limit/2))
			told(&rmqpb.Status{Code: got.code, Message: got.text}, err, began)
		})
	}
}
