package fake

import (
	"cmp"
	"context"
	"slices"
	"sync"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Clients lists the clients it was given, two on each page.
type Clients struct {
	adminpb.UnimplementedClientServiceServer

	clients struct {
		sync.Mutex
		list []*adminpb.Client
	}
}

// AddClient adds a client to the list.
func (c *Clients) AddClient(one *adminpb.Client) {
	c.clients.Lock()
	defer c.clients.Unlock()
	c.clients.list = append(c.clients.list, one)
	slices.SortFunc(c.clients.list, func(a, b *adminpb.Client) int { return cmp.Compare(a.Id, b.Id) })
}

// ListClients looks at the group and the page only.
func (c *Clients) ListClients(_ context.Context, req *adminpb.ListClientsRequest) (*adminpb.ListClientsResponse, error) {
	c.clients.Lock()
	defer c.clients.Unlock()
	resp := &adminpb.ListClientsResponse{}
	for _, one := range c.clients.list {
		if one.Id <= req.After || req.Group != "" && (one.Group != req.Group || one.Namespace != req.Namespace) {
			continue
		}
		if len(resp.Clients) == 2 {
			resp.More = true
			break
		}
		resp.Clients = append(resp.Clients, one)
	}
	return resp, nil
}
