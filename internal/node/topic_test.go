package node_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/config"
)

func (r *running) createTopic(t *testing.T, name string, queues int32) {
	t.Helper()
	_, err := r.admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: name, Queues: queues})
	require.NoError(t, err)
}

func (r *running) updateTopic(t *testing.T, req *adminpb.UpdateTopicRequest) {
	t.Helper()
	_, err := r.admin.UpdateTopic(t.Context(), req)
	require.NoError(t, err)
}

// route returns the code of a route and what it permits, by queue id.
func (r *running) route(t *testing.T, topic string) (rmqpb.Code, []rmqpb.Permission) {
	t.Helper()
	resp, err := r.rmq.QueryRoute(as(t.Context()), &rmqpb.QueryRouteRequest{Topic: &rmqpb.Resource{Name: topic}})
	require.NoError(t, err)
	var permissions []rmqpb.Permission
	for i, q := range resp.GetMessageQueues() {
		require.EqualValues(t, i, q.GetId())
		permissions = append(permissions, q.GetPermission())
	}
	return resp.GetStatus().GetCode(), permissions
}

// sendMany sends n messages, one by one.
func (r *running) sendMany(t *testing.T, topic string, n int) {
	t.Helper()
	for range n {
		require.Equal(t, rmqpb.Code_OK, r.send(t, topic).GetCode())
	}
}

// filled returns how many messages each queue of the topic holds.
func (r *running) filled(t *testing.T, topic string) []int64 {
	t.Helper()
	resp, err := r.admin.GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: topic})
	require.NoError(t, err)
	var counts []int64
	for _, q := range resp.GetQueues() {
		counts = append(counts, q.GetMaxOffset()-q.GetMinOffset())
	}
	return counts
}

// receiveAll receives until nothing is left and returns how many messages it got.
func (r *running) receiveAll(t *testing.T, topic string) (n int) {
	t.Helper()
	for {
		_, bodies, err := r.receive(t.Context(), topic, 0)
		require.NoError(t, err)
		if len(bodies) == 0 {
			return n
		}
		n += len(bodies)
	}
}

func permissions(runs ...any) []rmqpb.Permission {
	var list []rmqpb.Permission
	for i := 0; i < len(runs); i += 2 {
		list = append(list, slices.Repeat([]rmqpb.Permission{runs[i+1].(rmqpb.Permission)}, runs[i].(int))...)
	}
	return list
}

func TestATopicThatShrinksOrGrowsLosesNothing(t *testing.T) {
	const rw, read, write = rmqpb.Permission_READ_WRITE, rmqpb.Permission_READ, rmqpb.Permission_WRITE
	dir := t.TempDir()
	r := start(t, dir)
	for _, c := range []struct {
		name        string
		read, write int32
		permissions []rmqpb.Permission
		filled      []int64 // by as many sends as there are writable queues
	}{
		{"drained", 8, 4, permissions(4, rw, 4, read), []int64{2, 2, 2, 2, 1, 1, 1, 1}},
		{"shrunk", 4, 4, permissions(4, rw), []int64{2, 2, 2, 2, 1, 1, 1, 1}},
		{"more-to-write", 4, 8, permissions(4, rw, 4, write), []int64{2, 2, 2, 2, 2, 2, 2, 2}},
		{"grown", 10, 10, permissions(10, rw), []int64{2, 2, 2, 2, 2, 2, 2, 2, 1, 1}},
	} {
		r.createTopic(t, c.name, 8)
		r.sendMany(t, c.name, 8) // the requests take turns over the queues
		r.updateTopic(t, &adminpb.UpdateTopicRequest{Name: c.name, ReadQueues: &c.read, WriteQueues: &c.write})
		code, got := r.route(t, c.name)
		require.Equal(t, rmqpb.Code_OK, code, c.name)
		require.Equal(t, c.permissions, got, c.name)
		r.sendMany(t, c.name, int(c.write))
		require.Equal(t, c.filled, r.filled(t, c.name), c.name)
	}
	r.stop(t)
	r = start(t, dir)
	for name, want := range map[string]int{"drained": 12, "shrunk": 12, "more-to-write": 16, "grown": 18} {
		require.Equal(t, want, r.receiveAll(t, name), name)
	}
	r.stop(t)
}

