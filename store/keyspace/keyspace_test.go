package keyspace_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
)

func refs(t *rapid.T) keyspace.Ref {
	return keyspace.Ref{
		Sub: keyspace.Sub{
			Group: mq.GroupID(rapid.Uint32().Draw(t, "group")), Topic: mq.TopicID(rapid.Uint32().Draw(t, "topic")),
		},
		Queue:  mq.QueueID(rapid.Int32Range(0, math.MaxInt32).Draw(t, "queue")),
		Offset: mq.QueueOffset(rapid.Int64Range(0, math.MaxInt64).Draw(t, "offset")),
	}
}

func TestKeysAndValuesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := refs(t)
		got, err := keyspace.DecodeLeaseKey(keyspace.AppendLeaseKey(nil, r))
		require.NoError(t, err)
		require.Equal(t, r, got)
		got, err = keyspace.DecodeUsedUpKey(keyspace.AppendUsedUpKey(nil, r))
		require.NoError(t, err)
		require.Equal(t, r, got)
		when := rapid.Uint64().Draw(t, "when")
		gotWhen, got, err := keyspace.DecodeDueKey(keyspace.AppendDueKey(nil, when, r))
		require.NoError(t, err)
		require.Equal(t, when, gotWhen)
		require.Equal(t, r, got)
		seq, err := keyspace.DecodeReadyKey(keyspace.AppendReadyKey(nil, r.Sub, when))
		require.NoError(t, err)
		require.Equal(t, when, seq)
		queue, offset, err := keyspace.DecodeReady(keyspace.AppendReady(nil, r.Queue, r.Offset))
		require.NoError(t, err)
		require.Equal(t, r.Queue, queue)
		require.Equal(t, r.Offset, offset)
		sub, err := keyspace.DecodeSubKey(keyspace.AppendSubKey(nil, r.Sub))
		require.NoError(t, err)
		require.Equal(t, r.Sub, sub)
		sub, err = keyspace.DecodeUnstartedKey(keyspace.AppendUnstartedKey(nil, r.Sub))
		require.NoError(t, err)
		require.Equal(t, r.Sub, sub)
		priorityKey := keyspace.AppendPriorityKey(nil, r.Sub, r.Queue, when)
		sub, queue, seq, err = keyspace.DecodePriorityKey(priorityKey)
		require.NoError(t, err)
		require.Equal(t, keyspace.Ref{Sub: r.Sub, Queue: r.Queue}, keyspace.Ref{Sub: sub, Queue: queue})
		require.Equal(t, when, seq)
		require.False(t, keyspace.IsTurnKey(priorityKey))
		turnKey := keyspace.AppendTurnKey(nil, r.Sub)
		sub, err = keyspace.DecodeTurnKey(turnKey)
		require.NoError(t, err)
		require.Equal(t, r.Sub, sub)
		require.True(t, keyspace.IsTurnKey(turnKey))
		turn := keyspace.Turn{Pops: rapid.Uint32().Draw(t, "pops"), Queue: r.Queue}
		gotTurn, err := keyspace.DecodeTurn(keyspace.AppendTurn(nil, turn))
		require.NoError(t, err)
		require.Equal(t, turn, gotTurn)
		q := keyspace.Queue{Topic: r.Topic, Queue: r.Queue}
		gotQ, offset, err := keyspace.DecodeEntryKey(keyspace.AppendEntryKey(nil, q, r.Offset))
		require.NoError(t, err)
		require.Equal(t, q, gotQ)
		require.Equal(t, r.Offset, offset)

		topic, err := keyspace.DecodeTopicKey(keyspace.AppendTopicKey(nil, r.Topic))
		require.NoError(t, err)
		require.Equal(t, r.Topic, topic)
		group, err := keyspace.DecodeGroupKey(keyspace.AppendGroupKey(nil, r.Group))
		require.NoError(t, err)
		require.Equal(t, r.Group, group)
		topic, group, err = keyspace.DecodeGoneKey(keyspace.AppendGoneTopicKey(nil, r.Topic))
		require.NoError(t, err)
		require.Equal(t, r.Topic, topic)
		require.Zero(t, group)
		topic, group, err = keyspace.DecodeGoneKey(keyspace.AppendGoneGroupKey(nil, r.Group))
		require.NoError(t, err)
		require.Zero(t, topic)
		require.Equal(t, r.Group, group)
		sub, queue, err = keyspace.DecodeProgressKey(keyspace.AppendProgressKey(nil, r.Sub, r.Queue))
		require.NoError(t, err)
		require.Equal(t, r.Sub, sub)
		require.Equal(t, r.Queue, queue)
		sub, err = keyspace.DecodeReadySub(keyspace.AppendReadyKey(nil, r.Sub, when))
		require.NoError(t, err)
		require.Equal(t, r.Sub, sub)

		l := keyspace.Lease{
			State:   keyspace.LeaseState(rapid.IntRange(1, 4).Draw(t, "state")),
			Attempt: mq.Attempt(rapid.Int32Range(0, 2000).Draw(t, "attempt")),
			PopID:   mq.PopID(rapid.Uint64().Draw(t, "pop")), When: when,
			Nacked: rapid.Bool().Draw(t, "nacked"), First: rapid.Int64().Draw(t, "first"),
			Lane: rapid.SampledFrom([]uint64{0, 1 << 60}).Draw(t, "lane"), Try: rapid.SampledFrom([]uint64{0, 7}).Draw(t, "try"),
		}
		gotL, err := keyspace.DecodeLease(keyspace.AppendLease(nil, &l))
		require.NoError(t, err)
		require.Equal(t, l, gotL)
		e := keyspace.Entry{
			Pos: when, Size: rapid.Uint32().Draw(t, "size"), StoreTime: l.First, Group: rapid.Uint64().Draw(t, "hash"),
			Tag: []byte(rapid.String().Draw(t, "tag")),
		}
		gotE, err := keyspace.DecodeEntry(keyspace.AppendEntry(nil, &e))
		require.NoError(t, err)
		require.Equal(t, e, gotE)
		s := keyspace.State{Version: keyspace.Version, Pos: when, Index: e.Group, Time: l.First, Ready: uint64(l.PopID)}
		gotS, err := keyspace.DecodeState(keyspace.AppendState(nil, s))
		require.NoError(t, err)
		require.Equal(t, s, gotS)
		b := keyspace.Begin{Pos: when, Index: e.Group}
		gotB, err := keyspace.DecodeBegin(keyspace.AppendBegin(nil, b))
		require.NoError(t, err)
		require.Equal(t, b, gotB)
		gotQ, err = keyspace.DecodeEndsKey(keyspace.AppendEndsKey(nil, q))
		require.NoError(t, err)
		require.Equal(t, q, gotQ)
		ends := keyspace.Ends{Min: r.Offset / 2, Kept: r.Offset / 3, Next: r.Offset}
		gotE2, err := keyspace.DecodeEnds(keyspace.AppendEnds(nil, ends))
		require.NoError(t, err)
		require.Equal(t, ends, gotE2)
	})
}

