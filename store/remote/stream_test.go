package remote_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	routerpb "github.com/perigee-mq/perigee/gen/perigee/router/v1"
	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/internal/tierwire"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/remote"
)

// hooked is a store whose frequent calls are functions.
type hooked struct {
	remote.Store
	append  func(ctx context.Context) ([]mq.Appended, error)
	receive func(ctx context.Context) ([]mq.Delivery, error)
	ack     func() []error
	change  func(changes []mq.LeaseChange) []error
	checks  func(ctx context.Context) ([]mq.Check, error)
	lite    func(r mq.LiteSync, names map[string][]string)
}

func (h *hooked) SyncLite(_ context.Context, r mq.LiteSync, names map[string][]string) ([]mq.LiteLoss, error) {
	h.lite(r, names)
	return nil, nil
}

func (h *hooked) Checks(ctx context.Context, _ []mq.Resource, _ int) ([]mq.Check, error) {
	return h.checks(ctx)
}

func (h *hooked) Append(ctx context.Context, _ string, _ *mq.Topic, _ mq.QueueID, _ []*mq.Message) ([]mq.Appended, error) {
	return h.append(ctx)
}

func (h *hooked) Receive(ctx context.Context, _ string, r mq.Receive) ([]mq.Delivery, error) {
	if err := r.Reserve(ctx, 1000); err != nil {
		return nil, err
	}
	return h.receive(ctx)
}

func (h *hooked) Ack(context.Context, []mq.Lease) []error { return h.ack() }

func (h *hooked) ChangeInvisible(_ context.Context, changes []mq.LeaseChange) []error {
	return h.change(changes)
}

func stored() []mq.Appended { return []mq.Appended{{Queue: 1, Offset: 2, StoreTime: time.Unix(3, 4)}} }

func delivered(pop mq.PopID) []mq.Delivery {
	return []mq.Delivery{{
		Message: mq.Message{ID: "m", Type: mq.Normal, Body: []byte("body")}, StoreTime: time.Unix(3, 4),
		Lease: mq.Lease{Shard: "s", Topic: topic().ID, Group: group().ID, Queue: 1, Offset: 2, PopID: pop, Attempt: 1},
	}}
}

func send(ctx context.Context, c *remote.Client) ([]mq.Appended, error) {
	return c.Append(ctx, "s", topic(), 1, []*mq.Message{{ID: "m", Type: mq.Normal}})
}

func receive(ctx context.Context, c *remote.Client) ([]mq.Delivery, error) {
	return c.Receive(ctx, "s", mq.Receive{Topic: topic(), Group: group(), Max: 1, Invisible: time.Minute, Wait: time.Minute})
}

func ack(ctx context.Context, c *remote.Client) error {
	return c.Ack(ctx, []mq.Lease{{Shard: "s", Topic: 7, Group: 9, PopID: 1}})[0]
}

func TestACallThatTakesLongHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		h := &hooked{
			append:  func(context.Context) ([]mq.Appended, error) { <-held; return stored(), nil },
			receive: func(ctx context.Context) ([]mq.Delivery, error) { <-ctx.Done(); return nil, ctx.Err() },
			ack:     func() []error { return []error{nil} },
		}
		one(t, h, func(_ *cluster, _ *testNode, c *remote.Client) {
			ctx, cancel := context.WithCancel(t.Context())
			sent, polled := make(chan error, 1), make(chan error, 1)
			go func() { _, err := send(t.Context(), c); sent <- err }()
			go func() { _, err := receive(ctx, c); polled <- err }()
			synctest.Wait()
			require.NoError(t, ack(t.Context(), c))
			close(held)
			require.NoError(t, <-sent)
			cancel()
			require.ErrorIs(t, <-polled, context.Canceled)
		})
	})
}

func TestAReceiveThatNobodyWaitsForEndsAtTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		h := &hooked{receive: func(ctx context.Context) ([]mq.Delivery, error) { <-ctx.Done(); close(ended); return nil, ctx.Err() }}
		one(t, h, func(_ *cluster, _ *testNode, c *remote.Client) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := receive(ctx, c)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			<-ended
		})
	})
}

