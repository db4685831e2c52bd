package command_test

import (
	"bytes"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
)

type encoder interface{ Append([]byte) []byte }

// samples has one command of each kind.
func samples() map[command.Kind]encoder {
	name := mq.Resource{Namespace: "ns", Name: "orders"}
	lease := command.LeaseRef{Queue: 3, Offset: 1 << 40, PopID: 1 << 60}
	msg := &mq.Message{
		ID: "01AB", Tag: "red", Type: mq.Normal, Group: "g7",
		Properties: []byte("properties"), System: []byte("system"), Body: []byte("body"),
	}
	sent := *msg
	sent.Content = 9
	pop := command.Pop{
		Time: 1, Topic: 2, Group: 3, Max: 32, Bytes: 7, Invisible: 4, Scan: 5, After: 6, Tags: []string{"blue", "red"},
	}
	return map[command.Kind]encoder{
		command.KindTopic:       &command.Topic{Time: 1, ID: 2, Name: name, Queues: 8, Version: 3},
		command.KindTopicDelete: &command.TopicDelete{Time: 1, ID: 2},
		command.KindGroup: &command.Group{
			Time: 1, ID: 2, Name: name, FIFO: true, MaxAttempts: 17, Start: mq.StartTimestamp, StartTime: 4, DeadLetter: 5, Version: 6,
		},
		command.KindGroupDelete: &command.GroupDelete{Time: 1, ID: 2},
		command.KindAppend:      &command.Append{Time: 1, Topic: 2, Queue: 3, Messages: []*mq.Message{msg, {ID: "x"}}},
		command.KindPop:         &pop,
		command.KindPopLimited:  &command.LimitedPop{Pop: pop, InFlight: 8},
		command.KindPopSelect: &command.SelectPop{
			LimitedPop: command.LimitedPop{Pop: pop, InFlight: 8}, Order: command.GroupOrder, Attempt: "a1", Chosen: true,
			Judged: []command.JudgedRange{
				{Queue: 1, From: 4, To: 5}, {Queue: 1, From: 6, To: 300, Wanted: []mq.QueueOffset{6, 7, 299}}, {Queue: 2, From: 1 << 40, To: 1<<40 + 1},
			},
		},
		command.KindSend: &command.Send{Time: 1, Topic: 2, Queue: 3, Window: 4, Messages: []*mq.Message{
			&sent, {ID: "d", Type: mq.Delay, DeliverAt: time.Unix(5, 6)}, {ID: "t", Type: mq.Transaction, Recovery: time.Second},
		}},
		command.KindFire: &command.Fire{Time: 1, Until: 2, Messages: []command.PendingMessage{
			{ID: 3 << 10, Topic: 4, Queue: 5, Message: msg}, {ID: 1 << 40, Topic: 6, Message: &mq.Message{ID: "d", Type: mq.Delay}},
		}},
		command.KindPendingMove: &command.Move{Time: 1, Messages: []command.PendingMessage{{ID: 3 << 10, Topic: 4, Queue: 5, Message: msg}}},
		command.KindPendingChange: &command.PendingChange{
			Time: 1, Op: command.DropPending, Topic: 2, State: 3, At: 4, Refs: []command.PendingRef{{ID: 5 << 10, Hash: 6}, {ID: 7}},
		},
		command.KindEndTransaction: &command.EndTransaction{Time: 1, ID: 2 << 10, Topic: 3, Queue: 4, Hash: 5, Keep: 6, Message: msg},
		command.KindChecked: &command.Checked{
			Time: 1, Op: command.CheckAsked, Max: 15, Refs: []command.CheckRef{{ID: 2 << 10, Hash: 3, From: 4, To: 5, Wait: 6}, {ID: 7}},
		},
		command.KindAck: &command.Ack{Time: 1, Topic: 2, Group: 3, Leases: []command.LeaseRef{lease, {}}},
		command.KindChange: &command.Change{Time: 1, Topic: 2, Group: 3, Changes: []command.LeaseChange{
			{LeaseRef: lease, Invisible: 4, Reason: mq.Nack},
		}},
		command.KindExpire: &command.Expire{Time: 1, Limit: 1000},
		command.KindDeadLetter: &command.DeadLetter{
			Time: 1, Lease: lease, Group: 2, Topic: 3, Target: 4, Queue: 0, Message: msg,
		},
		command.KindTrim: &command.Trim{Time: 1, Topic: 2, Queues: []command.QueueTrim{{Queue: 3, Min: 1 << 40, Kept: 5}, {}}},
		command.KindDrop: &command.Drop{Time: 1, First: 1 << 40, Index: 2},
		command.KindSetOffset: &command.SetOffset{
			Time: 1, Topic: 2, Group: 3, Drop: true, Queues: []command.QueueSet{{Queue: 4, Offset: 1 << 40}, {Queue: 5}},
		},
		command.KindLiteSubscribe: &command.LiteSubscribe{
			Time: 1, Topic: 2, Group: 3, Place: mq.LitePlace{Start: mq.LiteTail, Value: 1 << 40, Again: true}, Limit: 4, Names: []string{"a", "b-c_d"},
		},
		command.KindLitePop: &command.LitePop{
			Pop:    command.Pop{Time: 1, Topic: 2, Group: 3, Max: 32, Bytes: 7, Invisible: 4, Scan: 5},
			Queues: []mq.QueueID{mq.FirstLiteQueue, mq.FirstLiteQueue + 9},
		},
		command.KindLiteAttempt: &command.LiteAttempt{
			LitePop: command.LitePop{
				Pop:    command.Pop{Time: 1, Topic: 2, Group: 3, Max: 32, Bytes: 7, Invisible: 4, Scan: 5},
				Queues: []mq.QueueID{mq.FirstLiteQueue},
			},
			Attempt: "a1",
		},
		command.KindLiteExpire: &command.LiteExpire{Time: 1, Topic: 2, Before: 1 << 40, Limit: 3},
		command.KindLiteTrim:   &command.LiteTrim{Time: 1, Topic: 2, Before: -1 << 40, Pos: 1 << 41, Limit: 3},
		command.KindEndDeliveries: &command.EndDeliveries{
			Time: 1, Topic: 2, Group: 3, Queue: 4, From: 1 << 40, To: 1 << 41, Limit: 1000, Back: true,
		},
		command.KindForget: &command.Forget{Time: 1, Minute: 1 << 25},
		command.KindPlace:  &command.Place{Time: 1, Topic: 2, Placed: 1 << 40, Closed: true},
	}
}

