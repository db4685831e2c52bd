package admin

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// topic and group create what they name.
func (f *fixture) topic(t *testing.T, name string) *mq.Topic {
	t.Helper()
	topic, _, err := f.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: name}, Queues: 2})
	require.NoError(t, err)
	return topic
}

func (f *fixture) group(t *testing.T, name string) *mq.Group {
	t.Helper()
	g, _, err := f.router.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: name}})
	require.NoError(t, err)
	return g
}

// die sends messages to the topic and moves them to the group's dead letters.
func (f *fixture) die(t *testing.T, topic *mq.Topic, group *mq.Group, ids ...string) {
	t.Helper()
	f.dieOn(t, shards[0], topic, group, ids...)
}

// dieOn is die on one shard.
func (f *fixture) dieOn(t *testing.T, shard string, topic *mq.Topic, group *mq.Group, ids ...string) {
	t.Helper()
	for _, id := range ids {
		system, err := proto.Marshal(&rmqpb.SystemProperties{MessageId: id, MessageType: rmqpb.MessageType_NORMAL, Keys: []string{"k" + id}})
		require.NoError(t, err)
		_, err = f.store.Append(t.Context(), shard, topic, 0, []*mq.Message{
			{ID: id, Type: mq.Normal, Tag: "t", System: system, Body: []byte("body " + id)},
		})
		require.NoError(t, err)
		for _, d := range f.takeFrom(t, shard, topic, group) {
			require.NoError(t, f.store.DeadLetter(t.Context(), d.Lease))
		}
	}
}

// take receives all that is there.
func (f *fixture) take(t *testing.T, topic *mq.Topic, group *mq.Group) (all []mq.Delivery) {
	t.Helper()
	return f.takeFrom(t, shards[0], topic, group)
}

// takeFrom is take from one shard.
func (f *fixture) takeFrom(t *testing.T, shard string, topic *mq.Topic, group *mq.Group) (all []mq.Delivery) {
	t.Helper()
	for {
		got, err := f.store.Receive(t.Context(), shard, mq.Receive{Topic: topic, Group: group, Max: 500, Invisible: time.Hour})
		require.NoError(t, err)
		if len(got) == 0 {
			return all
		}
		all = append(all, got...)
	}
}

func ids(list []mq.Delivery) (ids []string) {
	for _, d := range list {
		ids = append(ids, d.ID)
	}
	return ids
}

func (f *fixture) redrive(t *testing.T, group string, most int32) *adminpb.RedriveDeadLettersResponse {
	t.Helper()
	resp, err := f.RedriveDeadLetters(t.Context(), &adminpb.RedriveDeadLettersRequest{Group: group, Max: most})
	require.NoError(t, err)
	return resp
}

// counted returns how many dead letters there are in all, and not sent back yet.
func (f *fixture) counted(t *testing.T) map[string]string {
	t.Helper()
	list, err := f.ListDeadLetters(t.Context(), &adminpb.ListDeadLettersRequest{})
	require.NoError(t, err)
	counts := map[string]string{}
	for _, d := range list.GetDeadLetters() {
		require.Equal(t, "%DLQ%"+d.GetGroup(), d.GetTopic())
		counts[d.GetGroup()] = fmt.Sprint(d.GetMessages(), " ", d.GetWaiting())
	}
	return counts
}

