package main

import (
	"fmt"
	"testing"
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
	checks    shard.Transactions
	wall      func() time.Time
	memtable  int64 // 0: that of a server
	onFailure func()
}

func openStore(fs vfs.FS, o settings) (*store.Store, error) { return openStoreIn(fs, storeDir, o) }

func openStoreIn(fs vfs.FS, dir string, o settings) (*store.Store, error) {
	return store.Open(store.Options{
		FS: fs, Dir: dir, Shards: []string{shardName}, Flush: o.flush,
		SegmentSize: o.segment, ZeroFill: o.fill, CacheSize: 1 << 20, MemTableSize: o.memtable, Transactions: o.checks, Wall: o.wall, OnFailure: o.onFailure, Logger: tracer(),
	})
}

func openRouter(fs vfs.FS, onFailure func()) (*router.Router, error) {
	return router.Open(router.Options{FS: fs, Dir: metadataDir, Shards: []string{shardName}, OnFailure: onFailure})
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