// liteSend is a send to a lite topic: what it has beside others belongs to its messages.
func liteSend() *command.Send {
	return &command.Send{Time: 1, Topic: 2, Window: 4, Messages: []*mq.Message{
		{ID: "one", Type: mq.Lite, Body: []byte("body"), Content: 9, Lite: "a", LiteLimit: 7},
		{ID: "two", Type: mq.Lite, Body: []byte("body"), Content: 9, Lite: "a", LiteLimit: 7},
	}}
}

func TestASendToALiteTopicDecodesToWhatWasEncoded(t *testing.T) {
	c := liteSend()
	payload := c.Append(nil)
	require.LessOrEqual(t, len(payload), c.Size())
	again, err := decode(command.KindSend, payload)
	require.NoError(t, err)
	require.Equal(t, payload, again)
	const golden = "0000000000000001000000020000000000000000000000040200000011100d87e70503000000006f6e65626f6479000000000000000901610000000700000011800162bb05030000000074776f626f64790000000000000009016100000007"
	require.Equal(t, golden, hex.EncodeToString(payload), "it is on disks")
	v, err := command.ViewSend(payload)
	require.NoError(t, err)
	name, limit, err := v.Lite()
	require.NoError(t, err)
	require.Equal(t, "a", string(name))
	require.EqualValues(t, 7, limit)
	for n := range payload {
		_, err := decode(command.KindSend, payload[:n])
		require.ErrorIs(t, err, command.ErrCorrupt, "cut to %d bytes", n)
	}
	c.Messages[1].Lite = "b"
	v, err = command.ViewSend(c.Append(nil))
	require.NoError(t, err)
	_, _, err = v.Lite()
	require.ErrorIs(t, err, command.ErrCorrupt)
}