func TestDeadLettersGoBackToTheirTopicsOnceWithAFirstAttempt(t *testing.T) {
	f := newFixtureOn(t, shards[:1])
	orders, bills := f.topic(t, "orders"), f.topic(t, "bills")
	g, other := f.group(t, "g"), f.group(t, "other")
	require.Empty(t, f.counted(t))
	f.die(t, orders, g, "1", "2")
	f.die(t, bills, g, "3")
	require.Equal(t, map[string]string{"g": "3 3"}, f.counted(t))

	resp := f.redrive(t, "g", 2)
	require.EqualValues(t, 2, resp.GetRedriven())
	require.EqualValues(t, 1, resp.GetWaiting())
	require.Empty(t, resp.GetUnmoved())
	require.Equal(t, map[string]string{"g": "3 1"}, f.counted(t))
	require.EqualValues(t, 1, f.redrive(t, "g", 0).GetRedriven())
	require.Zero(t, f.redrive(t, "g", 0).GetRedriven())
	require.Equal(t, map[string]string{"g": "3 0"}, f.counted(t))

	back := f.take(t, orders, g)
	require.Equal(t, []string{"1", "2"}, ids(back))
	require.Equal(t, []string{"3"}, ids(f.take(t, bills, g)))
	require.Equal(t, []string{"1", "2", "1", "2"}, ids(f.take(t, orders, other)), "every group of the topic gets what comes back")
	for _, d := range back {
		require.EqualValues(t, 1, d.Lease.Attempt)
		require.Equal(t, "t", d.Tag)
		require.Equal(t, "body "+d.ID, string(d.Body))
		require.Contains(t, string(d.Properties), "perigee.dead-letter.reason")
		var system rmqpb.SystemProperties
		require.NoError(t, proto.Unmarshal(d.System, &system))
		require.Nil(t, system.GetDeadLetterQueue())
		require.Equal(t, []string{"k" + d.ID}, system.GetKeys())
		require.Equal(t, rmqpb.MessageType_NORMAL, system.GetMessageType())
	}

	// A second death is another dead letter.
	require.NoError(t, f.store.DeadLetter(t.Context(), back[0].Lease))
	require.Equal(t, map[string]string{"g": "4 1"}, f.counted(t))
	require.EqualValues(t, 1, f.redrive(t, "g", 0).GetRedriven())
	require.Equal(t, []string{"1"}, ids(f.take(t, orders, g)))

	groups, err := f.ListGroups(t.Context(), &adminpb.ListGroupsRequest{})
	require.NoError(t, err)
	require.Len(t, groups.GetGroups(), 2, "the server's own group is hidden")
}

func TestDeadLettersThatCannotGoBackStayAndSayWhy(t *testing.T) {
	f, ctx := newFixtureOn(t, shards[:1]), t.Context()
	gone, closed, open := f.topic(t, "gone"), f.topic(t, "closed"), f.topic(t, "open")
	g := f.group(t, "g")
	f.die(t, gone, g, "1", "2")
	f.die(t, closed, g, "3")
	f.die(t, open, g, "4")
	dead, err := f.router.TopicByID(g.DeadLetter)
	require.NoError(t, err)
	_, err = f.store.Append(ctx, shards[0], dead, 0, []*mq.Message{{ID: "5", Type: mq.Normal}})
	require.NoError(t, err)
	_, err = f.router.DeleteTopic(ctx, gone.Resource)
	require.NoError(t, err)
	_, err = f.router.UpdateTopic(ctx, closed.Resource, router.TopicUpdate{Permission: new(mq.PermRead)})
	require.NoError(t, err)

	for range 2 { // they are in nobody's way, and met again
		f.die(t, open, g, "6")
		resp := f.redrive(t, "g", 1)
		require.EqualValues(t, 1, resp.GetRedriven())
		f.redrive(t, "g", 0)
	}
	resp := f.redrive(t, "g", 0)
	require.Zero(t, resp.GetRedriven())
	require.EqualValues(t, 4, resp.GetWaiting())
	var unmoved []string
	for _, u := range resp.GetUnmoved() {
		unmoved = append(unmoved, fmt.Sprint(u.GetTopic(), " ", u.GetMessages(), " ", u.GetReason()))
	}
	require.Len(t, unmoved, 3)
	require.Contains(t, unmoved[0], " 1 does not say which topic it came from")
	require.Contains(t, unmoved[1], "closed 1 the topic's permission does not allow sending")
	require.Contains(t, unmoved[2], "gone 2 topic not found")
	require.Contains(t, unmoved[2], "perigee topic create gone")

	again := f.topic(t, "gone")
	_, err = f.router.UpdateTopic(ctx, closed.Resource, router.TopicUpdate{Permission: new(mq.PermReadWrite)})
	require.NoError(t, err)
	require.EqualValues(t, 3, f.redrive(t, "g", 0).GetRedriven())
	require.Equal(t, []string{"1", "2"}, ids(f.take(t, again, g)))
}