// TestKeyOrderIsNumericOrder is what scans rely on.
func TestKeyOrderIsNumericOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := refs(t), refs(t)
		b.Sub = a.Sub
		less := a.Queue < b.Queue || a.Queue == b.Queue && a.Offset < b.Offset
		require.Equal(t, less, bytes.Compare(keyspace.AppendLeaseKey(nil, a), keyspace.AppendLeaseKey(nil, b)) < 0)
		x, y := rapid.Uint64().Draw(t, "x"), rapid.Uint64().Draw(t, "y")
		if x != y {
			require.Equal(t, x < y, bytes.Compare(keyspace.AppendDueKey(nil, x, a), keyspace.AppendDueKey(nil, y, b)) < 0)
			require.Equal(t, x < y, bytes.Compare(keyspace.AppendReadyKey(nil, a.Sub, x), keyspace.AppendReadyKey(nil, a.Sub, y)) < 0)
			require.Equal(t, a.Queue < b.Queue || a.Queue == b.Queue && x < y,
				bytes.Compare(keyspace.AppendPriorityKey(nil, a.Sub, a.Queue, x), keyspace.AppendPriorityKey(nil, a.Sub, b.Queue, y)) < 0)
		}
	})
}

func TestNextIsBehindEveryKeyOfAPrefix(t *testing.T) {
	for _, prefix := range [][]byte{{1}, {1, 0xff}, {1, 0xff, 0xff}, {0, 0}} {
		next := keyspace.Next(bytes.Clone(prefix))
		require.Equal(t, 1, bytes.Compare(next, append(bytes.Clone(prefix), 0xff, 0xff, 0xff)))
	}
	require.Nil(t, keyspace.Next([]byte{0xff, 0xff}))
}

func TestNewerVersionOfTheViewsIsRefusedAsSuch(t *testing.T) {
	newer := keyspace.AppendState(nil, keyspace.State{Version: keyspace.Version + 1})
	_, err := keyspace.DecodeState(append(newer, "more fields"...))
	require.ErrorContains(t, err, "version 2")
	require.NotErrorIs(t, err, keyspace.ErrCorrupt)
}

func TestEndsOutOfOrderAreRefused(t *testing.T) {
	for _, bad := range []keyspace.Ends{{Min: 1, Kept: 2, Next: 3}, {Min: 3, Kept: 2, Next: 2}, {Min: -1, Kept: -1}} {
		_, err := keyspace.DecodeEnds(keyspace.AppendEnds(nil, bad))
		require.ErrorIs(t, err, keyspace.ErrCorrupt)
	}
}

