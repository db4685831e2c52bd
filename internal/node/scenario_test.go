package node

import (
	"maps"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// A ledger is what the metrics must say. A step changes it, and then compares.
type ledger map[string]float64

func (l ledger) check(s *scene, step string, changes ledger) {
	s.t.Helper()
	for name, by := range changes {
		l[name] += by
	}
	got := figures(s.scrape())
	for name, want := range l {
		have, there := got[name]
		require.True(s.t, there, "%s: %s is not served", step, name)
		require.InDelta(s.t, want, have, 1e-6, "%s: %s", step, name)
	}
}

// TestEachMetricIsRightAtEachStep sends, receives, acknowledges, fails and deletes,
// and compares every figure with what was done.
func TestEachMetricIsRightAtEachStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000)
		l := ledger{
			"perigee_build_info{go_version=" + runtime.Version() + ",version=v1.2.3}": 1,
			"perigee_ready": 0, "perigee_recovery_seconds": 0, "perigee_router_failed": 0, "perigee_router_degraded": 0, "perigee_shard_failed": 0,
			"perigee_disk_total_bytes": 1000, "perigee_disk_used_bytes": 600, "perigee_disk_available_bytes": 350,
			"perigee_connections": 0, "perigee_sessions": 0, "perigee_telemetry_streams": 0,
			"perigee_leases_renewing": 0, "perigee_leases_renewed_total": 0, "perigee_leases_taken_over_total": 0, "perigee_receives_waiting": 0,
			"perigee_messages_appended_total": 0, "perigee_messages_appended_bytes_total": 0,
			"perigee_messages_delivered_total": 0, "perigee_messages_redelivered_total": 0,
			"perigee_messages_acknowledged_total": 0, "perigee_acks_refused_total": 0, "perigee_leases_expired_total": 0,
			"perigee_messages_dead_lettered_total": 0, "perigee_messages_lost_total": 0, "perigee_messages_unreadable_total": 0,
			"perigee_messages_trimmed_total": 0, "perigee_messages_evicted_total": 0, "perigee_messages_abandoned_total": 0,
			"perigee_disk_refuse_bytes": 0, "perigee_disk_full_refused_total": 0, "perigee_log_removals_failed_total": 0, "perigee_receives_woken_total": 0,
			"perigee_connections_limit": 5, "perigee_connections_refused_total{reason=limit}": 0,
			"perigee_connections_refused_total{reason=protocol}": 0, "perigee_tls_reloads_total": 0, "perigee_tls_reload_failures_total": 0,
			"perigee_deliveries_memory_bytes": 0, "perigee_deliveries_refused_total": 0,
			"perigee_log_segments": 1, "perigee_receive_wait_seconds": 0,
			"perigee_metrics_dropped_topics": 0, "perigee_metrics_dropped_groups": 0,
			"perigee_router_followed": 1, "perigee_shards_unserved": 1,
			"perigee_nodes{tier=store}": 1, "perigee_nodes{tier=proxy}": 0, "perigee_stores_connected": 3, "perigee_stores_unreachable": 1,
			"perigee_store_calls_total{result=answered}": 7, "perigee_store_calls_total{result=unknown}": 2,
			"perigee_store_calls_total{result=unsent}": 0, "perigee_store_calls_total{result=abandoned}": 0,
			"perigee_tier_streams{method=/perigee.store.v1.StoreService/Calls}":                                           1,
			"perigee_tier_duration_seconds{grpc_code=Unavailable,method=/perigee.store.v1.StoreService/Pull,side=client}": 1,
		}
		l.check(s, "start", nil)
		s.notUp = nil
		s.serving()
		l.check(s, "ready", ledger{"perigee_ready": 1, "perigee_recovery_seconds": 1})

		orders := s.topic("orders")
		_, _, err := s.router.CreateGroup(t.Context(), router.GroupSpec{
			Resource: mq.Resource{Name: "billing"},
			Retry:    mq.RetryPolicy{MaxAttempts: 2, Customized: []time.Duration{10 * time.Second}},
		})
		require.NoError(t, err)
		s.send("orders", "1", "2", "3")
		s.send("orders", "4")
		const sendOK = "perigee_rpc_duration_seconds{code=OK,grpc_code=OK,method=/apache.rocketmq.v2.MessagingService/SendMessage}"
		l.check(s, "4 sent in 2 calls", ledger{
			sendOK: 2, "perigee_connections": 1,
			"perigee_messages_appended_total": 4, "perigee_messages_appended_bytes_total": 20,
			"perigee_topic_in_messages_total{topic=orders}": 4, "perigee_topic_out_messages_total{topic=orders}": 0,
			"perigee_topic_out_bytes_total{topic=orders}": 0, "perigee_topic_stored_messages{topic=orders}": 4,
			"perigee_log_records_total": 3, // the topic is registered with the first
			"perigee_log_syncs_total":   2, "perigee_log_unflushed_bytes": 0, "perigee_log_unapplied_bytes": 0,
			"perigee_stage_duration_seconds{stage=queue}": 2, "perigee_stage_duration_seconds{stage=append}": 2,
			"perigee_stage_duration_seconds{stage=fsync}": 2, "perigee_stage_duration_seconds{stage=apply}": 2,
			"perigee_stage_duration_seconds{stage=answer}": 2,
		})
		stored := figures(s.scrape())["perigee_topic_in_bytes_total{topic=orders}"]
		require.Greater(t, stored, 20.0)
		l["perigee_topic_in_bytes_total{topic=orders}"] = stored

		const received = "perigee_rpc_duration_seconds{code=OK,grpc_code=OK,method=/apache.rocketmq.v2.MessagingService/ReceiveMessage}"
		handles := s.receive("orders", "billing", 3, false)
		require.Len(t, handles, 3)
		const of = "{group=billing,topic=orders}"
		l.check(s, "3 of 4 received", ledger{
			received:           1,
			"perigee_sessions": 1, "perigee_messages_delivered_total": 3,
			"perigee_topic_out_messages_total{topic=orders}": 3, "perigee_topic_out_bytes_total{topic=orders}": stored * 3 / 4,
			"perigee_group_ready_messages" + of: 1, "perigee_group_retrying_messages" + of: 0,
			"perigee_group_in_flight_messages" + of: 3, "perigee_group_used_up_messages" + of: 0,
			"perigee_group_delivered_messages_total" + of: 3, "perigee_group_redelivered_messages_total" + of: 0,
			"perigee_group_acknowledged_messages_total" + of: 0, "perigee_group_refused_acks_total" + of: 0,
			"perigee_group_expired_leases_total" + of: 0, "perigee_group_dead_lettered_messages_total" + of: 0,
			"perigee_group_lost_messages_total" + of: 0, "perigee_group_unreadable_messages_total" + of: 0,
			"perigee_group_oldest_age_seconds" + of: 3, // three scrapes, a second each
			"perigee_log_records_total":             2, "perigee_log_syncs_total": 1,
			"perigee_stage_duration_seconds{stage=queue}": 1, "perigee_stage_duration_seconds{stage=append}": 1,
			"perigee_stage_duration_seconds{stage=fsync}": 1, "perigee_stage_duration_seconds{stage=apply}": 1,
			"perigee_stage_duration_seconds{stage=answer}": 1,
		})

		require.Equal(t, rmqpb.Code_OK, s.ack("orders", "billing", handles[0]))
		require.Equal(t, rmqpb.Code_OK, s.ack("orders", "billing", handles[0]), "repeated")
		l.check(s, "1 acknowledged, twice", ledger{
			"perigee_rpc_duration_seconds{code=OK,grpc_code=OK,method=/apache.rocketmq.v2.MessagingService/AckMessage}": 2,
			"perigee_messages_acknowledged_total": 1, "perigee_acks_refused_total": 1,
			"perigee_group_acknowledged_messages_total" + of: 1, "perigee_group_refused_acks_total" + of: 1,
			"perigee_group_in_flight_messages" + of: -1, "perigee_group_oldest_age_seconds" + of: 1,
			"perigee_log_records_total": 2, "perigee_log_syncs_total": 2,
			"perigee_stage_duration_seconds{stage=queue}": 2, "perigee_stage_duration_seconds{stage=append}": 2,
			"perigee_stage_duration_seconds{stage=fsync}": 2, "perigee_stage_duration_seconds{stage=apply}": 2,
			"perigee_stage_duration_seconds{stage=answer}": 2,
		})

		// From here on the shard has work of its own.
		maps.DeleteFunc(l, func(name string, _ float64) bool {
			return strings.HasPrefix(name, "perigee_stage") || name == "perigee_log_records_total" || name == "perigee_log_syncs_total"
		})
		s.change("orders", "billing", handles[1], 0)
		l.check(s, "1 given back at once", ledger{
			"perigee_group_ready_messages" + of: 1, "perigee_group_retrying_messages" + of: 1,
			"perigee_group_in_flight_messages" + of: -1, "perigee_group_oldest_age_seconds" + of: 1,
		})
		time.Sleep(30 * time.Second)
		l.check(s, "1 not settled in time", ledger{
			"perigee_leases_expired_total": 1, "perigee_group_expired_leases_total" + of: 1,
			"perigee_group_ready_messages" + of: 1, "perigee_group_retrying_messages" + of: 1,
			"perigee_group_in_flight_messages" + of: -1, "perigee_group_oldest_age_seconds" + of: 31,
		})

		require.Len(t, s.receive("orders", "billing", 32, false), 3)
		l.check(s, "all received, 2 of them again", ledger{
			received: 1, "perigee_messages_delivered_total": 3, "perigee_messages_redelivered_total": 2,
			"perigee_topic_out_messages_total{topic=orders}": 3, "perigee_topic_out_bytes_total{topic=orders}": stored * 3 / 4,
			"perigee_group_delivered_messages_total" + of: 3, "perigee_group_redelivered_messages_total" + of: 2,
			"perigee_group_ready_messages" + of: -3, "perigee_group_retrying_messages" + of: -2,
			"perigee_group_in_flight_messages" + of: 3, "perigee_group_oldest_age_seconds" + of: -l["perigee_group_oldest_age_seconds"+of],
		})
		time.Sleep(30 * time.Second)
		l.check(s, "none settled: 2 dead letters, 1 again", ledger{
			"perigee_leases_expired_total": 3, "perigee_group_expired_leases_total" + of: 3,
			"perigee_messages_dead_lettered_total": 2, "perigee_group_dead_lettered_messages_total" + of: 2,
			"perigee_group_ready_messages" + of: 1, "perigee_group_retrying_messages" + of: 1,
			"perigee_group_in_flight_messages" + of:                -3,
			"perigee_topic_in_messages_total{topic=%DLQ%billing}":  2,
			"perigee_topic_stored_messages{topic=%DLQ%billing}":    2,
			"perigee_topic_out_messages_total{topic=%DLQ%billing}": 0,
			"perigee_topic_out_bytes_total{topic=%DLQ%billing}":    0,
			"perigee_topic_stored_messages{topic=orders}":          0,
			"perigee_topic_in_messages_total{topic=orders}":        0,
			"perigee_messages_appended_total":                      0,
			"perigee_group_acknowledged_messages_total" + of:       0,
			"perigee_group_used_up_messages" + of:                  0,
			"perigee_group_redelivered_messages_total" + of:        0,
		})

		require.Len(t, s.receive("orders", "billing", 32, true), 1)
		l.check(s, "1 received by a push consumer", ledger{
			received: 1, "perigee_leases_renewing": 1, "perigee_messages_delivered_total": 1, "perigee_messages_redelivered_total": 1,
			"perigee_topic_out_messages_total{topic=orders}": 1, "perigee_topic_out_bytes_total{topic=orders}": stored / 4,
			"perigee_group_delivered_messages_total" + of: 1, "perigee_group_redelivered_messages_total" + of: 1,
			"perigee_group_ready_messages" + of: -1, "perigee_group_retrying_messages" + of: -1,
			"perigee_group_in_flight_messages" + of: 1,
		})
		stream, err := s.rmq.Telemetry(s.as())
		require.NoError(t, err)
		_, err = stream.Header()
		require.NoError(t, err)
		time.Sleep(2 * time.Minute) // renewed every 40 s
		l.check(s, "renewed, with a stream", ledger{"perigee_telemetry_streams": 1, "perigee_leases_renewed_total": 3})

		waiting := make(chan []string)
		go func() { waiting <- s.receive("orders", "billing", 1, false) }()
		l.check(s, "a receive waits", ledger{"perigee_receives_waiting": 1})
		require.Empty(t, <-waiting)
		l.check(s, "it ends empty", ledger{
			"perigee_receives_waiting": -1, "perigee_receive_wait_seconds": 1,
			"perigee_rpc_duration_seconds{code=MESSAGE_NOT_FOUND,grpc_code=OK,method=/apache.rocketmq.v2.MessagingService/ReceiveMessage}": 1,
		})
		wait := s.scrape()["perigee_receive_wait_seconds"].GetMetric()[0].GetHistogram()
		require.InDelta(t, 5, wait.GetSampleSum(), 1e-9)

		_, err = s.rmq.RecallMessage(s.as(), &rmqpb.RecallMessageRequest{})
		require.NoError(t, err)
		got := figures(s.scrape())
		require.InDelta(t, 1, got["perigee_rpc_duration_seconds{code=ILLEGAL_TOPIC,grpc_code=OK,method=/apache.rocketmq.v2.MessagingService/RecallMessage}"], 1e-9)

		require.NoError(t, s.store.PurgeTopic(t.Context(), orders.ID))
		l.check(s, "purged", ledger{
			"perigee_messages_trimmed_total": 4, "perigee_topic_stored_messages{topic=orders}": -4,
			"perigee_group_in_flight_messages" + of: -1, "perigee_messages_lost_total": 0, "perigee_messages_acknowledged_total": 0,
		})

		// What is deleted vanishes; the rest goes on.
		require.NoError(t, s.store.DeleteGroup(t.Context(), groupID(t, s, "billing")))
		got = figures(s.scrape())
		for name := range got {
			require.NotContains(t, name, "group=billing")
		}
		require.NoError(t, s.store.DeleteTopic(t.Context(), orders.ID))
		got = figures(s.scrape())
		for name := range got {
			require.NotContains(t, name, "topic=orders")
		}
		require.InDelta(t, 7, got["perigee_messages_delivered_total"], 1e-9)
		require.InDelta(t, 2, got["perigee_topic_in_messages_total{topic=%DLQ%billing}"], 1e-9)
		require.NoError(t, stream.CloseSend())
	})
}

