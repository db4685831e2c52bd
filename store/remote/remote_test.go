package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"

	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/internal/newer"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

// echo is a store that checks what it is given and answers with what it is told.
type echo struct {
	t *testing.T
	// want has the arguments of the next call, and give what it returns.
	want []any
	give []any
	left chan string // lite clients
}

func (e *echo) called(args ...any) {
	assert.Equal(e.t, e.want, args) // not require: the call must be answered
}

func (e *echo) err() error {
	err, _ := e.give[len(e.give)-1].(error)
	return err
}

func given[T any](e *echo, i int) T {
	v, _ := e.give[i].(T)
	return v
}

func (e *echo) Append(_ context.Context, shard string, t *mq.Topic, q mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	e.called(shard, t, q, msgs)
	return given[[]mq.Appended](e, 0), e.err()
}

func (e *echo) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	if err := r.Reserve(ctx, 100); err != nil {
		return nil, err
	}
	*r.Waited = time.Minute
	r.Reserve, r.Waited = nil, nil
	e.called(shard, r)
	return given[[]mq.Delivery](e, 0), e.err()
}

func (e *echo) Ack(_ context.Context, leases []mq.Lease) []error {
	e.called(leases)
	return given[[]error](e, 0)
}

func (e *echo) ChangeInvisible(_ context.Context, changes []mq.LeaseChange) []error {
	e.called(changes)
	return given[[]error](e, 0)
}

func (e *echo) DeadLetter(_ context.Context, lease mq.Lease) error {
	e.called(lease)
	return e.err()
}

func (e *echo) Recall(_ context.Context, h []mq.PendingHandle) []error {
	e.called(h)
	return given[[]error](e, 0)
}

func (e *echo) Postpone(_ context.Context, h []mq.PendingHandle, at time.Time) []error {
	e.called(h, at)
	return given[[]error](e, 0)
}

func (e *echo) CheckAgain(_ context.Context, h []mq.PendingHandle) []error {
	e.called(h)
	return given[[]error](e, 0)
}

func (e *echo) Timers(_ context.Context, shard string, q mq.PendingQuery) ([]mq.PendingMessage, mq.PendingMark, error) {
	e.called(shard, q)
	return given[[]mq.PendingMessage](e, 0), given[mq.PendingMark](e, 1), e.err()
}

func (e *echo) Transactions(_ context.Context, shard string, q mq.PendingQuery, stage mq.HalfStage) ([]mq.PendingMessage, mq.PendingMark, error) {
	e.called(shard, q, stage)
	return given[[]mq.PendingMessage](e, 0), given[mq.PendingMark](e, 1), e.err()
}

func (e *echo) TimersOf(_ context.Context, shard string, id mq.TopicID) (int64, error) {
	e.called(shard, id)
	return given[int64](e, 0), e.err()
}

func (e *echo) EndTransaction(_ context.Context, h mq.PendingHandle, commit bool) error {
	e.called(h, commit)
	return e.err()
}

func (e *echo) Checks(_ context.Context, topics []mq.Resource, limit int) ([]mq.Check, error) {
	e.called(topics, limit)
	return given[[]mq.Check](e, 0), e.err()
}

func (e *echo) Unasked(_ context.Context, checks []mq.Check) error {
	e.called(checks)
	return e.err()
}

func (e *echo) Pull(ctx context.Context, shard string, p mq.Pull) (mq.Pulled, error) {
	if err := p.Reserve(ctx, 100); err != nil {
		return mq.Pulled{}, err
	}
	*p.Waited = time.Minute
	p.Reserve, p.Waited = nil, nil
	e.called(shard, p)
	return given[mq.Pulled](e, 0), e.err()
}

func (e *echo) Queues(_ context.Context, shard string, id mq.TopicID) ([]mq.QueueRange, error) {
	e.called(shard, id)
	return given[[]mq.QueueRange](e, 0), e.err()
}

func (e *echo) Range(_ context.Context, shard string, t *mq.Topic, q mq.QueueID) (mq.QueueRange, error) {
	e.called(shard, t, q)
	return given[mq.QueueRange](e, 0), e.err()
}

func (e *echo) OffsetAt(_ context.Context, shard string, t *mq.Topic, q mq.QueueID, at time.Time) (mq.QueueOffset, error) {
	e.called(shard, t, q, at)
	return given[mq.QueueOffset](e, 0), e.err()
}

func (e *echo) Positions(_ context.Context, shard string, t mq.TopicID, g mq.GroupID) ([]mq.Position, error) {
	e.called(shard, t, g)
	return given[[]mq.Position](e, 0), e.err()
}

