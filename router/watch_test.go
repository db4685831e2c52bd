package router

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/perigee-mq/perigee/mq"
	"github.com/stretchr/testify/require"
)

func next(t *testing.T, w *Watch) []Change {
	t.Helper()
	changes, err := w.Next(t.Context())
	require.NoError(t, err)
	return changes
}

func TestWatchReportsWhatExistsThenWhatChanges(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	a := createTopic(t, r, TopicSpec{Resource: name("a")})
	w := r.Watch()
	require.Equal(t, []Change{{TopicID: a.ID, Topic: a}}, next(t, w))
	require.Equal(t, r.Revision(), w.Revision())

	g := createGroup(t, r, GroupSpec{Resource: name("g")})
	dlq, err := r.TopicByID(g.DeadLetter)
	require.NoError(t, err)
	require.Equal(t, []Change{{TopicID: dlq.ID, Topic: dlq}, {GroupID: g.ID, Group: g}}, next(t, w))

	_, err = r.DeleteGroup(t.Context(), name("g"))
	require.NoError(t, err)
	a, err = r.UpdateTopic(t.Context(), name("a"), TopicUpdate{ReadQueues: new(int32(1))})
	require.NoError(t, err)
	require.Equal(t, []Change{{TopicID: a.ID, Topic: a}, {TopicID: dlq.ID}, {GroupID: g.ID}}, next(t, w))
}

func TestWatchLosesNoDeletionBetweenTwoCalls(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	w := r.Watch()
	require.Empty(t, next(t, w))
	first := createTopic(t, r, TopicSpec{Resource: name("a")})
	_, err := r.DeleteTopic(t.Context(), name("a"))
	require.NoError(t, err)
	second := createTopic(t, r, TopicSpec{Resource: name("a")})
	require.Equal(t, []Change{{TopicID: first.ID}, {TopicID: second.ID, Topic: second}}, next(t, w))
	createGroup(t, r, GroupSpec{Resource: name("g")})
	_, err = r.DeleteGroup(t.Context(), name("g"))
	require.NoError(t, err)
	require.Equal(t, []Change{{TopicID: 3}, {GroupID: 1}}, next(t, w))
}

func TestWatchWaitsForAChangeTheContextOrTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Open(Options{Backend: &fakeBackend{entries: map[string][]byte{}}, Shards: []string{"s"}})
		require.NoError(t, err)
		w := r.Watch()
		require.Empty(t, next(t, w))
		// waitFor lets Next wait, then acts, and returns Next's answer.
		waitFor := func(act func(cancel context.CancelFunc)) (changes []Change, err error) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan struct{})
			go func() { defer close(done); changes, err = w.Next(ctx) }()
			synctest.Wait()
			select {
			case <-done:
				t.Fatal("nothing had changed")
			default:
			}
			act(cancel)
			<-done
			return changes, err
		}
		changes, err := waitFor(func(context.CancelFunc) { createTopic(t, r, TopicSpec{Resource: name("a")}) })
		require.NoError(t, err)
		require.Len(t, changes, 1)
		_, err = waitFor(func(cancel context.CancelFunc) { cancel() })
		require.ErrorIs(t, err, context.Canceled)
		_, err = waitFor(func(context.CancelFunc) { require.NoError(t, r.Close()) })
		require.ErrorIs(t, err, mq.ErrStopped)
	})
}

func TestWatchersFollowConcurrentChanges(t *testing.T) {
	r := mustOpen(t, vfs.NewMem())
	const topics = 100
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			w := r.Watch()
			known := map[mq.TopicID]string{}
			for w.Revision() < 1+2*topics {
				changes, err := w.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				for _, c := range changes {
					if c.Topic == nil {
						delete(known, c.TopicID)
					} else {
						known[c.TopicID] = c.Topic.Name
					}
				}
			}
			if len(known) != 0 {
				t.Errorf("left over: %v", known)
			}
		})
	}
	for i := range topics {
		res := name(fmt.Sprint("t", i))
		createTopic(t, r, TopicSpec{Resource: res})
		_, err := r.DeleteTopic(t.Context(), res)
		require.NoError(t, err)
	}
	wg.Wait()
}