// decode decodes a payload and encodes what it found.
func decode(kind command.Kind, payload []byte) ([]byte, error) {
	switch kind {
	case command.KindTopic:
		c, err := command.DecodeTopic(payload)
		return c.Append(nil), err
	case command.KindTopicDelete:
		c, err := command.DecodeTopicDelete(payload)
		return c.Append(nil), err
	case command.KindGroup:
		c, err := command.DecodeGroup(payload)
		return c.Append(nil), err
	case command.KindGroupDelete:
		c, err := command.DecodeGroupDelete(payload)
		return c.Append(nil), err
	case command.KindPop:
		c, err := command.DecodePop(payload)
		return c.Append(nil), err
	case command.KindPopLimited:
		c, err := command.DecodeLimitedPop(payload)
		return c.Append(nil), err
	case command.KindPopSelect:
		c, err := command.DecodeSelectPop(payload)
		return c.Append(nil), err
	case command.KindSend:
		v, err := command.ViewSend(payload)
		if err != nil {
			return nil, err
		}
		c := command.Send{Time: v.Time, Topic: v.Topic, Queue: v.Queue, Window: v.Window}
		for range v.Count {
			sent := v.Next()
			m, err := sent.Decode(payload)
			if err != nil {
				return nil, err
			}
			c.Messages = append(c.Messages, &m)
		}
		return c.Append(nil), v.Done()
	case command.KindFire:
		v, err := command.ViewFire(payload)
		if err != nil {
			return nil, err
		}
		c := command.Fire{Time: v.Time, Until: v.Until}
		c.Messages, err = carried(&v, payload)
		return c.Append(nil), err
	case command.KindPendingMove:
		v, err := command.ViewMove(payload)
		if err != nil {
			return nil, err
		}
		c := command.Move{Time: v.Time}
		c.Messages, err = carried(&v, payload)
		return c.Append(nil), err
	case command.KindPendingChange:
		c, err := command.DecodePendingChange(payload)
		return c.Append(nil), err
	case command.KindEndTransaction:
		v, err := command.ViewEndTransaction(payload)
		if err != nil {
			return nil, err
		}
		c := command.EndTransaction{Time: v.Time, ID: v.ID, Topic: v.Topic, Queue: v.Queue, Hash: v.Hash, Keep: v.Keep}
		if v.Commit {
			if v.Message.Start+v.Message.Size > len(payload) || v.Message.Size == 0 {
				return nil, command.ErrCorrupt
			}
			m, err := command.DecodeMessage(payload[v.Message.Start : v.Message.Start+v.Message.Size])
			if err != nil {
				return nil, err
			}
			c.Message = &m
		}
		return c.Append(nil), nil
	case command.KindChecked:
		c, err := command.DecodeChecked(payload)
		return c.Append(nil), err
	case command.KindExpire:
		c, err := command.DecodeExpire(payload)
		return c.Append(nil), err
	case command.KindTrim:
		c, err := command.DecodeTrim(payload)
		return c.Append(nil), err
	case command.KindDrop:
		c, err := command.DecodeDrop(payload)
		return c.Append(nil), err
	case command.KindSetOffset:
		c, err := command.DecodeSetOffset(payload)
		return c.Append(nil), err
	case command.KindLiteSubscribe:
		c, err := command.DecodeLiteSubscribe(payload)
		return c.Append(nil), err
	case command.KindLitePop:
		c, err := command.DecodeLitePop(payload)
		return c.Append(nil), err
	case command.KindLiteAttempt:
		c, err := command.DecodeLiteAttempt(payload)
		return c.Append(nil), err
	case command.KindLiteExpire:
		c, err := command.DecodeLiteExpire(payload)
		return c.Append(nil), err
	case command.KindLiteTrim:
		c, err := command.DecodeLiteTrim(payload)
		return c.Append(nil), err
	case command.KindEndDeliveries:
		c, err := command.DecodeEndDeliveries(payload)
		return c.Append(nil), err
	case command.KindPlace:
		c, err := command.DecodePlace(payload)
		return c.Append(nil), err
	case command.KindForget:
		c, err := command.DecodeForget(payload)
		return c.Append(nil), err
	case command.KindAppend:
		v, err := command.ViewAppend(payload)
		if err != nil {
			return nil, err
		}
		c := command.Append{Time: v.Time, Topic: v.Topic, Queue: v.Queue}
		for range v.Count {
			msg := v.Next()
			if msg.Start+msg.Size > len(payload) || msg.Size == 0 {
				return nil, command.ErrCorrupt
			}
			m, err := command.DecodeMessage(payload[msg.Start : msg.Start+msg.Size])
			if err != nil {
				return nil, err
			}
			c.Messages = append(c.Messages, &m)
		}
		return c.Append(nil), v.Done()
	case command.KindAck:
		v, err := command.ViewAck(payload)
		c := command.Ack{Time: v.Time, Topic: v.Topic, Group: v.Group}
		for range v.Count {
			c.Leases = append(c.Leases, v.Next())
		}
		return c.Append(nil), err
	case command.KindChange:
		v, err := command.ViewChange(payload)
		c := command.Change{Time: v.Time, Topic: v.Topic, Group: v.Group}
		for range v.Count {
			c.Changes = append(c.Changes, v.Next())
		}
		return c.Append(nil), err
	case command.KindDeadLetter:
		v, err := command.ViewDeadLetter(payload)
		if err != nil {
			return nil, err
		}
		m, err := command.DecodeMessage(payload[v.Message.Start : v.Message.Start+v.Message.Size])
		c := command.DeadLetter{Time: v.Time, Lease: v.Lease, Group: v.Group, Topic: v.Topic, Target: v.Target, Queue: v.Queue, Message: &m}
		return c.Append(nil), err
	}
	return nil, command.ErrCorrupt
}

