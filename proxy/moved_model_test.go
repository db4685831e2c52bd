package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"

	operator "github.com/perigee-mq/perigee/admin"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

// TestMessageGroupsKeepTheirOrderWhileShardsAreDrained is a random history of a FIFO topic
// whose shards come, are drained and go, over a router, store nodes and proxies that each
// know something else, and that crash between any two steps. At each delivery to a FIFO
// group all that was sent before in the message group is settled by it; in the end each group
// has settled everything.
func TestMessageGroupsKeepTheirOrderWhileShardsAreDrained(t *testing.T) {
	histories := 150
	if testing.Short() {
		histories = 25
	}
	first := rand.Uint64() >> 1
	for i := range histories {
		seed := first + uint64(i)
		ok := t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newMove(t, seed).run(120) })
		})
		if !ok {
			return
		}
	}
}

// A move is one such history.
type move struct {
	t       *testing.T
	rng     *rand.Rand
	meta    *vfs.MemFS
	router  *router.Router // nil while it is down
	nodes   map[string]*movedNode
	names   []string // of the nodes, in the order of their beginning
	proxies []*movedProxy

	groups  []string
	lanes   []string
	sent    map[string]*sentMessage
	order   []string                   // of sent
	settled map[string]map[string]bool // by group and message
	held    []heldDelivery
	torn    map[string]bool // groups whose last reset has ended on the way
	setting string          // the group that is being set back

	now   int // counts what happens
	depth int // in a step that happens within another
	log   []string
}

// A movedNode is a store node with what it knows of the metadata.
type movedNode struct {
	name   string
	fs     *vfs.MemFS
	store  *store.Store // nil while it is down
	mirror *router.Mirror
	known  bool // it has told its shard of all that was closed before
}

// A movedProxy is a proxy with what it knows of the metadata.
type movedProxy struct {
	server *Server
	mirror *router.Mirror
}

type sentMessage struct {
	lane       string
	begun, end int
	stored     bool
	shard      string
	gone       bool // with its shard
}

type heldDelivery struct {
	group string
	id    string
	lease mq.Lease
}

func newMove(t *testing.T, seed uint64) *move {
	m := &move{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), meta: vfs.NewCrashableMem(), nodes: map[string]*movedNode{},
		sent: map[string]*sentMessage{}, settled: map[string]map[string]bool{}, torn: map[string]bool{},
		lanes: []string{"a", "b", "c", "d", "e", "f"},
	}
	t.Cleanup(m.end)
	m.openRouter()
	m.addNode()
	m.addNode()
	_, _, err := m.router.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "t"}, Type: mq.TopicFIFO, Queues: 2})
	require.NoError(t, err)
	m.addGroup()
	for range 2 {
		p := &movedProxy{mirror: router.NewMirror()}
		m.proxies = append(m.proxies, p)
		m.feed(p.mirror)
		m.startProxy(p)
	}
	return m
}

func (m *move) openRouter() {
	var err error
	m.router, err = router.Open(router.Options{FS: m.meta, Dir: "meta"})
	require.NoError(m.t, err)
}

func (m *move) feed(mirror *router.Mirror) {
	if m.router != nil {
		require.NoError(m.t, mirror.Replace(m.router.Snapshot().State()))
	}
}

func (m *move) addNode() {
	n := &movedNode{name: fmt.Sprint("s", len(m.names)), fs: vfs.NewCrashableMem(), mirror: router.NewMirror()}
	_, err := m.router.AddShard(m.t.Context(), n.name)
	require.NoError(m.t, err)
	m.nodes[n.name], m.names = n, append(m.names, n.name)
	m.feed(n.mirror)
	m.openNode(n)
}

func (m *move) openNode(n *movedNode) {
	var err error
	n.store, err = store.Open(store.Options{FS: n.fs, Dir: "data", Shards: []string{n.name}, SegmentSize: 1 << 20, ZeroFill: 64 << 10, CacheSize: 1 << 20, MemTableSize: 256 << 10})
	require.NoError(m.t, err)
	n.known = false
}

