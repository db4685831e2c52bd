package router

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func TestASystemGroupIsMadeOnceAndHiddenFromClients(t *testing.T) {
	fs := vfs.NewMem()
	r := mustOpen(t, fs, func(o *Options) { o.AutoCreateGroups = true })
	ctx, own := t.Context(), mq.Resource{Namespace: "n", Name: mq.RedriveGroup}
	g, err := r.EnsureSystemGroup(ctx, GroupSpec{Resource: own, Retry: mq.RetryPolicy{MaxAttempts: 9, Customized: mq.DefaultRetryPolicy().Customized}})
	require.NoError(t, err)
	require.EqualValues(t, 9, g.Retry.MaxAttempts)
	again, err := r.EnsureSystemGroup(ctx, GroupSpec{Resource: own})
	require.NoError(t, err)
	require.Same(t, g, again)

	require.Empty(t, r.ListGroups(ctx, Selection{AllNamespaces: true}))
	require.Equal(t, []*mq.Group{g}, r.ListGroups(ctx, Selection{AllNamespaces: true, SystemGroups: true}))
	for _, err := range []error{
		second(r.UpdateGroup(ctx, own, GroupUpdate{})),
		second(r.DeleteGroup(ctx, own)),
		second(r.EnsureGroup(ctx, mq.Resource{Name: mq.SystemGroupPrefix + "x"})),
	} {
		require.ErrorIs(t, err, mq.ErrIllegalGroup)
		require.ErrorContains(t, err, "reserved")
	}
	_, _, err = r.CreateGroup(ctx, GroupSpec{Resource: own})
	require.ErrorIs(t, err, mq.ErrIllegalGroup)
	for _, bad := range []string{"g", mq.SystemGroupPrefix, mq.SystemGroupPrefix + "a b"} {
		_, err := r.EnsureSystemGroup(ctx, GroupSpec{Resource: name(bad)})
		require.Error(t, err, bad)
	}
	require.NoError(t, r.Close())

	back, err := mustOpen(t, fs).Group(ctx, own)
	require.NoError(t, err)
	require.Equal(t, g, back)
}

func second[T any](_ T, err error) error { return err }
