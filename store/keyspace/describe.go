package keyspace

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/perigee-mq/perigee/store/command"
)

// Describe returns what a key and its value say, for `perigee dump keys`.
func Describe(key, val []byte) (what string, attrs []slog.Attr, err error) {
	if len(key) == 0 {
		return "", nil, corrupt("key", key)
	}
	switch key[0] {
	case prefixState:
		s, err := DecodeState(val)
		return "state", []slog.Attr{
			slog.Uint64("position", s.Pos), slog.Uint64("index", s.Index),
			slog.Time("time", time.Unix(0, s.Time).UTC()), slog.Uint64("redeliveries", s.Ready),
		}, err
	case prefixBegin:
		b, err := DecodeBegin(val)
		return "log-begin", []slog.Attr{slog.Uint64("position", b.Pos), slog.Uint64("index", b.Index)}, err
	case prefixTopic:
		attrs, err := command.Describe(command.KindTopic, val)
		return "topic", attrs, err
	case prefixGroup:
		attrs, err := command.Describe(command.KindGroup, val)
		return "group", attrs, err
	case prefixGone:
		return "gone", []slog.Attr{slog.String("key", fmt.Sprintf("%x", key[1:]))}, nil
	case prefixPlacement:
		id, err := DecodePlacementKey(key)
		if err != nil {
			return "placement", nil, err
		}
		p, err := DecodePlacement(val)
		return "placement", []slog.Attr{slog.Uint64("topic", uint64(id)), slog.Uint64("placed", p.Placed), slog.Bool("closed", p.Closed)}, err
	case prefixEntry:
		return describeEntry(key, val)
	case prefixEnds:
		return describeEnds(key, val)
	case prefixSub:
		s, err := DecodeSubKey(key)
		return "subscription", subAttrs(s), err
	case prefixUnstarted:
		s, err := DecodeUnstartedKey(key)
		return "unstarted", subAttrs(s), err
	case prefixPending, prefixPendingAt, prefixPendingOf, prefixHeld, prefixRepeat:
		return describePending(key, val)
	case prefixPriority:
		return describePriority(key, val)
	case prefixLiteName, prefixLite, prefixLiteOrder:
		return describeLite(key, val)
	case prefixProgress, prefixReady:
		return describeProgress(key, val)
	}
	return describeLease(key, val)
}

func subAttrs(s Sub) []slog.Attr {
	return []slog.Attr{slog.Uint64("group", uint64(s.Group)), slog.Uint64("topic", uint64(s.Topic))}
}

func refAttrs(r Ref) []slog.Attr {
	return append(subAttrs(r.Sub), slog.Int("queue", int(r.Queue)), slog.Int64("offset", int64(r.Offset)))
}

func describeEntry(key, val []byte) (string, []slog.Attr, error) {
	q, offset, err := DecodeEntryKey(key)
	if err != nil {
		return "entry", nil, err
	}
	e, err := DecodeEntry(val)
	return "entry", []slog.Attr{
		slog.Uint64("topic", uint64(q.Topic)), slog.Int("queue", int(q.Queue)),
		slog.Int64("offset", int64(offset)), slog.Uint64("position", e.Pos), slog.Uint64("size", uint64(e.Size)),
		slog.Time("stored", time.Unix(0, e.StoreTime).UTC()), slog.String("tag", string(e.Tag)),
	}, err
}

func describeEnds(key, val []byte) (string, []slog.Attr, error) {
	q, err := DecodeEndsKey(key)
	if err != nil {
		return "ends", nil, err
	}
	e, err := DecodeEnds(val)
	return "ends", []slog.Attr{
		slog.Uint64("topic", uint64(q.Topic)), slog.Int("queue", int(q.Queue)),
		slog.Int64("min", int64(e.Min)), slog.Int64("kept", int64(e.Kept)), slog.Int64("next", int64(e.Next)),
	}, err
}

func describeProgress(key, val []byte) (string, []slog.Attr, error) {
	if key[0] == prefixReady {
		seq, err := DecodeReadyKey(key)
		if err != nil {
			return "redelivery", nil, err
		}
		queue, offset, err := DecodeReady(val)
		return "redelivery", append(refAttrs(Ref{decodeSub(key[1:]), queue, offset}), slog.Uint64("sequence", seq)), err
	}
	if len(key) != 1+8+4 {
		return "progress", nil, corrupt("progress key", key)
	}
	offset, err := DecodeOffset(val)
	s, queue := decodeSub(key[1:]), decodeQueue(key[9:])
	return "progress", refAttrs(Ref{s, queue, offset}), err
}

func describePriority(key, val []byte) (string, []slog.Attr, error) {
	if IsTurnKey(key) {
		s, err := DecodeTurnKey(key)
		if err != nil {
			return "turn", nil, err
		}
		t, err := DecodeTurn(val)
		return "turn", append(subAttrs(s), slog.Uint64("pops", uint64(t.Pops)), slog.Int("queue", int(t.Queue))), err
	}
	s, queue, seq, err := DecodePriorityKey(key)
	if err != nil {
		return "redelivery-by-priority", nil, err
	}
	offset, err := DecodeOffset(val)
	return "redelivery-by-priority", append(refAttrs(Ref{s, queue, offset}), slog.Uint64("sequence", seq)), err
}

