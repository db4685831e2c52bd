package admin

import (
	"context"
	"fmt"
	"strings"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// maxReconnects bounds how many clients one request names.
const maxReconnects = 1000

// ReconnectClients asks clients to connect anew.
func (s *Server) ReconnectClients(ctx context.Context, req *adminpb.ReconnectClientsRequest) (*adminpb.ReconnectClientsResponse, error) {
	if err := checkReconnect(req); err != nil {
		return nil, s.refusal(ctx, err)
	}
	percent := int(req.GetPercent())
	if percent == 0 {
		percent = 100
	}
	asked, unreachable := s.clients.Reconnect(req.GetClientIds(), percent)
	s.logger.InfoContext(ctx, "clients asked to reconnect", "asked", asked, "unreachable", len(unreachable))
	return &adminpb.ReconnectClientsResponse{Asked: int32(asked), Unreachable: unreachable}, nil
}

func checkReconnect(req *adminpb.ReconnectClientsRequest) error {
	ids, percent := req.GetClientIds(), req.GetPercent()
	switch {
	case len(ids) > maxReconnects:
		return invalid("client_ids", fmt.Sprint(len(ids)), fmt.Sprintf("may name at most %d clients", maxReconnects))
	case percent < 0 || percent > 100:
		return invalid("percent", fmt.Sprint(percent), "must lie between 0 and 100")
	case len(ids) > 0 && percent != 0:
		return invalid("percent", fmt.Sprint(percent), "must not come with client_ids")
	}
	for _, id := range ids {
		if strings.TrimSpace(id) == "" {
			return invalid("client_ids", id, "must not be blank")
		}
	}
	return nil
}