// TestMessagesThatReachNoConsumerAreGivenBack: the answer is on its way when nobody waits
// for it any more, the proxy has no room for it, or the connection breaks.
func TestMessagesThatReachNoConsumerAreGivenBack(t *testing.T) {
	for name, act := range map[string]func(t *testing.T, n *testNode, c *remote.Client, found chan<- struct{}){
		"late": func(t *testing.T, _ *testNode, c *remote.Client, found chan<- struct{}) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { _, err := receive(ctx, c); done <- err }()
			synctest.Wait()
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
			synctest.Wait()
			close(found) // although it was ended
		},
		"late, and on its way": func(t *testing.T, _ *testNode, c *remote.Client, found chan<- struct{}) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { _, err := receive(ctx, c); done <- err }()
			synctest.Wait()
			close(found)
			cancel()
			if err := <-done; err == nil { // it has won
				_, err := c.Receive(t.Context(), "s", mq.Receive{
					Topic: topic(), Group: group(), Max: 1, Invisible: time.Minute,
					Reserve: func(context.Context, int) error { return mq.ErrBusy },
				})
				require.ErrorIs(t, err, mq.ErrBusy)
			}
		},
		"no room": func(t *testing.T, _ *testNode, c *remote.Client, found chan<- struct{}) {
			close(found)
			_, err := c.Receive(t.Context(), "s", mq.Receive{
				Topic: topic(), Group: group(), Max: 1, Invisible: time.Minute,
				Reserve: func(context.Context, int) error { return mq.ErrBusy },
			})
			require.ErrorIs(t, err, mq.ErrBusy)
		},
		"broken": func(t *testing.T, n *testNode, c *remote.Client, found chan<- struct{}) {
			done := make(chan error, 1)
			go func() { _, err := receive(t.Context(), c); done <- err }()
			synctest.Wait()
			go func() { time.Sleep(time.Second); close(found) }()
			n.stop()
			require.ErrorIs(t, <-done, mq.ErrUnavailable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				found, back := make(chan struct{}), make(chan []mq.LeaseChange, 1)
				h := &hooked{
					receive: func(context.Context) ([]mq.Delivery, error) { <-found; return delivered(5), nil },
					change:  func(changes []mq.LeaseChange) []error { back <- changes; return make([]error, len(changes)) },
				}
				one(t, h, func(_ *cluster, n *testNode, c *remote.Client) {
					act(t, n, c, found)
					require.Equal(t, []mq.LeaseChange{{Lease: delivered(5)[0].Lease, Reason: mq.GiveBack}}, <-back)
				})
			})
		})
	}
}

func TestMessagesThatArrivedAreNotGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooked{
			receive: func(context.Context) ([]mq.Delivery, error) { return delivered(5), nil },
			change:  func([]mq.LeaseChange) []error { t.Error("given back"); return []error{nil} },
		}
		one(t, h, func(_ *cluster, n *testNode, c *remote.Client) {
			got, err := receive(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, delivered(5), got)
			synctest.Wait()
			n.stop()
			synctest.Wait()
		})
	})
}

func TestABrokenConnectionIsAClearErrorAndIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		h := &hooked{append: func(ctx context.Context) ([]mq.Appended, error) {
			select {
			case <-held:
				return stored(), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}}
		one(t, h, func(cl *cluster, n *testNode, c *remote.Client) {
			sent := make(chan error, 1)
			go func() { _, err := send(t.Context(), c); sent <- err }()
			synctest.Wait()
			n.stop()
			err := <-sent
			require.ErrorIs(t, err, mq.ErrOutcomeUnknown)
			require.ErrorIs(t, err, mq.ErrUnavailable)
			require.ErrorContains(t, err, "before it had answered")

			start := time.Now()
			_, err = send(t.Context(), c)
			require.ErrorIs(t, err, mq.ErrUnavailable)
			require.ErrorContains(t, err, "cannot be reached")
			require.NotErrorIs(t, err, mq.ErrOutcomeUnknown)
			require.LessOrEqual(t, time.Since(start), 3*time.Second, "it does not wait for ever")
			start = time.Now()
			_, err = send(t.Context(), c)
			require.ErrorIs(t, err, mq.ErrUnavailable)
			require.Zero(t, time.Since(start), "nor again for what is known to be down")

			close(held)
			cl.start(nodeA, h, "s")
			time.Sleep(5 * time.Second)
			got, err := send(t.Context(), c)
			require.NoError(t, err)
			require.Equal(t, stored(), got)
		})
	})
}

func TestACallWaitsAMomentForANodeThatIsStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooked{append: func(context.Context) ([]mq.Appended, error) { return stored(), nil }}
		one(t, h, func(cl *cluster, n *testNode, c *remote.Client) {
			_, err := send(t.Context(), c)
			require.NoError(t, err)
			n.stop()
			go func() { time.Sleep(500 * time.Millisecond); cl.start(nodeA, h, "s") }()
			synctest.Wait()
			_, err = send(t.Context(), c)
			require.NoError(t, err)
		})
	})
}