func describeLease(key, val []byte) (string, []slog.Attr, error) {
	switch key[0] {
	case prefixLease:
		r, err := DecodeLeaseKey(key)
		if err != nil {
			return "lease", nil, err
		}
		l, err := DecodeLease(val)
		attrs := append(refAttrs(r), slog.String("state", l.State.String()), slog.Int("attempt", int(l.Attempt)),
			slog.Uint64("pop_id", uint64(l.PopID)), slog.Uint64("when", l.When),
			slog.Time("first", time.Unix(0, l.First).UTC()))
		if l.Lane != 0 {
			attrs = append(attrs, slog.Uint64("message_group_hash", l.Lane))
		}
		if l.Try != 0 {
			attrs = append(attrs, slog.Uint64("attempt_id_hash", l.Try))
		}
		return "lease", attrs, err
	case prefixDue:
		when, r, err := DecodeDueKey(key)
		return "due", append(refAttrs(r), slog.Time("when", time.Unix(0, int64(when)).UTC())), err
	case prefixUsedUp:
		r, err := DecodeUsedUpKey(key)
		return "used-up", refAttrs(r), err
	}
	return "unknown", nil, corrupt("key", key)
}

func describePending(key, val []byte) (string, []slog.Attr, error) {
	switch key[0] {
	case prefixPending:
		id, err := DecodePendingKey(key)
		if err != nil {
			return "pending", nil, err
		}
		p, err := DecodePending(val)
		return "pending", []slog.Attr{
			slog.Uint64("id", uint64(id)), slog.String("state", p.State.String()), slog.Uint64("topic", uint64(p.Topic)),
			slog.Int("queue", int(p.Queue)), slog.Uint64("position", p.Pos), slog.Uint64("size", uint64(p.Size)),
			slog.Time("stored", time.Unix(0, p.StoreTime).UTC()), slog.Time("at", time.Unix(0, p.At).UTC()), slog.Uint64("checks", uint64(p.Checks)),
		}, err
	case prefixPendingAt:
		s, at, id, err := DecodePendingAtKey(key)
		return "pending-at", []slog.Attr{
			slog.Uint64("id", uint64(id)), slog.String("state", s.String()), slog.Time("at", time.Unix(0, at).UTC()),
		}, err
	case prefixPendingOf:
		t, s, at, id, err := DecodePendingOfKey(key)
		return "pending-of", []slog.Attr{
			slog.Uint64("id", uint64(id)), slog.Uint64("topic", uint64(t)), slog.String("state", s.String()), slog.Time("at", time.Unix(0, at).UTC()),
		}, err
	case prefixHeld:
		pos, err := DecodeHeldKey(key)
		if err != nil {
			return "held", nil, err
		}
		id, err := DecodePendingID(val)
		return "held", []slog.Attr{slog.Uint64("position", pos), slog.Uint64("id", uint64(id))}, err
	}
	r, err := DecodeRepeatKey(key)
	if err != nil {
		return "repeat", nil, err
	}
	s, err := DecodeSentMessages(val)
	return "repeat", []slog.Attr{
		slog.Uint64("topic", uint64(r.Topic)), slog.Uint64("record", r.Index), slog.Int("messages", s.Len()),
		slog.Time("stored", time.Unix(0, s.StoreTime).UTC()), slog.Time("until", time.Unix(int64(r.Minute)*60, 0).UTC()),
		slog.Int("queue", int(s.Queue)), slog.Int64("first", int64(s.First)),
	}, err
}

func describeLite(key, val []byte) (string, []slog.Attr, error) {
	switch key[0] {
	case prefixLiteName:
		t, name, err := DecodeLiteNameKey(key)
		if err != nil {
			return "lite-name", nil, err
		}
		attrs := []slog.Attr{slog.Uint64("topic", uint64(t))}
		if len(name) == 0 {
			c, err := DecodeLiteCounts(val)
			return "lite-counts", append(attrs, slog.Int("next", int(c.Next)), slog.Uint64("count", uint64(c.Count))), err
		}
		q, err := DecodeQueueID(val)
		return "lite-name", append(attrs, slog.String("name", string(name)), slog.Int("queue", int(q))), err
	case prefixLite:
		q, err := DecodeLiteKey(key)
		if err != nil {
			return "lite", nil, err
		}
		l, err := DecodeLite(val)
		return "lite", []slog.Attr{
			slog.Uint64("topic", uint64(q.Topic)), slog.Int("queue", int(q.Queue)), slog.String("name", string(l.Name)),
			slog.Int64("min", int64(l.Min)), slog.Int64("next", int64(l.Next)),
			slog.Time("written", time.Unix(0, l.Written).UTC()), slog.Uint64("oldest", l.Oldest),
		}, err
	}
	q, by, at, err := DecodeLiteOrderKey(key)
	what := "lite-by-time"
	if by == LiteByPos {
		what = "lite-by-position"
	}
	return what, []slog.Attr{slog.Uint64("topic", uint64(q.Topic)), slog.Int("queue", int(q.Queue)), slog.Uint64("at", at)}, err
}
