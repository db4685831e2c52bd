package remote

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

// field returns what fn appends, inside of a field.
func field(fn func(w *builder)) []byte {
	var w builder
	fn(&w)
	r := reader{b: w.b}
	r.next()
	return r.val
}

// FuzzWire reads whatever as each of the messages: it must be refused, or come to the same
// when it is written and read again.
func FuzzWire(f *testing.F) {
	lease := mq.Lease{Shard: "s", Topic: 1, Group: 2, Queue: 3, Offset: 4, PopID: 5, Attempt: 6, AutoRenew: true}
	message := mq.Message{ID: "id", Tag: "t", Type: mq.Delay, Properties: []byte("p"), Body: []byte("b"), DeliverAt: time.Unix(1, 2), Recovery: 3, Lite: "l"}
	f.Add(field(func(w *builder) { w.lease(1, &lease) }))
	f.Add(field(func(w *builder) {
		w.leaseChange(1, &mq.LeaseChange{Lease: lease, Invisible: time.Second, Reason: mq.Nack})
	}))
	f.Add(field(func(w *builder) { w.message(1, &message) }))
	f.Add(field(func(w *builder) { w.delivery(&mq.Delivery{Message: message, Lease: lease, StoreTime: time.Unix(5, 6)}) }))
	f.Add(field(func(w *builder) {
		w.appended(&mq.Appended{Queue: 1, Offset: 2, StoreTime: time.Unix(3, 4), Pending: 5, Repeated: true})
	}))
	f.Fuzz(func(t *testing.T, b []byte) {
		same(t, b, readLease, func(w *builder, v *mq.Lease) { w.lease(1, v) })
		same(t, b, readLeaseChange, func(w *builder, v *mq.LeaseChange) { w.leaseChange(1, v) })
		same(t, b, readMessage, func(w *builder, v *mq.Message) { w.message(1, v) })
		same(t, b, readDelivery, func(w *builder, v *mq.Delivery) { w.delivery(v) })
		same(t, b, readAppended, func(w *builder, v *mq.Appended) { w.appended(v) })
		_, _ = readSettled(b)
		_ = readAnswer(b, func(*reader) error { return nil })
		var known decoded
		_, _ = known.topic(b)
		_, _ = known.group(b)
	})
}

func same[T any](t *testing.T, b []byte, read func([]byte, *T) error, write func(*builder, *T)) {
	var v, again T
	if read(b, &v) != nil {
		return
	}
	b = field(func(w *builder) { write(w, &v) })
	require.NoError(t, read(b, &again))
	require.Equal(t, b, field(func(w *builder) { write(w, &again) }))
}

// nothing is a store that does nothing.
type nothing struct{ Store }

func (nothing) Append(context.Context, string, *mq.Topic, mq.QueueID, []*mq.Message) ([]mq.Appended, error) {
	return nil, nil
}

func (nothing) Receive(context.Context, string, mq.Receive) ([]mq.Delivery, error) {
	return []mq.Delivery{{}}, nil
}
func (nothing) Ack(_ context.Context, l []mq.Lease) []error { return make([]error, len(l)) }
func (nothing) ChangeInvisible(_ context.Context, c []mq.LeaseChange) []error {
	return make([]error, len(c))
}

// FuzzCalls gives a stream of calls whatever a proxy may say, in two messages.
func FuzzCalls(f *testing.F) {
	ack := build(0, func(w *builder) {
		begun := w.begin(callsCalls)
		w.uint(callID, 1)
		inner := w.begin(callAck)
		w.lease(leasesLeases, &mq.Lease{Shard: "s"})
		w.end(inner)
		w.end(begun)
	})
	f.Add(ack.ReadOnlyData(), []byte{byte(callsTaken << 3), 1})
	receive := build(0, func(w *builder) {
		begun := w.begin(callsCalls)
		w.uint(callID, 1)
		w.string(callShard, "s")
		w.end(w.begin(callReceive))
		w.end(begun)
	})
	f.Add(receive.ReadOnlyData(), []byte{byte(callsTaken << 3), 1})
	f.Add([]byte("\n\nH000000000"), []byte("0")) // a receive without its bytes
	f.Fuzz(func(t *testing.T, first, second []byte) {
		s := NewServer(ServerOptions{Store: nothing{}})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		st := &stream{s: s, ctx: ctx, polls: ctx, out: newOutbox(), receives: map[uint64]*delivering{}}
		for _, b := range [][]byte{first, second} {
			if st.said(b) != nil {
				break
			}
		}
		st.end()
		cancel()
		st.calls.Wait()
		st.out.drop()
		st.giveBackAll()
	})
}
