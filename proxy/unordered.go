package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// unordered tells of groups that read a FIFO topic without being FIFO: what they get
// overtakes, and whoever made the topic FIFO will mostly not have wanted that. Each pair
// is logged once for as long as it is remembered.
type unordered struct {
	logger   *slog.Logger
	receives atomic.Uint64
	known    sync.Map // unorderedPair to nothing
	size     atomic.Int64
}

type unorderedPair struct {
	group mq.GroupID
	topic mq.TopicID
}

// maxUnordered bounds the pairs that are remembered; then all are forgotten.
const maxUnordered = 1 << 12

// mismatch reports whether the receive is of a FIFO topic by a group that is not FIFO.
func (r *receive) mismatch() bool { return r.Topic.Type == mq.TopicFIFO && !r.Group.FIFO }

// note counts a receive, and logs the first one of its kind.
func (u *unordered) note(ctx context.Context, r receive) {
	if !r.mismatch() {
		return
	}
	u.receives.Add(1)
	pair := unorderedPair{r.Group.ID, r.Topic.ID}
	if _, known := u.known.Load(pair); known {
		return
	}
	if u.size.Add(1) > maxUnordered {
		u.size.Store(1)
		u.known.Clear()
	}
	if _, known := u.known.LoadOrStore(pair, struct{}{}); !known {
		u.logger.WarnContext(ctx, "FIFO topic is read in any order: the group is not FIFO",
			"group", r.Group.Resource.String(), "topic", r.Topic.Resource.String())
	}
}

// receiveOK is the status of a receive that delivers.
func (s *Server) receiveOK(r receive) *rmqpb.Status {
	status := ok()
	if r.mismatch() {
		status.Message = unorderedText(r)
	}
	return status
}

func unorderedText(r receive) string {
	namespace := ""
	if r.Group.Namespace != "" {
		namespace = " --namespace " + r.Group.Namespace
	}
	return fmt.Sprintf("topic %q is FIFO, and group %q is not: messages come in any order; perigee group update %s --fifo%s",
		r.Topic.Resource, r.Group.Resource, r.Group.Name, namespace)
}
