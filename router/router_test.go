package router

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func mustOpen(tb testing.TB, fs vfs.FS, edit ...func(*Options)) *Router {
	tb.Helper()
	opts := Options{FS: fs, Dir: "meta", Shards: []string{"s1"}}
	for _, f := range edit {
		f(&opts)
	}
	r, err := Open(opts)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, r.Close()) })
	return r
}

func name(s string) mq.Resource { return mq.Resource{Name: s} }

func createTopic(tb testing.TB, r *Router, spec TopicSpec) *mq.Topic {
	tb.Helper()
	t, created, err := r.CreateTopic(tb.Context(), spec)
	require.NoError(tb, err)
	require.True(tb, created)
	return t
}

func createGroup(tb testing.TB, r *Router, spec GroupSpec) *mq.Group {
	tb.Helper()
	g, created, err := r.CreateGroup(tb.Context(), spec)
	require.NoError(tb, err)
	require.True(tb, created)
	return g
}

func TestCreatedTopicIsFoundByNameAndID(t *testing.T) {
	r := mustOpen(t, vfs.NewMem(), func(o *Options) { o.Shards = []string{"s2", "s1", "s2"} })
	topic := createTopic(t, r, TopicSpec{Resource: mq.Resource{Namespace: "n", Name: "a"}, Type: mq.TopicFIFO, Queues: 3, Permission: mq.PermRead})
	require.Equal(t, &mq.Topic{
		ID: 1, Resource: mq.Resource{Namespace: "n", Name: "a"}, Type: mq.TopicFIFO, Permission: mq.PermRead, Version: 1, Dedup: mq.DefaultDedup,
		Shards: []mq.ShardQueues{{Shard: "s1", Read: 3, Write: 3}, {Shard: "s2", Read: 3, Write: 3}},
	}, topic)
	byName, err := r.Topic(t.Context(), topic.Resource)
	require.NoError(t, err)
	require.Same(t, topic, byName)
	byID, err := r.TopicByID(1)
	require.NoError(t, err)
	require.Same(t, topic, byID)

	_, err = r.Topic(t.Context(), name("a"))
	require.ErrorIs(t, err, mq.ErrTopicNotFound, "another namespace")
	_, err = r.TopicByID(2)
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
}

func TestTopicDefaultsAreFilledIn(t *testing.T) {
	r := mustOpen(t, vfs.NewMem(), func(o *Options) { o.DefaultQueues = 5 })
	topic := createTopic(t, r, TopicSpec{Resource: name("a")})
	require.Equal(t, mq.TopicNormal, topic.Type)
	require.Equal(t, mq.PermReadWrite, topic.Permission)
	require.Equal(t, []mq.ShardQueues{{Shard: "s1", Read: 5, Write: 5}}, topic.Shards)
	topic = createTopic(t, mustOpen(t, vfs.NewMem()), TopicSpec{Resource: name("a")})
	require.EqualValues(t, DefaultQueues, topic.Shards[0].Read)
}

func TestCreateTopicIsIdempotentForAnEqualSpecOnly(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	spec := TopicSpec{Resource: name("a"), Type: mq.TopicDelay, Queues: 4}
	topic := createTopic(t, r, spec)
	again, created, err := r.CreateTopic(t.Context(), spec)
	require.NoError(t, err)
	require.False(t, created)
	require.Same(t, topic, again)
	require.EqualValues(t, 2, r.Revision())
	for _, change := range []func(*TopicSpec){
		func(s *TopicSpec) { s.Type = mq.TopicNormal },
		func(s *TopicSpec) { s.Queues = 0 },
		func(s *TopicSpec) { s.Permission = mq.PermWrite },
	} {
		other := spec
		change(&other)
		_, _, err := r.CreateTopic(t.Context(), other)
		require.ErrorIs(t, err, mq.ErrTopicExists)
	}
}

