package proxy

import (
	"context"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// GroupChanged sends new settings to the connected consumers of a group that was
// changed: SDKs take the delays and the number of their retries from them, and
// ask again only after minutes. It waits for none of them; one that does not read
// its stream, or has none, learns of it with its next settings.
func (s *Server) GroupChanged(ctx context.Context, group *mq.Group) {
	for _, t := range s.streams.all() {
		t.groupChanged(ctx, group)
	}
}

// groupChanged sends the settings if the client consumes for the group and has no
// newer stream.
func (t *telemetry) groupChanged(ctx context.Context, group *mq.Group) {
	t.mu.Lock()
	session := t.mu.session
	t.mu.Unlock()
	if session == nil || session.Newest() != t.out {
		return
	}
	settings := session.Settings()
	if subscription := settings.GetSubscription(); subscription == nil || t.client.resource(subscription.GetGroup()) != group.Resource {
		return
	}
	t.answer(ctx, settings)
}

// answer queues what the client is to work with, and reports whether there was
// room for it.
func (t *telemetry) answer(ctx context.Context, settings *rmqpb.Settings) (reply *rmqpb.TelemetryCommand, sent bool) {
	t.answering.Lock()
	defer t.answering.Unlock()
	reply = &rmqpb.TelemetryCommand{
		Status:  ok(),
		Command: &rmqpb.TelemetryCommand_Settings{Settings: t.server.mergeSettings(ctx, t.client, settings)},
	}
	return reply, t.out.Send(reply)
}
