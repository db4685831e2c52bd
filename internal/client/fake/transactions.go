package fake

import (
	"context"
	"slices"
	"sync"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Transactions keeps half messages in memory, two on each page.
type Transactions struct {
	adminpb.UnimplementedTransactionServiceServer

	halves struct {
		sync.Mutex
		list []*adminpb.Transaction
	}
}

// AddTransaction adds a half message.
func (t *Transactions) AddTransaction(one *adminpb.Transaction) {
	t.halves.Lock()
	defer t.halves.Unlock()
	t.halves.list = append(t.halves.list, one)
}

// ListTransactions looks at topic, stage, message id and page.
func (t *Transactions) ListTransactions(_ context.Context, req *adminpb.ListTransactionsRequest) (*adminpb.ListTransactionsResponse, error) {
	t.halves.Lock()
	defer t.halves.Unlock()
	resp := &adminpb.ListTransactionsResponse{}
	behind := req.PageToken == ""
	for _, one := range t.halves.list {
		if !behind {
			behind = one.Id == req.PageToken
			continue
		}
		if len(resp.Transactions) == 2 {
			resp.NextPageToken = resp.Transactions[1].Id
			break
		}
		if (req.Topic == "" || req.Topic == one.Topic) && (req.Stage == 0 || req.Stage == one.Stage) &&
			(req.MessageId == "" || req.MessageId == one.MessageId) {
			resp.Transactions = append(resp.Transactions, one)
		}
	}
	return resp, nil
}

// EndTransactions removes those that are there, or makes them wait again.
func (t *Transactions) EndTransactions(_ context.Context, req *adminpb.EndTransactionsRequest) (*adminpb.EndTransactionsResponse, error) {
	t.halves.Lock()
	defer t.halves.Unlock()
	resp := &adminpb.EndTransactionsResponse{}
	for _, id := range req.Ids {
		result := &adminpb.TransactionResult{Id: id, Error: "unknown transaction"}
		if i := slices.IndexFunc(t.halves.list, func(one *adminpb.Transaction) bool { return one.Id == id }); i >= 0 {
			result.Error = ""
			if req.End == adminpb.TransactionEnd_TRANSACTION_END_CHECK {
				t.halves.list[i].Stage = adminpb.TransactionStage_TRANSACTION_STAGE_WAITING
			} else {
				t.halves.list = slices.Delete(t.halves.list, i, i+1)
			}
		}
		resp.Results = append(resp.Results, result)
	}
	return resp, nil
}
