package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// liteTake is how many lite topics one pop looks at, at most.
const liteTake = 64

// checkLite refuses messages of type LITE that name no lite topic, or several.
func (s *Shard) checkLite(t *mq.Topic, msgs []*mq.Message) error {
	for _, m := range msgs {
		if (m.Type == mq.Lite) != (t.Type == mq.TopicLite) {
			return fmt.Errorf("message of type %s to topic %s of type %s: %w", m.Type, t.Resource, t.Type, mq.ErrInvalid)
		}
		if m.Type != mq.Lite {
			continue
		}
		if err := mq.ValidateLiteTopic(m.Lite); err != nil {
			return err
		}
		if m.Lite != msgs[0].Lite {
			return fmt.Errorf("lite topic %q: the messages of one append must have one, the first has %q: %w", m.Lite, msgs[0].Lite, mq.ErrInvalid)
		}
		m.LiteLimit = uint32(max(s.opts.LiteTopics, 0))
	}
	return nil
}

// SyncLite changes which lite topics a client wants, all of them or none, and makes those
// that are not there. It returns what others have lost by it. The error may wrap
// mq.ErrLiteSubscriptionQuota, mq.ErrLiteTopicQuota or mq.ErrIllegalLiteTopic.
func (s *Shard) SyncLite(ctx context.Context, r mq.LiteSync) ([]mq.LiteLoss, error) {
	key := liteKey{keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID}, r.Client}
	for _, name := range r.Names {
		if err := mq.ValidateLiteTopic(name); err != nil {
			return nil, err
		}
	}
	switch r.Action {
	case mq.LiteRemove:
		s.lites.remove(key, r.Names, false)
		return nil, nil
	case mq.LiteLeave:
		s.lites.remove(key, nil, true)
		return nil, nil
	case mq.LiteAdd, mq.LiteReplace:
	default:
		return nil, fmt.Errorf("action %d of a lite subscription: %w", r.Action, mq.ErrInvalid)
	}
	added, lost, err := s.lites.add(key, &r, r.Action == mq.LiteReplace, time.Now())
	if err != nil {
		return nil, err
	}
	for left := added; len(left) > 0; {
		names := left[:min(len(left), command.MaxLites)]
		left = left[len(names):]
		queues, err := s.subscribeLite(ctx, &r, names)
		if err != nil {
			s.lites.remove(key, added, false)
			return lost, err
		}
		s.lites.resolve(key, names, queues)
	}
	return lost, nil
}

func (s *Shard) subscribeLite(ctx context.Context, r *mq.LiteSync, names []string) ([]mq.QueueID, error) {
	req := s.newRequest(command.KindLiteSubscribe)
	req.topic, req.group = r.Topic, r.Group
	req.liteSub = command.LiteSubscribe{
		Topic: r.Topic.ID, Group: r.Group.ID, Place: r.Place, Limit: uint32(max(s.opts.LiteTopics, 0)), Names: names,
	}
	if err := s.do(ctx, req); err != nil {
		return nil, err
	}
	queues := append([]mq.QueueID(nil), req.res.Lites...)
	s.release(req)
	return queues, nil
}

// LeaveLite forgets which lite topics a client wants.
func (s *Shard) LeaveLite(client string) { s.lites.leave(client) }

// LiteTopics returns how many lite topics a topic has.
func (s *Shard) LiteTopics(ctx context.Context, id mq.TopicID) (n int, err error) {
	err = s.look(ctx, func(m *machine.Machine) (err error) {
		n, err = m.LiteCount(id)
		return err
	})
	return n, err
}

// receiveLite is Receive for the lite topics of a client.
func (s *Shard) receiveLite(ctx context.Context, r mq.Receive) ([]mq.Delivery, error) {
	key := liteKey{keyspace.Sub{Group: r.Group.ID, Topic: r.Topic.ID}, r.Lite}
	if !s.waiters.enter(s.opts.MaxWaiting) {
		return nil, fmt.Errorf("shard %s: %d receives wait already: %w", s.opts.Name, s.opts.MaxWaiting, mq.ErrBusy)
	}
	defer s.waiters.leave()
	woken := make(chan struct{}, 1)
	s.lites.wait(key, woken) // before the first look, so that no event is missed
	defer s.lites.unwait(key, woken)
	timer := time.NewTimer(r.Wait)
	defer timer.Stop()
	for {
		got, err := s.popLites(ctx, r, key)
		if err != nil {
			return nil, err
		}
		if len(got.popped) > 0 {
			if ctx.Err() != nil {
				s.giveBack(r, got.popped, got.popID)
				return nil, context.Cause(ctx)
			}
			if r.Reserve != nil {
				if err := s.reserveFor(ctx, r, sizeOf(got.popped)); err != nil {
					s.giveBack(r, got.popped, got.popID)
					return nil, err
				}
			}
			deliveries, err := s.read(r, got.popped, got.popID)
			if len(deliveries) > 0 || err != nil {
				return deliveries, err
			}
			continue // all of it was dropped from the log meanwhile
		}
		if r.Wait <= 0 {
			return nil, nil
		}
		if on, err := s.parkLite(ctx, r, woken, timer); !on || err != nil {
			return nil, err
		}
	}
}

// parkLite waits until the receive is woken, and reports true, or for another reason to end.
func (s *Shard) parkLite(ctx context.Context, r mq.Receive, woken chan struct{}, timer *time.Timer) (bool, error) {
	defer waited(r, time.Now())
	select {
	case <-woken:
		return true, nil
	case <-timer.C:
		return false, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	case <-s.closing:
		return false, nil
	case <-s.failed:
		return false, s.Err()
	}
}

// popLites looks through the client's list until it has messages, or the list is empty. One
// with an attempt id looks for what is left of an earlier attempt first, also without a list.
func (s *Shard) popLites(ctx context.Context, r mq.Receive, key liteKey) (got haul, err error) {
	kind, again := command.KindLitePop, r.Attempt != ""
	if again {
		kind = command.KindLiteAttempt
	}
	for len(got.popped) == 0 && ctx.Err() == nil {
		entries, queues := s.lites.take(key, liteTake)
		if len(queues) == 0 && !again {
			if s.lites.some(key) {
				continue // there were none any more of those
			}
			return got, nil
		}
		again = false
		req := s.newRequest(kind)
		req.topic, req.group = r.Topic, r.Group
		req.litePop.Queues, req.litePop.Attempt = queues, r.Attempt
		req.litePop.Pop = command.Pop{
			Topic: r.Topic.ID, Group: r.Group.ID, Max: int32(r.Max), Bytes: popBytes, Invisible: int64(r.Invisible), Scan: popScan,
		}
		if err := s.send(ctx, req); err != nil {
			s.lites.putBack(key, entries, nil, true)
			return got, err
		}
		<-req.done // what it leases must be given back, whatever becomes of ctx
		err := req.err
		s.lites.putBack(key, entries, req.res.Lites, err != nil)
		got.popped, got.popID = append([]machine.Popped(nil), req.res.Popped...), req.res.PopID
		s.release(req)
		if err != nil {
			return haul{}, err
		}
	}
	return got, nil
}
