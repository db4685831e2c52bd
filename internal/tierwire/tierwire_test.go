package tierwire

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/allfields"
	"github.com/perigee-mq/perigee/mq"
)

// roundTrip returns what is left of p on the other side.
func roundTrip[P proto.Message](t *testing.T, p P) P {
	t.Helper()
	wire, err := proto.Marshal(p)
	require.NoError(t, err)
	arrived := p.ProtoReflect().New().Interface().(P)
	require.NoError(t, proto.Unmarshal(wire, arrived))
	return arrived
}

func TestEveryFieldOfATopicCrosses(t *testing.T) {
	var topic mq.Topic
	allfields.Fill(&topic)
	got, err := Topic(roundTrip(t, FromTopic(&topic)))
	require.NoError(t, err)
	require.Equal(t, topic, *got)
	allSet(t, FromTopic(&topic).ProtoReflect())
}

func TestEveryFieldOfAGroupCrosses(t *testing.T) {
	var group mq.Group
	allfields.Fill(&group)
	got, err := Group(roundTrip(t, FromGroup(&group)))
	require.NoError(t, err)
	require.Equal(t, group, *got)
	allSet(t, FromGroup(&group).ProtoReflect())
}

// allSet fails for fields of the message that nothing sets.
func allSet(t *testing.T, m protoreflect.Message) {
	t.Helper()
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		require.True(t, m.Has(f), "%s is not converted", f.FullName())
		if f.Message() != nil && !f.IsList() {
			allSet(t, m.Get(f).Message())
		}
	}
}

func TestNumbersAreThoseOfTheVocabulary(t *testing.T) {
	for _, topic := range []mq.TopicType{
		mq.TopicNormal, mq.TopicFIFO, mq.TopicDelay, mq.TopicTransaction, mq.TopicLite, mq.TopicPriority, mq.TopicMixed,
	} {
		require.Equal(t, "TOPIC_TYPE_"+topic.String(), routerpb.TopicType(topic).String())
	}
	for p, name := range map[mq.Permission]string{
		mq.PermNone: "NONE", mq.PermRead: "READ", mq.PermWrite: "WRITE", mq.PermReadWrite: "READ_WRITE",
	} {
		require.Equal(t, "PERMISSION_"+name, routerpb.Permission(p).String())
	}
	for policy, want := range map[mq.StartPolicy]routerpb.StartPolicy{
		mq.StartEarliest:  routerpb.StartPolicy_START_POLICY_EARLIEST,
		mq.StartLatest:    routerpb.StartPolicy_START_POLICY_LATEST,
		mq.StartTimestamp: routerpb.StartPolicy_START_POLICY_TIMESTAMP,
	} {
		require.Equal(t, want, FromStart(mq.StartPosition{Policy: policy}).GetPolicy())
	}
}

func TestWhatCannotBeATopicOrAGroupIsRefused(t *testing.T) {
	name := &routerpb.Resource{Name: "a"}
	for field, p := range map[string]*routerpb.Topic{
		"topic.id":         {Name: name},
		"topic.name":       {Id: 1},
		"topic.type":       {Id: 1, Name: name, Type: 256},
		"topic.permission": {Id: 1, Name: name, Permission: -1},
		"topic.shards[1]":  {Id: 1, Name: name, Shards: []*routerpb.ShardQueues{{}, {Read: math.MaxInt32}}},
	} {
		_, err := Topic(p)
		requireField(t, err, field)
	}
	for field, p := range map[string]*routerpb.Group{
		"group.id":     {Name: name},
		"group.name":   {Id: 1},
		"start.policy": {Id: 1, Name: name, Start: &routerpb.StartPosition{Policy: 300}},
		"start.time":   {Id: 1, Name: name, Start: &routerpb.StartPosition{Time: &timestamppb.Timestamp{Nanos: -1}}},
	} {
		_, err := Group(p)
		requireField(t, err, field)
	}
	_, err := Topic(nil)
	requireField(t, err, "topic.id")
	_, err = Group(nil)
	requireField(t, err, "group.id")
	require.Nil(t, FromTopic(nil))
	require.Nil(t, FromGroup(nil))
}

func requireField(t *testing.T, err error, field string) {
	t.Helper()
	var in *mq.InvalidError
	require.ErrorAs(t, err, &in, field)
	require.Equal(t, field, in.Field)
}

func FuzzTopicAndGroup(f *testing.F) {
	for _, p := range []proto.Message{
		FromTopic(&mq.Topic{ID: 1, Resource: mq.Resource{Name: "a"}, Shards: []mq.ShardQueues{{Shard: "s", Read: 1, Write: 2}}}),
		FromGroup(&mq.Group{ID: 1, Resource: mq.Resource{Name: "a"}, Retry: mq.DefaultRetryPolicy()}),
	} {
		wire, err := proto.Marshal(p)
		require.NoError(f, err)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		var topic routerpb.Topic
		if proto.Unmarshal(wire, &topic) == nil {
			if first, err := Topic(&topic); err == nil {
				again, err := Topic(FromTopic(first))
				require.NoError(t, err)
				require.Equal(t, first, again)
			}
		}
		var group routerpb.Group
		if proto.Unmarshal(wire, &group) == nil {
			if first, err := Group(&group); err == nil && !math.IsNaN(first.Retry.Multiplier) {
				again, err := Group(FromGroup(first))
				require.NoError(t, err)
				require.Equal(t, first, again)
			}
		}
	})
}
