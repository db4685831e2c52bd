package router

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func TestALostRevisionFileIsWrittenAnewWhenAllElseIsSound(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, fs *vfs.MemFS){
		"missing": func(t *testing.T, fs *vfs.MemFS) { require.NoError(t, fs.Remove("meta/REVISION")) },
		"empty": func(t *testing.T, fs *vfs.MemFS) {
			f, err := fs.Create("meta/REVISION", vfs.WriteCategoryUnspecified)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			fs := filled(t)
			r := mustOpen(t, fs)
			want := contentsOf(r)
			require.NoError(t, r.Close())
			spoil(t, fs)
			_, err := Open(Options{FS: fs, Dir: "meta", Shards: []string{"s1"}})
			require.ErrorContains(t, err, "perigee restore-revision")

			got, err := RestoreRevision(fs, "meta")
			require.NoError(t, err)
			require.Equal(t, want.Revision, got.Revision)
			require.Equal(t, 1, got.Topics)
			require.Equal(t, 1, got.Groups)
			require.Equal(t, name == "empty", got.Aside != "", "nothing is deleted")
			if got.Aside != "" {
				_, err := fs.Stat(got.Aside)
				require.NoError(t, err)
			}
			_, found := checked(t, fs)
			require.Empty(t, found)
			r = mustOpen(t, fs)
			require.Equal(t, want, contentsOf(r))
			createTopic(t, r, TopicSpec{Resource: mq.Resource{Name: "later"}})
			require.NoError(t, r.Close())
			known, err := readGuard(fs, "meta/REVISION")
			require.NoError(t, err)
			require.Equal(t, want.Revision+1, known)
		})
	}
}

func TestARevisionFileIsNotWrittenOverOtherDamage(t *testing.T) {
	fs := filled(t)
	_, err := RestoreRevision(fs, "meta")
	require.ErrorContains(t, err, "nothing was changed", "it is whole")

	// Behind the database: what it says is missing is missing.
	before, err := readGuard(fs, "meta/REVISION")
	require.NoError(t, err)
	f, err := fs.OpenReadWrite("meta/REVISION", vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	require.NoError(t, (&guard{file: f}).write(before+5))
	require.NoError(t, f.Close())
	_, err = RestoreRevision(fs, "meta")
	require.ErrorContains(t, err, "the database ends at")

	fs = filled(t)
	putRaw(t, fs, "v1/topic//a", `{`)
	require.NoError(t, fs.Remove("meta/REVISION"))
	_, err = RestoreRevision(fs, "meta")
	require.ErrorContains(t, err, "v1/topic//a")
	_, err = fs.Stat("meta/REVISION")
	require.Error(t, err)

	fs = filled(t)
	r := mustOpen(t, fs)
	_, err = RestoreRevision(fs, "meta")
	require.ErrorContains(t, err, "stop the server first")
	require.NoError(t, r.Close())
}