func (m *move) addGroup() {
	name := fmt.Sprint("g", len(m.groups))
	_, _, err := m.router.CreateGroup(m.t.Context(), router.GroupSpec{Resource: mq.Resource{Name: name}, FIFO: true})
	if len(m.groups) > 0 && err != nil {
		return // no shard is active that could take its dead letters
	}
	require.NoError(m.t, err)
	m.groups = append(m.groups, name)
	m.settled[name] = map[string]bool{}
}

func (m *move) startProxy(p *movedProxy) {
	var err error
	p.server, err = New(Options{Store: movedStore{m: m}, Router: movedRouter{p.mirror}})
	require.NoError(m.t, err)
}

// crash leaves of a disk what a power cut leaves.
func (m *move) crash(fs *vfs.MemFS) *vfs.MemFS {
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: m.rng.IntN(101), RNG: m.rng})
}

func (m *move) say(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *move) must(ok bool, format string, args ...any) {
	if ok {
		return
	}
	for _, line := range m.log[max(0, len(m.log)-60):] {
		m.t.Log(line)
	}
	m.t.Fatalf(format, args...)
}

func (m *move) run(steps int) {
	for range steps {
		m.step()
	}
	m.finish()
}

// end closes what is open.
func (m *move) end() {
	for _, p := range m.proxies {
		p.server.Close()
	}
	for _, n := range m.nodes {
		if n.store != nil {
			require.NoError(m.t, n.store.Close())
		}
	}
	if m.router != nil {
		require.NoError(m.t, m.router.Close())
	}
}

// between lets something else happen in the middle of a step.
func (m *move) between() {
	if m.depth > 0 || m.rng.IntN(3) > 0 {
		return
	}
	m.depth++
	m.step()
	m.depth--
}

func (m *move) step() {
	m.now++
	switch n := m.rng.IntN(100); {
	case n < 22:
		m.send()
	case n < 50:
		m.receive()
	case n < 60:
		m.settle()
	case n < 66:
		m.feed(pick(m.rng, m.proxies).mirror)
	case n < 72:
		m.feed(m.anyNode().mirror)
	case n < 79:
		m.leave(m.anyNode())
	case n < 83:
		m.setShard(router.ShardDraining)
	case n < 84:
		m.setShard(router.ShardActive)
	case n < 85:
		m.remove()
	case n < 86 && m.router != nil && len(m.names) < 5:
		m.addNode()
	case n < 87 && m.router != nil && len(m.groups) < 3:
		m.addGroup()
	case n < 91:
		m.reset(pick(m.rng, m.groups))
	case n < 93:
		m.crashNode(m.anyNode())
	case n < 95:
		m.crashRouter()
	case n < 96:
		p := pick(m.rng, m.proxies)
		if m.depth == 0 {
			p.server.Close()
			m.startProxy(p)
		}
	case n < 97:
		m.say("time passes")
		time.Sleep(time.Minute)
	case n < 98 && m.router != nil:
		_, err := m.router.UpdateTopic(m.t.Context(), mq.Resource{Name: "t"}, router.TopicUpdate{Spread: true})
		require.NoError(m.t, err)
	default:
		m.feed(m.anyNode().mirror)
	}
}

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

func (m *move) anyNode() *movedNode { return m.nodes[pick(m.rng, m.names)] }

func (m *move) crashRouter() {
	if m.router == nil {
		m.openRouter()
		return
	}
	m.say("router crashes")
	left := m.crash(m.meta)
	_ = m.router.Close()
	m.router, m.meta = nil, left
}

func (m *move) crashNode(n *movedNode) {
	if n.store == nil {
		m.say("%s is back", n.name)
		m.openNode(n)
		return
	}
	m.say("%s crashes", n.name)
	left := m.crash(n.fs)
	_ = n.store.Close()
	n.store, n.fs = nil, left
}