func TestBadTopicInputIsRefusedAndNamed(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	createGroup(t, r, GroupSpec{Resource: name("g")})
	for _, c := range []struct {
		spec TopicSpec
		kind error
		text string
	}{
		{TopicSpec{Resource: name("a.b")}, mq.ErrIllegalTopic, `topic "a.b"`},
		{TopicSpec{Resource: name("%DLQ%g")}, mq.ErrIllegalTopic, `topic "%DLQ%g"`},
		{TopicSpec{Resource: name("%DLQ%")}, mq.ErrIllegalTopic, `topic "%DLQ%"`},
		{TopicSpec{Resource: mq.Resource{Namespace: "a/b", Name: "c"}}, mq.ErrInvalid, `namespace "a/b"`},
		{TopicSpec{Resource: name("a"), Queues: -1}, mq.ErrInvalid, `queues "-1"`},
		{TopicSpec{Resource: name("a"), Queues: mq.MaxQueues + 1}, mq.ErrInvalid, `1024`},
		{TopicSpec{Resource: name("a"), Type: 50}, mq.ErrInvalid, `type`},
		{TopicSpec{Resource: name("a"), Permission: 5}, mq.ErrInvalid, `permission "5"`},
	} {
		_, _, err := r.CreateTopic(t.Context(), c.spec)
		require.ErrorIs(t, err, c.kind)
		require.ErrorContains(t, err, c.text)
		var input *mq.InvalidError
		require.ErrorAs(t, err, &input)
	}
	_, err := r.UpdateTopic(t.Context(), name("%DLQ%g"), TopicUpdate{})
	require.ErrorIs(t, err, mq.ErrIllegalTopic)
	_, err = r.DeleteTopic(t.Context(), name("%DLQ%g"))
	require.ErrorIs(t, err, mq.ErrIllegalTopic)
	require.EqualValues(t, 2, r.Revision(), "only the group was created")
}

// Another number of writable queues would send a message group to another queue, past
// what lies in the one before.
func TestTopicsWithOrderKeepTheirWritableQueues(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	for _, typ := range []mq.TopicType{mq.TopicNormal, mq.TopicFIFO, mq.TopicDelay, mq.TopicTransaction, mq.TopicPriority, mq.TopicLite, mq.TopicMixed} {
		topic := createTopic(t, r, TopicSpec{Resource: name(typ.String()), Type: typ, Queues: 4})
		before, _, _ := topic.QueueOf("a")
		for _, queues := range []int32{8, 3} {
			changed, err := r.UpdateTopic(t.Context(), topic.Resource, TopicUpdate{ReadQueues: new(int32(8)), WriteQueues: &queues})
			if typ == mq.TopicFIFO || typ == mq.TopicMixed || typ == mq.TopicLite {
				require.ErrorIs(t, err, mq.ErrInvalid, typ)
				require.ErrorContains(t, err, "must stay 4", typ)
				same, err := r.Topic(t.Context(), topic.Resource)
				require.NoError(t, err)
				require.Same(t, topic, same, "nothing was changed")
				after, _, _ := same.QueueOf("a")
				require.Equal(t, before, after)
				continue
			}
			require.NoError(t, err, typ)
			require.Equal(t, queues, changed.Shards[0].Write)
		}
	}
}

func TestUpdateTopicChangesOnlyWhatIsNamed(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	old := createTopic(t, r, TopicSpec{Resource: name("a"), Queues: 4})
	topic, err := r.UpdateTopic(t.Context(), name("a"), TopicUpdate{WriteQueues: new(int32(2))})
	require.NoError(t, err)
	require.Equal(t, []mq.ShardQueues{{Shard: "s1", Read: 4, Write: 2}}, topic.Shards)
	require.EqualValues(t, 2, topic.Version)
	require.Equal(t, old.ID, topic.ID)
	require.EqualValues(t, 4, old.Shards[0].Write, "published values do not change")

	topic, err = r.UpdateTopic(t.Context(), name("a"), TopicUpdate{
		ReadQueues: new(int32(1)), Type: new(mq.TopicMixed), Permission: new(mq.PermNone),
	})
	require.NoError(t, err)
	require.Equal(t, []mq.ShardQueues{{Shard: "s1", Read: 1, Write: 2}}, topic.Shards)
	require.Equal(t, mq.TopicMixed, topic.Type)
	require.Equal(t, mq.PermNone, topic.Permission)
	require.EqualValues(t, 3, topic.Version)
	byID, err := r.TopicByID(topic.ID)
	require.NoError(t, err)
	require.Same(t, topic, byID)

	same, err := r.UpdateTopic(t.Context(), name("a"), TopicUpdate{Type: new(mq.TopicMixed)})
	require.NoError(t, err)
	require.Same(t, topic, same, "an update to the same changes nothing")
	_, err = r.UpdateTopic(t.Context(), name("a"), TopicUpdate{ReadQueues: new(int32(0))})
	require.ErrorContains(t, err, `read-queues "0"`)
	_, err = r.UpdateTopic(t.Context(), name("b"), TopicUpdate{})
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
}

