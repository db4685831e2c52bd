package admin

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/perigee-mq/perigee/mq"
)

// What the services of delayed messages and of transactions have in common: both list
// pending messages page by page, and change those that are named.

const (
	maxPending     = 1000 // of one call
	defaultPending = 100
)

// pendingPage returns how many messages a page may have, of which a request wants n.
func pendingPage(n int32) (int, error) {
	if n < 0 || n > maxPending {
		return 0, invalid("page_size", fmt.Sprint(n), fmt.Sprintf("must lie between 0 and %d", maxPending))
	}
	return int(cmp.Or(n, defaultPending)), nil
}

// checkIDs makes sure that a request names messages, and not too many.
func checkIDs(ids []string) error {
	if n := len(ids); n == 0 || n > maxPending {
		return invalid("ids", fmt.Sprint(n, " ids"), fmt.Sprintf("must be 1 to %d", maxPending))
	}
	return nil
}

// ofTopic is a request about a topic.
type ofTopic interface {
	GetNamespace() string
	GetTopic() string
}

func (s *Server) topicOf(ctx context.Context, req ofTopic) (*mq.Topic, error) {
	if err := mq.ValidateNamespace(req.GetNamespace()); err != nil {
		return nil, err
	}
	return s.router.Topic(ctx, mq.Resource{Namespace: req.GetNamespace(), Name: req.GetTopic()})
}

// pendingID names a pending message to an operator.
func pendingID(m *mq.PendingMessage) string { return fmt.Sprintf("%s/%d", m.Shard, uint64(m.ID)) }

// parsePendingID returns what pendingID has named. It reports false for what has not its
// form, as the handles that clients have; the error is about a number that is none.
func parsePendingID(id string) (shard string, number mq.PendingID, isID bool, err error) {
	i := strings.LastIndexByte(id, '/')
	if i < 0 {
		return "", 0, false, nil
	}
	n, err := strconv.ParseUint(id[i+1:], 10, 64)
	return id[:i], mq.PendingID(n), true, err
}

// pageToken says with numbers where a list goes on.
func pageToken(numbers ...uint64) string {
	parts := make([]string, len(numbers))
	for i, n := range numbers {
		parts[i] = strconv.FormatUint(n, 10)
	}
	return strings.Join(parts, ".")
}

// readPageToken sets the numbers to those of the token, and reports false when it is not
// what pageToken makes of as many.
func readPageToken(token string, numbers ...*uint64) bool {
	parts := strings.Split(token, ".")
	if len(parts) != len(numbers) {
		return false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 64)
		if err != nil || strconv.FormatUint(n, 10) != part {
			return false
		}
		*numbers[i] = n
	}
	return true
}