func groupID(t *testing.T, s *scene, name string) mq.GroupID {
	g, err := s.router.Group(t.Context(), mq.Resource{Name: name})
	require.NoError(t, err)
	return g.ID
}

func TestTopicsBeyondTheBoundCountTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 2)
		for _, name := range []string{"_other", "a", "b", "c", "d"} {
			s.topic(name)
			s.send(name, "1")
			require.Len(t, s.receive(name, "g", 1, false), 1)
		}
		got := figures(s.scrape())
		want := ledger{
			"perigee_topic_in_messages_total{topic=a}":                          1,
			"perigee_topic_in_messages_total{topic=b}":                          1,
			"perigee_topic_in_messages_total{topic=_other}":                     3,
			"perigee_topic_stored_messages{topic=_other}":                       3,
			"perigee_group_in_flight_messages{group=g,topic=_other}":            1,
			"perigee_group_in_flight_messages{group=g,topic=a}":                 1,
			"perigee_group_in_flight_messages{group=_other,topic=_other}":       3,
			"perigee_group_delivered_messages_total{group=_other,topic=_other}": 3,
			"perigee_metrics_dropped_topics":                                    3,
			"perigee_metrics_dropped_groups":                                    3,
		}
		for name := range want {
			require.InDelta(t, want[name], got[name], 1e-9, name)
		}
		topics := 0
		for name := range got {
			if strings.HasPrefix(name, "perigee_topic_in_messages_total{") {
				topics++
			}
		}
		require.Equal(t, 3, topics)
	})
}