func TestAnIDNeverReturns(t *testing.T) {
	fs := vfs.NewMem()
	r := mustOpen(t, fs)
	require.EqualValues(t, 1, createTopic(t, r, TopicSpec{Resource: name("a")}).ID)
	g := createGroup(t, r, GroupSpec{Resource: name("g")})
	require.EqualValues(t, 1, g.ID)
	require.EqualValues(t, 2, g.DeadLetter)
	for _, f := range []func() error{
		func() error { _, err := r.DeleteTopic(t.Context(), name("a")); return err },
		func() error { _, err := r.DeleteGroup(t.Context(), name("g")); return err },
		r.Close,
	} {
		require.NoError(t, f())
	}
	r = mustOpen(t, fs)
	for _, id := range []mq.TopicID{1, 2} {
		_, err := r.TopicByID(id)
		require.ErrorIs(t, err, mq.ErrTopicNotFound)
	}
	_, err := r.GroupByID(1)
	require.ErrorIs(t, err, mq.ErrGroupNotFound)
	require.EqualValues(t, 3, createTopic(t, r, TopicSpec{Resource: name("a")}).ID)
	g = createGroup(t, r, GroupSpec{Resource: name("g")})
	require.EqualValues(t, 2, g.ID)
	require.EqualValues(t, 4, g.DeadLetter)
}

func TestGroupDefaultsAndOwnership(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	g := createGroup(t, r, GroupSpec{Resource: name("g")})
	require.Equal(t, &mq.Group{ID: 1, Resource: name("g"), Retry: mq.DefaultRetryPolicy(), DeadLetter: 1, DeadLetterShard: "s1", Version: 1}, g)

	delays := []time.Duration{time.Second}
	g = createGroup(t, r, GroupSpec{Resource: name("h"), FIFO: true, Retry: mq.RetryPolicy{MaxAttempts: 3, Customized: delays}})
	delays[0] = time.Hour
	require.Equal(t, time.Second, g.Retry.Delay(1), "the caller keeps its slice")
}

func TestCreateGroupIsIdempotentForAnEqualSpecOnly(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	at := time.Now()
	spec := GroupSpec{
		Resource: name("g"), Retry: mq.RetryPolicy{MaxAttempts: 3, Initial: 1, Max: 9, Multiplier: 2},
		Start: mq.StartPosition{Policy: mq.StartTimestamp, Time: at},
	}
	g := createGroup(t, r, spec)
	again, created, err := r.CreateGroup(t.Context(), spec)
	require.NoError(t, err)
	require.False(t, created)
	require.Same(t, g, again)
	for _, change := range []func(*GroupSpec){
		func(s *GroupSpec) { s.FIFO = true },
		func(s *GroupSpec) { s.Retry = mq.RetryPolicy{} },
		func(s *GroupSpec) { s.Start.Time = at.Add(1) },
	} {
		other := spec
		change(&other)
		_, _, err := r.CreateGroup(t.Context(), other)
		require.ErrorIs(t, err, mq.ErrGroupExists)
	}
}

func TestBadGroupInputIsRefused(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	for _, c := range []struct {
		spec GroupSpec
		kind error
	}{
		{GroupSpec{Resource: name("a.b")}, mq.ErrIllegalGroup},
		{GroupSpec{Resource: mq.Resource{Namespace: " ", Name: "g"}}, mq.ErrInvalid},
		{GroupSpec{Resource: name("g"), Retry: mq.RetryPolicy{MaxAttempts: 1}}, mq.ErrInvalid},
		{GroupSpec{Resource: name("g"), Start: mq.StartPosition{Policy: 9}}, mq.ErrInvalid},
		{GroupSpec{Resource: name("g"), Start: mq.StartPosition{Policy: mq.StartTimestamp}}, mq.ErrInvalid},
	} {
		_, _, err := r.CreateGroup(t.Context(), c.spec)
		require.ErrorIs(t, err, c.kind)
		var input *mq.InvalidError
		require.ErrorAs(t, err, &input)
	}
	require.Empty(t, r.ListGroups(t.Context(), Selection{AllNamespaces: true}))
}

