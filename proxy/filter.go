package proxy

import (
	"slices"
	"strings"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/mq"
)

// maxFilter is the longest filter expression, in bytes. The tags travel with
// every command that leases messages.
const maxFilter = 16 << 10

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
	case rmqpb.FilterType_SQL:
		return nil, refuse(rmqpb.Code_UNSUPPORTED, "filter_expression.type SQL: SQL92 filters are not supported yet; use TAG")
	default:
		return nil, refuse(rmqpb.Code_ILLEGAL_FILTER_EXPRESSION, "filter_expression.type %d is unknown; use TAG", f.GetType())
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
