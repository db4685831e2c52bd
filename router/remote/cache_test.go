package remote

import (
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	"github.com/perigee-mq/perigee/internal/durable"
	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func withCache(fs vfs.FS) func(*ClientOptions) {
	return func(o *ClientOptions) { o.FS, o.Dir = fs, "data" }
}

func TestAProcessThatStartsWithoutARouterServesWhatWasKnown(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, fs := w.hosts["r1"], vfs.NewMem()
		topic := w.topic(h, "a")
		_, _, err := h.router.CreateGroup(w.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(w, err)
		w.client("r1", aStore("n1", "s1"))
		c := w.client("r1", withCache(fs))
		w.settle(5 * time.Second)
		require.NoError(w, c.Close())
		h.stop(w.network)

		c = w.client("r1", withCache(fs))
		requireSame(w, h.router, c) // reading goes on after its end
		got, err := c.Topic(w.Context(), named("a"))
		require.NoError(w, err)
		require.Equal(w, topic, got)
		n, err := c.StoreOf("s1")
		require.NoError(w, err)
		require.Equal(w, "n1:8083", n.Address)
		require.ErrorIs(w, c.Err(), mq.ErrUnavailable)
	})
}

func TestTheCacheIsWrittenBehindChangesAlsoWhenNobodyCloses(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, fs := w.hosts["r1"], vfs.NewCrashableMem()
		w.client("r1", withCache(fs))
		w.topic(h, "a")
		w.settle(2 * saveInterval)
		crashed := fs.CrashClone(vfs.CrashCloneCfg{})
		h.stop(w.network)
		requireSame(w, h.router, w.client("r1", withCache(crashed)))
	})
}

// A process that is killed soon after a start, while no router answers, serves what it had
// heard of.
func TestWhatAProcessHearsFirstIsWrittenAtOnce(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, fs := w.hosts["r1"], vfs.NewCrashableMem()
		for _, name := range []string{"a", "b"} { // without a file, and with one that is old
			w.topic(h, name)
			w.client("r1", withCache(fs))
			w.settle(saveInterval / 100)
			fs = fs.CrashClone(vfs.CrashCloneCfg{})
		}
		h.stop(w.network)
		requireSame(w, h.router, w.client("r1", withCache(fs)))
	})
}

func TestACacheThatCannotBeUsedIsPutAside(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, fs := w.hosts["r1"], vfs.NewMem()
		w.topic(h, "a")
		c := w.client("r1", withCache(fs))
		require.NoError(w, c.Close())
		whole, err := (&cache{fs: fs, dir: "data"}).read()
		require.NoError(w, err)
		data, err := encodeCache(whole)
		require.NoError(w, err)
		data[len(data)-1] ^= 1
		f, err := fs.Create("data/"+cacheName, vfs.WriteCategoryUnspecified)
		require.NoError(w, err)
		_, err = f.Write(data)
		require.NoError(w, errors.Join(err, f.Close()))

		h.stop(w.network)
		var log logBuffer
		c = w.open(func() ClientOptions {
			o := w.options("r1")
			withCache(fs)(&o)
			o.Logger = log.logger()
			return o
		}())
		require.Zero(w, c.Revision())
		require.Contains(w, log.String(), "its checksum is another")
		_, err = fs.Stat("data/" + cacheName + ".unusable")
		require.NoError(w, err)
		h.start(w.network)
		require.NoError(w, c.Ready(w.Context()))
		requireSame(w, h.router, c)
	})
}

// TestNoFailedWriteLeavesHalfACache: whatever write fails, and whenever the process
// crashes, the file is that of before or the new one.
func TestNoFailedWriteLeavesHalfACache(t *testing.T) {
	first := &routerpb.Cache{Identity: "i", Life: "l", Revision: 1}
	second := &routerpb.Cache{Identity: "i", Life: "l", Revision: 2}
	for i := 0; ; i++ {
		mem := vfs.NewCrashableMem()
		require.NoError(t, durable.MakeDir(mem, "data"))
		require.NoError(t, (&cache{fs: mem, dir: "data"}).write(first))
		failing := faultfs.New(mem)
		failing.FailAt(i, faultfs.ErrInjected)
		err := (&cache{fs: failing, dir: "data"}).write(second)
		for _, fs := range []vfs.FS{mem, mem.CrashClone(vfs.CrashCloneCfg{})} {
			got, readErr := (&cache{fs: fs, dir: "data"}).read()
			require.NoError(t, readErr)
			if err == nil {
				require.True(t, proto.Equal(second, got))
			} else {
				require.True(t, proto.Equal(first, got) || proto.Equal(second, got))
			}
		}
		if err == nil {
			require.Greater(t, i, 3)
			return
		}
	}
}

func TestCachesOfThisVersionStayReadable(t *testing.T) {
	const golden = "5047524f55544552000000011ccc6d4400000000000000090a02696412016c1807"
	want := &routerpb.Cache{Identity: "id", Life: "l", Revision: 7}
	data, err := hex.DecodeString(golden)
	require.NoError(t, err)
	kept, err := decodeCache(data)
	require.NoError(t, err)
	require.True(t, proto.Equal(want, kept))
	now, err := encodeCache(want)
	require.NoError(t, err)
	require.Equal(t, golden, hex.EncodeToString(now))

	newer := append([]byte(nil), data...)
	newer[11] = 2
	_, err = decodeCache(newer)
	var version *router.VersionError
	require.ErrorAs(t, err, &version)
	for cut := range data {
		_, err := decodeCache(data[:cut])
		var damage *router.DamageError
		require.ErrorAs(t, err, &damage)
	}
	for i := range data {
		flipped := append([]byte(nil), data...)
		flipped[i] ^= 0x40
		_, err := decodeCache(flipped)
		require.Error(t, err)
	}
}

func FuzzDecodeCache(f *testing.F) {
	data, err := encodeCache(&routerpb.Cache{Identity: "id", Life: "l", Revision: 7, Shards: []*routerpb.Shard{{Name: "s", State: 1}}})
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		kept, err := decodeCache(data)
		if err != nil {
			return
		}
		again, err := encodeCache(kept)
		require.NoError(t, err)
		same, err := decodeCache(again)
		require.NoError(t, err)
		require.True(t, proto.Equal(kept, same))
	})
}
