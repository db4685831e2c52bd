package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// ListDeadLetters answers how many dead letters each group of a namespace has,
// and how many of them were not sent back yet. Groups without any are left out.
func (s *Server) ListDeadLetters(ctx context.Context, req *adminpb.ListDeadLettersRequest) (*adminpb.ListDeadLettersResponse, error) {
	if err := mq.ValidateNamespace(req.GetNamespace()); err != nil {
		return nil, s.refusal(ctx, err)
	}
	missing := absent{}
	waiting, err := s.redriveBacklogs(ctx, req.GetNamespace(), missing)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	resp := &adminpb.ListDeadLettersResponse{}
	for _, g := range s.router.ListGroups(ctx, router.Selection{Namespace: req.GetNamespace()}) {
		d, err := s.deadLetters(ctx, g, waiting, missing)
		if err != nil {
			return nil, s.refusal(ctx, err)
		}
		if d.Messages > 0 {
			resp.DeadLetters = append(resp.DeadLetters, d)
		}
	}
	resp.UnreachableShards = missing.names()
	return resp, nil
}

// A deadPlace is a dead-letter topic on one of its shards.
type deadPlace struct {
	shard string
	topic mq.TopicID
}

// redriveBacklogs returns, for each dead-letter topic of the namespace, how many messages
// were not sent back from the shards where it was redriven. Of a shard on which no redrive
// has looked at the topic there is no entry: nothing of it was sent back.
func (s *Server) redriveBacklogs(ctx context.Context, namespace string, missing absent) (map[deadPlace]int64, error) {
	via, err := s.router.Group(ctx, mq.Resource{Namespace: namespace, Name: mq.RedriveGroup})
	if errors.Is(err, mq.ErrGroupNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	waiting := map[deadPlace]int64{}
	for _, shard := range s.shards() {
		backlogs, err := s.store.Backlogs(ctx, shard, via.ID)
		if missing.note(shard, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, b := range backlogs {
			waiting[deadPlace{shard, b.Topic}] = b.Ready + b.InFlight + b.UsedUp + b.Blocked
		}
	}
	return waiting, nil
}

// deadLetters counts the dead letters of one group on all shards that can be asked.
func (s *Server) deadLetters(ctx context.Context, g *mq.Group, waiting map[deadPlace]int64, missing absent) (*adminpb.DeadLetters, error) {
	d := &adminpb.DeadLetters{Namespace: g.Namespace, Group: g.Name, Topic: g.DeadLetterTopic().Name}
	t, err := s.router.TopicByID(g.DeadLetter)
	if errors.Is(err, mq.ErrTopicNotFound) {
		return d, nil // deleted with its group meanwhile
	}
	if err != nil {
		return nil, err
	}
	for _, sq := range t.Shards {
		if missing[sq.Shard] {
			continue
		}
		ranges, err := s.store.Queues(ctx, sq.Shard, t.ID)
		if missing.note(sq.Shard, err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		n := held(ranges)
		d.Messages += n
		left, redriven := waiting[deadPlace{sq.Shard, t.ID}]
		if !redriven {
			left = n
		}
		d.Waiting += left
	}
	return d, nil
}

// RedriveDeadLetters sends dead letters of a group back to the topics they came
// from, with a new count of attempts. What cannot go back stays, and is named
// with its reason.
//
// A failure after some were sent ends the call with their number; the next call
// meets it first.
func (s *Server) RedriveDeadLetters(ctx context.Context, req *adminpb.RedriveDeadLettersRequest) (*adminpb.RedriveDeadLettersResponse, error) {
	name := mq.Resource{Namespace: req.GetNamespace(), Name: req.GetGroup()}
	if req.GetMax() < 0 {
		return nil, s.refusal(ctx, invalid("max", fmt.Sprint(req.GetMax()), "must not be negative"))
	}
	r, err := s.newRedrive(ctx, name)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	err = r.run(ctx, int(min(cmp.Or(req.GetMax(), redriveMax), redriveMax)))
	if err != nil && r.sent == 0 {
		return nil, s.refusal(ctx, err)
	}
	if err != nil {
		s.logger.WarnContext(ctx, "redrive of dead letters ended early", "group", name.String(), "sent", r.sent, "error", err)
	}
	waiting, err := s.redriveBacklogs(ctx, name.Namespace, r.missing)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	d, err := s.deadLetters(ctx, r.of, waiting, r.missing)
	if err != nil {
		return nil, s.refusal(ctx, err)
	}
	return &adminpb.RedriveDeadLettersResponse{
		Redriven: int64(r.sent), Waiting: d.Waiting, Unmoved: r.unmovedProto(), UnreachableShards: r.missing.names(),
	}, nil
}