// A brittleStore fails as it is told.
type brittleStore struct {
	Store
	append, ack error
}

func (s *brittleStore) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	if s.append != nil {
		return nil, s.append
	}
	return s.Store.Append(ctx, shard, topic, queue, msgs)
}

func (s *brittleStore) Ack(ctx context.Context, leases []mq.Lease) []error {
	if s.ack == nil {
		return s.Store.Ack(ctx, leases)
	}
	return []error{s.ack}
}

func TestAnInterruptedRedriveSendsTwiceAndLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOn(t, shards[:1])
		orders, g := f.topic(t, "orders"), f.group(t, "g")
		f.die(t, orders, g, "1", "2")
		brittle := &brittleStore{Store: f.store}
		f.Server.store = brittle

		brittle.append = fmt.Errorf("write: %w", mq.ErrStopped)
		_, err := f.RedriveDeadLetters(t.Context(), &adminpb.RedriveDeadLettersRequest{Group: "g"})
		requireCode(t, codes.Unavailable, err, "stopped")
		require.Empty(t, f.take(t, orders, g))
		brittle.append = nil

		// The end of the process between the send and its acknowledgment.
		brittle.ack = errors.New("cut off")
		resp := f.redrive(t, "g", 1)
		require.EqualValues(t, 1, resp.GetRedriven())
		require.EqualValues(t, 2, resp.GetWaiting())
		brittle.ack = nil
		require.EqualValues(t, 1, f.redrive(t, "g", 0).GetRedriven(), "the other one")
		require.Equal(t, map[string]string{"g": "2 1"}, f.counted(t))
		time.Sleep(redriveLease + time.Second)
		require.EqualValues(t, 1, f.redrive(t, "g", 0).GetRedriven(), "the first one again")
		require.Equal(t, map[string]string{"g": "2 0"}, f.counted(t))
		require.ElementsMatch(t, []string{"1", "1", "2"}, ids(f.take(t, orders, g)))
	})
}

func TestOneCallSendsABoundedNumber(t *testing.T) {
	f := newFixtureOn(t, shards[:1])
	orders, g := f.topic(t, "orders"), f.group(t, "g")
	dead, err := f.router.TopicByID(g.DeadLetter)
	require.NoError(t, err)
	system, err := proto.Marshal(&rmqpb.SystemProperties{DeadLetterQueue: &rmqpb.DeadLetterQueue{Topic: "orders"}})
	require.NoError(t, err)
	var msgs []*mq.Message
	for i := range redriveMax + 1 {
		msgs = append(msgs, &mq.Message{ID: fmt.Sprint(i), Type: mq.Normal, System: system, Body: make([]byte, 2000)})
	}
	_, err = f.store.Append(t.Context(), shards[0], dead, 0, msgs)
	require.NoError(t, err)
	first := f.redrive(t, "g", redriveMax+1)
	require.LessOrEqual(t, first.GetRedriven(), int64(redriveMax))
	require.Equal(t, int64(redriveMax+1), first.GetRedriven()+first.GetWaiting())
	for sent := first.GetRedriven(); sent < redriveMax+1; {
		more := f.redrive(t, "g", 0).GetRedriven()
		require.Positive(t, more)
		sent += more
	}
	require.Len(t, f.take(t, orders, g), redriveMax+1)
}

func TestRedrivesThatAreRefused(t *testing.T) {
	f := newFixtureOn(t, shards[:1])
	f.group(t, "g")
	for text, req := range map[string]*adminpb.RedriveDeadLettersRequest{
		`max "-1"`: {Group: "g", Max: -1},
	} {
		_, err := f.RedriveDeadLetters(t.Context(), req)
		requireCode(t, codes.InvalidArgument, err, text)
	}
	_, err := f.RedriveDeadLetters(t.Context(), &adminpb.RedriveDeadLettersRequest{Group: "none"})
	requireCode(t, codes.NotFound, err, `"none"`)
	_, err = f.ListDeadLetters(t.Context(), &adminpb.ListDeadLettersRequest{Namespace: "a b"})
	requireCode(t, codes.InvalidArgument, err, "namespace")
	require.Empty(t, f.router.ListGroups(t.Context(), router.Selection{AllNamespaces: true, SystemGroups: true})[1:], "nothing was created")
}