func (e *echo) Backlogs(_ context.Context, shard string, g mq.GroupID) ([]mq.Backlog, error) {
	e.called(shard, g)
	return given[[]mq.Backlog](e, 0), e.err()
}

func (e *echo) SetOffset(_ context.Context, shard string, set mq.OffsetSet) (int, error) {
	e.called(shard, set)
	return given[int](e, 0), e.err()
}

func (e *echo) SyncLite(_ context.Context, r mq.LiteSync, names map[string][]string) ([]mq.LiteLoss, error) {
	e.called(r, names)
	return given[[]mq.LiteLoss](e, 0), e.err()
}

func (e *echo) LeaveLite(client string) { e.left <- client }

func (e *echo) LiteStock(_ context.Context, shard string, id mq.TopicID) (mq.LiteStock, error) {
	e.called(shard, id)
	return given[mq.LiteStock](e, 0), e.err()
}

func (e *echo) PurgeTopic(_ context.Context, id mq.TopicID) error {
	e.called(id)
	return e.err()
}

func (e *echo) Owed(_ context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error) {
	e.called(shard, topic, group)
	return given[bool](e, 0), e.err()
}

func (e *echo) Remains(_ context.Context, shard string) (mq.Remains, error) {
	e.called(shard)
	return given[mq.Remains](e, 0), e.err()
}

func (e *echo) Orphans(context.Context) ([]string, error) {
	e.called()
	return given[[]string](e, 0), e.err()
}

func (e *echo) Adopt(_ context.Context, a mq.Adoption) ([]mq.Adopted, error) {
	e.called(a)
	return given[[]mq.Adopted](e, 0), e.err()
}

// TestEveryCallCrossesWithAllItHas calls a store through a node, with every field of
// every argument and result set, and once with an error.
func TestEveryCallCrossesWithAllItHas(t *testing.T) { everyCall(t, one) }

// TestEveryCallCrossesBetweenVersionsThatKnowMoreAndLess has an end, for each end, that sends
// fields which nobody knows yet, in every message; the encodings written by hand take them as well.
func TestEveryCallCrossesBetweenVersionsThatKnowMoreAndLess(t *testing.T) {
	everyCall(t, func(t *testing.T, store remote.Store, fn func(c *cluster, n *testNode, client *remote.Client)) {
		c := newCluster(t)
		n := c.start(nodeA, store, "s")
		behind := bufconn.Listen(1 << 20)
		between, err := newer.Serve(behind, func(ctx context.Context, _ string) (net.Conn, error) { return n.listener.DialContext(ctx) })
		require.NoError(t, err)
		c.nodes[nodeB], c.shards["s"] = &testNode{listener: behind}, nodeB
		delete(c.nodes, nodeA)
		client := c.client()
		fn(c, n, client)
		require.NoError(t, client.Close())
		require.NoError(t, between.Stop())
		n.grpc.Stop()
		require.Empty(t, between.Missed(storepb.File_perigee_store_v1_store_proto.Services().ByName("StoreService")))
	})
}

