package remote

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perigee-mq/perigee/internal/tiererr"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

func TestAClientShowsWhatTheRouterShows(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h := w.hosts["r1"]
		w.topic(h, "a")
		c := w.client("r1")
		requireSame(w, h.router, c)
		require.NoError(w, c.Err())
		w.topic(h, "b")
		_, _, err := h.router.CreateGroup(w.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(w, err)
		_, err = h.router.DeleteTopic(w.Context(), named("a"))
		require.NoError(w, err)
		w.settle(0)
		requireSame(w, h.router, c)
	})
}

func TestStatesAndChangesOfManyPagesArrive(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h := w.hosts["r1"]
		for i := range 2*pageSize + 7 {
			w.topic(h, fmt.Sprint("t", i))
		}
		fs := vfs.NewMem()
		cached := func(o *ClientOptions) { o.FS, o.Dir = fs, "cache" }
		c := w.client("r1", cached)
		requireSame(w, h.router, c)
		require.NoError(w, c.Close())
		for i := range 2*pageSize + 7 {
			_, err := h.router.DeleteTopic(w.Context(), named(fmt.Sprint("t", i)))
			require.NoError(w, err)
			w.topic(h, fmt.Sprint("u", i))
		}
		c = w.client("r1", cached)
		w.settle(time.Second)
		requireSame(w, h.router, c)
	})
}

func TestChangesAreMadeAndSeenByWhoeverMadeThem(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, c := w.hosts["r1"], w.client("r1")
		ctx := w.Context()
		topic, created, err := c.CreateTopic(ctx, router.TopicSpec{Resource: named("a"), Queues: 3, Dedup: new(time.Duration(0))})
		require.NoError(w, err)
		require.True(w, created)
		requireSame(w, h.router, c)
		again, created, err := c.CreateTopic(ctx, router.TopicSpec{Resource: named("a"), Queues: 3, Dedup: new(time.Duration(0))})
		require.NoError(w, err)
		require.False(w, created)
		require.Equal(w, topic, again)
		_, _, err = c.CreateTopic(ctx, router.TopicSpec{Resource: named("a"), Queues: 4})
		require.ErrorIs(w, err, mq.ErrTopicExists)
		_, _, err = c.CreateTopic(ctx, router.TopicSpec{Resource: named("a b")})
		in := &mq.InvalidError{}
		require.ErrorAs(w, err, &in)
		require.Equal(w, "topic", in.Field)
		require.ErrorIs(w, err, mq.ErrIllegalTopic)

		topic, err = c.UpdateTopic(ctx, named("a"), router.TopicUpdate{ReadQueues: new(int32(1)), Permission: new(mq.PermRead)})
		require.NoError(w, err)
		require.EqualValues(w, 1, topic.Shards[0].Read)
		requireSame(w, h.router, c)

		group, created, err := c.CreateGroup(ctx, router.GroupSpec{Resource: named("g"), FIFO: true})
		require.NoError(w, err)
		require.True(w, created)
		require.Equal(w, mq.DefaultRetryPolicy(), group.Retry)
		group, err = c.UpdateGroup(ctx, named("g"), router.GroupUpdate{FIFO: new(false), Start: &mq.StartPosition{Policy: mq.StartLatest}})
		require.NoError(w, err)
		require.False(w, group.FIFO)
		system, err := c.EnsureSystemGroup(ctx, router.GroupSpec{Resource: named(mq.RedriveGroup)})
		require.NoError(w, err)
		require.Equal(w, mq.RedriveGroup, system.Name)
		requireSame(w, h.router, c)

		gone, err := c.DeleteGroup(ctx, named("g"))
		require.NoError(w, err)
		require.Equal(w, group, gone)
		_, err = c.DeleteTopic(ctx, named("a"))
		require.NoError(w, err)
		_, err = c.DeleteTopic(ctx, named("a"))
		require.ErrorIs(w, err, mq.ErrTopicNotFound)
		requireSame(w, h.router, c)

		shard, err := c.SetShard(ctx, "s1", router.ShardDraining)
		require.NoError(w, err)
		require.Equal(w, router.Shard{Name: "s1", State: router.ShardDraining}, shard)
		_, err = c.RemoveShard(ctx, "nobody", false)
		require.ErrorIs(w, err, mq.ErrShardNotFound)
		requireSame(w, h.router, c)
	})
}