// carried decodes the messages of a fire or move.
func carried(v *command.PendingView, payload []byte) (list []command.PendingMessage, err error) {
	for range v.Count {
		c := v.Next()
		if c.Start+c.Size > len(payload) || c.Size == 0 {
			return nil, command.ErrCorrupt
		}
		m, err := command.DecodeMessage(payload[c.Start : c.Start+c.Size])
		if err != nil {
			return nil, err
		}
		list = append(list, command.PendingMessage{ID: c.ID, Topic: c.Topic, Queue: c.Queue, Message: &m})
	}
	return list, v.Done()
}

func TestChangesOfPendingMessagesThatMeanNothingAreRefused(t *testing.T) {
	one := []command.PendingRef{{ID: 1}}
	for name, c := range map[string]command.PendingChange{
		"without messages":       {Time: 1, Op: command.DropPending},
		"of no operation":        {Time: 1, Refs: one},
		"of an unknown one":      {Time: 1, Op: 4, Refs: one},
		"a recall with a state":  {Time: 1, Op: command.RecallPending, State: 1, Refs: one},
		"of more than there may": {Time: 1, Op: command.DropPending, Refs: make([]command.PendingRef, command.MaxPending+1)},
	} {
		_, err := command.DecodePendingChange(c.Append(nil))
		require.ErrorIs(t, err, command.ErrCorrupt, name)
	}
}

func TestEveryKindDecodesToWhatWasEncoded(t *testing.T) {
	for kind, c := range samples() {
		payload := c.Append(nil)
		again, err := decode(kind, payload)
		require.NoError(t, err, "%s", kind)
		require.Equal(t, payload, again, "%s", kind)
		now, err := command.Time(payload)
		require.NoError(t, err)
		require.Equal(t, int64(1), now)
		attrs, err := command.Describe(kind, payload)
		require.NoError(t, err)
		require.NotEmpty(t, attrs)
	}
}

func TestTruncatedPayloadsAreRefused(t *testing.T) {
	for kind, c := range samples() {
		payload := c.Append(nil)
		for n := range payload {
			again, err := decode(kind, payload[:n])
			if err == nil { // leases and changes are as many as fit
				require.Equal(t, payload[:n], again, "%s cut to %d bytes", kind, n)
			}
		}
		if kind != command.KindAck && kind != command.KindChange {
			_, err := decode(kind, append(bytes.Clone(payload), 0))
			require.ErrorIs(t, err, command.ErrCorrupt, "%s with a byte more", kind)
		}
	}
}

// TestGoldenBytesOfVersion1 keeps every released encoding readable: the bytes in
// testdata are never written again.
func TestGoldenBytesOfVersion1(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "v1.hex"))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(golden)), "\n")
	named := map[string]encoder{}
	for kind, c := range samples() {
		require.NotContains(t, kind.String(), "Kind", "a kind without a name")
		named[kind.String()] = c
	}
	require.Len(t, lines, len(named))
	for _, line := range lines {
		name, text, _ := strings.Cut(line, " ")
		require.Contains(t, named, name)
		want, err := hex.DecodeString(text)
		require.NoError(t, err)
		require.Equal(t, want, named[name].Append(nil), name)
	}
}

