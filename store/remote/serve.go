package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	storepb "github.com/perigee-mq/perigee/gen/perigee/store/v1"
	"github.com/perigee-mq/perigee/mq"
)

// Hot is what a store node does for the frequent calls. *store.Store does.
type Hot interface {
	Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error)
	Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error)
	Ack(ctx context.Context, leases []mq.Lease) []error
	ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error
}

// ServerOptions configure a Server.
type ServerOptions struct {
	Store Store
	// CompileFilter compiles an SQL expression.
	CompileFilter func(expression string) (mq.Filter, error)
	// DeliveryMemory bounds the bytes of messages that are on their way to proxies: 256 MiB
	// by default. Receives that find more wait.
	DeliveryMemory int64
	Logger         *slog.Logger // nil: nothing is logged
}

// A Server answers calls of proxies with those of a store.
type Server struct {
	storepb.UnimplementedStoreServiceServer

	opts    ServerOptions
	store   Store
	known   decoded
	filters memo[string, mq.Filter]
	memory  *semaphore.Weighted
	logger  *slog.Logger

	closing chan struct{}
	close   sync.Once
}

// takenWait is how long a stream that ends in order waits for the word that what was
// received has arrived.
const takenWait = time.Second

// NewServer returns a server of the store.
func NewServer(opts ServerOptions) *Server {
	if opts.DeliveryMemory == 0 {
		opts.DeliveryMemory = 256 << 20
	}
	s := &Server{opts: opts, store: opts.Store, memory: semaphore.NewWeighted(opts.DeliveryMemory), logger: opts.Logger, closing: make(chan struct{})}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	return s
}

// GRPCOptions are the options a gRPC server needs to serve a Server, beside
// credentials.
func GRPCOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()), grpc.MaxRecvMsgSize(maxCall), grpc.MaxSendMsgSize(maxCall),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveAfter, Timeout: keepaliveWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveAfter / 2, PermitWithoutStream: true}),
	}
}

// Register makes the gRPC server serve s.
func (s *Server) Register(r grpc.ServiceRegistrar) { storepb.RegisterStoreServiceServer(r, s) }

// Drain ends what waits for messages, and every stream of calls once what it has under way is
// answered. Calls that come later are refused.
func (s *Server) Drain() { s.close.Do(func() { close(s.closing) }) }

// A stream is one stream of calls.
type stream struct {
	s      *Server
	ctx    context.Context // ends with the stream
	polls  context.Context // of receives: ends when the server drains, too
	out    *outbox
	calls  sync.WaitGroup
	mu     sync.Mutex
	ending bool
	// receives are those under way, and those whose messages are on their way.
	receives map[uint64]*delivering
}

// A delivering is a receive whose messages have not arrived at the proxy.
type delivering struct {
	cancel   context.CancelFunc
	unwanted bool             // nobody waits for it any more
	got      []mq.LeaseChange // to give back; nil while the receive is under way
	room     *room
}

// Calls serves a stream of calls.
func (s *Server) Calls(gs grpc.BidiStreamingServer[storepb.CallsRequest, storepb.CallsResponse]) error {
	if err := gs.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(gs.Context())
	defer cancel()
	st := &stream{s: s, ctx: gs.Context(), polls: ctx, out: newOutbox(), receives: map[uint64]*delivering{}}
	received := make(chan struct{})
	var broken error
	go func() {
		broken = st.receive(gs)
		close(received)
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for b := st.out.take(gs.Context()); b != nil; b = st.out.take(gs.Context()) {
			if gs.SendMsg(b) != nil {
				return
			}
		}
	}()
	select {
	case <-received:
	case <-s.closing:
	}
	st.end()
	cancel()
	st.calls.Wait()
	st.out.close()
	<-sent
	st.awaitTaken(received)
	st.out.drop()
	st.giveBackAll()
	select {
	case <-received:
		if !errors.Is(broken, io.EOF) {
			return broken
		}
	default:
	}
	return nil
}