func everyCall(t *testing.T, one func(t *testing.T, store remote.Store, fn func(c *cluster, n *testNode, client *remote.Client))) {
	e := &echo{t: t, left: make(chan string, 1)}
	n := 0
	refused := fmt.Errorf("pop 12: %w", mq.ErrLeaseSuperseded)
	on := func(leases []mq.Lease) []mq.Lease {
		for i := range leases {
			leases[i].Shard = "s"
		}
		return leases
	}
	handles := func() []mq.PendingHandle {
		list := filled[[]mq.PendingHandle](&n)
		for i := range list {
			list[i].Shard = "s"
		}
		return list
	}
	one(t, e, func(_ *cluster, _ *testNode, c *remote.Client) {
		ctx := t.Context()
		c.LeaveLite("client")
		require.Equal(t, "client", <-e.left)
		// expect sets what the store is to get and to give, and returns the latter.
		expect := func(want []any, give ...any) []any {
			e.want, e.give = want, give
			return give
		}
		got := func(results ...any) []any { return results }
		sameErrors := func(want, got []error) {
			require.Len(t, got, len(want))
			for i := range want {
				if want[i] == nil {
					require.NoError(t, got[i])
					continue
				}
				require.EqualError(t, got[i], want[i].Error())
				require.ErrorIs(t, got[i], mq.ErrLeaseSuperseded)
			}
		}

		msgs := filled[[]*mq.Message](&n)
		for _, m := range msgs {
			m.Content, m.LiteLimit = 0, 0 // the store sets them
		}
		appended := filled[[]mq.Appended](&n)
		expect([]any{"s", topic(), mq.QueueID(3), msgs}, appended, nil)
		stored, err := c.Append(ctx, "s", topic(), 3, msgs)
		require.NoError(t, err)
		require.Equal(t, appended, stored)
		expect([]any{"s", topic(), mq.QueueID(3), msgs}, nil, refused)
		_, err = c.Append(ctx, "s", topic(), 3, msgs)
		require.EqualError(t, err, refused.Error())
		require.ErrorIs(t, err, mq.ErrLeaseEnded)

		r := filled[mq.Receive](&n)
		r.Topic, r.Group, r.Waited = topic(), group(), nil
		ds := filled[[]mq.Delivery](&n)
		for i := range ds {
			l := &ds[i].Lease
			l.Shard, l.Topic, l.Group, l.AutoRenew = "s", topic().ID, group().ID, r.AutoRenew
			ds[i].Content, ds[i].LiteLimit = 0, 0
		}
		expect([]any{"s", r}, ds, nil)
		asked, waited, reserved := r, time.Second, 0
		asked.Waited = &waited
		asked.Reserve = func(_ context.Context, bytes int) error { reserved = bytes; return nil }
		deliveries, err := c.Receive(ctx, "s", asked)
		require.NoError(t, err)
		require.Equal(t, ds, deliveries)
		require.Equal(t, time.Minute+time.Second, waited)
		require.Positive(t, reserved)
		expect([]any{"s", r}, nil, refused)
		_, err = c.Receive(ctx, "s", asked)
		require.EqualError(t, err, refused.Error())

		leases := on(filled[[]mq.Lease](&n))
		for _, results := range [][]error{{nil, nil}, {refused, nil}, {nil, refused}} {
			expect([]any{leases}, results)
			sameErrors(results, c.Ack(ctx, leases))
		}
		changes := filled[[]mq.LeaseChange](&n)
		for i := range changes {
			changes[i].Lease.Shard = "s"
		}
		expect([]any{changes}, []error{nil, refused})
		sameErrors([]error{nil, refused}, c.ChangeInvisible(ctx, changes))
		expect([]any{leases[0]}, refused)
		require.EqualError(t, c.DeadLetter(ctx, leases[0]), refused.Error())

		hs := handles()
		at := time.Unix(5, 6)
		expect([]any{hs}, []error{nil, refused})
		sameErrors([]error{nil, refused}, c.Recall(ctx, hs))
		expect([]any{hs, at}, []error{refused, nil})
		sameErrors([]error{refused, nil}, c.Postpone(ctx, hs, at))
		expect([]any{hs}, []error{refused, nil})
		sameErrors([]error{refused, nil}, c.CheckAgain(ctx, hs))

		q := filled[mq.PendingQuery](&n)
		give := expect([]any{"s", q}, filled[[]mq.PendingMessage](&n), filled[mq.PendingMark](&n), nil)
		list, mark, err := c.Timers(ctx, "s", q)
		require.Equal(t, give, got(list, mark, err))
		for _, stage := range []mq.HalfStage{mq.HalfWaiting, mq.HalfLastAsked, mq.HalfGivenUp} {
			give = expect([]any{"s", q, stage}, filled[[]mq.PendingMessage](&n), mq.PendingMark{}, nil)
			list, mark, err = c.Transactions(ctx, "s", q, stage)
			require.Equal(t, give, got(list, mark, err))
		}
		give = expect([]any{"s", mq.TopicID(7)}, int64(11), nil)
		count, err := c.TimersOf(ctx, "s", 7)
		require.Equal(t, give, got(count, err))
		expect([]any{hs[0], true}, refused)
		require.EqualError(t, c.EndTransaction(ctx, hs[0], true), refused.Error())

		topics := filled[[]mq.Resource](&n)
		checks := filled[[]mq.Check](&n)
		for i := range checks {
			checks[i].Message.Content, checks[i].Message.LiteLimit, checks[i].Shard = 0, 0, "s"
		}
		give = expect([]any{topics, 16}, checks, nil)
		asks, err := c.Checks(ctx, topics, 16)
		require.Equal(t, give, got(asks, err))
		var bare []mq.Check
		for _, check := range checks {
			check.Message = mq.Message{}
			bare = append(bare, check)
		}
		expect([]any{bare}, nil)
		require.NoError(t, c.Unasked(ctx, checks))

		p := filled[mq.Pull](&n)
		p.Topic, p.Waited = topic(), nil
		pulled := mq.Pulled{Messages: ds, Next: 77}
		for i := range ds {
			ds[i].Lease.Group, ds[i].Lease.AutoRenew = 0, false
		}
		expect([]any{"s", p}, pulled, nil)
		pull := p
		pull.Waited, pull.Reserve = asked.Waited, asked.Reserve
		page, err := c.Pull(ctx, "s", pull)
		require.NoError(t, err)
		require.Equal(t, pulled, page)
		outside := &mq.OffsetError{Topic: topic().Resource, Queue: 3, Offset: 9, Min: 1, Next: 4}
		expect([]any{"s", p}, nil, outside)
		_, err = c.Pull(ctx, "s", pull)
		var arrived *mq.OffsetError
		require.ErrorAs(t, err, &arrived)
		require.Equal(t, outside, arrived)

		give = expect([]any{"s", mq.TopicID(7)}, filled[[]mq.QueueRange](&n), nil)
		queues, err := c.Queues(ctx, "s", 7)
		require.Equal(t, give, got(queues, err))
		give = expect([]any{"s", topic(), mq.QueueID(3)}, filled[mq.QueueRange](&n), nil)
		queue, err := c.Range(ctx, "s", topic(), 3)
		require.Equal(t, give, got(queue, err))
		give = expect([]any{"s", topic(), mq.QueueID(3), at}, mq.QueueOffset(12), nil)
		offset, err := c.OffsetAt(ctx, "s", topic(), 3, at)
		require.Equal(t, give, got(offset, err))
		give = expect([]any{"s", mq.TopicID(7), mq.GroupID(9)}, filled[[]mq.Position](&n), nil)
		positions, err := c.Positions(ctx, "s", 7, 9)
		require.Equal(t, give, got(positions, err))
		give = expect([]any{"s", mq.GroupID(9)}, filled[[]mq.Backlog](&n), nil)
		backlogs, err := c.Backlogs(ctx, "s", 9)
		require.Equal(t, give, got(backlogs, err))
		set := mq.OffsetSet{Topic: topic(), Group: group(), Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{0: 4, 3: 0}}
		give = expect([]any{"s", set}, 5, nil)
		dropped, err := c.SetOffset(ctx, "s", set)
		require.Equal(t, give, got(dropped, err))

		sync := filled[mq.LiteSync](&n)
		sync.Topic, sync.Group, sync.Names = topic(), group(), nil // names come by shard
		names := map[string][]string{"s": {"a", "b"}}
		give = expect([]any{sync, names}, filled[[]mq.LiteLoss](&n), nil)
		losses, err := c.SyncLite(ctx, sync, names)
		require.Equal(t, give, got(losses, err))
		expect([]any{sync, names}, nil, refused)
		_, err = c.SyncLite(ctx, sync, names)
		require.EqualError(t, err, refused.Error())
		give = expect([]any{"s", mq.TopicID(7)}, filled[mq.LiteStock](&n), nil)
		lites, err := c.LiteStock(ctx, "s", 7)
		require.Equal(t, give, got(lites, err))
		expect([]any{mq.TopicID(7)}, errors.New("no"))
		require.EqualError(t, c.PurgeTopic(ctx, 7), "no")
		give = expect([]any{"s", mq.TopicID(7), mq.GroupID(9)}, true, nil)
		owed, err := c.Owed(ctx, "s", 7, 9)
		require.Equal(t, give, got(owed, err))
		give = expect([]any{"s"}, filled[mq.Remains](&n), nil)
		remains, err := c.Remains(ctx, "s")
		require.Equal(t, give, got(remains, err))

		give = expect(nil, []string{"client", "no text: \xff"}, nil)
		clients, err := c.Orphans(ctx)
		require.Equal(t, give, got(clients, err))
		adoption := filled[mq.Adoption](&n)
		give = expect([]any{adoption}, filled[[]mq.Adopted](&n), nil)
		adopted, err := c.Adopt(ctx, adoption)
		require.Equal(t, give, got(adopted, err))
		give = expect([]any{adoption}, filled[[]mq.Adopted](&n), refused)
		adopted, err = c.Adopt(ctx, adoption)
		require.Equal(t, give[:1], got(adopted), "what was adopted is answered")
		require.NoError(t, err)
		expect([]any{adoption}, nil, refused)
		_, err = c.Adopt(ctx, adoption)
		require.EqualError(t, err, refused.Error())
	})
}