func TestUpdateGroupMovesItsDeadLetterTopicAlong(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	old := createGroup(t, r, GroupSpec{Resource: name("g")})
	g, err := r.UpdateGroup(t.Context(), name("g"), GroupUpdate{FIFO: new(true), Start: &mq.StartPosition{Policy: mq.StartLatest}})
	require.NoError(t, err)
	require.True(t, g.FIFO)
	require.Equal(t, mq.StartLatest, g.Start.Policy)
	require.EqualValues(t, 2, g.Version)
	require.False(t, old.FIFO)
	dlq, err := r.Topic(t.Context(), g.DeadLetterTopic())
	require.NoError(t, err)
	require.EqualValues(t, 2, dlq.Version)
	same, err := r.UpdateGroup(t.Context(), name("g"), GroupUpdate{FIFO: new(true), Retry: &mq.RetryPolicy{}})
	require.NoError(t, err)
	require.Same(t, g, same)
	_, err = r.UpdateGroup(t.Context(), name("g"), GroupUpdate{Retry: &mq.RetryPolicy{MaxAttempts: -1}})
	require.ErrorIs(t, err, mq.ErrInvalid)
}

func TestDeadLetterTopicLivesAsLongAsItsGroup(t *testing.T) {
	r := mustOpen(t, vfs.NewMem(), func(o *Options) { o.AutoCreateTopics = true })
	dlq := mq.Resource{Namespace: "n", Name: "%DLQ%g"}
	_, err := r.EnsureTopic(t.Context(), dlq)
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
	require.NotContains(t, err.Error(), "topic create")
	g := createGroup(t, r, GroupSpec{Resource: mq.Resource{Namespace: "n", Name: "g"}})
	want := &mq.Topic{
		ID: g.DeadLetter, Resource: dlq, Type: mq.TopicNormal, Permission: mq.PermReadWrite, Version: 1,
		Shards: []mq.ShardQueues{{Shard: "s1", Read: 1, Write: 1}},
	}
	topic, err := r.EnsureTopic(t.Context(), dlq)
	require.NoError(t, err)
	require.Equal(t, want, topic)
	byID, err := r.TopicByID(g.DeadLetter)
	require.NoError(t, err)
	require.Same(t, topic, byID)
	require.Empty(t, r.ListTopics(t.Context(), Selection{Namespace: "n"}))
	require.Len(t, r.ListTopics(t.Context(), Selection{Namespace: "n", DeadLetters: true}), 1)
	_, err = r.DeleteGroup(t.Context(), g.Resource)
	require.NoError(t, err)
	_, err = r.Topic(t.Context(), dlq)
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
	_, err = r.TopicByID(g.DeadLetter)
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
}

func TestListsAreSortedByNamespaceAndName(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	for _, res := range []mq.Resource{{Namespace: "b", Name: "a"}, {Name: "z"}, {Namespace: "a-", Name: "y"}, {Namespace: "a", Name: "z"}, {Name: "za"}, {Name: "b"}} {
		createTopic(t, r, TopicSpec{Resource: res})
		createGroup(t, r, GroupSpec{Resource: res})
	}
	list := func(sel Selection) (names []string) {
		for _, topic := range r.ListTopics(t.Context(), sel) {
			names = append(names, topic.String())
		}
		var groups []string
		for _, g := range r.ListGroups(t.Context(), sel) {
			groups = append(groups, g.String())
		}
		require.Equal(t, names, groups)
		return names
	}
	require.Equal(t, []string{"b", "z", "za", "a/z", "a-/y", "b/a"}, list(Selection{AllNamespaces: true}))
	require.Equal(t, []string{"b", "z", "za"}, list(Selection{}))
	require.Equal(t, []string{"z", "za"}, list(Selection{Prefix: "z"}))
	require.Equal(t, []string{"a/z"}, list(Selection{Namespace: "a"}))
}

func TestEnsureCreatesOnlyWhereTheCallerDecidedSo(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	_, err := r.EnsureTopic(t.Context(), name("a"))
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
	require.ErrorContains(t, err, "perigee topic create a")
	_, err = r.EnsureGroup(t.Context(), name("g"))
	require.ErrorIs(t, err, mq.ErrGroupNotFound)

	long := strings.Repeat("x", mq.MaxTopicName)
	_, err = r.EnsureTopic(t.Context(), name(long))
	require.ErrorContains(t, err, "perigee topic create "+long, "the command must work as shown")

	r = mustOpen(t, vfs.NewMem(), func(o *Options) { o.AutoCreateTopics, o.AutoCreateGroups = true, true })
	topic, err := r.EnsureTopic(t.Context(), name("a"))
	require.NoError(t, err)
	require.Equal(t, mq.TopicNormal, topic.Type)
	g, err := r.EnsureGroup(t.Context(), name("g"))
	require.NoError(t, err)
	require.Equal(t, mq.DefaultRetryPolicy(), g.Retry)
	_, err = r.EnsureTopic(t.Context(), name("a b"))
	require.ErrorIs(t, err, mq.ErrIllegalTopic)
	_, err = r.EnsureGroup(t.Context(), name("a b"))
	require.ErrorIs(t, err, mq.ErrIllegalGroup)
}