// end refuses the calls that come from now on.
func (st *stream) end() {
	st.mu.Lock()
	st.ending = true
	st.mu.Unlock()
}

// receive reads what the proxy says, until the stream ends. From a proxy that does not take
// its answers it reads nothing more: gRPC holds up what that sends then.
func (st *stream) receive(gs grpc.ServerStream) error {
	for {
		st.out.room(gs.Context(), answersWait)
		var f frame
		if err := gs.RecvMsg(&f); err != nil {
			return err
		}
		if err := st.said(f.b); err != nil {
			return err
		}
	}
}

// said does what the proxy says in one message.
func (st *stream) said(b []byte) error {
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case callsCalls:
			st.call(r.bytes())
		case callsTaken:
			r.uints(func(id uint64) { st.settled(id, false) })
		case callsCancelled:
			r.uints(func(id uint64) { st.settled(id, true) })
		}
	}
	return r.err
}

// call begins a call.
func (st *stream) call(b []byte) {
	c := incoming{st: st}
	r := reader{b: b}
	for r.next() {
		switch r.num {
		case callID:
			c.id = r.uint()
		case callShard:
			c.shard = r.string()
		case callAppend, callReceive, callAck, callChange:
			c.kind, c.body = r.num, r.bytes()
		}
	}
	if c.err = r.err; c.err == nil && c.kind == 0 {
		c.err = fmt.Errorf("%w: a call between tiers that this node does not know", mq.ErrNotImplemented)
	}
	ctx := st.ctx
	st.mu.Lock()
	switch {
	case st.ending:
		c.err = fmt.Errorf("%w: the store node stops", mq.ErrUnavailable)
	case c.err != nil || c.kind != callReceive:
	case st.receives[c.id] != nil:
		c.err = fmt.Errorf("%w: the id of a call is that of another", errFrame)
	default:
		rc := &delivering{}
		ctx, rc.cancel = context.WithCancel(st.polls)
		st.receives[c.id] = rc
	}
	st.calls.Add(1)
	st.mu.Unlock()
	go func() {
		defer st.calls.Done()
		c.run(ctx)
	}()
}

// settled notes that the answer of a receive has arrived, or gives back what is in it.
func (st *stream) settled(id uint64, back bool) {
	st.mu.Lock()
	rc := st.receives[id]
	if rc == nil {
		st.mu.Unlock()
		return
	}
	if rc.got == nil {
		// What it finds all the same is given back when it is answered.
		rc.unwanted = rc.unwanted || back
		st.mu.Unlock()
		if back {
			rc.cancel()
		}
		return
	}
	delete(st.receives, id)
	st.mu.Unlock()
	st.release(rc, back)
}

// release ends what is kept of a receive that was answered.
func (st *stream) release(rc *delivering, back bool) {
	rc.room.release()
	if !back {
		return
	}
	go st.s.giveBack(rc.got)
}

// giveBackTime bounds how long the store is tried to be told of messages that nobody got.
const giveBackTime = 10 * time.Second

func (s *Server) giveBack(changes []mq.LeaseChange) {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	for _, err := range s.store.ChangeInvisible(ctx, changes) {
		if err != nil && !errors.Is(err, mq.ErrLeaseEnded) {
			s.logger.Warn("messages that reached no proxy are not given back and come again when their lease ends", "error", err)
			return
		}
	}
}

// awaitTaken waits for a moment until all that was answered is known to have arrived.
func (st *stream) awaitTaken(received <-chan struct{}) {
	deadline := time.NewTimer(takenWait)
	defer deadline.Stop()
	tick := time.NewTicker(takenWait / 50)
	defer tick.Stop()
	for {
		st.mu.Lock()
		left := len(st.receives)
		st.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-received: // why does not matter
			return
		case <-deadline.C:
			return
		case <-tick.C:
		}
	}
}

func (st *stream) giveBackAll() {
	st.mu.Lock()
	left := st.receives
	st.receives = map[uint64]*delivering{}
	st.mu.Unlock()
	for _, rc := range left {
		st.release(rc, true)
	}
}