func TestTrimsThatMeanNothingAreRefused(t *testing.T) {
	purge := command.Trim{Time: 1, Topic: 2, Purge: true}
	got, err := command.DecodeTrim(purge.Append(nil))
	require.NoError(t, err)
	require.Equal(t, purge, got)
	unknown := purge.Append(nil)
	unknown[12] = 2 // a way to trim that this program does not know
	_, err = command.DecodeTrim(unknown)
	require.ErrorIs(t, err, command.ErrCorrupt)
	purge.Queues = []command.QueueTrim{{}}
	_, err = command.DecodeTrim(purge.Append(nil))
	require.ErrorIs(t, err, command.ErrCorrupt, "a purge is of all queues")
	many := append(purge.Append(nil)[:12], 0, 0xff, 0xff, 0x03)
	_, err = command.DecodeTrim(many)
	require.ErrorIs(t, err, command.ErrCorrupt)
}

func TestOffsetsThatMeanNothingAreRefused(t *testing.T) {
	set := command.SetOffset{Time: 1, Topic: 2, Group: 3, Queues: []command.QueueSet{{Queue: 5}, {Queue: 4}}}
	_, err := command.DecodeSetOffset(set.Append(nil))
	require.ErrorIs(t, err, command.ErrCorrupt, "not sorted")
	require.True(t, set.Sort())
	got, err := command.DecodeSetOffset(set.Append(nil))
	require.NoError(t, err)
	require.Equal(t, set, got)
	set.Queues[1] = set.Queues[0]
	require.False(t, set.Sort(), "one queue twice")
	_, err = command.DecodeSetOffset(set.Append(nil))
	require.ErrorIs(t, err, command.ErrCorrupt)
	unknown := got.Append(nil)
	unknown[16] = 2 // a way that this program does not know
	_, err = command.DecodeSetOffset(unknown)
	require.ErrorIs(t, err, command.ErrCorrupt)
	many := append(got.Append(nil)[:17], 0xff, 0xff, 0x03)
	_, err = command.DecodeSetOffset(many)
	require.ErrorIs(t, err, command.ErrCorrupt)
}

func TestFlippedBitInAStoredMessageIsFound(t *testing.T) {
	m := &mq.Message{ID: "01AB", Tag: "red", Properties: []byte("p"), System: []byte("s"), Body: []byte("body")}
	stored := command.AppendMessage(nil, m)
	for i := range stored {
		for bit := range 8 {
			flipped := bytes.Clone(stored)
			flipped[i] ^= 1 << bit
			_, err := command.DecodeMessage(flipped)
			require.ErrorIs(t, err, command.ErrCorrupt, "bit %d of byte %d", bit, i)
		}
	}
}

// FuzzDecode: no payload makes a decoder panic, and what it accepts it encodes
// to the same bytes, or at least to bytes that decode to themselves.
func FuzzDecode(f *testing.F) {
	for kind, c := range samples() {
		f.Add(uint8(kind), c.Append(nil))
	}
	f.Fuzz(func(t *testing.T, kind uint8, payload []byte) {
		_, _ = command.Describe(command.Kind(kind), payload)
		once, err := decode(command.Kind(kind), payload)
		if err != nil {
			return
		}
		twice, err := decode(command.Kind(kind), once)
		require.NoError(t, err)
		require.Equal(t, once, twice)
	})
}

func TestQuestionsThatMeanNothingAreRefused(t *testing.T) {
	one := []command.CheckRef{{ID: 1}}
	for name, c := range map[string]command.Checked{
		"without messages":       {Time: 1, Op: command.CheckAsked},
		"of no operation":        {Time: 1, Refs: one},
		"of an unknown one":      {Time: 1, Op: 4, Refs: one},
		"before now":             {Time: 1, Op: command.CheckAsked, Refs: []command.CheckRef{{ID: 1, Wait: -1}}},
		"of more than there may": {Time: 1, Op: command.CheckAgain, Refs: make([]command.CheckRef, command.MaxPending+1)},
	} {
		_, err := command.DecodeChecked(c.Append(nil))
		require.ErrorIs(t, err, command.ErrCorrupt, name)
	}
	c := command.EndTransaction{Time: 1, ID: 2, Keep: -1}
	_, err := command.ViewEndTransaction(c.Append(nil))
	require.ErrorIs(t, err, command.ErrCorrupt, "forgotten before it ends")
}
