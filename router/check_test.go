package router

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

func checked(t *testing.T, fs vfs.FS) (Checked, []error) {
	t.Helper()
	var found []error
	sum, err := Check(fs, "meta", func(err error) { found = append(found, err) })
	require.NoError(t, err)
	require.Equal(t, len(found), sum.Findings)
	return sum, found
}

// files returns the content of every file in the database's directory.
func files(t *testing.T, fs vfs.FS) map[string]string {
	t.Helper()
	names, err := fs.List("meta")
	require.NoError(t, err)
	list := map[string]string{}
	for _, name := range names {
		f, err := fs.Open("meta/" + name)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, errors.Join(err, f.Close()))
		list[name] = string(b)
	}
	return list
}

func TestCheckFindsNothingInSoundMetadataAndChangesNothing(t *testing.T) {
	fs := vfs.NewMem()
	r := mustOpen(t, fs)
	for _, change := range changesOfAllKinds() {
		require.NoError(t, change(t.Context(), r))
	}
	require.NoError(t, r.Close())
	before := files(t, fs)
	sum, found := checked(t, fs)
	require.Empty(t, found)
	require.Equal(t, before, files(t, fs))
	topics, groups := r.LastIDs()
	require.Equal(t, Checked{
		Revision: r.Revision(), Topics: []mq.TopicID{1}, Groups: []mq.GroupID{2, 3}, Shards: []string{"s1"}, Registered: []string{"s9"}, LastTopic: topics, LastGroup: groups,
	}, sum)

	_, err := Check(vfs.NewMem(), "meta", nil)
	require.ErrorContains(t, err, "meta")
}

func TestCheckRefusesMetadataInUse(t *testing.T) {
	fs := vfs.NewMem()
	r := mustOpen(t, fs)
	_, err := Check(fs, "meta", nil)
	require.ErrorContains(t, err, "stop the server first")
	require.NoError(t, r.Close())
}

func TestCheckNamesEveryDamagedEntry(t *testing.T) {
	fs := filled(t)
	putRaw(t, fs, "v1/topic//a", `{`)
	putRaw(t, fs, "v1/topic//x", `{"v":1,"id":2,"type":"NORMAL","permission":4,"shards":[{"shard":"s1","read":1,"write":1}],"version":1}`)
	putRaw(t, fs, "v1/topic//y", `{"v":1,"id":9,"type":"NORMAL","permission":4,"shards":[{"shard":"s1","read":1,"write":1}],"version":1}`)
	putRaw(t, fs, "v2/topic//z", `anything`)
	putRaw(t, fs, "junk", `{}`)
	_, found := checked(t, fs)
	var entries []string
	for _, err := range found {
		var damage *DamageError
		var version *VersionError
		switch {
		case errors.As(err, &damage):
			entries = append(entries, damage.Entry)
		case errors.As(err, &version):
			entries = append(entries, version.Entry)
		}
		require.ErrorContains(t, err, "meta")
	}
	require.ElementsMatch(t, []string{"v1/topic//a", "v1/topic//x", "v2/topic//z", "junk", "v1/counters"}, entries)
}

func TestCheckFindsWhatWouldBeRefused(t *testing.T) {
	for _, what := range []string{"marker.manifest", "MANIFEST", ".log", ".sst", "REVISION"} {
		fs := filled(t)
		require.NoError(t, mustOpen(t, fs).Close()) // what was in the log is in a table then
		hit := false
		for name := range files(t, fs) {
			if strings.Contains(name, what) {
				hit = true
				require.NoError(t, fs.Remove("meta/"+name))
			}
		}
		require.True(t, hit, what)
		_, found := checked(t, fs)
		require.NotEmpty(t, found, what)
		require.ErrorContains(t, errors.Join(found...), "meta", what)
	}
}