func TestAMissingNameComesWithTheCommandThatCreatesIt(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	for name, want := range map[mq.Resource]string{
		{Name: "a"}:                     "create a",
		{Namespace: "n", Name: "a"}:     "create a --namespace n",
		{Namespace: "n|m", Name: "a|b"}: "create 'a|b' --namespace 'n|m'",
	} {
		_, err := r.Topic(t.Context(), name)
		require.ErrorIs(t, err, mq.ErrTopicNotFound)
		require.True(t, strings.HasSuffix(err.Error(), "perigee topic "+want), err.Error())
		_, err = r.Group(t.Context(), name)
		require.ErrorIs(t, err, mq.ErrGroupNotFound)
		require.True(t, strings.HasSuffix(err.Error(), "perigee group "+want), err.Error())
	}
}

func TestConcurrentEnsuresCreateOnce(t *testing.T) {
	r := mustOpen(t, vfs.NewMem(), func(o *Options) { o.AutoCreateTopics, o.AutoCreateGroups = true, true })
	const names, callers = 20, 8
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for i := range names {
				topic, err := r.EnsureTopic(t.Context(), name(fmt.Sprint("t", i)))
				if err != nil || topic.Version != 1 {
					t.Error(topic, err)
				}
				if _, err := r.EnsureGroup(t.Context(), name(fmt.Sprint("g", i))); err != nil {
					t.Error(err)
				}
				r.ListTopics(t.Context(), Selection{})
			}
		})
	}
	wg.Wait()
	require.Len(t, r.ListTopics(t.Context(), Selection{}), names)
	require.Len(t, r.ListGroups(t.Context(), Selection{}), names)
	require.EqualValues(t, 1+2*names, r.Revision())
}

func TestACancelledContextChangesNothing(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := r.CreateTopic(ctx, TopicSpec{Resource: name("a")})
	require.ErrorIs(t, err, context.Canceled)
	_, err = r.Topic(t.Context(), name("a"))
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
}

func TestAfterCloseReadsWorkAndChangesAreRefused(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	createTopic(t, r, TopicSpec{Resource: name("a")})
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	_, err := r.Topic(t.Context(), name("a"))
	require.NoError(t, err)
	_, err = r.DeleteTopic(t.Context(), name("a"))
	require.ErrorIs(t, err, mq.ErrStopped)
	require.NoError(t, r.Err())
}

func TestOptionsAreChecked(t *testing.T) {
	for _, opts := range []Options{
		{FS: vfs.NewMem(), Dir: "d", Shards: []string{"a", ""}},
		{FS: vfs.NewMem(), Shards: []string{"a"}},
		{FS: vfs.NewMem(), Dir: "d", Shards: []string{"a"}, DefaultQueues: -1},
	} {
		r, err := Open(opts)
		require.ErrorIs(t, err, mq.ErrInvalid)
		require.Nil(t, r)
	}
}

// fakeBackend holds entries in memory and fails commits with err when it is set.
type fakeBackend struct {
	entries map[string][]byte
	err     error
	closed  int
}

