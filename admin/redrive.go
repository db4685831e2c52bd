package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// MessageStore is what sending dead letters back asks of the store tier. The
// documentation of the methods is in package store.
type MessageStore interface {
	Append(ctx context.Context, shard string, topic *mq.Topic, queue mq.QueueID, msgs []*mq.Message) ([]mq.Appended, error)
	Receive(ctx context.Context, shard string, r mq.Receive) ([]mq.Delivery, error)
	Ack(ctx context.Context, leases []mq.Lease) []error
	ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error
}

const (
	// redriveMax bounds the messages of one call, redriveTime its duration, so
	// that a call ends before its client or a stopping server gives up on it.
	redriveMax  = 1000
	redriveTime = 5 * time.Second
	// redriveBatch is how many messages are taken at a time; as many may be sent
	// twice when the server ends before it has noted them as sent.
	redriveBatch = 64
	// redriveBytes bounds what is appended in one step, far below any segment.
	redriveBytes = 1 << 20
	// redriveLease is how long what is being sent is kept from another redrive,
	// and from the next one after a crash.
	redriveLease = 2 * time.Minute
	// maxUnmoved bounds the messages that a call passes over.
	maxUnmoved = 10_000
)

// A redrive sends dead letters of one group back. It reads the dead-letter topic
// as a consumer of a group of the server itself, whose progress says what was
// sent: take under a lease, append to the origin, acknowledge once the append is
// durable. A crash before the acknowledgment lets the lease end, and the message
// goes out again; nowhere is it acknowledged first.
type redrive struct {
	server *Server
	of     *mq.Group // whose dead letters they are
	from   *mq.Topic // the dead-letter topic
	via    *mq.Group

	sent    int
	missing absent // shards that cannot be asked
	origins map[string]origin
	unmoved map[unmovedKey]int64
	held    []mq.Lease // of what cannot go back, so that it is not taken again
}

// An origin is where dead letters came from, or why they cannot go there.
type origin struct {
	topic  *mq.Topic
	reason string
}

type unmovedKey struct{ topic, reason string }

func (s *Server) newRedrive(ctx context.Context, group mq.Resource) (*redrive, error) {
	g, err := s.router.Group(ctx, group)
	if err != nil {
		return nil, err
	}
	from, err := s.router.TopicByID(g.DeadLetter)
	if err != nil {
		return nil, err
	}
	via, err := s.router.EnsureSystemGroup(ctx, router.GroupSpec{
		Resource: mq.Resource{Namespace: group.Namespace, Name: mq.RedriveGroup},
		// Only what a crash interrupts counts as an attempt.
		Retry: mq.RetryPolicy{MaxAttempts: 1000, Customized: []time.Duration{0}},
	})
	if err != nil {
		return nil, err
	}
	return &redrive{
		server: s, of: g, from: from, via: via,
		missing: absent{}, origins: map[string]origin{}, unmoved: map[unmovedKey]int64{},
	}, nil
}

// run sends up to limit messages. Those that cannot be sent are passed over, and
// taken again by the next redrive; so are shards that cannot be asked.
func (r *redrive) run(ctx context.Context, limit int) error {
	defer func() { r.giveBack(r.held) }()
	end := time.Now().Add(redriveTime)
	for _, sq := range r.from.Shards {
		if err := r.runOn(ctx, sq.Shard, limit, end); err != nil {
			return err
		}
	}
	return nil
}

// runOn sends the dead letters of one shard.
func (r *redrive) runOn(ctx context.Context, shard string, limit int, end time.Time) error {
	for r.sent < limit && len(r.held) < maxUnmoved && time.Now().Before(end) {
		taken, err := r.server.store.Receive(ctx, shard, mq.Receive{
			Topic: r.from, Group: r.via, Max: min(redriveBatch, limit-r.sent), Invisible: redriveLease,
		})
		if r.missing.note(shard, err) {
			return nil
		}
		if err != nil || len(taken) == 0 {
			return err
		}
		// What was taken is settled, though the client may be gone.
		if err := r.send(context.WithoutCancel(ctx), taken); err != nil {
			return err
		}
	}
	return nil
}

// A bundle is dead letters on their way back to one queue.
type bundle struct {
	topic  *mq.Topic
	shard  string
	queue  mq.QueueID
	msgs   []*mq.Message
	leases []mq.Lease
	bytes  int
}

