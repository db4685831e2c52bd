package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/shard"
)

// pendingStore returns a store with pending messages of every fate: delivered, recalled,
// postponed, moved before their segment was dropped, dropped with their topic, waiting,
// and half ones.
func pendingStore(t *testing.T) (mem *vfs.MemFS) {
	mem = vfs.NewMem()
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, mem, shard.Retention{Interval: time.Minute, Of: func(id mq.TopicID) (time.Duration, bool) {
			return map[mq.TopicID]time.Duration{9: time.Minute}[id], true
		}})
		defer s.Close() // also after a failed check, so that the bubble ends
		ctx := context.Background()
		later, gone, passing := topicOf(1, 2), topicOf(2, 1), topicOf(9, 1)
		var handles []mq.PendingHandle
		send := func(topic *mq.Topic, types ...mq.MessageType) {
			var msgs []*mq.Message
			for i, typ := range types {
				id := fmt.Sprint("m", len(handles)+i)
				msgs = append(msgs, &mq.Message{ID: id, Type: typ, Body: make([]byte, 200), DeliverAt: time.Now().Add(time.Duration(i+1) * time.Hour), Recovery: time.Hour})
			}
			a, err := s.Append(ctx, shardName, topic, 0, msgs)
			require.NoError(t, err)
			for i := range a {
				handles = append(handles, mq.PendingHandle{Shard: shardName, Topic: topic.ID, ID: a[i].Pending, MessageID: msgs[i].ID})
			}
		}
		send(later, mq.Delay, mq.Delay, mq.Delay, mq.Transaction, mq.Delay)
		send(gone, mq.Delay, mq.Delay)
		require.NoError(t, errors.Join(s.Recall(ctx, handles[1:2])...))
		require.NoError(t, errors.Join(s.Postpone(ctx, handles[2:3], time.Now().Add(100*time.Hour))...))
		require.NoError(t, s.DeleteTopic(ctx, gone.ID))
		for range 60 {
			send(passing, mq.Normal)
		}
		time.Sleep(10 * time.Minute)
		require.Positive(t, s.Stats()[shardName].Moved)
		require.Positive(t, s.Stats()[shardName].LogFirst)
		time.Sleep(51 * time.Minute) // the first has come
		synctest.Wait()
		require.EqualValues(t, 1, s.Stats()[shardName].Fired)
		require.EqualValues(t, 2, s.Stats()[shardName].Timed)
		require.NoError(t, s.Close())
	})
	return mem
}

func TestCheckFindsNothingInAStoreWithPendingMessages(t *testing.T) {
	found, sum := check(t, pendingStore(t), true)
	require.Empty(t, found)
	require.True(t, sum.Derived, sum.NotDerived)
}

func TestCheckFindsEveryBrokenPendingMessage(t *testing.T) {
	mem := pendingStore(t)
	files := tree(t, mem, storeDir)
	kinds := map[keyspace.Kind]int{}
	eachKey(t, mem, func(key, val []byte) {
		kind := keyspace.KindOf(key)
		switch kind {
		case keyspace.KindPending, keyspace.KindPendingAt, keyspace.KindPendingOf, keyspace.KindHeld:
		default:
			return
		}
		kinds[kind]++
		key, val = append([]byte(nil), key...), append([]byte(nil), val...)
		broken := edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Delete(key, nil)) })
		found, _ := check(t, broken, false)
		require.NotEmpty(t, found, "without key %x", key)
		if kind != keyspace.KindPending {
			return
		}
		p, err := keyspace.DecodePending(val)
		require.NoError(t, err)
		for what, change := range map[string]func(*keyspace.Pending){
			"state": func(p *keyspace.Pending) { p.State = keyspace.GivenUp },
			"topic": func(p *keyspace.Pending) { p.Topic++ },
			"time":  func(p *keyspace.Pending) { p.At++ },
			"position": func(p *keyspace.Pending) {
				if p.Pos++; !p.State.Holds() {
					p.Pos = 1 << 60
				}
			},
			"size": func(p *keyspace.Pending) {
				if p.Size++; !p.State.Holds() {
					p.Size = 1 << 31
				}
			},
		} {
			other := p
			change(&other)
			broken := edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Set(key, keyspace.AppendPending(nil, &other), nil)) })
			found, _ := check(t, broken, false)
			require.NotEmpty(t, found, "%s of pending message %+v", what, p)
		}
	})
	require.Equal(t, map[keyspace.Kind]int{keyspace.KindPending: 4, keyspace.KindPendingAt: 4, keyspace.KindPendingOf: 4, keyspace.KindHeld: 3}, kinds)
}