func TestWhatAnotherHasJustCreatedIsFoundBeforeTheWatchBringsIt(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, c := w.hosts["r1"], w.client("r1")
		topic := w.topic(h, "new") // nobody has run since
		got, err := c.Topic(w.Context(), named("new"))
		require.NoError(w, err)
		require.Equal(w, topic, got)
		topic = w.topic(h, "newer")
		got, err = c.TopicByID(topic.ID)
		require.NoError(w, err)
		require.Equal(w, topic, got)
		group, _, err := h.router.CreateGroup(w.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(w, err)
		found, err := c.Group(w.Context(), named("g"))
		require.NoError(w, err)
		require.Equal(w, group, found)
		group, _, err = h.router.CreateGroup(w.Context(), router.GroupSpec{Resource: named("h")})
		require.NoError(w, err)
		found, err = c.GroupByID(group.ID)
		require.NoError(w, err)
		require.Equal(w, group, found)

		auto, err := c.EnsureTopic(w.Context(), named("auto"))
		require.NoError(w, err, "the router creates topics by itself")
		requireSame(w, h.router, c)
		require.Equal(w, "auto", auto.Name)
		_, err = c.EnsureGroup(w.Context(), named("auto"))
		require.ErrorIs(w, err, mq.ErrGroupNotFound, "and no groups")
		_, err = c.Topic(w.Context(), named("missing"))
		require.ErrorIs(w, err, mq.ErrTopicNotFound)
		require.ErrorContains(w, err, "perigee topic create missing")
	})
}

func TestWithoutARouterTheKnownIsServedAndNothingElseIsSaid(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, c := w.hosts["r1"], w.client("r1")
		topic := w.topic(h, "a")
		gone := w.topic(h, "gone")
		_, err := h.router.DeleteTopic(w.Context(), named("gone"))
		require.NoError(w, err)
		w.settle(0)
		h.stop(w.network)
		w.settle(time.Minute)
		require.ErrorIs(w, c.Err(), mq.ErrUnavailable)
		require.ErrorContains(w, c.Err(), "passthrough:///r1: ")

		got, err := c.Topic(w.Context(), named("a"))
		require.NoError(w, err)
		require.Equal(w, topic, got)
		_, err = c.TopicByID(gone.ID)
		require.ErrorIs(w, err, mq.ErrTopicNotFound, "that is for good")
		for _, err := range []error{
			second(c.Topic(w.Context(), named("b"))), second(c.EnsureTopic(w.Context(), named("b"))),
			second(c.TopicByID(gone.ID + 1)), second(c.GroupByID(1)), second(c.Group(w.Context(), named("g"))),
			second(c.DeleteTopic(w.Context(), named("a"))),
		} {
			require.ErrorIs(w, err, mq.ErrUnavailable)
			require.NotErrorIs(w, err, mq.ErrTopicNotFound, "nobody knows")
			require.NotErrorIs(w, err, mq.ErrGroupNotFound)
		}
		_, _, err = c.CreateTopic(w.Context(), router.TopicSpec{Resource: named("b")})
		require.ErrorIs(w, err, mq.ErrUnavailable)
		require.ErrorContains(w, err, "no router answers")

		h.start(w.network)
		w.settle(10 * time.Second)
		require.NoError(w, c.Err())
		requireSame(w, h.router, c)
	})
}

func second[T any](_ T, err error) error { return err }

func TestNamesThatNobodyKnowsAreNotAskedForWithoutBound(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		c := w.client("r1")
		for range 3 * missRate {
			_, err := c.Topic(w.Context(), named("missing"))
			require.ErrorIs(w, err, mq.ErrTopicNotFound)
		}
		require.False(w, c.nameMisses.take(time.Now()))
		topic := w.topic(w.hosts["r1"], "new")
		got, err := c.TopicByID(topic.ID)
		require.NoError(w, err, "ids have a bound of their own")
		require.Equal(w, topic, got)
		for range 2 * missRate {
			_, err := c.TopicByID(99)
			require.ErrorIs(w, err, mq.ErrUnavailable, "an id that may exist is never said to be gone")
		}
		w.settle(time.Second)
		require.True(w, c.nameMisses.take(time.Now()))
	})
}

func TestAClientGoesToAnotherRouter(t *testing.T) {
	inWorld(t, "r1 r2", func(w *world) {
		// Both have the same metadata, as routers over one backend would.
		w.hosts["r2"].stop(w.network)
		w.hosts["r1"].stop(w.network)
		shared := w.hosts["r1"].fs
		r1, r2 := w.hosts["r1"], w.hosts["r2"]
		r2.fs = shared
		r1.start(w.network)
		c := w.client("r1 r2")
		w.topic(r1, "a")
		w.settle(0)
		requireSame(w, r1.router, c)
		r1.stop(w.network)
		r2.start(w.network)
		w.settle(10 * time.Second)
		require.Equal(w, "passthrough:///r2", c.Connected())
		_, _, err := c.CreateTopic(w.Context(), router.TopicSpec{Resource: named("b")})
		require.NoError(w, err)
		requireSame(w, r2.router, c)
	})
}

