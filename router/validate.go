package router

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/perigee-mq/perigee/mq"
)

func invalid(field string, value any, reason string) error {
	return &mq.InvalidError{Kind: mq.ErrInvalid, Field: field, Value: mq.Shorten(fmt.Sprint(value)), Reason: reason}
}

// checkTopicName checks a name under which a topic may be created or changed.
func checkTopicName(r mq.Resource) error {
	if err := mq.ValidateNamespace(r.Namespace); err != nil {
		return err
	}
	if isDeadLetter(r) {
		return &mq.InvalidError{
			Kind: mq.ErrIllegalTopic, Field: "topic", Value: mq.Shorten(r.Name),
			Reason: "begins with " + mq.DeadLetterPrefix + ": such topics follow from their groups",
		}
	}
	return mq.ValidateTopic(r.Name)
}

func checkGroupName(r mq.Resource) error {
	if err := mq.ValidateNamespace(r.Namespace); err != nil {
		return err
	}
	return mq.ValidateGroup(r.Name)
}

// checkStoredGroupName checks the name of a group that exists, which may be one
// of the server itself.
func checkStoredGroupName(r mq.Resource) error {
	if own, ok := strings.CutPrefix(r.Name, mq.SystemGroupPrefix); ok {
		if err := mq.ValidateNamespace(r.Namespace); err != nil {
			return err
		}
		return mq.ValidateGroup(own)
	}
	return checkGroupName(r)
}

func isSystemGroup(r mq.Resource) bool {
	return strings.HasPrefix(r.Name, mq.SystemGroupPrefix)
}

func checkQueues(field string, n int32) error {
	if n < 1 || n > mq.MaxQueues {
		return invalid(field, n, fmt.Sprintf("must lie between 1 and %d", mq.MaxQueues))
	}
	return nil
}

// checkTopic checks a whole topic, also one that was read back.
func checkTopic(t *mq.Topic) error {
	if err := checkTopicName(t.Resource); err != nil {
		return err
	}
	switch t.Type {
	case mq.TopicNormal, mq.TopicFIFO, mq.TopicDelay, mq.TopicTransaction, mq.TopicLite, mq.TopicPriority, mq.TopicMixed:
	default:
		return invalid("type", t.Type, "is no topic type")
	}
	if t.Permission < mq.PermNone || t.Permission > mq.PermReadWrite {
		return invalid("permission", t.Permission, "must lie between 1 and 4")
	}
	if err := cmp.Or(mq.ValidateRetention(t.Retention), mq.ValidateDedup(t.Dedup), mq.ValidateLiteTTL(t.Type, t.LiteTTL)); err != nil {
		return err
	}
	if t.ID == 0 || t.Version == 0 || len(t.Shards) == 0 {
		return fmt.Errorf("topic without id, version or shard")
	}
	for _, s := range t.Shards {
		if s.Shard == "" {
			return fmt.Errorf("shard without name")
		}
		if err := checkQueues("read-queues", s.Read); err != nil {
			return err
		}
		if err := checkQueues("write-queues", s.Write); err != nil {
			return err
		}
		if s.Use > mq.ShardClosed || s.Since > t.Version {
			return fmt.Errorf("shard %s with use %d since version %d", mq.Shorten(s.Shard), s.Use, s.Since)
		}
	}
	if err := checkPlacement(t); err != nil {
		return err
	}
	sorted := func(a, b mq.ShardQueues) int { return strings.Compare(a.Shard, b.Shard) }
	if !slices.IsSortedFunc(t.Shards, sorted) {
		return fmt.Errorf("shards out of order")
	}
	return nil
}

// checkPlacement checks where the message groups of a topic lie.
func checkPlacement(t *mq.Topic) error {
	if t.Placed > t.Version || t.Placed == 0 && len(t.Places) > 0 {
		return fmt.Errorf("placed by version %d of %d", t.Placed, t.Version)
	}
	for _, p := range t.Places {
		if on, err := t.On(p.Shard); err != nil || p.Queue < 0 || int32(p.Queue) >= on.Queues() {
			return fmt.Errorf("place in queue %d of shard %s, which the topic does not have", p.Queue, mq.Shorten(p.Shard))
		}
	}
	return nil
}

// checkGroup checks a whole group, also one that was read back.
func checkGroup(g *mq.Group) error {
	if err := checkStoredGroupName(g.Resource); err != nil {
		return err
	}
	if err := g.Retry.Validate(); err != nil {
		return err
	}
	switch g.Start.Policy {
	case mq.StartEarliest, mq.StartLatest:
	case mq.StartTimestamp:
		if y := g.Start.Time.Year(); y < 1970 || y > 2261 {
			return invalid("start", g.Start.Time, "must lie between the years 1970 and 2261")
		}
	default:
		return invalid("start", g.Start.Policy, "must be one of earliest, latest, timestamp")
	}
	if g.LiteTopic != "" {
		if err := mq.ValidateTopic(g.LiteTopic); err != nil {
			return invalid("lite-topic", mq.Shorten(g.LiteTopic), "is no name of a topic")
		}
	}
	if g.ID == 0 || g.DeadLetter == 0 || g.Version == 0 || g.DeadLetterShard == "" {
		return fmt.Errorf("group without id, version, dead-letter id or shard")
	}
	return nil
}

// commandLine returns name as the arguments of the commands that create it. Of
// the legal characters a shell minds the vertical bar.
func commandLine(name mq.Resource) string {
	quote := func(s string) string {
		if strings.Contains(s, "|") {
			return "'" + s + "'"
		}
		return s
	}
	if name.Namespace == "" {
		return quote(name.Name)
	}
	return quote(name.Name) + " --namespace " + quote(name.Namespace)
}