func TestATopicWithoutPermissionKeepsItsRouteAndItsClients(t *testing.T) {
	r := start(t, t.TempDir())
	r.createTopic(t, "t", 2)
	r.sendMany(t, "t", 3)
	permit := func(p adminpb.Permission) {
		r.updateTopic(t, &adminpb.UpdateTopicRequest{Name: "t", Permission: &p})
	}
	receive := func() (rmqpb.Code, int) {
		code, bodies, err := r.receive(t.Context(), "t", 0)
		require.NoError(t, err)
		return code, len(bodies)
	}
	requireAlive := func() {
		t.Helper()
		resp, err := r.rmq.Heartbeat(as(t.Context()), &rmqpb.HeartbeatRequest{
			Group: &rmqpb.Resource{Name: "g"}, ClientType: rmqpb.ClientType_PUSH_CONSUMER,
		})
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, resp.GetStatus().GetCode())
	}

	permit(adminpb.Permission_PERMISSION_NONE)
	code, got := r.route(t, "t")
	require.Equal(t, rmqpb.Code_OK, code)
	require.Equal(t, permissions(1, rmqpb.Permission_NONE), got)
	requireAlive()
	st := r.send(t, "t")
	require.Equal(t, rmqpb.Code_FORBIDDEN, st.GetCode())
	require.Contains(t, st.GetMessage(), `"t"`)
	code, _ = receive()
	require.Equal(t, rmqpb.Code_FORBIDDEN, code)

	permit(adminpb.Permission_PERMISSION_READ)
	_, got = r.route(t, "t")
	require.Equal(t, permissions(2, rmqpb.Permission_READ), got)
	require.Equal(t, rmqpb.Code_FORBIDDEN, r.send(t, "t").GetCode())
	code, n := receive()
	require.Equal(t, rmqpb.Code_OK, code)
	require.Equal(t, 3, n)

	permit(adminpb.Permission_PERMISSION_WRITE)
	_, got = r.route(t, "t")
	require.Equal(t, permissions(2, rmqpb.Permission_WRITE), got)
	r.sendMany(t, "t", 1)
	code, _ = receive()
	require.Equal(t, rmqpb.Code_FORBIDDEN, code)

	permit(adminpb.Permission_PERMISSION_READ_WRITE)
	_, got = r.route(t, "t")
	require.Equal(t, permissions(2, rmqpb.Permission_READ_WRITE), got)
	r.sendMany(t, "t", 1)
	code, n = receive()
	require.Equal(t, rmqpb.Code_OK, code)
	require.Equal(t, 2, n)
	requireAlive()
	r.stop(t)
}

func TestAReceiveThatWaitsGetsNothingOnceReadingIsForbidden(t *testing.T) {
	r := start(t, t.TempDir())
	r.createTopic(t, "t", 2)
	type answer struct {
		code   rmqpb.Code
		bodies []string
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		code, bodies, err := r.receive(context.Background(), "t", 20*time.Second)
		answers <- answer{code, bodies, err}
	}()
	require.Eventually(t, func() bool { // the receive has fixed where the group starts: it waits
		resp, err := r.admin.GetGroup(t.Context(), &adminpb.GetGroupRequest{Name: "g"})
		return err == nil && len(resp.GetTopics()) == 1
	}, 30*time.Second, 10*time.Millisecond)
	r.updateTopic(t, &adminpb.UpdateTopicRequest{Name: "t", Permission: adminpb.Permission_PERMISSION_WRITE.Enum()})
	r.sendMany(t, "t", 1)
	got := <-answers
	require.NoError(t, got.err)
	require.Equal(t, rmqpb.Code_FORBIDDEN, got.code)
	require.Empty(t, got.bodies)

	r.updateTopic(t, &adminpb.UpdateTopicRequest{Name: "t", Permission: adminpb.Permission_PERMISSION_READ_WRITE.Enum()})
	code, bodies, err := r.receive(t.Context(), "t", 0)
	require.NoError(t, err)
	require.Equal(t, rmqpb.Code_OK, code)
	require.Len(t, bodies, 1, "it was not lost")
	r.stop(t)
}

func TestATopicIsVisibleAsSoonAsItIsThereAndGoneAsSoonAsItIsNot(t *testing.T) {
	r := start(t, t.TempDir())
	for range 3 {
		resp, err := r.rmq.QueryRoute(as(t.Context()), &rmqpb.QueryRouteRequest{Topic: &rmqpb.Resource{Name: "late"}})
		require.NoError(t, err)
		for _, st := range []*rmqpb.Status{resp.GetStatus(), r.send(t, "late")} {
			require.Equal(t, rmqpb.Code_TOPIC_NOT_FOUND, st.GetCode())
			require.Contains(t, st.GetMessage(), "perigee topic create late", "it says how to create it")
		}
		r.createTopic(t, "late", 2)
		code, _ := r.route(t, "late")
		require.Equal(t, rmqpb.Code_OK, code)
		r.sendMany(t, "late", 1)
		require.Equal(t, 1, r.receiveAll(t, "late"), "nothing of an earlier life")
		_, err = r.admin.DeleteTopic(t.Context(), &adminpb.DeleteTopicRequest{Name: "late"})
		require.NoError(t, err)
	}
	r.stop(t)
}

func TestTheFirstSendCreatesATopicAsConfigured(t *testing.T) {
	dir := t.TempDir()
	auto := func(c *config.Config) { c.AutoCreateTopics, c.DefaultQueues = true, 3 }
	r := start(t, dir, auto)
	r.sendMany(t, "new", 1)
	code, got := r.route(t, "asked-for")
	require.Equal(t, rmqpb.Code_OK, code)
	require.Len(t, got, 3)
	r.stop(t)
	r = start(t, dir, auto)
	for _, name := range []string{"new", "asked-for"} {
		resp, err := r.admin.GetTopic(t.Context(), &adminpb.GetTopicRequest{Name: name})
		require.NoError(t, err)
		require.Equal(t, adminpb.TopicType_TOPIC_TYPE_NORMAL, resp.GetTopic().GetType())
		require.Len(t, resp.GetQueues(), 3)
	}
	require.Equal(t, 1, r.receiveAll(t, "new"))
	// What may not be a topic is not made one.
	for i, name := range []string{"", "a.b", "%DLQ%nobody", "%RETRY%g", "TBW102"} {
		require.NotEqual(t, rmqpb.Code_OK, r.send(t, name).GetCode(), fmt.Sprint(i, name))
	}
	r.stop(t)
}