// TestANodeThatDrainsAnswersWhatIsUnderWay: sends end as they would have, polls end empty
// at once, and what comes later is refused without having been done.
func TestANodeThatDrainsAnswersWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, appends := make(chan struct{}), 0
		h := &hooked{
			append:  func(context.Context) ([]mq.Appended, error) { appends++; <-held; return stored(), nil },
			receive: func(ctx context.Context) ([]mq.Delivery, error) { <-ctx.Done(); return nil, ctx.Err() },
		}
		one(t, h, func(_ *cluster, n *testNode, c *remote.Client) {
			sent, polled := make(chan error, 1), make(chan error, 1)
			go func() { _, err := send(t.Context(), c); sent <- err }()
			go func() { _, err := receive(t.Context(), c); polled <- err }()
			synctest.Wait()
			n.server.Drain()
			require.NoError(t, <-polled)
			_, err := send(t.Context(), c)
			require.ErrorIs(t, err, mq.ErrUnavailable)
			require.Equal(t, 1, appends)
			close(held)
			require.NoError(t, <-sent)
			stopped := make(chan struct{})
			go func() { n.grpc.GracefulStop(); close(stopped) }()
			<-stopped
		})
	})
}

// TestWhatIsWrittenByHandIsWhatTheProtoSays has one end that is generated code.
func TestWhatIsWrittenByHandIsWhatTheProtoSays(t *testing.T) {
	n := 0
	e := &echo{t: t}
	one(t, e, func(cl *cluster, node *testNode, _ *remote.Client) {
		conn, err := grpc.NewClient(nodeA, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(cl.dialer))
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		stream, err := storepb.NewStoreServiceClient(conn).Calls(t.Context())
		require.NoError(t, err)
		call := func(c *storepb.Call) *storepb.Answer {
			c.Id, c.Shard = 300+c.Id, "s"
			// What is not known is passed over.
			c.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 0x01})
			require.NoError(t, stream.Send(&storepb.CallsRequest{Calls: []*storepb.Call{c}}))
			resp, err := stream.Recv()
			require.NoError(t, err)
			require.Len(t, resp.GetAnswers(), 1)
			require.Empty(t, resp.ProtoReflect().GetUnknown())
			require.Equal(t, c.GetId(), resp.GetAnswers()[0].GetId())
			return resp.GetAnswers()[0]
		}
		m := filled[mq.Message](&n)
		m.Content, m.LiteLimit = 0, 0
		pm := &storepb.Message{
			Id: m.ID, Tag: m.Tag, Type: uint32(m.Type), Group: m.Group, Properties: m.Properties, System: m.System, Body: m.Body,
			DeliverAt: m.DeliverAt.UnixNano(), Recovery: int64(m.Recovery), Lite: m.Lite, Delay: int64(m.Delay),
		}
		e.want, e.give = []any{"s", topic(), mq.QueueID(3), []*mq.Message{&m}}, []any{[]mq.Appended{{Queue: 3, Offset: 1 << 40, StoreTime: time.Unix(5, 6), Pending: 9, Repeated: true}}, nil}
		got := call(&storepb.Call{Id: 1, Call: &storepb.Call_Append{Append: &storepb.Append{Topic: tierwire.FromTopic(topic()), Queue: 3, Messages: []*storepb.Message{pm}}}})
		require.True(t, proto.Equal(&storepb.Answer{Id: 301, Appended: []*storepb.Appended{
			{Queue: 3, Offset: 1 << 40, StoreTime: 5_000_000_006, Pending: 9, Repeated: true},
		}}, got), "%v", got)

		r := mq.Receive{
			Topic: topic(), Group: group(), Tags: []string{"a", "b"}, Filter: filter("x > 1"), Max: 32, Invisible: time.Minute,
			Attempt: "attempt", Wait: time.Second, AutoRenew: true, InFlight: 7, Lite: "client",
		}
		d := delivered(5)
		d[0].Message = m
		e.want, e.give = []any{"s", r}, []any{d, nil}
		got = call(&storepb.Call{Id: 2, Call: &storepb.Call_Receive{Receive: &storepb.Receive{
			Topic: tierwire.FromTopic(topic()), Group: tierwire.FromGroup(group()), Tags: r.Tags, Filter: "x > 1", Max: 32, Invisible: int64(time.Minute),
			Attempt: "attempt", Wait: int64(time.Second), AutoRenew: true, InFlight: 7, Lite: "client",
		}}})
		require.True(t, proto.Equal(&storepb.Answer{Id: 302, Waited: int64(time.Minute), Deliveries: []*storepb.Delivery{
			{Message: pm, Queue: 1, Offset: 2, PopId: 5, Attempt: 1, StoreTime: 3_000_000_004},
		}}, got), "%v", got)
		require.NoError(t, stream.Send(&storepb.CallsRequest{Taken: []uint64{302}}))

		lease := filled[mq.Lease](&n)
		pl := &storepb.Lease{
			Shard: lease.Shard, Topic: uint32(lease.Topic), Group: uint32(lease.Group), Queue: int32(lease.Queue), Offset: int64(lease.Offset),
			PopId: uint64(lease.PopID), Attempt: int32(lease.Attempt), AutoRenew: true,
		}
		e.want, e.give = []any{[]mq.Lease{lease}}, []any{[]error{nil}}
		got = call(&storepb.Call{Id: 3, Call: &storepb.Call_Ack{Ack: &storepb.Ack{Leases: []*storepb.Lease{pl}}}})
		require.True(t, proto.Equal(&storepb.Answer{Id: 303}, got), "%v", got)
		e.want = []any{[]mq.LeaseChange{{Lease: lease, Invisible: time.Minute, Reason: mq.Suspend}}}
		e.give = []any{[]error{errors.New("no")}}
		got = call(&storepb.Call{Id: 4, Call: &storepb.Call_ChangeInvisible{ChangeInvisible: &storepb.ChangeInvisible{Changes: []*storepb.LeaseChange{
			{Lease: pl, Invisible: int64(time.Minute), Reason: uint32(mq.Suspend)},
		}}}})
		require.True(t, proto.Equal(&storepb.Answer{Id: 304, Settled: []*storepb.Settled{{Error: &routerpb.Error{Text: "no"}}}}, got), "%v", got)
		got = call(&storepb.Call{Id: 5})
		require.Equal(t, []routerpb.ErrorKind{routerpb.ErrorKind_ERROR_KIND_NOT_IMPLEMENTED}, got.GetError().GetKinds(), "a call of a later version")
		require.NoError(t, stream.CloseSend())
	})
}

