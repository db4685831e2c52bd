package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/shard"
)

const (
	shardName   = "s0"
	storeDir    = "node/store"
	metadataDir = "node/router"
)

func message(id, tag string) *mq.Message {
	return &mq.Message{ID: id, Tag: tag, Type: mq.Normal, Body: []byte(body(id))}
}

// settings are how a store of a test is opened.
type settings struct {
	flush     shard.FlushMode
	segment   int64
	fill      int64
	onFailure func()
}

func openStore(fs vfs.FS, o settings) (*store.Store, error) {
	return store.Open(store.Options{
		FS: fs, Dir: storeDir, Shards: []string{shardName}, Flush: o.flush,
		SegmentSize: o.segment, ZeroFill: o.fill, CacheSize: 1 << 20, OnFailure: o.onFailure,
	})
}

func openRouter(fs vfs.FS, onFailure func()) (*router.Router, error) {
	return router.Open(router.Options{FS: fs, Dir: metadataDir, Shards: []string{shardName}, OnFailure: onFailure})
}

// drainTime is beyond the end of every lease that a test takes.
const drainTime = time.Minute

// drain receives and acknowledges everything there is for the groups, and reads
// everything that is stored with a group of its own; what it sees goes into l, which
// then judges. It returns an error only where the store does.
func drain(ctx context.Context, s *store.Store, l *ledger, topic *mq.Topic, groups []consumers) error {
	receive := func(r mq.Receive, fn func(start time.Time, got []mq.Delivery)) error {
		r.Max, r.Invisible = 32, drainTime
		for {
			start := time.Now()
			got, err := s.Receive(ctx, shardName, r)
			if err != nil || len(got) == 0 {
				return err
			}
			fn(start, got)
			for _, d := range got {
				l.beginAck(r.Group.ID, d.ID, false)
				if err := errors.Join(s.Ack(ctx, []mq.Lease{d.Lease})...); err != nil {
					return err
				}
				l.endAck(l.now(), r.Group.ID, d.ID)
			}
		}
	}
	st := stored{queues: map[mq.QueueID][]string{}, dead: map[mq.GroupID]map[string]int{}}
	for _, g := range groups {
		r := mq.Receive{Topic: topic, Group: g.Group, Wait: drainTime}
		g.choose(&r, true)
		err := receive(r, func(start time.Time, got []mq.Delivery) {
			l.delivered(l.now(), g.ID, start, drainTime, got)
		})
		if err != nil {
			return err
		}
	}
	synctest.Wait() // dead letters under way
	auditor := &mq.Group{ID: 99, Resource: mq.Resource{Name: "audit"}, Retry: mq.DefaultRetryPolicy(), DeadLetter: 999, Version: 1}
	// It waits for longer than its leases: what cannot be read comes back alone.
	err := receive(mq.Receive{Topic: topic, Group: auditor, Wait: 2 * drainTime}, func(_ time.Time, got []mq.Delivery) {
		for _, d := range got {
			q := d.Lease.Queue
			if want := mq.QueueOffset(len(st.queues[q])); d.Lease.Offset != want {
				l.mu.Lock()
				l.fault(&l.counts.lost, "queue %d goes on with offset %d after %d", q, d.Lease.Offset, want-1)
				l.mu.Unlock()
			}
			st.queues[q] = append(st.queues[q], d.ID)
		}
	})
	if err != nil {
		return err
	}
	for _, g := range groups {
		st.dead[g.ID] = map[string]int{}
		err := receive(mq.Receive{Topic: deadLetterTopic(g.Group), Group: auditor, Wait: 2 * drainTime}, func(_ time.Time, got []mq.Delivery) {
			for _, d := range got {
				st.dead[g.ID][d.ID]++
			}
		})
		if err != nil {
			return err
		}
	}
	l.judge(groups, st)
	for _, g := range append(groups, consumers{Group: auditor}) {
		backlogs, err := s.Backlogs(ctx, shardName, g.ID)
		if err != nil {
			return err
		}
		for _, b := range backlogs {
			if b.Topic == topic.ID && b.Ready+b.InFlight+b.UsedUp > 0 {
				l.mu.Lock()
				l.fault(&l.counts.stuck, "group %s: %+v", g.Name, b)
				l.mu.Unlock()
			}
		}
	}
	return s.Err()
}

func deadLetterTopic(g *mq.Group) *mq.Topic {
	return &mq.Topic{
		ID: g.DeadLetter, Resource: g.DeadLetterTopic(), Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: 1, Write: 1}}, Version: 1,
	}
}

// findings returns what `perigee check` would say of the store.
func findings(fs vfs.FS) (list []string) {
	sum, err := store.Check(fs, storeDir, store.CheckOptions{
		DeriveLimit: 1 << 30, Found: func(f store.Finding) { list = append(list, f.String()) },
	})
	if err != nil {
		list = append(list, err.Error())
	}
	for _, s := range sum {
		if !s.Derived {
			list = append(list, "not derived: "+s.NotDerived)
		}
	}
	return list
}

// nodeFindings returns what it would say of both, and of whether they belong together.
func nodeFindings(fs vfs.FS) (list []string) {
	_, err := node.Check(fs, "node", node.CheckOptions{
		DeriveLimit: 1 << 30, Found: func(f node.Finding) { list = append(list, f.String()) },
	})
	if err != nil {
		list = append(list, err.Error())
	}
	return list
}

// metadataFindings returns what `perigee check` would say of the metadata.
func metadataFindings(fs vfs.FS) (list []string) {
	if _, err := router.Check(fs, metadataDir, func(err error) { list = append(list, err.Error()) }); err != nil {
		list = append(list, err.Error())
	}
	return list
}

// tell fails the test with what does not hold.
func tell(t *testing.T, where string, faults []string) {
	t.Helper()
	for i, f := range faults {
		if i == 10 {
			t.Errorf("%s: and %d more", where, len(faults)-i)
			return
		}
		t.Errorf("%s: %s", where, f)
	}
}

func newIDs(n *int, count int) []string {
	ids := make([]string, count)
	for i := range ids {
		*n++
		ids[i] = fmt.Sprint("m", *n)
	}
	return ids
}
