package proxy

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

// openOn starts a server on what fs holds. The caller ends it.
func openOn(t testing.TB, fs vfs.FS, opts Options) (s *testServer, end func() error) {
	t.Helper()
	nodes, err := store.Open(store.Options{FS: fs, Dir: "data", Shards: []string{testShard}, SegmentSize: 64 << 20, ZeroFill: -1})
	require.NoError(t, err)
	meta, err := router.Open(router.Options{FS: fs, Dir: "meta", Shards: []string{testShard}, AutoCreateGroups: true})
	require.NoError(t, err)
	opts.Store, opts.Router, opts.Transactions = nodes, meta, nodes
	proxy, err := New(opts)
	require.NoError(t, err)
	return &testServer{Server: proxy, nodes: nodes, meta: meta}, func() error {
		proxy.Close()
		return errors.Join(nodes.Close(), meta.Close())
	}
}

// A badDisk fails one write to the log, once that is wanted.
type badDisk struct {
	*vfs.MemFS
	fail atomic.Bool
}

func (d *badDisk) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.MemFS.OpenReadWrite(name, category, opts...)
	if err != nil || !strings.Contains(name, "/log/") {
		return f, err
	}
	return &badFile{f, d}, nil
}

func (d *badDisk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.MemFS.Create(name, category)
	if err != nil || !strings.Contains(name, "/log/") {
		return f, err
	}
	return &badFile{f, d}, nil
}

type badFile struct {
	vfs.File
	disk *badDisk
}

func (f *badFile) WriteAt(p []byte, off int64) (int, error) {
	if f.disk.fail.CompareAndSwap(true, false) {
		return 0, errors.New("input/output error")
	}
	return f.File.WriteAt(p, off)
}

// The disk fails under a settlement. The store stops, for it cannot know what is on
// disk; once it runs again the client's next try is as good as the first.
func TestASettlementThatMetABadDiskCanBeRepeatedAfterTheRestart(t *testing.T) {
	for _, call := range []string{"ack", "change", "forward"} {
		for _, push := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, push %t", call, push), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					disk := &badDisk{MemFS: vfs.NewMem()}
					s, end := openOn(t, disk, Options{})
					s.topic(t, "a")
					s.send(t, message("a", "1", "x"))
					h := &handleCase{s: s, c: s.consumer("a", "g"), push: push}
					request := h.c.simple(1, 3*time.Minute, 0)
					if push {
						request = h.c.push(1, 0)
					}
					h.held = h.c.receive(t, request)
					h.c.live(t, 95*time.Second) // two renewals
					disk.fail.Store(true)
					require.Equal(t, rmqpb.Code_INTERNAL_SERVER_ERROR, h.call(t, call, h.handle()))
					require.Equal(t, rmqpb.Code_INTERNAL_SERVER_ERROR, h.call(t, call, h.handle()), "it has stopped")
					require.ErrorIs(t, end(), mq.ErrStopped)

					s, end = openOn(t, disk, Options{})
					defer func() { require.NoError(t, end()) }()
					c := s.consumer("a", "g")
					h.s, h.c = s, c
					require.Empty(t, c.deadLetters(t))
					require.Empty(t, c.receive(t, c.simple(1, time.Minute, 0)).messages, "it is still held")
					require.Equal(t, rmqpb.Code_OK, h.call(t, call, h.handle()))
					switch call {
					case "ack":
						c.quiet(t, 10*time.Minute)
					case "change":
						d, back := c.back(t)
						require.Less(t, d, 2*time.Second)
						require.Equal(t, []int32{2}, back.attempts())
					case "forward":
						require.Equal(t, rmqpb.Code_OK, h.call(t, call, h.handle()))
						require.Equal(t, []string{"1"}, c.deadLetters(t))
						c.quiet(t, 10*time.Minute)
					}
				})
			})
		}
	}
}

// A copy that could not be written leaves the message where it was.
func TestAMessageWhoseCopyCouldNotBeWrittenIsDeliveredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &badDisk{MemFS: vfs.NewMem()}
		s, end := openOn(t, disk, Options{})
		s.topic(t, "a")
		s.send(t, message("a", "1", "x"))
		c := s.consumer("a", "g")
		h := c.receive(t, c.push(1, 0)).handle(0)
		disk.fail.Store(true)
		require.Equal(t, rmqpb.Code_INTERNAL_SERVER_ERROR, c.forward(t, h))
		require.ErrorIs(t, end(), mq.ErrStopped)

		s, end = openOn(t, disk, Options{})
		defer func() { require.NoError(t, end()) }()
		c = s.consumer("a", "g")
		d, back := c.back(t)
		require.LessOrEqual(t, d, time.Minute)
		require.Equal(t, []string{"1"}, back.ids())
		require.Equal(t, []int32{2}, back.attempts())
		require.Empty(t, c.deadLetters(t))
		for range 2 {
			require.Equal(t, rmqpb.Code_OK, c.forward(t, back.handle(0)))
		}
		require.Equal(t, []string{"1"}, c.deadLetters(t))
	})
}
