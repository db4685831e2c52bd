package crashtest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/torture/table"
)

// A load is a topic with messages of one type and its clients.
type load struct {
	topic     string
	kind      rmqpb.MessageType
	row       string // of the table
	producers int
	consumers []string          // their groups
	filters   map[string]string // the groups, and the tags they want
	history   *history
}

// newLoads returns one of each type.
func newLoads() []*load {
	loads := []*load{{
		topic: topicName, kind: rmqpb.MessageType_NORMAL, producers: 4,
		consumers: []string{"all", "all", "all-too", "all-too", "red"}, filters: map[string]string{"all": "", "all-too": "", "red": "red"},
	}}
	for row, kind := range map[string]rmqpb.MessageType{
		"of them delayed": rmqpb.MessageType_DELAY, "of them half messages": rmqpb.MessageType_TRANSACTION,
		"of them with a priority": rmqpb.MessageType_PRIORITY, "of them to lite topics": rmqpb.MessageType_LITE,
	} {
		name := fmt.Sprint(topicName, "-", kind)
		loads = append(loads, &load{
			topic: name, kind: kind, row: row, producers: 2, consumers: []string{name, name}, filters: map[string]string{name: ""},
		})
	}
	slices.SortFunc(loads, func(a, b *load) int { return int(a.kind - b.kind) }) // as it is seeded
	for _, l := range loads {
		l.history = newHistory()
	}
	return loads
}

func (l *load) resource() *rmqpb.Resource { return &rmqpb.Resource{Name: l.topic} }

// create creates the topics and groups.
func (r *run) create() {
	conn, err := r.server.connection(r.t.Context())
	require.NoError(r.t, err)
	admin := adminpb.NewAdminServiceClient(conn)
	for _, l := range r.loads {
		l.history.deployed, l.history.outages, l.history.cuts = r.deployed(), r.outages, r.cuts
		req := &adminpb.CreateTopicRequest{Name: l.topic, Type: adminpb.TopicType(l.kind), Queues: priorities}
		require.Eventually(r.t, func() bool { // the router hears late of store nodes
			resp, err := admin.CreateTopic(r.t.Context(), req)
			if err == nil && len(resp.GetTopic().GetShards()) == max(len(r.server.shards()), 1) {
				return true
			}
			_, _ = admin.DeleteTopic(r.t.Context(), &adminpb.DeleteTopicRequest{Name: l.topic}) // it may not be there
			return false
		}, time.Minute, 50*time.Millisecond, l.topic)
		for group := range l.filters {
			// Nothing is dead-lettered in this test, however often it is given up.
			_, err = admin.CreateGroup(r.t.Context(), &adminpb.CreateGroupRequest{Name: group, Retry: &adminpb.RetryPolicy{MaxAttempts: 1000}})
			require.NoError(r.t, err)
		}
	}
}

// endTransactions looks which transactions are open, judges that, and ends them.
func (r *run) endTransactions(ctx context.Context) {
	conn, err := r.server.connection(ctx)
	require.NoError(r.t, err)
	service := adminpb.NewTransactionServiceClient(conn)
	for _, l := range r.loads {
		if l.kind != rmqpb.MessageType_TRANSACTION {
			continue
		}
		open, halves := map[string]bool{}, map[bool][]*adminpb.Transaction{}
		token := ""
		for more := true; more; more = token != "" {
			resp, err := service.ListTransactions(ctx, &adminpb.ListTransactionsRequest{Topic: l.topic, PageSize: 1000, PageToken: token})
			require.NoError(r.t, err)
			token = resp.GetNextPageToken()
			for _, half := range resp.GetTransactions() {
				open[half.GetMessageId()] = true
				halves[len(open)%2 == 0] = append(halves[len(open)%2 == 0], half)
			}
		}
		l.history.listed(open)
		for _, commit := range []bool{true, false} {
			for page := range slices.Chunk(halves[commit], 1000) {
				l.endAll(ctx, r.t, service, page, commit)
			}
		}
	}
}

// endAll ends open transactions, as an operator does. What a client had asked for when it
// was stopped may come first.
func (l *load) endAll(ctx context.Context, t *testing.T, service adminpb.TransactionServiceClient, halves []*adminpb.Transaction, commit bool) {
	req := &adminpb.EndTransactionsRequest{End: adminpb.TransactionEnd_TRANSACTION_END_ROLLBACK}
	if commit {
		req.End = adminpb.TransactionEnd_TRANSACTION_END_COMMIT
	}
	ends := func(half *adminpb.Transaction) (end, opposite *promise) {
		w := l.history.waitOf(half.GetMessageId())
		require.NotNil(t, w, "%s is listed as a half message", half.GetMessageId())
		if commit {
			return &w.commit, &w.rollback
		}
		return &w.rollback, &w.commit
	}
	for _, half := range halves {
		req.Ids = append(req.Ids, half.GetId())
		end, _ := ends(half)
		l.history.ask(end)
	}
	resp, err := service.EndTransactions(ctx, req)
	require.NoError(t, err)
	for i, half := range halves {
		end, opposite := ends(half)
		l.history.answer(half.GetMessageId(), end, opposite, resp.GetResults()[i].GetError() == "")
	}
}