func TestDeadLettersOfAPriorityTopicGoBackToTheirPriority(t *testing.T) {
	f := newFixtureOn(t, shards[:1])
	topic, _, err := f.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "urgent"}, Type: mq.TopicPriority, Queues: 4})
	require.NoError(t, err)
	g := f.group(t, "g")
	die := func(id string, priority *int32) {
		system, err := proto.Marshal(&rmqpb.SystemProperties{MessageId: id, MessageType: rmqpb.MessageType_PRIORITY, Priority: priority})
		require.NoError(t, err)
		_, err = f.store.Append(t.Context(), shards[0], topic, 3, []*mq.Message{{ID: id, Type: mq.Priority, System: system, Body: []byte("x")}})
		require.NoError(t, err)
		for _, d := range f.take(t, topic, g) {
			require.NoError(t, f.store.DeadLetter(t.Context(), d.Lease))
		}
	}
	for i, p := range []int32{0, 9, 2, 0} {
		die(fmt.Sprint(i), &p)
	}
	die("none", nil) // from a time when the topic was of another type
	resp := f.redrive(t, "g", 0)
	require.EqualValues(t, 4, resp.GetRedriven())
	require.Len(t, resp.GetUnmoved(), 1)
	require.Contains(t, resp.GetUnmoved()[0].GetReason(), "the dead letter has no priority")

	back := f.take(t, topic, g)
	require.Equal(t, []string{"1", "2", "0", "3"}, ids(back))
	for i, want := range []int32{9, 2, 0, 0} {
		var system rmqpb.SystemProperties
		require.NoError(t, proto.Unmarshal(back[i].System, &system))
		require.Equal(t, want, system.GetPriority())
		require.Equal(t, rmqpb.MessageType_PRIORITY, system.GetMessageType())
		require.Equal(t, mq.Priority, back[i].Type)
		require.EqualValues(t, min(want, 3), back[i].Lease.Queue)
	}

	// The topic is of another type when they go back the next time.
	require.NoError(t, f.store.DeadLetter(t.Context(), back[0].Lease))
	_, err = f.router.UpdateTopic(t.Context(), topic.Resource, router.TopicUpdate{Type: new(mq.TopicNormal)})
	require.NoError(t, err)
	require.EqualValues(t, 2, f.redrive(t, "g", 0).GetRedriven())
	for _, d := range f.take(t, topic, g) {
		var system rmqpb.SystemProperties
		require.NoError(t, proto.Unmarshal(d.System, &system))
		require.Nil(t, system.Priority)
		require.Equal(t, mq.Normal, d.Type)
	}
}

// TestDeadLettersOfDelayAndTransactionTopicsGoBackAtOnce: neither their time nor their
// transaction is waited for again.
func TestDeadLettersOfDelayAndTransactionTopicsGoBackAtOnce(t *testing.T) {
	for typ, want := range map[mq.TopicType]mq.MessageType{
		mq.TopicDelay: mq.Delay, mq.TopicTransaction: mq.Normal, mq.TopicMixed: mq.Normal,
	} {
		f := newFixtureOn(t, shards[:1])
		topic, _, err := f.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "orders"}, Type: typ, Queues: 1})
		require.NoError(t, err)
		g := f.group(t, "g")
		system, err := proto.Marshal(&rmqpb.SystemProperties{MessageId: "a", MessageType: rmqpb.MessageType(want), DeliveryTimestamp: timestamppb.New(time.Unix(1, 0))})
		require.NoError(t, err)
		_, err = f.store.Append(t.Context(), shards[0], topic, 0, []*mq.Message{{ID: "a", Type: want, System: system, Body: []byte("x")}})
		require.NoError(t, err)
		for _, d := range f.take(t, topic, g) {
			require.NoError(t, f.store.DeadLetter(t.Context(), d.Lease))
		}
		require.EqualValues(t, 1, f.redrive(t, "g", 0).GetRedriven(), typ)
		back := f.take(t, topic, g)
		require.Equal(t, []string{"a"}, ids(back), typ)
		require.Equal(t, want, back[0].Type)
	}
}
