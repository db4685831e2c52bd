package router

import (
	"fmt"
	"slices"
	"strings"
)

// after returns the snapshot to which a commit leads that some router has made behind s.
// The error is ErrMissed when the commit does not fit s, and otherwise damage or a version
// that cannot be read.
func (s *snapshot) after(entries []Entry) (*snapshot, error) {
	revision, err := RevisionOf(entries)
	if err != nil {
		return nil, err
	}
	if revision != s.revision+1 {
		return nil, fmt.Errorf("%w: revision %d comes behind %d", ErrMissed, revision, s.revision)
	}
	next := &s.edit().next
	// The counters first: they bound the ids. What goes comes before what comes.
	order := func(e Entry) int {
		switch {
		case e.Key == countersKey:
			return 0
		case e.Value == nil:
			return 1
		}
		return 2
	}
	entries = slices.Clone(entries)
	slices.SortStableFunc(entries, func(a, b Entry) int { return order(a) - order(b) })
	for _, e := range entries {
		apply := next.put
		if e.Value == nil {
			apply = next.drop
		} else if err := decodeVersion(e); err != nil {
			return nil, err
		}
		if err := apply(e); err != nil {
			return nil, err
		}
	}
	switch {
	case next.life != s.life && s.life != "":
		return nil, fmt.Errorf("%w: %s, and %s is known", ErrOtherLife, next.life, s.life)
	case next.behind != s.by:
		return nil, fmt.Errorf("%w: revision %d", errForked, revision)
	}
	return next, nil
}

// drop takes out what the key names.
func (s *snapshot) drop(e Entry) error {
	hide := edit{next: *s}
	switch {
	case strings.HasPrefix(e.Key, topicPrefix):
		t := s.topics.get(decodeResource(e.Key, topicPrefix))
		if t == nil {
			return fmt.Errorf("%w: %s is gone, and was not known", ErrMissed, e.Key)
		}
		hide.hideTopic(t.Resource, t.ID)
	case strings.HasPrefix(e.Key, groupPrefix):
		g := s.groups.get(decodeResource(e.Key, groupPrefix))
		if g == nil {
			return fmt.Errorf("%w: %s is gone, and was not known", ErrMissed, e.Key)
		}
		hide.hideGroup(g)
	default:
		return &DamageError{Entry: e.Key, Reason: "was deleted, which no router does"}
	}
	*s = hide.next
	return nil
}

// put takes over what an entry says.
func (s *snapshot) put(e Entry) error {
	show := edit{next: *s}
	switch {
	case e.Key == countersKey:
		if err := decodeCounters(e, &show.next); err != nil {
			return err
		}
	case strings.HasPrefix(e.Key, topicPrefix):
		t, err := decodeTopic(e)
		if err != nil {
			return err
		}
		if old := s.topics.get(t.Resource); old != nil && old.ID != t.ID {
			show.hideTopic(old.Resource, old.ID)
		}
		if !show.next.fitsTopic(t) || t.ID > s.lastTopic {
			return &DamageError{Entry: e.Key, Reason: fmt.Sprintf("id %d is that of another topic, or above the counter", t.ID)}
		}
		show.showTopic(t)
	case strings.HasPrefix(e.Key, groupPrefix):
		g, err := decodeGroup(e)
		if err != nil {
			return err
		}
		if old := s.groups.get(g.Resource); old != nil && old.ID != g.ID {
			show.hideGroup(old)
		}
		taken := show.next.groupIDs.get(g.ID) != show.next.groups.get(g.Resource) || !show.next.fitsTopic(deadLetterTopic(g))
		if taken || g.ID > s.lastGroup || g.DeadLetter > s.lastTopic {
			return &DamageError{Entry: e.Key, Reason: fmt.Sprintf("id %d or %d is that of another group or topic, or above the counter", g.ID, g.DeadLetter)}
		}
		show.showGroup(g)
	case strings.HasPrefix(e.Key, shardPrefix):
		shard, err := decodeShard(e)
		if err != nil {
			return err
		}
		show.next.shards = withShard(s.shards, shard)
	default:
		return &DamageError{Entry: e.Key, Reason: "is of no known kind"}
	}
	*s = show.next
	return nil
}