// setShard drains or activates a shard, and may be cut off on the way.
func (m *move) setShard(state router.ShardState) {
	if m.router == nil {
		return
	}
	ctx, shard := &ending{Context: m.t.Context(), left: m.rng.IntN(12)}, pick(m.rng, m.names)
	_, err := m.router.SetShard(ctx, shard, state)
	m.say("%s is to be %s: %v", shard, state, err)
}

// An ending context ends after some looks at it.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.Canceled
	}
	return nil
}

// leave is what a store node does with what it knows, up to any point.
func (m *move) leave(n *movedNode) {
	t, err := n.mirror.Topic(m.t.Context(), mq.Resource{Name: "t"})
	if n.store == nil || err != nil {
		return
	}
	on, err := t.On(n.name)
	if err != nil || on.Use == mq.ShardOpen || on.Use == mq.ShardClosed && n.known {
		n.known = true
		return
	}
	require.NoError(m.t, n.store.Place(m.t.Context(), n.name, t))
	m.say("%s refuses by version %d", n.name, t.Placed)
	n.known = true
	m.between()
	if on.Use == mq.ShardClosing && m.router != nil && m.rng.IntN(4) > 0 {
		require.NoError(m.t, m.router.ShardClosed(m.t.Context(), n.name, []router.ClosedTopic{{ID: t.ID, Placed: t.Placed}}))
		now, _ := m.router.Topic(m.t.Context(), t.Resource)
		m.say("%s has told so: version %d", n.name, now.Placed)
	}
}

// remove removes a shard on which nobody is owed anything.
func (m *move) remove() {
	n := m.anyNode()
	if m.router == nil || n.store == nil {
		return
	}
	left, err := n.store.Remains(m.t.Context(), n.name)
	require.NoError(m.t, err)
	// A group that has never received from the shard has no place there.
	for _, g := range m.groups {
		of, err := m.router.Group(m.t.Context(), mq.Resource{Name: g})
		require.NoError(m.t, err)
		t, err := m.router.Topic(m.t.Context(), mq.Resource{Name: "t"})
		require.NoError(m.t, err)
		owed, err := n.store.Owed(m.t.Context(), n.name, t.ID, of.ID)
		require.NoError(m.t, err)
		if owed || m.torn[g] {
			return
		}
	}
	if left.Owing == 0 && m.router.Leaving(n.name).Open == 0 {
		_, err := m.router.RemoveShard(m.t.Context(), n.name, false)
		m.say("%s is to be removed: %v", n.name, err)
		for _, msg := range m.sent {
			msg.gone = msg.gone || err == nil && msg.shard == n.name
		}
	}
}

func (m *move) send() {
	id, lane := fmt.Sprint("m", len(m.sent)), pick(m.rng, m.lanes)
	msg := &sentMessage{lane: lane, begun: m.now}
	m.sent[id], m.order = msg, append(m.order, id)
	p := pick(m.rng, m.proxies)
	resp, err := p.server.SendMessage(as(m.t, "producer"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: named("t"), Body: []byte(id),
		SystemProperties: &rmqpb.SystemProperties{MessageId: id, MessageType: rmqpb.MessageType_FIFO, MessageGroup: new(lane)},
	}}})
	require.NoError(m.t, err)
	m.now++
	msg.end, msg.stored = m.now, resp.GetStatus().GetCode() == rmqpb.Code_OK
	m.say("%s of %s: %s", id, lane, resp.GetStatus().GetMessage())
}

