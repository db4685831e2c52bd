package command

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// Describe returns what a person wants to know of a command, for `perigee dump
// log`. Bodies and properties of messages are never part of it.
func Describe(kind Kind, payload []byte) ([]slog.Attr, error) {
	ns, err := Time(payload)
	if err != nil {
		return nil, err
	}
	attrs, err := describe(kind, payload)
	return append([]slog.Attr{slog.Time("time", time.Unix(0, ns).UTC())}, attrs...), err
}

func describe(kind Kind, payload []byte) ([]slog.Attr, error) {
	switch kind {
	case KindTopic:
		c, err := DecodeTopic(payload)
		return []slog.Attr{
			id("topic", c.ID), slog.String("name", c.Name.String()),
			slog.Int("queues", int(c.Queues)), slog.Uint64("version", c.Version),
		}, err
	case KindTopicDelete:
		c, err := DecodeTopicDelete(payload)
		return []slog.Attr{id("topic", c.ID)}, err
	case KindGroup:
		c, err := DecodeGroup(payload)
		return []slog.Attr{
			id("group", c.ID), slog.String("name", c.Name.String()), slog.Bool("fifo", c.FIFO),
			slog.Int("max_attempts", int(c.MaxAttempts)), slog.String("start", c.Start.String()),
			id("dead_letter", c.DeadLetter), slog.Uint64("version", c.Version),
		}, err
	case KindGroupDelete:
		c, err := DecodeGroupDelete(payload)
		return []slog.Attr{id("group", c.ID)}, err
	case KindAppend:
		return describeAppend(payload)
	case KindSend:
		return describeSend(payload)
	case KindFire:
		v, err := ViewFire(payload)
		return describeCarried(v, err, slog.Time("until", time.Unix(0, v.Until).UTC()))
	case KindPendingMove:
		v, err := ViewMove(payload)
		return describeCarried(v, err)
	case KindPendingChange:
		return describePendingChange(payload)
	case KindEndTransaction:
		return describeEndTransaction(payload)
	case KindChecked:
		return describeChecked(payload)
	case KindPopSelect:
		c, err := DecodeSelectPop(payload)
		return append(describePop(&c.Pop), slog.Int("in_flight", int(c.InFlight)), slog.String("order", c.Order.String()),
			slog.String("attempt", c.Attempt), slog.Bool("chosen", c.Chosen), slog.Int("judged", len(c.Judged))), err
	case KindPop:
		c, err := DecodePop(payload)
		return describePop(&c), err
	case KindPopLimited:
		c, err := DecodeLimitedPop(payload)
		return append(describePop(&c.Pop), slog.Int("in_flight", int(c.InFlight))), err
	case KindAck:
		return describeAck(payload)
	case KindChange:
		return describeChange(payload)
	case KindExpire:
		c, err := DecodeExpire(payload)
		return []slog.Attr{slog.Int("limit", int(c.Limit))}, err
	case KindDeadLetter:
		v, err := ViewDeadLetter(payload)
		return []slog.Attr{
			id("topic", v.Topic), id("group", v.Group), slog.String("lease", v.Lease.String()),
			id("target", v.Target), slog.String("message", string(v.Message.ID)),
		}, err
	case KindTrim:
		c, err := DecodeTrim(payload)
		queues := make([]string, len(c.Queues))
		for i, q := range c.Queues {
			queues[i] = q.String()
		}
		return []slog.Attr{id("topic", c.Topic), slog.Bool("purge", c.Purge), slog.Any("queues", queues)}, err
	case KindSetOffset:
		c, err := DecodeSetOffset(payload)
		queues := make([]string, len(c.Queues))
		for i, q := range c.Queues {
			queues[i] = q.String()
		}
		return []slog.Attr{id("topic", c.Topic), id("group", c.Group), slog.Bool("drop", c.Drop), slog.Any("queues", queues)}, err
	case KindLiteSubscribe:
		c, err := DecodeLiteSubscribe(payload)
		return []slog.Attr{
			id("topic", c.Topic), id("group", c.Group), slog.String("start", c.Place.Start.String()), slog.Int64("value", c.Place.Value),
			slog.Bool("again", c.Place.Again), slog.Uint64("limit", uint64(c.Limit)), slog.Any("lite_topics", c.Names),
		}, err
	case KindLitePop:
		c, err := DecodeLitePop(payload)
		return append(describePop(&c.Pop), slog.Any("queues", c.Queues)), err
	case KindLiteAttempt:
		c, err := DecodeLiteAttempt(payload)
		return append(describePop(&c.Pop), slog.Any("queues", c.Queues), slog.String("attempt", c.Attempt)), err
	case KindLiteExpire:
		c, err := DecodeLiteExpire(payload)
		return []slog.Attr{id("topic", c.Topic), slog.Time("before", time.Unix(0, c.Before).UTC()), slog.Int("limit", int(c.Limit))}, err
	case KindLiteTrim:
		c, err := DecodeLiteTrim(payload)
		return []slog.Attr{
			id("topic", c.Topic), slog.Time("before", time.Unix(0, c.Before).UTC()), slog.Uint64("position", c.Pos), slog.Int("limit", int(c.Limit)),
		}, err
	case KindEndDeliveries:
		c, err := DecodeEndDeliveries(payload)
		return []slog.Attr{
			id("topic", c.Topic), id("group", c.Group), slog.Int("queue", int(c.Queue)), slog.Int64("from", int64(c.From)), slog.Int64("to", int64(c.To)),
			slog.Int("limit", int(c.Limit)), slog.Bool("back", c.Back),
		}, err
	case KindPlace:
		c, err := DecodePlace(payload)
		return []slog.Attr{id("topic", c.Topic), slog.Uint64("placed", c.Placed), slog.Bool("closed", c.Closed)}, err
	case KindForget:
		c, err := DecodeForget(payload)
		return []slog.Attr{slog.Time("before", time.Unix(int64(c.Minute)*60, 0).UTC())}, err
	case KindDrop:
		c, err := DecodeDrop(payload)
		return []slog.Attr{slog.Uint64("first", c.First), slog.Uint64("first_index", c.Index)}, err
	}
	return nil, &NewerError{Kind: kind}
}