// FuzzDescribe: no key or value makes a decoder panic.
func FuzzDescribe(f *testing.F) {
	r := keyspace.Ref{Sub: keyspace.Sub{Group: 1, Topic: 2}, Queue: 3, Offset: 4}
	f.Add(keyspace.StateKey(), keyspace.AppendState(nil, keyspace.State{Version: keyspace.Version}))
	f.Add(keyspace.AppendLeaseKey(nil, r), keyspace.AppendLease(nil, &keyspace.Lease{State: keyspace.Ready}))
	f.Add(keyspace.AppendEntryKey(nil, keyspace.Queue{}, 0), keyspace.AppendEntry(nil, &keyspace.Entry{Tag: []byte("t")}))
	f.Add(keyspace.AppendReadyKey(nil, r.Sub, 1), keyspace.AppendReady(nil, 1, 2))
	f.Add(keyspace.AppendDueKey(nil, 1, r), []byte{})
	f.Add(keyspace.AppendEndsKey(nil, keyspace.Queue{Topic: 1, Queue: 2}), keyspace.AppendEnds(nil, keyspace.Ends{Next: 3}))
	f.Add(keyspace.BeginKey(), keyspace.AppendBegin(nil, keyspace.Begin{Pos: 1, Index: 2}))
	f.Add(keyspace.AppendProgressKey(nil, r.Sub, 1), keyspace.AppendOffset(nil, 2))
	f.Add(keyspace.AppendUnstartedKey(nil, r.Sub), []byte{})
	f.Add(keyspace.AppendTurnKey(nil, r.Sub), keyspace.AppendTurn(nil, keyspace.Turn{Pops: 1, Queue: 2}))
	f.Add(keyspace.AppendPriorityKey(nil, r.Sub, 3, 1), keyspace.AppendOffset(nil, 2))
	f.Fuzz(func(_ *testing.T, key, val []byte) {
		_, _, _ = keyspace.Describe(key, val)
		_ = keyspace.KindOf(key)
		_, _ = keyspace.DecodeTopicKey(key)
		_, _ = keyspace.DecodeGroupKey(key)
		_, _, _ = keyspace.DecodeGoneKey(key)
		_, _, _ = keyspace.DecodeProgressKey(key)
		_, _ = keyspace.DecodeReadySub(key)
	})
}

func TestWhatASendHasStoredRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := keyspace.Repeat{
			Minute: rapid.Uint32().Draw(t, "minute"), Topic: mq.TopicID(rapid.Uint32().Draw(t, "topic")), Index: rapid.Uint64().Draw(t, "index"),
		}
		key := keyspace.AppendRepeatKey(nil, r)
		got, err := keyspace.DecodeRepeatKey(key)
		require.NoError(t, err)
		require.Equal(t, r, got)
		require.True(t, bytes.HasPrefix(key, keyspace.AppendRepeatTopicPrefix(nil, r.Minute, r.Topic)))

		val := keyspace.AppendSentHead(nil, 7, 3, 40)
		var want []keyspace.SentMessage
		offset := mq.QueueOffset(40)
		place := rapid.IntRange(0, 3).Draw(t, "first place")
		for i := range rapid.IntRange(1, 20).Draw(t, "messages") {
			m := keyspace.SentMessage{
				ID: uint64(i), Content: rapid.Uint64().Draw(t, "content"), Place: uint16(place), Pending: rapid.Bool().Draw(t, "pending"),
			}
			want, val = append(want, m), keyspace.AppendSentMessage(val, m)
			place += rapid.IntRange(1, 50).Draw(t, "step")
		}
		sent, err := keyspace.DecodeSentMessages(val)
		require.NoError(t, err)
		require.Equal(t, len(want), sent.Len())
		for i, m := range want {
			require.Equal(t, m, sent.At(i))
			found, ok := sent.Find(m.ID, m.Content, 9)
			require.True(t, ok)
			if m.Pending {
				require.Equal(t, keyspace.Sent{StoreTime: 7, Queue: 3, Pending: mq.PendingID(9<<10 + int(m.Place))}, found)
				continue
			}
			require.Equal(t, keyspace.Sent{StoreTime: 7, Queue: 3, Offset: offset}, found)
			offset++
		}
		_, ok := sent.Find(100, want[0].Content, 9)
		require.False(t, ok)
		for _, bad := range [][]byte{val[:len(val)-1], val[:20], nil, append(val, val[20:38]...)} {
			_, err := keyspace.DecodeSentMessages(bad)
			require.ErrorIs(t, err, keyspace.ErrCorrupt)
		}
	})
}
