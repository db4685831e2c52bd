package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// maxFilter is the longest filter expression, in bytes. The tags travel with
// every command that leases messages.
const maxFilter = 16 << 10

// maxCompiled is how many compiled expressions are remembered.
const maxCompiled = 1000

// filters compiles the SQL expressions of clients, each once: a consumer sends its own
// with every receive.
type filters struct {
	compile func(expression string) (mq.Filter, error) // nil: there is none
	mu      struct {
		sync.Mutex
		compiled map[string]mq.Filter
	}
}

// of returns what a client wants to receive: tags, or a filter, or with neither every
// message.
func (fs *filters) of(f *rmqpb.FilterExpression) (tags []string, filter mq.Filter, err error) {
	if f.GetType() != rmqpb.FilterType_SQL {
		tags, err = filterTags(f)
		return tags, nil, err
	}
	if fs.compile == nil {
		return nil, nil, refuse(rmqpb.Code_UNSUPPORTED, "filter_expression.type SQL: this server has no SQL filters; use TAG")
	}
	expression := f.GetExpression()
	fs.mu.Lock()
	filter = fs.mu.compiled[expression]
	fs.mu.Unlock()
	if filter != nil {
		return nil, filter, nil
	}
	// Not under the lock: a long one takes a while.
	if filter, err = fs.compile(expression); err != nil {
		return nil, nil, fmt.Errorf("filter_expression.expression %q: %w", mq.Shorten(expression), err)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.mu.compiled == nil {
		fs.mu.compiled = map[string]mq.Filter{}
	}
	if len(fs.mu.compiled) >= maxCompiled {
		for other := range fs.mu.compiled { // any: it is compiled again
			delete(fs.mu.compiled, other)
			break
		}
	}
	fs.mu.compiled[expression] = filter
	return nil, filter, nil
}

// filterTags returns the tags that a filter wants, sorted and without repeats;
// nil means every message.
//
// An expression is tags joined with ||. An empty one and a lone * want every
// message; a star among tags is a tag of that name. A filter type that is not
// set means TAG. A message without a tag matches only a filter that wants every
// message.
func filterTags(f *rmqpb.FilterExpression) ([]string, error) {
	switch f.GetType() {
	case rmqpb.FilterType_FILTER_TYPE_UNSPECIFIED, rmqpb.FilterType_TAG:
	default:
		return nil, refuse(rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "filter_expression.type %d is unknown; use TAG or SQL", f.GetType())
	}
	expression := strings.TrimSpace(f.GetExpression())
	if expression == "" || expression == "*" {
		return nil, nil
	}
	if len(expression) > maxFilter {
		return nil, refuse(rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "filter_expression.expression has %d bytes, the limit is %d", len(expression), maxFilter)
	}
	var tags []string
	for tag := range strings.SplitSeq(expression, "||") {
		tag = strings.TrimSpace(tag)
		if strings.ContainsFunc(tag, func(r rune) bool { return r == '|' || r < ' ' || r == 0x7f }) {
			return nil, refuse(rmqpb.Code_ILLEGAL_FILTER_EXPRESSION,
				"filter_expression.expression %q: a tag may hold neither | nor control characters; join tags with ||", mq.Shorten(expression))
		}
		if tag != "" {
			tags = append(tags, tag)
		}
	}
	if len(tags) == 0 {
		return nil, refuse(rmqpb.Code_ILLEGAL_FILTER_EXPRESSION,
			"filter_expression.expression %q names no tag; use * for every message", mq.Shorten(expression))
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}
