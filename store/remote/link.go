package remote

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/perigee-mq/perigee/mq"
)

// A link is one stream of calls to a node, for as long as that lasts.
type link struct {
	node string
	out  *outbox
	ids  atomic.Uint64
	done chan struct{} // closed when the stream has ended

	mu      sync.Mutex
	waiting map[uint64]*call
	err     error // why the stream has ended
}

// A call waits for its answer.
type call struct {
	answer chan []byte // capacity 1; the fields of an Answer. Closed: the link has ended.
	id     uint64
}

// settle sends the ids of receives whose answers were taken, or are not wanted any more.
func (l *link) settle(field protowire.Number, ids ...uint64) {
	l.out.put(build(0, func(w *builder) {
		for _, id := range ids {
			w.uint(field, id)
		}
	}))
}

func newLink(node string) *link {
	return &link{node: node, out: newOutbox(), done: make(chan struct{}), waiting: map[uint64]*call{}}
}

// run carries calls and answers until the stream ends, and says why it did.
func (l *link) run(stream grpc.ClientStream) error {
	sending, stop := context.WithCancel(stream.Context())
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			b := l.out.take(sending)
			if b == nil {
				return
			}
			if stream.SendMsg(b) != nil {
				return // the receiver learns why
			}
		}
	})
	err := l.receive(stream)
	stop()
	l.end(err)
	sender.Wait()
	l.out.drop()
	return err
}

func (l *link) receive(stream grpc.ClientStream) error {
	for {
		var f frame
		if err := stream.RecvMsg(&f); err != nil {
			return err
		}
		r := reader{b: f.b}
		for r.next() {
			if r.num == answersAnswers {
				l.answered(r.bytes())
			}
		}
		if r.err != nil {
			return r.err
		}
	}
}

func (l *link) answered(answer []byte) {
	r := reader{b: answer}
	for r.next() {
		if r.num != answerID {
			continue
		}
		l.mu.Lock()
		c := l.waiting[r.uint()]
		delete(l.waiting, r.n)
		l.mu.Unlock()
		if c != nil {
			c.answer <- answer
		}
		return
	}
}

// end lets all that wait know that no answer comes.
func (l *link) end(err error) {
	l.mu.Lock()
	l.err = err
	waiting := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	close(l.done)
	for _, c := range waiting {
		close(c.answer)
	}
}

// start registers a call; nil when the link has ended.
func (l *link) start() *call {
	c := &call{answer: make(chan []byte, 1), id: l.ids.Add(1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		return nil
	}
	l.waiting[c.id] = c
	return c
}

// forget gives up on a call, and reports false when its answer is there already, or the
// link has ended.
func (l *link) forget(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waits := l.waiting[c.id]
	delete(l.waiting, c.id)
	return waits
}

// unknown is the error of a call that was sent and got no answer.
func (l *link) unknown() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("%w: the connection to store node %s broke before it had answered (%w)", mq.ErrOutcomeUnknown, l.node, l.err)
}
