package node_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/backup"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
)

// edit changes the bytes of a file.
func edit(t *testing.T, fsys vfs.FS, name string, fn func(b []byte) []byte) {
	t.Helper()
	f, err := fsys.Open(name)
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	require.NoError(t, errors.Join(err, f.Close()))
	b = fn(b)
	f, err = fsys.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(b)
	require.NoError(t, errors.Join(err, f.Close()))
}

// put writes a key of a database.
func put(t *testing.T, fsys vfs.FS, dir, key, value string) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{FS: fsys, Logger: quiet{}})
	require.NoError(t, err)
	require.NoError(t, errors.Join(db.Set([]byte(key), []byte(value), pebble.Sync), db.Flush(), db.Close()))
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

// everything returns all files below a folder.
func everything(t *testing.T, fsys vfs.FS, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names, err := fsys.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := fsys.PathJoin(dir, name)
		info, err := fsys.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			for name, text := range everything(t, fsys, path) {
				all[name] = text
			}
			continue
		}
		f, err := fsys.Open(path)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, errors.Join(err, f.Close()))
		all[path] = string(b)
	}
	return all
}

// TestFilesOfANewerVersionAreRefusedInWordsAndLeftAlone has every kind of file that there is, as
// a version of the future would write it: no start takes it for damage or for something to begin
// anew, and the check names it.
func TestFilesOfANewerVersionAreRefusedInWordsAndLeftAlone(t *testing.T) {
	const (
		folder = "node"
		logDir = "node/store/shards/s/log"
		views  = "node/store/shards/s/views"
		words  = "newer version of perigee"
	)
	open := func(fsys vfs.FS) error {
		r, err := router.Open(router.Options{FS: fsys, Dir: "node/router", Shards: []string{"s"}})
		if err != nil {
			return err
		}
		s, err := store.Open(store.Options{FS: fsys, Dir: "node/store", Shards: []string{"s"}, ZeroFill: -1})
		if err != nil {
			return errors.Join(err, r.Close())
		}
		return errors.Join(s.Close(), r.Close())
	}
	full := func() *vfs.MemFS {
		fsys := vfs.NewMem()
		r, err := router.Open(router.Options{FS: fsys, Dir: "node/router", Shards: []string{"s"}})
		require.NoError(t, err)
		topic, _, err := r.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "t"}})
		require.NoError(t, err)
		s, err := store.Open(store.Options{FS: fsys, Dir: "node/store", Shards: []string{"s"}, ZeroFill: -1})
		require.NoError(t, err)
		_, err = s.Append(t.Context(), "s", topic, 0, []*mq.Message{{ID: "m", Type: mq.Normal, Body: []byte("b")}})
		require.NoError(t, err)
		require.NoError(t, errors.Join(s.Close(), r.Close()))
		return fsys
	}
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	for kind, change := range map[string]func(fsys *vfs.MemFS) (says string){
		"segment of the log": func(fsys *vfs.MemFS) string {
			edit(t, fsys, logDir+"/00000000000000000000.log", func(b []byte) []byte { b[8] = 2; return b })
			return words
		},
		"record of the log": func(fsys *vfs.MemFS) string {
			l, err := commitlog.Open(commitlog.Options{FS: fsys, Dir: logDir, ZeroFill: -1})
			require.NoError(t, err)
			_, err = l.Append([]commitlog.Entry{{Kind: 200, Payload: make([]byte, 64)}})
			require.NoError(t, errors.Join(err, l.Close()))
			return words
		},
		"SYNCED": func(fsys *vfs.MemFS) string {
			edit(t, fsys, logDir+"/SYNCED", func(b []byte) []byte {
				b[8] = 2
				binary.LittleEndian.PutUint32(b[28:], crc32.Checksum(b[:28], castagnoli))
				return b
			})
			return words
		},
		"views": func(fsys *vfs.MemFS) string {
			put(t, fsys, views, string(keyspace.StateKey()), string(keyspace.AppendState(nil, keyspace.State{Version: keyspace.Version + 1}))+"more")
			return words
		},
		"database of the views": func(fsys *vfs.MemFS) string {
			names, err := fsys.List(views)
			require.NoError(t, err)
			for _, name := range names {
				if strings.HasPrefix(name, "marker.format-version.") {
					require.NoError(t, fsys.Rename(views+"/"+name, views+"/marker.format-version.000099.999"))
				}
			}
			return "999"
		},
		"entry of the metadata": func(fsys *vfs.MemFS) string {
			put(t, fsys, "node/router", "v1/topic//t", `{"v":2}`)
			return words
		},
		"key of the metadata": func(fsys *vfs.MemFS) string {
			put(t, fsys, "node/router", "v2/topic//t", `{}`)
			return words
		},
		"REVISION": func(fsys *vfs.MemFS) string {
			edit(t, fsys, "node/router/REVISION", func(b []byte) []byte { return append([]byte("perigee-revision 2 9 0"), b[22:]...) })
			return words
		},
	} {
		t.Run(kind, func(t *testing.T) {
			fsys := full()
			says := change(fsys)
			const segment = logDir + "/00000000000000000000.log"
			before := everything(t, fsys, logDir)[segment]
			err := open(fsys)
			require.ErrorContains(t, err, says)
			require.False(t, node.IsDamage(err), "%v", err)
			require.Equal(t, before, everything(t, fsys, logDir)[segment])
			var found []string
			sum, err := node.Check(fsys, folder, node.CheckOptions{DeriveLimit: 1 << 30, Found: func(f node.Finding) { found = append(found, f.Problem) }})
			require.NoError(t, err)
			require.Positive(t, sum.Findings)
			require.Contains(t, strings.Join(found, "\n"), strings.TrimPrefix(says, "newer version of perigee"))
		})
	}
	t.Run("backup", func(t *testing.T) {
		fsys := full()
		r, err := router.Open(router.Options{FS: fsys, Dir: "node/router", Shards: []string{"s"}})
		require.NoError(t, err)
		_, _, _, err = node.Backup(t.Context(), fsys, "backup", node.Parts{Router: r}, config.Router, "v")
		require.NoError(t, errors.Join(err, r.Close()))
		edit(t, fsys, "backup/"+backup.ManifestName, func(b []byte) []byte {
			return []byte(strings.Replace(string(b), "perigee-backup 1", "perigee-backup 2", 1))
		})
		_, err = node.Check(fsys, "backup", node.CheckOptions{Found: func(node.Finding) {}})
		require.ErrorContains(t, err, words)
		_, err = node.Restore(t.Context(), fsys, "backup", "restored", false)
		require.ErrorContains(t, err, words)
		_, err = fsys.Stat("restored")
		require.Error(t, err)
	})
}
