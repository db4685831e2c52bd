package admin

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/receipt"
)

// half sends a half message to a queue of a shard, and returns its transaction id.
func (f *fixture) half(t *testing.T, topic, shard, id string) string {
	tp, err := f.router.Topic(t.Context(), mq.Resource{Name: topic})
	require.NoError(t, err)
	a, err := f.store.Append(t.Context(), shard, tp, 0, []*mq.Message{{ID: id, Type: mq.Transaction, Body: []byte("x"), Recovery: time.Minute}})
	require.NoError(t, err)
	return receipt.EncodePending(mq.PendingHandle{Shard: shard, Topic: tp.ID, ID: a[0].Pending, MessageID: id})
}

func (f *fixture) halves(t *testing.T) (handles map[string]string) {
	handles = map[string]string{}
	for _, name := range []string{"a", "b"} {
		_, err := f.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name, Type: adminpb.TopicType_TOPIC_TYPE_TRANSACTION})
		require.NoError(t, err)
		for i := range 4 {
			id := fmt.Sprint(name, i)
			handles[id] = f.half(t, name, shards[i%2], id)
		}
	}
	return handles
}

func (f *fixture) transactions(t *testing.T, req *adminpb.ListTransactionsRequest) (list []*adminpb.Transaction) {
	for {
		resp, err := f.ListTransactions(t.Context(), req)
		require.NoError(t, err)
		list = append(list, resp.GetTransactions()...)
		if req.PageToken = resp.GetNextPageToken(); req.PageToken == "" {
			return list
		}
	}
}

func names(list []*adminpb.Transaction) (ids []string) {
	for _, one := range list {
		ids = append(ids, one.GetMessageId())
	}
	return ids
}

func TestHalfMessagesAreListedByTopicAndStage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		s.halves(t)
		const waiting, givenUp = adminpb.TransactionStage_TRANSACTION_STAGE_WAITING, adminpb.TransactionStage_TRANSACTION_STAGE_GIVEN_UP
		for _, size := range []int32{0, 1, 3, 1000} {
			require.Equal(t, []string{"a0", "a2", "a1", "a3", "b0", "b2", "b1", "b3"}, names(s.transactions(t, &adminpb.ListTransactionsRequest{PageSize: size})), "page of %d", size)
			require.Equal(t, []string{"b0", "b2", "b1", "b3"}, names(s.transactions(t, &adminpb.ListTransactionsRequest{PageSize: size, Topic: "b", Stage: waiting})))
		}
		require.Empty(t, s.transactions(t, &adminpb.ListTransactionsRequest{Stage: givenUp}))
		require.Empty(t, s.transactions(t, &adminpb.ListTransactionsRequest{Namespace: "other"}))
		one := s.transactions(t, &adminpb.ListTransactionsRequest{MessageId: "b2"})
		require.Equal(t, []string{"b2"}, names(one))
		require.Equal(t, "b", one[0].GetTopic())
		require.Equal(t, waiting, one[0].GetStage())
		require.WithinDuration(t, time.Now().Add(time.Minute), one[0].GetNextCheckAt().AsTime(), time.Second)

		// The producer of topic a is asked until it is given up.
		end := time.Now().Add(100 * time.Hour)
		for n := 0; n < 4*15; {
			checks, err := s.store.Checks(t.Context(), []mq.Resource{{Name: "a"}}, 10)
			require.NoError(t, err)
			n += len(checks)
		}
		time.Sleep(time.Until(end))
		given := s.transactions(t, &adminpb.ListTransactionsRequest{Stage: givenUp})
		require.ElementsMatch(t, []string{"a0", "a1", "a2", "a3"}, names(given))
		require.EqualValues(t, 15, given[0].GetChecks())
		require.Nil(t, given[0].GetNextCheckAt())
		require.Len(t, s.transactions(t, &adminpb.ListTransactionsRequest{PageSize: 1}), 8)
		s.half(t, "a", shards[1], "a4")
		for _, size := range []int32{1, 2, 1000} {
			all := s.transactions(t, &adminpb.ListTransactionsRequest{PageSize: size, Topic: "a"})
			require.Equal(t, append([]string{"a4"}, names(given)...), names(all), "of all stages, one after the other")
			require.Equal(t, waiting, all[0].GetStage())
			require.Equal(t, givenUp, all[4].GetStage())
		}

		_, err := s.ListTransactions(t.Context(), &adminpb.ListTransactionsRequest{Topic: "c"})
		requireCode(t, codes.NotFound, err, `"c"`)
		_, err = s.ListTransactions(t.Context(), &adminpb.ListTransactionsRequest{Stage: 7})
		requireCode(t, codes.InvalidArgument, err, "stage")
		_, err = s.ListTransactions(t.Context(), &adminpb.ListTransactionsRequest{PageSize: -1})
		requireCode(t, codes.InvalidArgument, err, "page_size")
		for _, token := range []string{"x", "1.0.0.5", "1.0.-1.5.6", "1.0.0.-5.6", "01.0.0.5.6", "1.0.0.5.6.7", "1.300.0.5.6"} {
			_, err = s.ListTransactions(t.Context(), &adminpb.ListTransactionsRequest{PageToken: token})
			requireCode(t, codes.InvalidArgument, err, "page_token")
		}
	})
}

func TestHalfMessagesAreEndedByIDOrTransactionID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFixture(t)
		handles := s.halves(t)
		byID := map[string]string{}
		for _, one := range s.transactions(t, &adminpb.ListTransactionsRequest{}) {
			byID[one.GetMessageId()] = one.GetId()
		}
		end := func(end adminpb.TransactionEnd, ids ...string) (errs []string) {
			resp, err := s.EndTransactions(t.Context(), &adminpb.EndTransactionsRequest{Ids: ids, End: end})
			require.NoError(t, err)
			for i, r := range resp.GetResults() {
				require.Equal(t, ids[i], r.GetId())
				errs = append(errs, r.GetError())
			}
			return errs
		}
		const commit, rollback, check = adminpb.TransactionEnd_TRANSACTION_END_COMMIT, adminpb.TransactionEnd_TRANSACTION_END_ROLLBACK, adminpb.TransactionEnd_TRANSACTION_END_CHECK
		got := end(commit, byID["a0"], handles["b1"], "s1/999", "nonsense", "s9/7", "s1/x", byID["a0"])
		for i, want := range []string{"", "", "unknown transaction", "invalid handle", "shard not found", "must be a shard", ""} {
			require.Contains(t, got[i], want)
			require.Equal(t, want == "", got[i] == "", got[i])
		}
		got = end(rollback, byID["a1"], byID["a0"])
		require.Equal(t, "", got[0])
		require.Contains(t, got[1], "has ended")
		got = end(check, byID["a2"], byID["a1"])
		require.Equal(t, "", got[0])
		require.Contains(t, got[1], "rolled back")
		checks, err := s.store.Checks(t.Context(), []mq.Resource{{Name: "a"}}, 10)
		require.NoError(t, err)
		require.Len(t, checks, 1, "asked at once")
		require.Equal(t, "a2", checks[0].MessageID)
		require.ElementsMatch(t, []string{"a2", "a3", "b0", "b2", "b3"}, names(s.transactions(t, &adminpb.ListTransactionsRequest{})))
		_, err = s.EndTransactions(t.Context(), &adminpb.EndTransactionsRequest{Ids: []string{"s1/1"}})
		requireCode(t, codes.InvalidArgument, err, "end")
		_, err = s.EndTransactions(t.Context(), &adminpb.EndTransactionsRequest{End: commit})
		requireCode(t, codes.InvalidArgument, err, "ids")
	})
}
