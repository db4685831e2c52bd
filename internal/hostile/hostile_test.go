package hostile

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

func specimen() *rmqpb.SendMessageRequest {
	m := &rmqpb.Message{
		Topic: &rmqpb.Resource{Name: "t"}, Body: []byte("b"),
		SystemProperties: &rmqpb.SystemProperties{Keys: []string{"k1", "k2"}, BornTimestamp: timestamppb.Now()},
		UserProperties:   map[string]string{"k": "v"},
	}
	return &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{m, {Topic: &rmqpb.Resource{Name: "u"}}}}
}

// made returns the message that the mutation with that text makes.
func made(t *testing.T, text string) *rmqpb.SendMessageRequest {
	t.Helper()
	for _, m := range Mutations(specimen()) {
		if m.String() == text {
			got := specimen()
			m.Apply(got)
			return got
		}
	}
	t.Fatalf("no mutation %q", text)
	return nil
}

func TestEveryPlaceIsSpoiled(t *testing.T) {
	require.Empty(t, made(t, "messages cleared").GetMessages())
	require.Len(t, made(t, "messages with an empty element more").GetMessages(), 3)
	require.Len(t, made(t, "messages with 3000 elements more").GetMessages(), 3002)
	require.Equal(t, "u", made(t, "messages[0] left out").GetMessages()[0].GetTopic().GetName())
	require.Nil(t, made(t, "messages[1].topic cleared").GetMessages()[1].GetTopic())
	require.NotNil(t, made(t, "messages[0].topic set to an empty message").GetMessages()[0].GetTopic())
	require.Equal(t, " ", made(t, `messages[1].topic.name set to " "`).GetMessages()[1].GetTopic().GetName())
	require.Equal(t, []string{"k2"}, made(t, "messages[0].system_properties.keys[0] left out").GetMessages()[0].GetSystemProperties().GetKeys())
	require.Equal(t, []string{"k1", ""}, made(t, `messages[0].system_properties.keys[1] set to ""`).GetMessages()[0].GetSystemProperties().GetKeys())
	require.EqualValues(t, -1, made(t, "messages[0].system_properties.body_encoding set to -1").GetMessages()[0].GetSystemProperties().GetBodyEncoding())
	require.EqualValues(t, -1, made(t, "messages[0].system_properties.born_timestamp set to 1 s and -1 ns").GetMessages()[0].GetSystemProperties().GetBornTimestamp().GetNanos())
	require.NotNil(t, made(t, "messages[0].system_properties.invisible_duration set to -1 s and 0 ns").GetMessages()[0].GetSystemProperties().GetInvisibleDuration(),
		"fields that are not set are set too")
	require.Contains(t, made(t, `messages[0].user_properties with the key "a\x00b"`).GetMessages()[0].GetUserProperties(), "a\x00b")
	require.NotEmpty(t, made(t, "messages[0] with fields that nobody knows").GetMessages()[0].ProtoReflect().GetUnknown())
}

func TestAMutationChangesItsPlaceAndTheSpecimenStays(t *testing.T) {
	m := specimen()
	seen := map[string]bool{}
	for _, mutation := range Mutations(m) {
		require.False(t, seen[mutation.String()], mutation)
		seen[mutation.String()] = true
		spoiled := specimen()
		mutation.Apply(spoiled)
		_, err := proto.Marshal(spoiled)
		require.NoError(t, err, "%s: a client could not send it", mutation)
	}
	m.Messages[0].SystemProperties.BornTimestamp = specimen().GetMessages()[0].GetSystemProperties().GetBornTimestamp()
	require.Len(t, m.GetMessages(), 2)
	require.Greater(t, len(seen), 400)
}

func TestATextNamesAPlaceByAFieldOnItsWayOrBelow(t *testing.T) {
	named := func(mutation, text string) bool {
		for _, m := range Mutations(specimen()) {
			if m.String() == mutation {
				return m.NamedBy(text)
			}
		}
		t.Fatalf("no mutation %q", mutation)
		return false
	}
	const namespace = `messages[1].topic.resource_namespace set to "-1"`
	require.True(t, named(namespace, "namespace of it"))
	require.True(t, named(namespace, "the topic"))
	require.False(t, named(namespace, "something"))
	require.True(t, named("messages[0].system_properties cleared", "message_id: must not be blank"))
	require.False(t, named("messages[0].system_properties cleared", "user property"))
}
