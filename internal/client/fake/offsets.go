package fake

import (
	"context"
	"sync"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// Offsets has one queue of one topic, in which every group is at 2 of 7.
type Offsets struct {
	adminpb.UnimplementedOffsetServiceServer

	offsets struct {
		sync.Mutex
		resets []*adminpb.ResetOffsetRequest
	}
}

func position() *adminpb.QueuePosition {
	return &adminpb.QueuePosition{
		Shard: "perigee-0", Queue: 3, MinOffset: 1, MaxOffset: 7, Offset: new(int64(2)), Ready: 5, InFlight: 2, UsedUp: 1,
	}
}

// ListPositions answers the queue of the topic orders.
func (o *Offsets) ListPositions(context.Context, *adminpb.ListPositionsRequest) (*adminpb.ListPositionsResponse, error) {
	return &adminpb.ListPositionsResponse{Topics: []*adminpb.TopicPositions{{Topic: "orders", Queues: []*adminpb.QueuePosition{
		position(), {Shard: "perigee-0", Queue: 4, MaxOffset: 9},
	}}}}, nil
}

// ResetOffset answers that the group goes on at 4.
func (o *Offsets) ResetOffset(_ context.Context, req *adminpb.ResetOffsetRequest) (*adminpb.ResetOffsetResponse, error) {
	o.offsets.Lock()
	defer o.offsets.Unlock()
	o.offsets.resets = append(o.offsets.resets, req)
	return &adminpb.ResetOffsetResponse{Queues: []*adminpb.QueueReset{{Before: position(), Offset: 4}}}, nil
}

// Resets returns the requests to reset.
func (o *Offsets) Resets() []*adminpb.ResetOffsetRequest {
	o.offsets.Lock()
	defer o.offsets.Unlock()
	return o.offsets.resets
}
