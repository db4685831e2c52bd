package node

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	grpccodes "google.golang.org/grpc/codes"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/histogram"
	"github.com/perigee-mq/perigee/proxy"
)

// calls measures the calls by how they ended. The methods and the codes are the
// server's own, so there are not many of them.
type calls struct {
	// seen is replaced, with mu held, when a call ends as none has before.
	seen atomic.Pointer[map[callKey]*histogram.Histogram]
	mu   sync.Mutex
	// waits is how long receives waited that did.
	waits histogram.Histogram
}

type callKey struct {
	method string
	code   rmqpb.Code
	grpc   grpccodes.Code
}

// observe counts a call. It is quick, and allocates nothing for an ending that was
// seen before.
func (c *calls) observe(call proxy.Call) {
	key := callKey{call.Method, call.Code, call.GRPC}
	var h *histogram.Histogram
	if seen := c.seen.Load(); seen != nil {
		h = (*seen)[key]
	}
	if h == nil {
		h = c.add(key)
	}
	h.Observe(call.Took - call.Waited)
	if call.Waited > 0 {
		c.waits.Observe(call.Waited)
	}
}

func (c *calls) add(key callKey) *histogram.Histogram {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := map[callKey]*histogram.Histogram{}
	if seen := c.seen.Load(); seen != nil {
		maps.Copy(next, *seen)
	}
	if next[key] == nil {
		next[key] = new(histogram.Histogram)
	}
	c.seen.Store(&next)
	return next[key]
}

// list returns the measurements, in the order of their labels.
func (c *calls) list() []spread {
	seen := c.seen.Load()
	if seen == nil {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(*seen), func(a, b callKey) int {
		return cmp.Or(cmp.Compare(a.method, b.method), cmp.Compare(a.code, b.code), cmp.Compare(a.grpc, b.grpc))
	})
	list := make([]spread, len(keys))
	for i, k := range keys {
		code := ""
		if k.grpc == grpccodes.OK {
			code = k.code.String()
		}
		list[i] = spread{
			labels: attribute.NewSet(attribute.String("method", k.method),
				attribute.String("code", code), attribute.String("grpc_code", k.grpc.String())),
			Snapshot: (*seen)[k].Snapshot(),
		}
	}
	return list
}