func (f *fakeBackend) Load(_ context.Context, yield func(Entry) error) error {
	for k, v := range f.entries {
		if err := yield(Entry{k, v}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fakeBackend) Commit(_ context.Context, entries []Entry) error {
	if f.err != nil {
		return f.err
	}
	for _, e := range entries {
		if e.Value == nil {
			delete(f.entries, e.Key)
		} else {
			f.entries[e.Key] = e.Value
		}
	}
	return nil
}

func (f *fakeBackend) Err() error   { return nil }
func (f *fakeBackend) Close() error { f.closed++; return nil }

func TestAFailedCommitStopsTheRouterForGood(t *testing.T) {
	backend := &fakeBackend{entries: map[string][]byte{}}
	r, err := Open(Options{Backend: backend, Shards: []string{"s"}})
	require.NoError(t, err)
	createTopic(t, r, TopicSpec{Resource: name("a")})
	backend.err = errors.New("disk gone")
	_, _, err = r.CreateTopic(t.Context(), TopicSpec{Resource: name("b")})
	require.ErrorIs(t, err, mq.ErrStopped)
	require.ErrorIs(t, err, backend.err)
	_, err = r.Topic(t.Context(), name("b"))
	require.ErrorIs(t, err, mq.ErrTopicNotFound, "nothing is visible that is not durable")
	backend.err = nil
	_, _, err = r.CreateTopic(t.Context(), TopicSpec{Resource: name("c")})
	require.ErrorIs(t, err, mq.ErrStopped)
	require.ErrorIs(t, r.Err(), mq.ErrStopped)
	require.NoError(t, r.Close())
	require.Equal(t, 1, backend.closed)
}

func TestSoManyTopicsAndGroupsAreMadeOnFirstUseAndNoMore(t *testing.T) {
	r := mustOpen(t, vfs.NewMem(), func(o *Options) {
		o.AutoCreateTopics, o.AutoCreateGroups, o.AutoCreateLimit = true, true, 2
	})
	createGroup(t, r, GroupSpec{Resource: name("made")})
	createTopic(t, r, TopicSpec{Resource: name("made")})
	_, err := r.EnsureGroup(t.Context(), name("second"))
	require.NoError(t, err)
	_, err = r.EnsureTopic(t.Context(), name("second"))
	require.NoError(t, err, "topics for dead letters do not count")

	_, err = r.EnsureGroup(t.Context(), name("third"))
	require.ErrorIs(t, err, mq.ErrGroupNotFound)
	require.ErrorContains(t, err, `"third", and with 2 groups no more are made on first use (auto_create_limit); create it with: perigee group create third`)
	_, err = r.EnsureTopic(t.Context(), name("third"))
	require.ErrorIs(t, err, mq.ErrTopicNotFound)
	require.ErrorContains(t, err, "with 2 topics no more are made on first use (auto_create_limit)")

	// What is there is found, and what somebody creates is created.
	_, err = r.EnsureGroup(t.Context(), name("second"))
	require.NoError(t, err)
	createGroup(t, r, GroupSpec{Resource: name("third")})
	createTopic(t, r, TopicSpec{Resource: name("third")})
	_, err = r.EnsureSystemGroup(t.Context(), GroupSpec{Resource: name(mq.SystemGroupPrefix + "x")})
	require.NoError(t, err, "the server's own")
}

func TestWhatIsNotAdmittedIsNotCreatedAndTheRestGoesOn(t *testing.T) {
	refusal := error(nil)
	r, err := Open(Options{
		FS: vfs.NewMem(), Dir: "meta", Shards: []string{"s1"}, AutoCreateTopics: true, AutoCreateGroups: true, Admit: func() error { return refusal },
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	old, other := mq.Resource{Name: "old"}, mq.Resource{Name: "other"}
	_, _, err = r.CreateTopic(t.Context(), TopicSpec{Resource: old})
	require.NoError(t, err)
	_, _, err = r.CreateGroup(t.Context(), GroupSpec{Resource: old})
	require.NoError(t, err)

	refusal = mq.ErrStoreFull
	revision := r.Revision()
	_, _, err = r.CreateTopic(t.Context(), TopicSpec{Resource: other})
	require.ErrorIs(t, err, mq.ErrStoreFull)
	_, err = r.EnsureTopic(t.Context(), other)
	require.ErrorIs(t, err, mq.ErrStoreFull)
	_, _, err = r.CreateGroup(t.Context(), GroupSpec{Resource: other})
	require.ErrorIs(t, err, mq.ErrStoreFull)
	_, err = r.EnsureGroup(t.Context(), other)
	require.ErrorIs(t, err, mq.ErrStoreFull)
	require.ErrorContains(t, err, "group other")
	require.Equal(t, revision, r.Revision())

	_, created, err := r.CreateTopic(t.Context(), TopicSpec{Resource: old})
	require.NoError(t, err)
	require.False(t, created)
	_, err = r.EnsureGroup(t.Context(), old)
	require.NoError(t, err)
	retention := time.Hour
	_, err = r.UpdateTopic(t.Context(), old, TopicUpdate{Retention: &retention})
	require.NoError(t, err)
	_, err = r.DeleteTopic(t.Context(), old)
	require.NoError(t, err)
	_, err = r.DeleteGroup(t.Context(), old)
	require.NoError(t, err)
}