// send sends back what was taken, and acknowledges it or gives it back.
func (r *redrive) send(ctx context.Context, taken []mq.Delivery) error {
	bundles := r.bundle(ctx, taken)
	var done []mq.Lease
	var failed error
	for _, b := range bundles {
		if failed != nil {
			r.giveBack(b.leases)
			continue
		}
		// What was sent a moment ago and has failed since is no repeat.
		anew := *b.topic
		anew.Dedup = 0
		_, err := r.server.store.Append(ctx, b.shard, &anew, b.queue, b.msgs)
		switch {
		case err == nil:
			done = append(done, b.leases...)
		case errors.Is(err, mq.ErrTopicNotFound), errors.Is(err, mq.ErrQueueNotFound), errors.Is(err, mq.ErrTooLarge),
			away(err) && !errors.Is(err, mq.ErrOutcomeUnknown): // the next try may go to another shard
			for _, l := range b.leases {
				r.hold(l, b.topic.Name, err.Error())
			}
		default:
			failed = err
			r.giveBack(b.leases)
		}
	}
	r.sent += len(done)
	if len(done) == 0 {
		return failed
	}
	for _, err := range r.server.store.Ack(ctx, done) {
		if err != nil && !errors.Is(err, mq.ErrLeaseEnded) {
			failed = errors.Join(failed, fmt.Errorf("a message sent back may be sent again: %w", err))
			break
		}
	}
	return failed
}

// A queuePlace is a queue that dead letters go back to.
type queuePlace struct {
	topic mq.TopicID
	shard string
	queue mq.QueueID
	lite  string
}

// bundle puts together what goes to the same queue, in order.
func (r *redrive) bundle(ctx context.Context, taken []mq.Delivery) []*bundle {
	var all []*bundle
	open := map[queuePlace]*bundle{}
	turns := map[mq.TopicID]queuePlace{}
	for i := range taken {
		dead := &taken[i].Message
		name, system, err := originOf(dead)
		if err != nil {
			r.hold(taken[i].Lease, "", err.Error())
			continue
		}
		to := r.origin(ctx, name)
		if to.topic == nil {
			r.hold(taken[i].Lease, name, to.reason)
			continue
		}
		msg, err := revive(dead, system, to.topic.Type)
		if err != nil {
			r.hold(taken[i].Lease, name, err.Error())
			continue
		}
		at := r.server.place(to.topic, msg, system, turns)
		b := open[at]
		if b == nil || b.bytes+msg.Size() > redriveBytes {
			b = &bundle{topic: to.topic, shard: at.shard, queue: at.queue}
			open[at] = b
			all = append(all, b)
		}
		b.msgs, b.leases, b.bytes = append(b.msgs, msg), append(b.leases, taken[i].Lease), b.bytes+msg.Size()
	}
	return all
}

// place returns where a message goes: one of a lite topic there, one with a message group to the queue of that, a
// PRIORITY message to the queue of its priority on one of the shards that have it, the others
// of a topic to the queue whose turn it is. turns has what was decided of the
// same messages: a topic's go to one shard. An answer that names no shard is refused by
// the store.
func (s *Server) place(t *mq.Topic, msg *mq.Message, system *rmqpb.SystemProperties, turns map[mq.TopicID]queuePlace) queuePlace {
	at := queuePlace{topic: t.ID}
	if msg.Lite != "" {
		at.lite = msg.Lite
		at.shard, _, _ = t.QueueOf(msg.Lite)
		return at
	}
	if msg.Group != "" {
		at.shard, at.queue, _ = t.QueueOf(msg.Group)
		return at
	}
	if msg.Type != mq.Priority {
		turn, ok := turns[t.ID]
		if !ok {
			at.shard, at.queue = s.nextQueue(t)
			turn, turns[t.ID] = at, at
		}
		return turn
	}
	at.queue = t.PriorityQueue(system.GetPriority())
	has := t.ShardsWith(at.queue)
	if turn := turns[t.ID]; slices.Contains(has, turn.shard) {
		at.shard = turn.shard
	} else if len(has) > 0 {
		at.shard = has[s.turn.Add(1)%uint64(len(has))]
		turns[t.ID] = at
	}
	return at
}

// originOf returns the name of the topic that a dead letter came from, and its system
// properties without that.
func originOf(dead *mq.Message) (topic string, system *rmqpb.SystemProperties, err error) {
	system = &rmqpb.SystemProperties{}
	if err := proto.Unmarshal(dead.System, system); err != nil {
		return "", nil, errors.New("system properties cannot be read")
	}
	topic = system.GetDeadLetterQueue().GetTopic()
	if topic == "" {
		return "", nil, errors.New("does not say which topic it came from")
	}
	system.DeadLetterQueue = nil
	return topic, system, nil
}