func (m *move) receive() {
	p, g := pick(m.rng, m.proxies), pick(m.rng, m.groups)
	if m.torn[g] || m.setting == g {
		m.reset(g)
		return
	}
	topic, err := p.mirror.Topic(m.t.Context(), mq.Resource{Name: "t"})
	require.NoError(m.t, err)
	group, err := p.mirror.Group(m.t.Context(), mq.Resource{Name: g})
	if err != nil {
		return // it has not heard of it
	}
	r := receive{Receive: mq.Receive{Topic: topic, Group: group, Max: 1 + m.rng.IntN(4), Invisible: 30 * time.Second}, shard: pick(m.rng, topic.Shards).Shard}
	r.Wait = time.Duration(m.rng.IntN(2)) * 250 * time.Millisecond
	got, err := p.server.fromShards(m.t.Context(), r)
	if err != nil {
		m.say("%s receives from %s by version %d: %v", g, r.shard, topic.Placed, err)
		return
	}
	if m.torn[g] {
		return // a reset has ended on the way meanwhile
	}
	for i, d := range got {
		m.say("%s gets %s from %s/%d", g, d.Message.ID, d.Lease.Shard, d.Lease.Queue)
		msg := m.sent[d.Message.ID]
		m.must(msg.stored, "%s is delivered, and its send was refused", d.Message.ID)
		for id, other := range m.sent {
			before := other.lane == msg.lane && other.stored && !other.gone && other.end < msg.begun
			inHand := slices.ContainsFunc(got[:i], func(d mq.Delivery) bool { return d.Message.ID == id })
			m.must(!before || m.settled[g][id] || inHand, "group %s gets %s of %s before %s is settled", g, d.Message.ID, msg.lane, id)
		}
		m.held = append(m.held, heldDelivery{g, d.Message.ID, d.Lease})
	}
	if m.rng.IntN(3) > 0 {
		for range got {
			m.settle()
		}
	}
}

// settle acknowledges a delivery, any that is not settled.
func (m *move) settle() {
	if len(m.held) == 0 {
		return
	}
	i := m.rng.IntN(len(m.held))
	h := m.held[i]
	if h.group == m.setting {
		return
	}
	m.held = slices.Delete(m.held, i, i+1)
	if err := (movedStore{m: m}).Ack(m.t.Context(), []mq.Lease{h.lease})[0]; err == nil {
		m.settled[h.group][h.id] = true
	}
}

// reset sets a group back to the beginning.
func (m *move) reset(g string) {
	if m.router == nil || m.setting != "" {
		return
	}
	m.setting = g
	defer func() { m.setting = "" }()
	s := operator.New(operator.Options{
		Router: resetRouter{m.router, pick(m.rng, m.proxies).mirror}, Store: resetStore{m: m}, Shards: func() []string { return m.names },
	})
	_, err := s.ResetOffset(m.t.Context(), &adminpb.ResetOffsetRequest{
		Group: g, Topic: "t", Target: &adminpb.ResetOffsetRequest_End_{End: adminpb.ResetOffsetRequest_END_EARLIEST},
	})
	m.say("%s is set back: %v", g, err)
	m.torn[g] = m.torn[g] || err != nil
	if err == nil {
		m.torn[g] = false
		m.settled[g] = map[string]bool{}
		m.held = slices.DeleteFunc(m.held, func(h heldDelivery) bool { return h.group == g })
	}
}

// finish lets all that was begun come to its end.
func (m *move) finish() {
	m.say("the end")
	m.depth = 1 // nothing happens in between any more
	if m.router == nil {
		m.openRouter()
	}
	for _, name := range m.names {
		if n := m.nodes[name]; n.store == nil {
			m.openNode(n)
		}
	}
	for range 3 {
		for _, name := range m.names {
			m.feed(m.nodes[name].mirror)
			for _, state := range m.router.Shards() {
				if state.Name == name && state.State == router.ShardDraining {
					_, _ = m.router.SetShard(m.t.Context(), name, router.ShardDraining) // the last one stays open
				}
			}
			m.feed(m.nodes[name].mirror)
			for range 8 {
				m.leave(m.nodes[name])
			}
		}
	}
	for _, p := range m.proxies {
		m.feed(p.mirror)
	}
	for g := range m.torn {
		if m.torn[g] {
			m.reset(g)
			m.must(!m.torn[g], "group %s cannot be set back", g)
		}
	}
	time.Sleep(time.Minute)
	for _, p := range m.proxies {
		m.feed(p.mirror)
	}
	for range 600 {
		m.receive()
		for len(m.held) > 0 {
			m.settle()
		}
		if m.done() {
			break
		}
	}
	for _, g := range m.groups {
		for id, msg := range m.sent {
			m.must(!msg.stored || msg.gone || m.settled[g][id], "group %s never got %s", g, id)
		}
	}
}

