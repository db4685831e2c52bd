package admin

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
)

func TestAGroupSaysThatItIsBroadcastAndToHowMany(t *testing.T) {
	s, ctx := newFixture(t), t.Context()
	created, err := s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g", Broadcast: true})
	require.NoError(t, err)
	require.True(t, created.GetGroup().GetBroadcast())
	_, err = s.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: "g"})
	requireCode(t, codes.AlreadyExists, err, "broadcast")
	g, err := s.router.Group(ctx, mq.Resource{Name: "g"})
	require.NoError(t, err)
	for _, client := range []string{"a", "b", "a"} {
		_, err := s.router.Instance(ctx, g, client)
		require.NoError(t, err)
	}
	got, err := s.GetGroup(ctx, &adminpb.GetGroupRequest{Name: "g"})
	require.NoError(t, err)
	require.EqualValues(t, 2, got.GetGroup().GetInstances())
	list, err := s.ListGroups(ctx, &adminpb.ListGroupsRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetGroups(), 1, "instances are not shown")
	updated, err := s.UpdateGroup(ctx, &adminpb.UpdateGroupRequest{Name: "g", Broadcast: new(false)})
	require.NoError(t, err)
	require.False(t, updated.GetGroup().GetBroadcast())
}