// revive returns the message that a dead letter was, as a topic of the type takes it now.
// Its properties go on to tell of its death. One with a message group is a FIFO message
// again, one with a priority a PRIORITY message, where the topic takes those, and one of
// a DELAY topic is delivered there at once.
func revive(dead *mq.Message, system *rmqpb.SystemProperties, topic mq.TopicType) (*mq.Message, error) {
	alive := *dead
	switch {
	case alive.Group != "":
		alive.Type, system.MessageType = mq.FIFO, rmqpb.MessageType_FIFO
	case system.GetLiteTopic() != "" && topic.Accepts(mq.Lite):
		alive.Lite, alive.Type, system.MessageType = system.GetLiteTopic(), mq.Lite, rmqpb.MessageType_LITE
	case topic.Accepts(mq.Priority) && system.Priority == nil:
		return nil, fmt.Errorf("the topic takes only %s messages, and the dead letter has no priority", topic)
	case topic.Accepts(mq.Priority) && system.GetPriority() < 0:
		return nil, fmt.Errorf("priority %d of the dead letter: must not be negative", system.GetPriority())
	case topic.Accepts(mq.Priority):
		alive.Type, system.MessageType = mq.Priority, rmqpb.MessageType_PRIORITY
	case topic == mq.TopicDelay:
		// Its time has come long ago: it waits for nothing.
		alive.Type, system.MessageType = mq.Delay, rmqpb.MessageType_DELAY
	}
	if alive.Type != mq.Priority {
		system.Priority = nil // from a time when the topic was of another type
	}
	// What was committed once is no half message: it goes back to a TRANSACTION topic as
	// the NORMAL message that it has become.
	committed := topic == mq.TopicTransaction && alive.Type == mq.Normal
	if !topic.Accepts(alive.Type) && !committed {
		return nil, fmt.Errorf("the topic takes only %s messages, and the dead letter was a %s one", topic, alive.Type)
	}
	var err error
	if alive.System, err = proto.Marshal(system); err != nil {
		return nil, errors.New("system properties cannot be written")
	}
	return &alive, nil
}

// origin looks a topic up, once in a call. Dead letters name it without its
// namespace, which is that of their group.
func (r *redrive) origin(ctx context.Context, name string) origin {
	if o, ok := r.origins[name]; ok {
		return o
	}
	o := origin{}
	t, err := r.server.router.Topic(ctx, mq.Resource{Namespace: r.from.Namespace, Name: name})
	switch {
	case err != nil:
		o.reason = err.Error()
	case !t.Permission.CanWrite():
		o.reason = "the topic's permission does not allow sending"
	default:
		o.topic = t
	}
	r.origins[name] = o
	return o
}

func (r *redrive) hold(l mq.Lease, topic, reason string) {
	r.held = append(r.held, l)
	r.unmoved[unmovedKey{topic, reason}]++
}

// giveBack ends leases uncounted. Where that fails they end by themselves.
func (r *redrive) giveBack(leases []mq.Lease) {
	for some := range slices.Chunk(leases, redriveMax) {
		changes := make([]mq.LeaseChange, len(some))
		for i, l := range some {
			changes[i] = mq.LeaseChange{Lease: l, Reason: mq.GiveBack}
		}
		// The context of the call may be over.
		_ = r.server.store.ChangeInvisible(context.Background(), changes)
	}
}

func (r *redrive) unmovedProto() []*adminpb.UnmovedDeadLetters {
	list := make([]*adminpb.UnmovedDeadLetters, 0, len(r.unmoved))
	for k, n := range r.unmoved {
		list = append(list, &adminpb.UnmovedDeadLetters{Topic: k.topic, Reason: k.reason, Messages: n})
	}
	slices.SortFunc(list, func(a, b *adminpb.UnmovedDeadLetters) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Reason, b.Reason))
	})
	return list
}

// nextQueue returns the writable queue of t whose turn it is.
func (s *Server) nextQueue(t *mq.Topic) (shard string, queue mq.QueueID) {
	writable := 0
	for _, q := range t.Shards {
		writable += int(q.Writable())
	}
	n := int32(s.turn.Add(1) % uint64(max(writable, 1)))
	for _, q := range t.Shards {
		if n < q.Writable() {
			return q.Shard, mq.QueueID(n)
		}
		n -= q.Writable()
	}
	return "", 0 // no such shard: Append says so
}
