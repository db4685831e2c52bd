package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// The layout of the entries; docs/format/metadata.md is its reference.
//
//	v1/counters                 last ids handed out, revision
//	v1/topic/NAMESPACE/NAME     a topic
//	v1/group/NAMESPACE/NAME     a consumer group
//	v1/shard/NAME               a shard that a store has registered
//
// Values are JSON objects whose field "v" is their version. Fields that this
// version does not know are passed over.
const (
	layoutVersion = 1
	valueVersion  = 1

	keyPrefix   = "v1/"
	countersKey = keyPrefix + "counters"
	topicPrefix = keyPrefix + "topic/"
	groupPrefix = keyPrefix + "group/"
	shardPrefix = keyPrefix + "shard/"
)

// A DamageError says that stored metadata is not what a router wrote. Nothing
// was changed when it is returned.
type DamageError struct {
	File   string // the file, or the directory of the database
	Entry  string // key of the entry; empty when no single one is damaged
	Reason string
}

// Error names the file, the entry and the reason.
func (e *DamageError) Error() string {
	if e.Entry == "" {
		return fmt.Sprintf("metadata in %s is damaged: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("metadata in %s is damaged: entry %q: %s", e.File, e.Entry, e.Reason)
}

// A VersionError says that metadata was written by a newer version than this.
type VersionError struct {
	File  string
	Entry string
	Found int // the version found
	Known int // the newest version this program reads
}

// Error names the file, the entry and both versions.
func (e *VersionError) Error() string {
	return fmt.Sprintf("metadata in %s was written by a newer version of perigee: entry %q has version %d, this one reads up to %d",
		e.File, e.Entry, e.Found, e.Known)
}

// The slash is legal in no name, so keys are unambiguous.
func topicKey(r mq.Resource) string { return topicPrefix + r.Namespace + "/" + r.Name }
func groupKey(r mq.Resource) string { return groupPrefix + r.Namespace + "/" + r.Name }

type countersRecord struct {
	V         int        `json:"v"`
	Revision  uint64     `json:"revision"`
	LastTopic mq.TopicID `json:"lastTopic"`
	LastGroup mq.GroupID `json:"lastGroup"`
	Life      string     `json:"life,omitempty"`
	By        string     `json:"by,omitempty"`
	After     string     `json:"after,omitempty"`
}

type topicRecord struct {
	V          int            `json:"v"`
	ID         mq.TopicID     `json:"id"`
	Type       string         `json:"type"`
	Permission mq.Permission  `json:"permission"`
	Shards     []shardRecord  `json:"shards"`
	Retention  time.Duration  `json:"retention,omitempty"` // nanoseconds
	Dedup      *time.Duration `json:"dedup,omitempty"`     // nanoseconds; missing: the default
	LiteTTL    time.Duration  `json:"liteTTL,omitempty"`   // nanoseconds
	Version    uint64         `json:"version"`
	Placed     uint64         `json:"placed,omitempty"`
	Places     []placeRecord  `json:"places,omitempty"`
}

type shardRecord struct {
	Shard string `json:"shard"`
	Read  int32  `json:"read"`
	Write int32  `json:"write"`
	Use   string `json:"use,omitempty"` // missing: open
	Since uint64 `json:"since,omitempty"`
}

// A placeRecord is a run of places: queues that follow each other on one shard.
type placeRecord struct {
	Shard string `json:"shard"`
	Queue int32  `json:"queue"`
	N     int32  `json:"n,omitempty"` // missing: one
}

type groupRecord struct {
	V               int         `json:"v"`
	ID              mq.GroupID  `json:"id"`
	FIFO            bool        `json:"fifo"`
	Retry           retryRecord `json:"retry"`
	Start           string      `json:"start"`
	StartTime       *time.Time  `json:"startTime,omitempty"`
	DeadLetter      mq.TopicID  `json:"deadLetter"`
	DeadLetterShard string      `json:"deadLetterShard"`
	LiteTopic       string      `json:"liteTopic,omitempty"`
	LiteExclusive   bool        `json:"liteExclusive,omitempty"`
	Broadcast       bool        `json:"broadcast,omitempty"`
	Seen            *time.Time  `json:"seen,omitempty"`
	Version         uint64      `json:"version"`
}

// Delays are nanoseconds.
type retryRecord struct {
	MaxAttempts mq.Attempt      `json:"maxAttempts"`
	Customized  []time.Duration `json:"customized,omitempty"`
	Initial     time.Duration   `json:"initial,omitempty"`
	Max         time.Duration   `json:"max,omitempty"`
	Multiplier  float64         `json:"multiplier,omitempty"`
}

// encode panics on what JSON cannot hold; validation keeps that out.
func encode(record any) []byte {
	value, err := json.Marshal(record)
	if err != nil {
		panic("BUG: metadata that cannot be encoded: " + err.Error())
	}
	return value
}

func encodeCounters(s *snapshot) []byte {
	return encode(countersRecord{
		V: valueVersion, Revision: s.revision, LastTopic: s.lastTopic, LastGroup: s.lastGroup, Life: s.life, By: s.by, After: s.behind,
	})
}

func encodeTopic(t *mq.Topic) []byte {
	record := topicRecord{
		V: valueVersion, ID: t.ID, Type: t.Type.String(), Permission: t.Permission, Retention: t.Retention,
		LiteTTL: t.LiteTTL, Version: t.Version, Placed: t.Placed, Places: encodePlaces(t.Places),
	}
	if t.Dedup != mq.DefaultDedup {
		record.Dedup = &t.Dedup
	}
	for _, s := range t.Shards {
		on := shardRecord{Shard: s.Shard, Read: s.Read, Write: s.Write, Since: s.Since}
		if s.Use != mq.ShardOpen {
			on.Use = s.Use.String()
		}
		record.Shards = append(record.Shards, on)
	}
	return encode(record)
}

func encodePlaces(places []mq.Place) []placeRecord {
	var list []placeRecord
	for _, p := range places {
		if n := len(list); n > 0 && list[n-1].Shard == p.Shard && list[n-1].Queue+list[n-1].N == int32(p.Queue) {
			list[n-1].N++
			continue
		}
		list = append(list, placeRecord{Shard: p.Shard, Queue: int32(p.Queue), N: 1})
	}
	for i := range list {
		if list[i].N == 1 {
			list[i].N = 0
		}
	}
	return list
}

// maxPlaces bounds the places of a topic that is read back.
const maxPlaces = 1 << 20

func decodePlaces(list []placeRecord) ([]mq.Place, error) {
	var places []mq.Place
	for _, r := range list {
		n := max(r.N, 1)
		if r.N < 0 || r.Queue < 0 || int64(r.Queue)+int64(n) > mq.MaxQueues || len(places) > maxPlaces {
			return nil, fmt.Errorf("places from queue %d on, %d of them", r.Queue, r.N)
		}
		for i := range n {
			places = append(places, mq.Place{Shard: r.Shard, Queue: mq.QueueID(r.Queue + i)})
		}
	}
	return places, nil
}

func encodeGroup(g *mq.Group) []byte {
	record := groupRecord{
		V: valueVersion, ID: g.ID, FIFO: g.FIFO, Retry: retryRecord(g.Retry), Start: g.Start.Policy.String(),
		DeadLetter: g.DeadLetter, DeadLetterShard: g.DeadLetterShard, Version: g.Version,
		LiteTopic: g.LiteTopic, LiteExclusive: g.LiteExclusive, Broadcast: g.Broadcast,
	}
	if !g.Seen.IsZero() {
		record.Seen = &g.Seen
	}
	if g.Start.Policy == mq.StartTimestamp {
		record.StartTime = &g.Start.Time
	}
	return encode(record)
}

// decodeVersion reads the version of the entry before anything else of it, so
// that an entry of a later layout is not taken for a damaged one.
func decodeVersion(e Entry) error {
	layout, _, ok := strings.Cut(strings.TrimPrefix(e.Key, "v"), "/")
	n, err := strconv.Atoi(layout)
	switch {
	case !ok || err != nil || n < 1 || e.Key[0] != 'v':
		return &DamageError{Entry: e.Key, Reason: "is no key of a router"}
	case n > layoutVersion:
		return &VersionError{Entry: e.Key, Found: n, Known: layoutVersion}
	}
	var head struct {
		V int `json:"v"`
	}
	if err := json.Unmarshal(e.Value, &head); err != nil {
		return &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	switch {
	case head.V < 1:
		return &DamageError{Entry: e.Key, Reason: "has no version"}
	case head.V > valueVersion:
		return &VersionError{Entry: e.Key, Found: head.V, Known: valueVersion}
	}
	return nil
}

func decodeCounters(e Entry, s *snapshot) error {
	var record countersRecord
	if err := json.Unmarshal(e.Value, &record); err != nil {
		return &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	if record.Revision == 0 {
		return &DamageError{Entry: e.Key, Reason: "has no revision"}
	}
	s.revision, s.lastTopic, s.lastGroup = record.Revision, record.LastTopic, record.LastGroup
	s.life, s.by, s.behind = record.Life, record.By, record.After
	return nil
}

// readCounters reads the counters as an entry that may be missing, or of any version.
func readCounters(e Entry, s *snapshot) error {
	if e.Value == nil {
		return &DamageError{Entry: countersKey, Reason: "is missing"}
	}
	if err := decodeVersion(e); err != nil {
		return err
	}
	return decodeCounters(e, s)
}

func decodeResource(key, prefix string) mq.Resource {
	namespace, name, _ := strings.Cut(key[len(prefix):], "/")
	return mq.Resource{Namespace: namespace, Name: name}
}

func decodeTopic(e Entry) (*mq.Topic, error) {
	var record topicRecord
	if err := json.Unmarshal(e.Value, &record); err != nil {
		return nil, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	t := &mq.Topic{
		ID: record.ID, Resource: decodeResource(e.Key, topicPrefix), Permission: record.Permission,
		Retention: record.Retention, Dedup: mq.DefaultDedup, LiteTTL: record.LiteTTL, Version: record.Version, Placed: record.Placed,
	}
	if record.Dedup != nil {
		t.Dedup = *record.Dedup
	}
	var err, wrongPlaces error
	t.Type, err = mq.ParseTopicType(record.Type)
	for _, s := range record.Shards {
		use, unknown := mq.ParseShardUse(s.Use)
		t.Shards = append(t.Shards, mq.ShardQueues{Shard: s.Shard, Read: s.Read, Write: s.Write, Use: use, Since: s.Since})
		err = errors.Join(err, unknown)
	}
	t.Places, wrongPlaces = decodePlaces(record.Places)
	if err = errors.Join(err, wrongPlaces, checkTopic(t)); err != nil {
		return nil, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	return t, nil
}

func decodeGroup(e Entry) (*mq.Group, error) {
	var record groupRecord
	if err := json.Unmarshal(e.Value, &record); err != nil {
		return nil, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	g := &mq.Group{
		ID: record.ID, Resource: decodeResource(e.Key, groupPrefix), FIFO: record.FIFO, Retry: mq.RetryPolicy(record.Retry),
		DeadLetter: record.DeadLetter, DeadLetterShard: record.DeadLetterShard, Version: record.Version,
		LiteTopic: record.LiteTopic, LiteExclusive: record.LiteExclusive, Broadcast: record.Broadcast,
	}
	if record.Seen != nil {
		g.Seen = *record.Seen
	}
	var err error
	switch record.Start {
	case mq.StartEarliest.String():
	case mq.StartLatest.String():
		g.Start.Policy = mq.StartLatest
	case mq.StartTimestamp.String():
		g.Start.Policy = mq.StartTimestamp
		if record.StartTime != nil {
			g.Start.Time = *record.StartTime
		}
	default:
		err = fmt.Errorf("unknown start %q", mq.Shorten(record.Start))
	}
	if err = errors.Join(err, checkGroup(g)); err != nil {
		return nil, &DamageError{Entry: e.Key, Reason: err.Error()}
	}
	return g, nil
}
