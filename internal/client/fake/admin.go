package fake

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Admin keeps topics and groups in memory. It knows nothing of the messages.
type Admin struct {
	adminpb.UnimplementedAdminServiceServer

	admin struct {
		sync.Mutex
		topics  []*adminpb.Topic
		groups  []*adminpb.Group
		updates []*adminpb.UpdateGroupRequest
		// The requests to reconnect.
		reconnects []*adminpb.ReconnectClientsRequest
		dead       map[string]*Dead // by group
	}
}

// Reconnects returns the requests to reconnect.
func (a *Admin) Reconnects() []*adminpb.ReconnectClientsRequest {
	a.admin.Lock()
	defer a.admin.Unlock()
	return a.admin.reconnects
}

// Dead are the dead letters of a group. A call sends back at most 10.
type Dead struct {
	Waiting int64
	Unmoved []*adminpb.UnmovedDeadLetters // of those waiting
	Taken   int64                         // of those waiting, by another call
	sent    int64
}

// SetDead gives a group dead letters.
func (a *Admin) SetDead(group string, d Dead) {
	a.admin.Lock()
	defer a.admin.Unlock()
	if a.admin.dead == nil {
		a.admin.dead = map[string]*Dead{}
	}
	a.admin.dead[group] = &d
}

// ListDeadLetters answers those that were set, whatever the namespace.
func (a *Admin) ListDeadLetters(context.Context, *adminpb.ListDeadLettersRequest) (*adminpb.ListDeadLettersResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	resp := &adminpb.ListDeadLettersResponse{}
	for _, group := range slices.Sorted(maps.Keys(a.admin.dead)) {
		d := a.admin.dead[group]
		resp.DeadLetters = append(resp.DeadLetters, &adminpb.DeadLetters{
			Group: group, Topic: "%DLQ%" + group, Messages: d.sent + d.Waiting, Waiting: d.Waiting,
		})
	}
	return resp, nil
}

// RedriveDeadLetters sends nothing anywhere.
func (a *Admin) RedriveDeadLetters(_ context.Context, req *adminpb.RedriveDeadLettersRequest) (*adminpb.RedriveDeadLettersResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	d := a.admin.dead[req.Group]
	if d == nil {
		return nil, status.Errorf(codes.NotFound, "consumer group %s not found", req.Group)
	}
	movable := d.Waiting - d.Taken
	for _, u := range d.Unmoved {
		movable -= u.Messages
	}
	n := min(movable, 10)
	if req.Max > 0 {
		n = min(n, int64(req.Max))
	}
	d.Waiting, d.sent = d.Waiting-n, d.sent+n
	return &adminpb.RedriveDeadLettersResponse{Redriven: n, Waiting: d.Waiting, Unmoved: d.Unmoved}, nil
}

// GroupUpdates returns the requests that changed groups.
func (a *Admin) GroupUpdates() []*adminpb.UpdateGroupRequest {
	a.admin.Lock()
	defer a.admin.Unlock()
	return a.admin.updates
}

