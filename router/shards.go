package router

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/perigee-mq/perigee/mq"
)

// A ShardState says what is placed on a shard.
type ShardState uint8

// The states of a shard.
const (
	// ShardActive takes new topics and dead-letter topics.
	ShardActive ShardState = iota + 1
	// ShardDraining takes no new topics, and those that it has leave it.
	ShardDraining
	// ShardRemoved has no topic and takes none. Its name is kept, so that a store which
	// comes back with old files is noticed.
	ShardRemoved
)

var shardStateNames = [...]string{ShardActive: "active", ShardDraining: "draining", ShardRemoved: "removed"}

// String returns the name that metadata and commands use.
func (s ShardState) String() string {
	if s >= ShardActive && s <= ShardRemoved {
		return shardStateNames[s]
	}
	return fmt.Sprintf("ShardState(%d)", uint8(s))
}

// ParseShardState returns the state of that name.
func ParseShardState(name string) (ShardState, error) {
	for s := ShardActive; s <= ShardRemoved; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, invalid("state", name, "must be one of active, draining, removed")
}

// A Shard is one that a store has registered at some time.
type Shard struct {
	Name  string
	State ShardState
}

// MaxShardName is the longest name of a shard, in characters.
const MaxShardName = 127

// CheckShardName checks the name of a shard: letters, digits, and the characters - _ .
// The error is an *mq.InvalidError of kind mq.ErrInvalid.
func CheckShardName(name string) error {
	legal := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	switch {
	case name == "" || len(name) > MaxShardName:
		return invalid("shard", name, fmt.Sprintf("must have 1 to %d characters", MaxShardName))
	case strings.ContainsFunc(name, func(r rune) bool { return !legal(r) }):
		return invalid("shard", name, "may hold only letters, digits, and the characters - _ .")
	}
	return nil
}

type shardState struct {
	V     int    `json:"v"`
	State string `json:"state"`
}

func shardKey(name string) string { return shardPrefix + name }

func encodeShard(s Shard) []byte {
	return encode(shardState{V: valueVersion, State: s.State.String()})
}

