package proxy

import (
	"crypto/rand"
	mathrand "math/rand/v2"
	"slices"
	"strings"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/proxy/session"
)

// Reconnect asks clients over their Telemetry streams to connect anew, and returns
// how many were asked and, in order, the ids of those that could not be. Without
// ids it asks a share of all that are connected, in percent. No client need obey:
// Java replaces its connection, Node.js its stream, Go tells the application, the
// others do nothing.
//
// Clients whose settings have not come yet are not asked: an old Node.js SDK
// takes a command that it does not know, while it starts, for a failed start.
func (s *Server) Reconnect(ids []string, percent int) (asked int, unreachable []string) {
	for _, id := range s.toReconnect(ids, percent) {
		client := s.sessions.Get(id)
		if client == nil || client.Settings() == nil || !client.Send(reconnectCommand()) {
			unreachable = append(unreachable, id)
			continue
		}
		asked++
	}
	return asked, unreachable
}

func reconnectCommand() *rmqpb.TelemetryCommand {
	return &rmqpb.TelemetryCommand{Status: ok(), Command: &rmqpb.TelemetryCommand_ReconnectEndpointsCommand{
		ReconnectEndpointsCommand: &rmqpb.ReconnectEndpointsCommand{Nonce: rand.Text()},
	}}
}

// toReconnect returns whom to ask, in order and each once.
func (s *Server) toReconnect(ids []string, percent int) []string {
	if len(ids) > 0 {
		return slices.Compact(slices.Sorted(slices.Values(ids)))
	}
	all := slices.DeleteFunc(s.sessions.All(), func(c *session.Session) bool { return !c.Connected() })
	mathrand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	// Rounded up: of a few clients, a small share is one.
	all = all[:(len(all)*percent+99)/100]
	slices.SortFunc(all, func(a, b *session.Session) int { return strings.Compare(a.ID, b.ID) })
	for _, c := range all {
		ids = append(ids, c.ID)
	}
	return ids
}