// drain waits until every group has everything and nothing is in flight.
func (r *run) drain(ctx context.Context) {
	conn, err := r.server.connection(ctx)
	require.NoError(r.t, err)
	admin := adminpb.NewAdminServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, drains(r.t))
	defer cancel()
	left := func() (list []string) {
		for _, l := range r.loads {
			// Long enough after it for what nobody counts on, as its recall was not answered.
			if wait := time.Until(l.history.latest()) + time.Second; wait > 0 {
				list = append(list, fmt.Sprintf("%s: not all is due for %v", l.topic, wait))
			}
			for group, tag := range l.filters {
				resp, err := admin.GetGroup(ctx, &adminpb.GetGroupRequest{Name: group})
				if err != nil {
					return []string{err.Error()}
				}
				if n := l.history.missing(group, tag); n > 0 {
					list = append(list, fmt.Sprintf("%s has not got %d", group, n))
				}
				for _, topic := range resp.GetTopics() {
					if topic.GetReady()+topic.GetInFlight() > 0 {
						list = append(list, fmt.Sprintf("%s: ready %d, in flight %d", group, topic.GetReady(), topic.GetInFlight()))
					}
				}
			}
		}
		return list
	}
	for {
		list := left()
		if len(list) == 0 {
			return
		}
		if !pause(ctx, 100*time.Millisecond) {
			r.report()
			require.Empty(r.t, list, "not drained in time")
		}
	}
}

// queues returns how many messages each queue holds; nil for lite topics, of which nobody
// says.
func (r *run) queues(ctx context.Context, l *load) map[queue]int64 {
	if l.kind == rmqpb.MessageType_LITE {
		return nil
	}
	conn, err := r.server.connection(ctx)
	require.NoError(r.t, err)
	resp, err := adminpb.NewAdminServiceClient(conn).GetTopic(ctx, &adminpb.GetTopicRequest{Name: l.topic})
	require.NoError(r.t, err)
	queues := map[queue]int64{}
	for _, q := range resp.GetQueues() {
		require.Zero(r.t, q.GetMinOffset())
		at := queue{number: q.GetQueue()}
		if r.deployed() {
			at.shard = q.GetShard()
		}
		queues[at] = q.GetMaxOffset()
	}
	return queues
}

// sum returns what the histories of all loads have counted.
func (r *run) sum() *history {
	all := newHistory()
	for _, l := range r.loads {
		h := l.history
		h.mu.Lock()
		for _, n := range [][2]*int{
			{&all.acked, &h.acked},
			{&all.unknown, &h.unknown},
			{&all.delivered, &h.delivered},
			{&all.redelivered, &h.redelivered},
			{&all.acks, &h.acks},
			{&all.late, &h.late},
			{&all.repeats, &h.repeats},
			{&all.recalls, &h.recalls},
			{&all.ends, &h.ends},
			{&all.questions, &h.questions},
			{&all.copies, &h.copies},
			{&all.handed, &h.handed},
			{&all.lost, &h.lost},
			{&all.stuck, &h.stuck},
			{&all.afterAck, &h.afterAck},
			{&all.twoHolders, &h.twoHolders},
			{&all.duplicates, &h.duplicates},
			{&all.early, &h.early},
			{&all.visible, &h.visible},
			{&all.other, &h.other},
		} {
			*n[0] += *n[1]
		}
		all.lateness = max(all.lateness, h.lateness)
		for why, n := range h.failed {
			all.failed[why] += n
		}
		for shard, n := range h.from {
			all.from[shard] += n
		}
		h.mu.Unlock()
	}
	return all
}

func (r *run) report() {
	h := r.sum()
	times := slices.Sorted(slices.Values(r.recoveries))
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	r.t.Logf("messages sent: %d acknowledged, %d unknown; deliveries: %d, %d of them again; acks in time: %d, late: %d",
		h.acked, h.unknown, h.delivered, h.redelivered, h.acks, h.late)
	for _, l := range r.loads {
		r.t.Logf("%s: %d acknowledged, %d deliveries, worst lateness %v", l.kind, l.history.acked, l.history.delivered, l.history.lateness.Round(time.Millisecond))
	}
	r.t.Logf("kills: %v; recovery in ms: min %d, median %d, max %d; worst lateness %v",
		r.killed, ms(times[0]), ms(times[len(times)/2]), ms(times[len(times)-1]), h.lateness.Round(time.Millisecond))
	require.NoError(r.t, table.Add(r.cells(times)...))
}