// TestManyLeasesGoInSeveralCalls: one call of any size would stop the others, or break the
// connection.
func TestManyLeasesGoInSeveralCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []int
		h := &hooked{change: func(changes []mq.LeaseChange) []error {
			calls = append(calls, len(changes))
			errs := make([]error, len(changes))
			for i := range errs {
				if changes[i].Lease.Offset == 2000 {
					errs[i] = mq.ErrLeaseEnded
				}
			}
			return errs
		}}
		one(t, h, func(_ *cluster, _ *testNode, c *remote.Client) {
			changes := make([]mq.LeaseChange, 2500)
			for i := range changes {
				changes[i].Lease = mq.Lease{Shard: "s", Offset: mq.QueueOffset(i)}
			}
			errs := c.ChangeInvisible(t.Context(), changes)
			require.Equal(t, []int{1024, 1024, 452}, calls)
			require.Len(t, errs, len(changes))
			for i, err := range errs {
				require.Equal(t, i == 2000, err != nil, "lease %d", i)
			}
			_, err := c.Receive(t.Context(), "s", mq.Receive{Topic: topic(), Group: group(), Max: 1025, Invisible: time.Minute})
			require.ErrorIs(t, err, mq.ErrInvalid)
			require.ErrorContains(t, err, "1024")
		})
	})
}

// TestWhatIsStoredWhenTheNodeStopsIsAnswered: the end of the node ends what waits for
// messages, and nothing else.
func TestWhatIsStoredWhenTheNodeStopsIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := make(chan struct{})
		h := &hooked{
			append: func(ctx context.Context) ([]mq.Appended, error) {
				select {
				case <-held:
					return stored(), nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			},
			receive: func(ctx context.Context) ([]mq.Delivery, error) { <-ctx.Done(); return nil, ctx.Err() },
		}
		one(t, h, func(_ *cluster, n *testNode, c *remote.Client) {
			sent, polled := make(chan error, 1), make(chan error, 1)
			go func() { _, err := send(t.Context(), c); sent <- err }()
			go func() { _, err := receive(t.Context(), c); polled <- err }()
			synctest.Wait()
			n.server.Drain()
			synctest.Wait()
			require.NoError(t, <-polled)
			close(held)
			require.NoError(t, <-sent)
		})
	})
}