func (m *move) done() bool {
	for _, g := range m.groups {
		for id, msg := range m.sent {
			if msg.stored && !msg.gone && !m.settled[g][id] {
				return false
			}
		}
	}
	return true
}

// A movedRouter is the router to a proxy: what its mirror knows.
type movedRouter struct{ *router.Mirror }

func (r movedRouter) EnsureTopic(ctx context.Context, name mq.Resource) (*mq.Topic, error) {
	return r.Topic(ctx, name)
}

func (r movedRouter) EnsureGroup(ctx context.Context, name mq.Resource) (*mq.Group, error) {
	return r.Group(ctx, name)
}

func (r movedRouter) Instance(context.Context, *mq.Group, string) (*mq.Group, error) {
	return nil, mq.ErrNotImplemented
}

// A movedStore is the store tier to a proxy: every node that is up.
type movedStore struct {
	Store
	m *move
}

func (s movedStore) node(shard string) (*store.Store, error) {
	if n := s.m.nodes[shard]; n != nil && n.store != nil {
		return n.store, nil
	}
	return nil, fmt.Errorf("%w: %s is down", mq.ErrUnavailable, shard)
}

func (s movedStore) Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error) {
	s.m.between()
	st, err := s.node(shard)
	if err != nil {
		return nil, err
	}
	s.m.sent[msgs[0].ID].shard = shard
	return st.Append(ctx, shard, topic, queue, msgs)
}

func (s movedStore) Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error) {
	s.m.between()
	st, err := s.node(shard)
	if err != nil {
		return nil, err
	}
	return st.Receive(ctx, shard, r)
}

func (s movedStore) Owed(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) (bool, error) {
	st, err := s.node(shard)
	if err != nil {
		return false, err
	}
	return st.Owed(ctx, shard, topic, group)
}

func (s movedStore) Ack(ctx context.Context, leases []mq.Lease) []error {
	st, err := s.node(leases[0].Shard)
	if err != nil {
		return []error{err}
	}
	return st.Ack(ctx, leases)
}

// A resetRouter is the router to the administration, which knows topics as a proxy does.
type resetRouter struct {
	*router.Router
	mirror *router.Mirror
}

func (r resetRouter) Topic(ctx context.Context, name mq.Resource) (*mq.Topic, error) {
	return r.mirror.Topic(ctx, name)
}

// A resetStore is the store tier to the administration.
type resetStore struct {
	operator.Store
	m *move
}

func (s resetStore) Range(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID) (mq.QueueRange, error) {
	st, err := movedStore{m: s.m}.node(shard)
	if err != nil {
		return mq.QueueRange{}, err
	}
	return st.Range(ctx, shard, topic, queue)
}

func (s resetStore) Positions(ctx context.Context, shard string, topic mq.TopicID, group mq.GroupID) ([]mq.Position, error) {
	st, err := movedStore{m: s.m}.node(shard)
	if err != nil {
		return nil, err
	}
	return st.Positions(ctx, shard, topic, group)
}

func (s resetStore) SetOffset(ctx context.Context, shard string, set mq.OffsetSet) (int, error) {
	s.m.between()
	st, err := movedStore{m: s.m}.node(shard)
	if err != nil {
		return 0, err
	}
	return st.SetOffset(ctx, shard, set)
}