func id[T mq.TopicID | mq.GroupID](name string, v T) slog.Attr { return slog.Uint64(name, uint64(v)) }

func describePop(c *Pop) []slog.Attr {
	return []slog.Attr{
		id("topic", c.Topic), id("group", c.Group), slog.Int("max", int(c.Max)),
		slog.Duration("invisible", time.Duration(c.Invisible)), slog.Any("tags", c.Tags), slog.Uint64("after", c.After),
	}
}

func describeAppend(payload []byte) ([]slog.Attr, error) {
	v, err := ViewAppend(payload)
	if err != nil {
		return nil, err
	}
	var messages []string
	for range min(v.Count, len(payload)) {
		msg := v.Next()
		messages = append(messages, fmt.Sprintf("%s tag=%q bytes=%d", msg.ID, msg.Tag, msg.Size))
	}
	return []slog.Attr{id("topic", v.Topic), slog.Int("queue", int(v.Queue)), slog.Any("messages", messages)}, v.Done()
}

func describeAck(payload []byte) ([]slog.Attr, error) {
	v, err := ViewAck(payload)
	if err != nil {
		return nil, err
	}
	leases := make([]string, 0, v.Count)
	for range v.Count {
		leases = append(leases, v.Next().String())
	}
	return []slog.Attr{id("topic", v.Topic), id("group", v.Group), slog.Any("leases", leases)}, nil
}

func describeChange(payload []byte) ([]slog.Attr, error) {
	v, err := ViewChange(payload)
	if err != nil {
		return nil, err
	}
	changes := make([]string, 0, v.Count)
	for range v.Count {
		c := v.Next()
		changes = append(changes, fmt.Sprintf("%s %s invisible=%s", c.LeaseRef, reasons[c.Reason&7], time.Duration(c.Invisible)))
	}
	return []slog.Attr{id("topic", v.Topic), id("group", v.Group), slog.Any("changes", changes)}, nil
}

var reasons = [8]string{mq.Extend: "extend", mq.Renew: "renew", mq.Nack: "nack", mq.GiveBack: "give-back", mq.Suspend: "suspend"}

// String returns queue, offset and pop id.
func (l LeaseRef) String() string { return fmt.Sprintf("%d/%d@%d", l.Queue, l.Offset, l.PopID) }

func describeSend(payload []byte) ([]slog.Attr, error) {
	v, err := ViewSend(payload)
	if err != nil {
		return nil, err
	}
	ids := make([]string, 0, v.Count)
	for range v.Count {
		m := v.Next()
		ids = append(ids, string(m.ID))
	}
	return []slog.Attr{
		id("topic", v.Topic), slog.Int("queue", int(v.Queue)), slog.Duration("window", time.Duration(v.Window)), slog.Any("messages", ids),
	}, v.Done()
}

func describeCarried(v PendingView, err error, attrs ...slog.Attr) ([]slog.Attr, error) {
	if err != nil {
		return nil, err
	}
	messages := make([]string, 0, v.Count)
	for range v.Count {
		m := v.Next()
		messages = append(messages, fmt.Sprintf("%d %s topic=%d queue=%d bytes=%d", m.ID, m.StoredMessage.ID, m.Topic, m.Queue, m.Size))
	}
	return append(attrs, slog.Any("messages", messages)), v.Done()
}

func describePendingChange(payload []byte) ([]slog.Attr, error) {
	c, err := DecodePendingChange(payload)
	if err != nil {
		return nil, err
	}
	ids := make([]mq.PendingID, len(c.Refs))
	for i, ref := range c.Refs {
		ids[i] = ref.ID
	}
	attrs := []slog.Attr{slog.String("op", c.Op.String()), id("topic", c.Topic)}
	if c.Op != DropPending {
		attrs = append(attrs, slog.Time("at", time.Unix(0, c.At).UTC()))
	}
	if c.State != 0 {
		attrs = append(attrs, slog.Int("state", int(c.State)))
	}
	return append(attrs, slog.Any("pending", ids)), nil
}

func describeEndTransaction(payload []byte) ([]slog.Attr, error) {
	v, err := ViewEndTransaction(payload)
	attrs := []slog.Attr{
		slog.Bool("commit", v.Commit), id("topic", v.Topic), slog.Int("queue", int(v.Queue)), slog.Uint64("pending", uint64(v.ID)),
		slog.Duration("keep", time.Duration(v.Keep)),
	}
	if v.Commit {
		attrs = append(attrs, slog.String("message", string(v.Message.ID)))
	}
	return attrs, err
}

func describeChecked(payload []byte) ([]slog.Attr, error) {
	c, err := DecodeChecked(payload)
	messages := make([]string, len(c.Refs))
	for i, ref := range c.Refs {
		messages[i] = fmt.Sprintf("%d checks=%d->%d wait=%s", ref.ID, ref.From, ref.To, time.Duration(ref.Wait))
	}
	return []slog.Attr{slog.String("op", c.Op.String()), slog.Int("max", int(c.Max)), slog.Any("pending", messages)}, err
}