func (a *Admin) topicLocked(namespace, name string) (*adminpb.Topic, error) {
	for _, t := range a.admin.topics {
		if t.Namespace == namespace && t.Name == name {
			return t, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "topic %s not found", name)
}

func (a *Admin) groupLocked(namespace, name string) (*adminpb.Group, error) {
	for _, g := range a.admin.groups {
		if g.Namespace == namespace && g.Name == name {
			return g, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "consumer group %s not found", name)
}

// CreateTopic refuses a topic of another type.
func (a *Admin) CreateTopic(_ context.Context, req *adminpb.CreateTopicRequest) (*adminpb.CreateTopicResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	if t, err := a.topicLocked(req.Namespace, req.Name); err == nil {
		if t.Type != req.Type {
			return nil, status.Errorf(codes.AlreadyExists, "topic %s exists with type %s", req.Name, t.Type)
		}
		return &adminpb.CreateTopicResponse{Topic: t}, nil
	}
	queues := cmp.Or(req.Queues, 8)
	t := &adminpb.Topic{
		Namespace: req.Namespace, Name: req.Name, Type: req.Type, Permission: cmp.Or(req.Permission, adminpb.Permission_PERMISSION_READ_WRITE),
		Id: uint32(len(a.admin.topics) + 1), Version: 1, Retention: req.Retention,
		Shards: []*adminpb.ShardQueues{{Shard: "perigee-0", ReadQueues: queues, WriteQueues: queues}},
	}
	a.admin.topics = append(a.admin.topics, t)
	return &adminpb.CreateTopicResponse{Topic: t, Created: true}, nil
}

// GetTopic answers one queue with 7 messages.
func (a *Admin) GetTopic(_ context.Context, req *adminpb.GetTopicRequest) (*adminpb.GetTopicResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	t, err := a.topicLocked(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	return &adminpb.GetTopicResponse{Topic: t, Queues: []*adminpb.QueueStatus{{Shard: "perigee-0", MinOffset: 3, MaxOffset: 10}}}, nil
}

// ListTopics answers all topics of the namespace.
func (a *Admin) ListTopics(_ context.Context, req *adminpb.ListTopicsRequest) (*adminpb.ListTopicsResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	resp := &adminpb.ListTopicsResponse{}
	for _, t := range a.admin.topics {
		if t.Namespace == req.Namespace {
			resp.Topics = append(resp.Topics, t)
		}
	}
	return resp, nil
}

// UpdateTopic changes what is set.
func (a *Admin) UpdateTopic(_ context.Context, req *adminpb.UpdateTopicRequest) (*adminpb.UpdateTopicResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	t, err := a.topicLocked(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	if req.ReadQueues != nil {
		t.Shards[0].ReadQueues = *req.ReadQueues
	}
	if req.WriteQueues != nil {
		t.Shards[0].WriteQueues = *req.WriteQueues
	}
	if req.Permission != nil {
		t.Permission = *req.Permission
	}
	if req.Retention != nil {
		if t.Retention = req.Retention; req.Retention.AsDuration() == 0 {
			t.Retention = nil
		}
	}
	t.Version++
	return &adminpb.UpdateTopicResponse{Topic: t}, nil
}

// PurgeTopic answers that 7 messages are gone, those of GetTopic.
func (a *Admin) PurgeTopic(_ context.Context, req *adminpb.PurgeTopicRequest) (*adminpb.PurgeTopicResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	if _, err := a.topicLocked(req.Namespace, req.Name); err != nil {
		return nil, err
	}
	return &adminpb.PurgeTopicResponse{Purged: 7, Queues: []*adminpb.QueueStatus{{Shard: "perigee-0", MinOffset: 10, MaxOffset: 10}}}, nil
}

// DeleteTopic removes a topic.
func (a *Admin) DeleteTopic(_ context.Context, req *adminpb.DeleteTopicRequest) (*adminpb.DeleteTopicResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	t, err := a.topicLocked(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	a.admin.topics = slices.DeleteFunc(a.admin.topics, func(have *adminpb.Topic) bool { return have == t })
	return &adminpb.DeleteTopicResponse{}, nil
}

// CreateGroup stores the group as it is described.
func (a *Admin) CreateGroup(_ context.Context, req *adminpb.CreateGroupRequest) (*adminpb.CreateGroupResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	if g, err := a.groupLocked(req.Namespace, req.Name); err == nil {
		return &adminpb.CreateGroupResponse{Group: g}, nil
	}
	g := &adminpb.Group{
		Namespace: req.Namespace, Name: req.Name, Id: uint32(len(a.admin.groups) + 1), Version: 1,
		Fifo: req.Fifo, Retry: req.Retry, Start: req.Start, DeadLetterTopic: "%DLQ%" + req.Name,
	}
	a.admin.groups = append(a.admin.groups, g)
	return &adminpb.CreateGroupResponse{Group: g, Created: true}, nil
}

// GetGroup answers progress in one topic.
func (a *Admin) GetGroup(_ context.Context, req *adminpb.GetGroupRequest) (*adminpb.GetGroupResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	g, err := a.groupLocked(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	return &adminpb.GetGroupResponse{Group: g, Topics: []*adminpb.GroupTopic{{Name: "orders", Ready: 5, InFlight: 2, UsedUp: 1}}}, nil
}

// ListGroups answers all groups of the namespace.
func (a *Admin) ListGroups(_ context.Context, req *adminpb.ListGroupsRequest) (*adminpb.ListGroupsResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	resp := &adminpb.ListGroupsResponse{}
	for _, g := range a.admin.groups {
		if g.Namespace == req.Namespace {
			resp.Groups = append(resp.Groups, g)
		}
	}
	return resp, nil
}

// UpdateGroup changes what is set.
func (a *Admin) UpdateGroup(_ context.Context, req *adminpb.UpdateGroupRequest) (*adminpb.UpdateGroupResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	g, err := a.groupLocked(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	a.admin.updates = append(a.admin.updates, req)
	if req.Fifo != nil {
		g.Fifo = *req.Fifo
	}
	if req.Retry != nil {
		g.Retry = req.Retry
	}
	if req.Start != nil {
		g.Start = req.Start
	}
	g.Version++
	return &adminpb.UpdateGroupResponse{Group: g}, nil
}

// DeleteGroup removes a group.
func (a *Admin) DeleteGroup(_ context.Context, req *adminpb.DeleteGroupRequest) (*adminpb.DeleteGroupResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	g, err := a.groupLocked(req.Namespace, req.Name)
	if err != nil {
		return nil, err
	}
	a.admin.groups = slices.DeleteFunc(a.admin.groups, func(have *adminpb.Group) bool { return have == g })
	return &adminpb.DeleteGroupResponse{}, nil
}

// ReconnectClients knows one client, "connected".
func (a *Admin) ReconnectClients(_ context.Context, req *adminpb.ReconnectClientsRequest) (*adminpb.ReconnectClientsResponse, error) {
	a.admin.Lock()
	defer a.admin.Unlock()
	a.admin.reconnects = append(a.admin.reconnects, req)
	resp := &adminpb.ReconnectClientsResponse{}
	if len(req.ClientIds) == 0 {
		resp.Asked = 1
	}
	for _, id := range req.ClientIds {
		if id == "connected" {
			resp.Asked++
		} else {
			resp.Unreachable = append(resp.Unreachable, id)
		}
	}
	return resp, nil
}