func decodeShard(e Entry) (Shard, error) {
	var record shardState
	if err := json.Unmarshal(e.Value, &record); err != nil {
		return Shard{}, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	name := e.Key[len(shardPrefix):]
	if err := CheckShardName(name); err != nil {
		return Shard{}, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	state, err := ParseShardState(record.State)
	if err != nil {
		return Shard{}, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	return Shard{Name: name, State: state}, nil
}

func findShard(shards []Shard, name string) (int, bool) {
	return slices.BinarySearchFunc(shards, name, func(s Shard, name string) int { return strings.Compare(s.Name, name) })
}

// withShard returns a copy of shards with s among them.
func withShard(shards []Shard, s Shard) []Shard {
	i, found := findShard(shards, s.Name)
	next := slices.Clone(shards)
	if found {
		next[i] = s
		return next
	}
	return slices.Insert(next, i, s)
}

// shard returns the state of a shard, 0 when it is not written down.
func (s *snapshot) shard(name string) ShardState {
	if i, found := findShard(s.shards, name); found {
		return s.shards[i].State
	}
	return 0
}

// shardsSince returns what is other than in old, nil: everything.
func (s *snapshot) shardsSince(old *snapshot) []Change {
	var changes []Change
	for i := range s.shards {
		if old == nil || old.shard(s.shards[i].Name) != s.shards[i].State {
			changes = append(changes, Change{Shard: &s.shards[i]})
		}
	}
	return changes
}

// places returns the shards on which a new topic is placed.
func (r *Router) places(now *snapshot) ([]string, error) {
	var names []string
	if len(r.shards) > 0 {
		for _, name := range r.shards {
			if state := now.shard(name); state == 0 || state == ShardActive {
				names = append(names, name)
			}
		}
	} else {
		for _, s := range now.shards {
			if s.State == ShardActive {
				names = append(names, s.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: no shard takes new topics: no store has registered one yet, or all are draining", mq.ErrUnavailable)
	}
	return names, nil
}

func (e *edit) putShard(s Shard) {
	e.entries = append(e.entries, Entry{Key: shardKey(s.Name), Value: encodeShard(s)})
	e.next.shards = withShard(e.next.shards, s)
}

// AddShard writes down a shard that a store has registered, as an active one, and
// returns it as it is then: one that is known already keeps its state.
func (r *Router) AddShard(ctx context.Context, name string) (s Shard, err error) {
	if err := CheckShardName(name); err != nil {
		return Shard{}, err
	}
	if state := r.current.Load().shard(name); state != 0 {
		return Shard{Name: name, State: state}, nil
	}
	err = r.change(ctx, func(now *snapshot, e *edit) error {
		s = Shard{Name: name, State: now.shard(name)}
		if s.State == 0 {
			s.State = ShardActive
			e.putShard(s)
		}
		return nil
	})
	return s, err
}

// SetShard makes a shard that is written down active or draining, also one that was
// removed. From a draining one its topics leave: nothing is sent there any more, each is
// closed there as soon as its node has said that it refuses what is sent, see ShardClosed, and
// read until it is empty. A topic that has no other shard, or that loses one, gets another
// that is active, where there is one that it is not on. On one that is active again the
// topics are open that have not left it. It may be called again when it has ended on the way.
// The error matches mq.ErrShardNotFound, or mq.ErrInvalid when no other shard could take the
// topics.
func (r *Router) SetShard(ctx context.Context, name string, state ShardState) (s Shard, err error) {
	if state != ShardActive && state != ShardDraining {
		return Shard{}, invalid("state", state, "must be one of active, draining")
	}
	s, err = r.setShard(ctx, name, state, func(now *snapshot) error {
		if state != ShardDraining {
			return nil
		}
		others := r.successors(now, name)
		stuck := now.placedOn(name, func(t *mq.Topic, on mq.ShardQueues) bool {
			return on.Use == mq.ShardOpen && openShards(t, name) == 0 && others.of(t) == ""
		})
		if len(stuck) > 0 {
			return invalid("shard", name, fmt.Sprintf("must not be the last one for a topic to be drained: no other shard is active that could take %s", stuck[0].Resource))
		}
		return nil
	})
	if err != nil {
		return Shard{}, err
	}
	if state == ShardDraining {
		return s, r.leaveShard(ctx, name)
	}
	return s, r.returnTo(ctx, name)
}

// RemoveShard takes a shard out of the topics that are closed on it, and removes it. Whether
// anything is left there that somebody wants is for the caller to know. With lose the topics
// need not be closed there: what is on the shard is given up. Its name
// is kept as that of a removed one. The error matches mq.ErrShardNotFound, or mq.ErrInvalid
// when a topic is on it that has not left, which it names. It may be called again when it
// has ended on the way.
func (r *Router) RemoveShard(ctx context.Context, name string, lose bool) (Shard, error) {
	if r.current.Load().shard(name) != 0 {
		if err := r.dropShard(ctx, name, lose); err != nil {
			return Shard{}, err
		}
	}
	return r.setShard(ctx, name, ShardRemoved, func(now *snapshot) error {
		topics, first := now.topicsOn(name)
		if topics == 0 {
			return nil
		}
		return invalid("shard", name, fmt.Sprintf("must have no topics to be removed: %d are on it, %s among them", topics, first))
	})
}

func (r *Router) setShard(ctx context.Context, name string, state ShardState, check func(*snapshot) error) (s Shard, err error) {
	err = r.change(ctx, func(now *snapshot, e *edit) error {
		s = Shard{Name: name, State: now.shard(name)}
		switch s.State {
		case 0:
			return fmt.Errorf("%w: %q: no store has ever registered it", mq.ErrShardNotFound, mq.Shorten(name))
		case state:
			return nil
		}
		if err := check(now); err != nil {
			return err
		}
		s.State = state
		e.putShard(s)
		return nil
	})
	if err != nil {
		return Shard{}, err
	}
	return s, nil
}

// topicsOn counts the topics on a shard, those of dead letters too, and names the first.
func (s *snapshot) topicsOn(shard string) (n int, first mq.Resource) {
	for r, t := range s.topics.all() {
		if !slices.ContainsFunc(t.Shards, func(s mq.ShardQueues) bool { return s.Shard == shard }) {
			continue
		}
		if n == 0 || compareResources(r, first) < 0 {
			first = r
		}
		n++
	}
	return n, first
}

// TopicsOn returns how many topics are on a shard, dead-letter topics included.
func (v *View) TopicsOn(shard string) int {
	n, _ := v.current.Load().topicsOn(shard)
	return n
}

// newMark returns 24 hexadecimal digits by chance.
func newMark() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// EnsureLife returns the life of the metadata and gives one to metadata that were made
// before there were any.
func (r *Router) EnsureLife(ctx context.Context) (string, error) {
	err := r.change(ctx, func(now *snapshot, e *edit) error {
		if now.life == "" {
			e.next.life = newMark()
		}
		return nil
	})
	return r.Life(), err
}
