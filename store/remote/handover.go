package remote

import (
	"context"
	"time"

	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/mq"
)

// Orphans is that of store.Store, over all nodes that are alive. With an error the clients are
// those of the nodes that have answered.
func (c *Client) Orphans(ctx context.Context) ([]string, error) {
	var clients []string
	err := rpc[storepb.GetOrphansRequest, storepb.GetOrphansResponse](storepb.StoreServiceClient.GetOrphans).
		gather(ctx, c, &storepb.GetOrphansRequest{}, func(resp *storepb.GetOrphansResponse) {
			clients = append(clients, each(resp.GetClients(), toClient)...)
		})
	return clients, err
}

// Adopt is that of store.Store, over all nodes that are alive. With an error the leases are
// those of the nodes that have answered.
func (c *Client) Adopt(ctx context.Context, a mq.Adoption) ([]mq.Adopted, error) {
	var adopted []mq.Adopted
	err := rpc[storepb.AdoptRequest, storepb.AdoptResponse](storepb.StoreServiceClient.Adopt).
		gather(ctx, c, adoptionPB(a), func(resp *storepb.AdoptResponse) {
			adopted = append(adopted, each(resp.GetAdopted(), toAdopted)...)
		})
	return adopted, err
}

// GetOrphans calls store.Orphans.
func (s *Server) GetOrphans(ctx context.Context, _ *storepb.GetOrphansRequest) (*storepb.GetOrphansResponse, error) {
	clients, err := s.store.Orphans(ctx)
	return reply(&storepb.GetOrphansResponse{Clients: each(clients, clientPB)}, err)
}

// Adopt calls store.Adopt. What it has adopted when it fails is answered: it may be asked again
// for the rest.
func (s *Server) Adopt(ctx context.Context, req *storepb.AdoptRequest) (*storepb.AdoptResponse, error) {
	adopted, err := s.store.Adopt(ctx, toAdoption(req))
	if len(adopted) > 0 {
		err = nil
	}
	return reply(&storepb.AdoptResponse{Adopted: each(adopted, adoptedPB)}, err)
}

// Ids of clients need not be text.
func clientPB(id string) []byte { return []byte(id) }
func toClient(id []byte) string { return string(id) }

func adoptionPB(a mq.Adoption) *storepb.AdoptRequest {
	return &storepb.AdoptRequest{Clients: each(a.Clients, clientPB), Keeper: uint64(a.Keeper), Invisible: int64(a.Invisible)}
}

func toAdoption(a *storepb.AdoptRequest) mq.Adoption {
	return mq.Adoption{Clients: each(a.GetClients(), toClient), Keeper: mq.KeeperID(a.GetKeeper()), Invisible: time.Duration(a.GetInvisible())}
}

func adoptedPB(a mq.Adopted) *storepb.Adopted {
	return &storepb.Adopted{Client: clientPB(a.Client), Lease: leasePB(a.Lease), Age: int64(a.Age)}
}

func toAdopted(a *storepb.Adopted) mq.Adopted {
	return mq.Adopted{Client: toClient(a.GetClient()), Lease: toLease(a.GetLease()), Age: time.Duration(a.GetAge())}
}
