//go:build !race

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

// trimmedNode returns the files of a node whose old messages have left, with the
// segments that held them, so that its views cannot be derived from its log alone.
func trimmedNode(t *testing.T) *filled {
	f := &filled{}
	mem := vfs.NewMem()
	var topic *mq.Topic
	var group *mq.Group
	bubble(t, t.Name(), func(t *testing.T) {
		r, err := openRouter(mem, nil)
		require.NoError(t, err)
		topic, _, err = r.CreateTopic(t.Context(), router.TopicSpec{Resource: mq.Resource{Name: "orders"}, Queues: 2})
		require.NoError(t, err)
		group, _, err = r.CreateGroup(t.Context(), router.GroupSpec{Resource: mq.Resource{Name: "readers"}})
		require.NoError(t, err)
		s, err := store.Open(store.Options{
			FS: mem, Dir: storeDir, Shards: []string{shardName}, SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20,
			Retention: shard.Retention{Age: time.Hour},
		})
		require.NoError(t, err)
		n := 0
		send := func(count int) {
			for i, id := range newIDs(&n, count) {
				m := message(id, "")
				m.Properties = make([]byte, 900)
				_, err := s.Append(t.Context(), shardName, topic, mq.QueueID(i%2), []*mq.Message{m})
				require.NoError(t, err)
			}
		}
		send(30)
		got, err := s.Receive(t.Context(), shardName, mq.Receive{Topic: topic, Group: group, Max: 20, Invisible: time.Minute})
		require.NoError(t, err)
		for _, d := range got {
			require.NoError(t, errors.Join(s.Ack(t.Context(), []mq.Lease{d.Lease})...))
		}
		time.Sleep(50 * time.Minute)
		send(10)
		time.Sleep(20 * time.Minute)
		send(6)
		_, err = s.Receive(t.Context(), shardName, mq.Receive{Topic: topic, Group: group, Max: 3, Invisible: 24 * time.Hour})
		require.NoError(t, err)
		require.Positive(t, s.Stats()[shardName].LogFirst, "nothing was dropped")
		require.NoError(t, errors.Join(s.Close(), r.Close()))
		f.end = time.Now()
	})
	f.files = files(t, mem, "node")
	require.Contains(t, strings.Join(names(f.files), "\n"), "views.base-")
	var want string
	bubble(t, t.Name(), func(t *testing.T) {
		time.Sleep(time.Until(f.end))
		var o outcome
		var err error
		want, o, err = contents(diskWith(t, f.files), topic, group)
		require.NoError(t, err)
		require.Equal(t, served, o)
		require.Greater(t, strings.Count(want, "\n"), 15)
	})
	f.serve = func(fs vfs.FS) (outcome, error) {
		got, o, err := contents(fs, topic, group)
		if err == nil && got != want {
			err = fmt.Errorf("BUG: there is\n%sand was\n%s", got, want)
		}
		return o, err
	}
	return f
}

func names(files map[string][]byte) (list []string) {
	for name := range files {
		list = append(list, name)
	}
	return list
}

// contents returns everything that a node holds, as text, or the refusal.
func contents(fs vfs.FS, topic *mq.Topic, group *mq.Group) (string, outcome, error) {
	ctx := context.Background()
	r, err := openRouter(fs, nil)
	if err != nil {
		return "", refused, err
	}
	defer func() { _ = r.Close() }()
	if err := node.CheckPlaced(fs, storeDir, r, shardName); err != nil {
		return "", refused, err
	}
	s, err := openStore(fs, settings{segment: 8 << 10, fill: -1}) // nothing more is trimmed
	if err != nil {
		return "", refused, err
	}
	defer func() { _ = s.Close() }()
	if err := node.Reconcile(ctx, s, r, metadataDir); err != nil {
		return "", refused, err
	}
	var b strings.Builder
	b.WriteString(describe(r))
	auditor := &mq.Group{ID: 99, Resource: mq.Resource{Name: "audit"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 999, Version: 1}
	for _, g := range []*mq.Group{group, auditor} {
		backlogs, err := s.Backlogs(ctx, shardName, g.ID)
		if err != nil {
			return "", readOnly, err
		}
		fmt.Fprintf(&b, "%s: %+v\n", g.Name, backlogs)
		for {
			got, err := s.Receive(ctx, shardName, mq.Receive{Topic: topic, Group: g, Max: 1, Invisible: drainTime, Wait: 25 * time.Hour})
			if err != nil {
				return "", readOnly, err
			}
			if len(got) == 0 {
				break
			}
			d := got[0]
			fmt.Fprintf(&b, "%d/%d: %s, attempt %d: %s\n", d.Lease.Queue, d.Lease.Offset, d.ID, d.Lease.Attempt, d.Body)
			if err := errors.Join(s.Ack(ctx, []mq.Lease{d.Lease})...); err != nil {
				return "", readOnly, err
			}
		}
	}
	ranges, err := s.Queues(ctx, shardName, topic.ID)
	if err != nil {
		return "", readOnly, err
	}
	fmt.Fprintf(&b, "%+v\n", ranges)
	return b.String(), served, s.Err()
}