func TestARouterWithOlderOrOtherMetadataIsRefusedInWords(t *testing.T) {
	inWorld(t, "r1 other", func(w *world) {
		h := w.hosts["r1"]
		h.stop(w.network)
		before := cloneOf(w, h.fs)
		h.start(w.network)
		var log logBuffer
		c := w.client("r1", func(o *ClientOptions) { o.Logger = log.logger() })
		topic := w.topic(h, "a")
		w.settle(0)
		revision := c.Revision()
		h.stop(w.network)

		h.fs = before // somebody brought back a copy of the day before
		h.start(w.network)
		w.settle(time.Minute)
		require.ErrorIs(w, c.Err(), mq.ErrUnavailable)
		require.ErrorContains(w, c.Err(), "refused as a source: metadata older than what is known")
		require.Equal(w, revision, c.Revision())
		got, err := c.Topic(w.Context(), named("a"))
		require.NoError(w, err)
		require.Equal(w, topic, got)
		_, _, err = c.CreateTopic(w.Context(), router.TopicSpec{Resource: named("b")})
		require.ErrorIs(w, err, mq.ErrUnavailable, "it would give out an id again")
		require.Len(w, h.router.ListTopics(w.Context(), router.Selection{}), 0)
		require.Equal(w, 1, strings.Count(log.String(), "refused as a source"), "said once")
		h.stop(w.network)

		h.fs = w.hosts["other"].fs
		w.hosts["other"].stop(w.network)
		h.start(w.network)
		w.settle(time.Minute)
		require.ErrorContains(w, c.Err(), "refused as a source: metadata of another life")
		require.Equal(w, revision, c.Revision())
	})
}

func TestADeadConnectionIsNoticedAndLeft(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, wire := w.hosts["r1"], &cable{network: w.network}
		var log logBuffer
		c := w.client("r1", wire.on, aStore("n1", "s1"), func(o *ClientOptions) { o.Logger = log.logger() })
		w.settle(time.Minute)
		require.NoError(w, c.Err(), "a router that has nothing to say says so")
		wire.freeze()
		w.settle(silence - quiet - time.Second)
		require.NoError(w, c.Err())
		began := time.Now()
		_, err := c.Topic(w.Context(), named("missing"))
		require.ErrorIs(w, err, mq.ErrUnavailable)
		require.Equal(w, callTimeout, time.Since(began))
		w.settle(quiet)
		require.ErrorContains(w, c.Err(), "nothing came for 10s")
		require.Contains(w, log.String(), "node not registered")
		require.Empty(w, h.nodes.Nodes().List)
		w.settle(10 * time.Second)
		require.NoError(w, c.Err(), "over a new connection")
		require.Len(w, h.nodes.Nodes().List, 1)
	})
}

func TestARouterThatStopsSaysSo(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h, c := w.hosts["r1"], w.client("r1")
		h.server.Drain()
		w.settle(0)
		require.Error(w, c.Err())
		require.ErrorContains(w, c.Err(), "the router stops")
	})
}

func TestReadyWaitsForARouter(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		h := w.hosts["r1"]
		h.stop(w.network)
		c := w.open(w.options("r1 r2"))
		w.settle(time.Second)
		ready := make(chan error, 1)
		go func() { ready <- c.Ready(w.Context()) }()
		w.settle(time.Second)
		require.Empty(w, ready)
		h.start(w.network)
		require.NoError(w, <-ready)
		requireSame(w, h.router, c)
	})
}

func TestClosedClientsSayThat(t *testing.T) {
	inWorld(t, "r1", func(w *world) {
		c := w.client("r1")
		watch := c.Watch()
		_, err := watch.Next(w.Context())
		require.NoError(w, err)
		require.NoError(w, c.Close())
		_, err = watch.Next(w.Context())
		require.ErrorIs(w, err, mq.ErrStopped)
		_, _, err = c.CreateTopic(w.Context(), router.TopicSpec{Resource: named("b")})
		require.ErrorIs(w, err, mq.ErrStopped)
		require.NoError(w, c.Close())
	})
}

func TestAddressesAreChecked(t *testing.T) {
	for _, addresses := range [][]string{nil, {""}, {"a:1", ""}} {
		_, err := Open(ClientOptions{Addresses: addresses})
		require.ErrorIs(t, err, mq.ErrInvalid)
	}
}

// lossy answers the calls of a method with a lost connection, after they were carried out.
func lossy(method string) grpc.ServerOption {
	return grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		resp, err := handler(ctx, req)
		if err == nil && strings.HasSuffix(info.FullMethod, "/"+method) {
			return nil, status.Error(codes.Unavailable, "connection lost")
		}
		return resp, err
	})
}

func TestALostAnswerToADeletionIsNotTakenForAnAnswer(t *testing.T) {
	inWorld(t, "", func(w *world) {
		h := &host{t: w, name: "r1", fs: vfs.NewMem(), opts: []grpc.ServerOption{lossy("DeleteTopic"), lossy("DeleteGroup")}}
		w.hosts["r1"] = h
		h.start(w.network)
		w.topic(h, "a")
		_, _, err := h.router.CreateGroup(w.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(w, err)
		c := w.client("r1")
		_, err = c.DeleteTopic(w.Context(), named("a"))
		require.ErrorIs(w, err, mq.ErrUnavailable)
		require.ErrorContains(w, err, "whether it has done so is not known")
		_, err = c.DeleteGroup(w.Context(), named("g"))
		require.ErrorContains(w, err, "whether it has done so is not known")
		w.settle(0)
		requireSame(w, h.router, c)
		_, err = c.DeleteTopic(w.Context(), named("a"))
		require.ErrorIs(w, err, mq.ErrTopicNotFound)
	})
}

func TestACreationIsTriedWithTheNextRouter(t *testing.T) {
	inWorld(t, "", func(w *world) {
		shared := vfs.NewMem()
		broken := &host{t: w, name: "r1", fs: shared, opts: []grpc.ServerOption{lossy("CreateTopic")}}
		w.hosts["r1"] = broken
		broken.start(w.network)
		c := w.client("r1 r2")
		require.Equal(w, "passthrough:///r1", c.Connected())
		// r2 is another way to the same router.
		well := &host{t: w, name: "r2", router: broken.router, server: broken.server, nodes: broken.nodes}
		well.grpc = grpc.NewServer()
		well.server.Register(well.grpc)
		lis := bufconn.Listen(1 << 16)
		well.serving.Go(func() { _ = well.grpc.Serve(lis) })
		w.network.set("r2", lis)
		defer func() { well.grpc.Stop(); well.serving.Wait() }()
		w.settle(10 * time.Second)
		topic, created, err := c.CreateTopic(w.Context(), router.TopicSpec{Resource: named("a")})
		require.NoError(w, err)
		require.False(w, created, "the first router had created it")
		require.EqualValues(w, 1, topic.ID)
		requireSame(w, broken.router, c)
	})
}

// A router over a backend that several share may not know itself whether a deletion was made.
func TestADeletionWhoseOutcomeARouterDoesNotKnowIsNotTriedWithTheNext(t *testing.T) {
	inWorld(t, "", func(w *world) {
		unsure := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			if strings.Contains(info.FullMethod, "/Delete") {
				return nil, tiererr.Status(fmt.Errorf("%w: as it is told", mq.ErrOutcomeUnknown))
			}
			return handler(ctx, req)
		})
		h := &host{t: w, name: "r1", fs: vfs.NewMem(), opts: []grpc.ServerOption{unsure}}
		w.hosts["r1"] = h
		h.start(w.network)
		w.topic(h, "a")
		_, _, err := h.router.CreateGroup(w.Context(), router.GroupSpec{Resource: named("g")})
		require.NoError(w, err)
		c := w.client("r1 r2")
		// r2 is another way to the same router.
		well := grpc.NewServer()
		h.server.Register(well)
		lis := bufconn.Listen(1 << 16)
		h.serving.Go(func() { _ = well.Serve(lis) })
		w.network.set("r2", lis)
		defer well.Stop()
		w.settle(10 * time.Second)
		_, err = c.DeleteTopic(w.Context(), named("a"))
		require.ErrorIs(w, err, mq.ErrOutcomeUnknown)
		require.ErrorContains(w, err, "as it is told")
		_, err = c.DeleteGroup(w.Context(), named("g"))
		require.ErrorIs(w, err, mq.ErrOutcomeUnknown)
		_, err = h.router.Topic(w.Context(), named("a"))
		require.NoError(w, err, "no other router was asked to")
	})
}
