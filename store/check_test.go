package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/shard"
)

const (
	shardName = "s0"
	storeDir  = "node/store"
	logDir    = storeDir + "/shards/" + shardName + "/log"
	viewsDir  = storeDir + "/shards/" + shardName + "/views"
)

func topicOf(id mq.TopicID, queues int32) *mq.Topic {
	return &mq.Topic{
		ID: id, Resource: mq.Resource{Name: fmt.Sprint("topic-", id)}, Type: mq.TopicNormal, Permission: mq.PermReadWrite,
		Shards: []mq.ShardQueues{{Shard: shardName, Read: queues, Write: queues}}, Version: 1,
	}
}

func groupOf(id mq.GroupID, attempts mq.Attempt) *mq.Group {
	g := &mq.Group{ID: id, Resource: mq.Resource{Name: fmt.Sprint("group-", id)}, Retry: mq.DefaultRetryPolicy(), DeadLetter: mq.TopicID(100 + id), Version: 1}
	g.Retry.MaxAttempts = attempts
	return g
}

func openStore(t *testing.T, fs vfs.FS, retention ...shard.Retention) *store.Store {
	t.Helper()
	o := store.Options{FS: fs, Dir: storeDir, Shards: []string{shardName}, SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20}
	for _, r := range retention {
		o.Retention = r
	}
	s, err := store.Open(o)
	require.NoError(t, err)
	return s
}

// fill makes a store on fs that has a key of every kind in its views and several
// segments in its log.
func fill(t *testing.T, fs vfs.FS, retention ...shard.Retention) {
	t.Helper()
	s := openStore(t, fs, retention...)
	defer s.Close() // also after a failed check, so that the bubble ends
	ctx := context.Background()
	orders, gone := topicOf(1, 3), topicOf(2, 1)
	readers, others, leavers, ordered := groupOf(1, 2), groupOf(2, 5), groupOf(3, 5), groupOf(4, 5)
	ordered.FIFO = true
	n := 0
	send := func(topic *mq.Topic, queue mq.QueueID, count int) {
		var msgs []*mq.Message
		for range count {
			n++
			msgs = append(msgs, &mq.Message{
				ID: fmt.Sprint("m", n), Tag: []string{"", "red"}[n%2], Group: []string{"", "a", "b"}[n%3], Type: mq.Normal,
				Properties: make([]byte, 300), Body: []byte(fmt.Sprint("body ", n)),
			})
		}
		_, err := s.Append(ctx, shardName, topic, queue, msgs)
		require.NoError(t, err)
	}
	receive := func(topic *mq.Topic, group *mq.Group, count int, invisible time.Duration) []mq.Delivery {
		got, err := s.Receive(ctx, shardName, mq.Receive{Topic: topic, Group: group, Max: count, Invisible: invisible})
		require.NoError(t, err)
		require.NotEmpty(t, got)
		return got
	}
	for i := range 40 {
		send(orders, mq.QueueID(i%3), 1+i%4)
	}
	send(gone, 0, 3)
	receive(gone, readers, 1, time.Hour)
	receive(orders, leavers, 2, time.Hour)
	require.NoError(t, s.DeleteTopic(ctx, gone.ID))
	require.NoError(t, s.DeleteGroup(ctx, leavers.ID))
	for _, d := range receive(orders, readers, 10, 10*time.Second)[:4] {
		require.NoError(t, errors.Join(s.Ack(ctx, []mq.Lease{d.Lease})...))
	}
	long := receive(orders, readers, 5, time.Hour)
	require.NoError(t, s.DeadLetter(ctx, long[0].Lease))
	for _, d := range receive(orders, others, 6, time.Hour)[:2] {
		require.NoError(t, errors.Join(s.ChangeInvisible(ctx, []mq.LeaseChange{{Lease: d.Lease, Reason: mq.Nack}})...))
	}
	receive(orders, ordered, 4, time.Hour)
	receive(orders, ordered, 4, time.Hour)
	time.Sleep(11 * time.Second) // leases end
	if len(retention) > 0 {
		trim(t, s, send, receive, orders, others)
	}
	for _, g := range []*mq.Group{others, groupOf(5, 5)} { // the last one only pulls
		r, err := s.Range(ctx, shardName, orders, 2)
		require.NoError(t, err)
		_, err = s.SetOffset(ctx, shardName, mq.OffsetSet{Topic: orders, Group: g, Drop: true, Offsets: map[mq.QueueID]mq.QueueOffset{2: r.Next - 1}})
		require.NoError(t, err)
	}
	urgent := topicOf(5, 3)
	urgent.Type = mq.TopicPriority
	for q := range mq.QueueID(3) {
		send(urgent, q, 3)
	}
	for _, d := range receive(urgent, others, 4, time.Hour)[:2] {
		require.NoError(t, errors.Join(s.ChangeInvisible(ctx, []mq.LeaseChange{{Lease: d.Lease, Reason: mq.Nack}})...))
	}
	again := receive(orders, readers, 3, time.Hour)
	// Used up, and without a dead-letter topic to go to for as long as the test is.
	require.NoError(t, errors.Join(s.ChangeInvisible(ctx, []mq.LeaseChange{{Lease: again[0].Lease, Reason: mq.Nack}})...))
	send(orders, 0, 2)
	leaving := topicOf(5, 3)
	leaving.Type, leaving.Version, leaving.Placed = mq.TopicPriority, 2, 2
	leaving.Shards[0].Use = mq.ShardClosing
	require.NoError(t, s.Place(ctx, shardName, leaving))
	synctest.Wait()
	require.NoError(t, s.Close())
}

// trim lets what was sent grow old until segments are dropped, with one topic that is
// emptied and one that is purged.
func trim(t *testing.T, s *store.Store, send func(*mq.Topic, mq.QueueID, int), receive func(*mq.Topic, *mq.Group, int, time.Duration) []mq.Delivery, orders *mq.Topic, others *mq.Group) {
	t.Helper()
	emptied, purged := topicOf(3, 1), topicOf(4, 2)
	send(emptied, 0, 2)
	send(purged, 1, 3)
	receive(purged, others, 1, time.Hour)
	time.Sleep(110 * time.Minute)
	for i := range 20 {
		send(orders, mq.QueueID(i%3), 1+i%4)
	}
	send(purged, 0, 2)
	time.Sleep(20 * time.Minute)
	receive(purged, others, 2, 2*time.Hour) // under lease when the topic is purged, and long after
	require.NoError(t, s.PurgeTopic(context.Background(), purged.ID))
	send(purged, 0, 1)
	for i := range 6 {
		send(orders, mq.QueueID(i%3), 2)
	}
	time.Sleep(30 * time.Minute)
	require.Positive(t, s.Stats()[shardName].LogFirst, "nothing was dropped")
}

// filledStore returns a closed store with everything in it.
func filledStore(t *testing.T, retention ...shard.Retention) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewMem()
	synctest.Test(t, func(t *testing.T) { fill(t, mem, retention...) })
	return mem
}

// stores calls fn with a store that has its whole log, and with one that was trimmed.
func stores(t *testing.T, fn func(t *testing.T, mem *vfs.MemFS, trimmed bool)) {
	t.Run("whole", func(t *testing.T) { fn(t, filledStore(t), false) })
	t.Run("trimmed", func(t *testing.T) { fn(t, filledStore(t, shard.Retention{Age: 2 * time.Hour}), true) })
}

// check returns what Check found and saw.
func check(t *testing.T, fs vfs.FS, derive bool) ([]store.Finding, store.CheckedShard) {
	t.Helper()
	var found []store.Finding
	opts := store.CheckOptions{Found: func(f store.Finding) { found = append(found, f) }}
	if derive {
		opts.DeriveLimit = 1 << 30
	}
	list, err := store.Check(fs, storeDir, opts)
	require.NoError(t, err)
	require.Len(t, list, 1)
	for _, f := range found {
		require.Equal(t, shardName, f.Shard)
		require.NotEmpty(t, f.File)
		require.NotEmpty(t, f.Problem)
		require.NotContains(t, f.String(), "\n")
	}
	return found, list[0]
}

func contents(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	require.NoError(t, err)
	b, err := io.ReadAll(f)
	require.NoError(t, errors.Join(err, f.Close()))
	return b
}

func write(t *testing.T, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = f.Write(bytes.Clone(b))
	require.NoError(t, errors.Join(err, f.Close()))
}

// tree returns every file below dir, and every directory as nil.
func tree(t *testing.T, fs vfs.FS, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{dir: nil}
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			maps.Copy(files, tree(t, fs, path))
		} else {
			files[path] = contents(t, fs, path)
		}
	}
	return files
}

// copyOf returns a file system with the same files.
func copyOf(t *testing.T, files map[string][]byte) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewMem()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] == nil {
			require.NoError(t, mem.MkdirAll(name, 0o755))
		} else {
			write(t, mem, name, files[name])
		}
	}
	return mem
}

func TestCheckFindsNothingInASoundStoreAndChangesNothing(t *testing.T) {
	stores(t, func(t *testing.T, mem *vfs.MemFS, trimmed bool) {
		before := tree(t, mem, "node")
		found, sum := check(t, mem, true)
		require.Empty(t, found)
		require.Equal(t, before, tree(t, mem, "node"))
		require.True(t, sum.Derived, sum.NotDerived)
		require.Greater(t, sum.Log.Segments, 3)
		require.Equal(t, sum.Log.Last, sum.Applied)
		if trimmed {
			require.Greater(t, sum.Log.First, uint64(1))
			require.Equal(t, []mq.TopicID{1, 3, 4, 5, 101}, sum.Topics)
		} else {
			require.Equal(t, []mq.TopicID{1, 5, 101}, sum.Topics)
		}
		require.Equal(t, []mq.GroupID{1, 2, 4, 5}, sum.Groups)
		require.Greater(t, sum.Messages, uint64(50))

		kinds := map[keyspace.Kind]int{}
		eachKey(t, mem, func(key, _ []byte) { kinds[keyspace.KindOf(key)]++ })
		want := []keyspace.Kind{
			keyspace.KindState, keyspace.KindEntry, keyspace.KindGroup, keyspace.KindLease, keyspace.KindGone, keyspace.KindProgress,
			keyspace.KindReady, keyspace.KindSub, keyspace.KindUnstarted, keyspace.KindTopic, keyspace.KindDue, keyspace.KindPriority,
			keyspace.KindPlacement,
		}
		if trimmed {
			want = append(want, keyspace.KindBegin, keyspace.KindEnds)
		}
		for _, kind := range want {
			require.Positive(t, kinds[kind], "the store of the test has no key of kind %c", kind)
		}
	})
}

func TestCheckOnDiskChangesNothing(t *testing.T) {
	dir := t.TempDir()
	files := tree(t, filledStore(t), "node")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := dir + "/" + name
		if files[name] == nil {
			require.NoError(t, vfs.Default.MkdirAll(path, 0o755))
		} else if !strings.HasSuffix(name, "/LOCK") { // nor are lock files made
			write(t, vfs.Default, path, files[name])
		}
	}
	before := tree(t, vfs.Default, dir)
	list, err := store.Check(vfs.Default, dir+"/"+storeDir, store.CheckOptions{
		DeriveLimit: 1 << 30, Found: func(f store.Finding) { t.Error(f) },
	})
	require.NoError(t, err)
	require.True(t, list[0].Derived)
	require.Equal(t, before, tree(t, vfs.Default, dir))
}

func TestCheckRefusesWhatIsInUseOrNotThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewMem()
		s := openStore(t, mem)
		_, err := store.Check(mem, storeDir, store.CheckOptions{})
		require.ErrorContains(t, err, "stop the server first")
		require.NoError(t, s.Close())
	})
	_, err := store.Check(vfs.NewMem(), storeDir, store.CheckOptions{})
	require.ErrorContains(t, err, storeDir)
}

// eachKey calls fn for every key of the views.
func eachKey(t *testing.T, fs vfs.FS, fn func(key, val []byte)) {
	t.Helper()
	db, err := shard.ReadViews(fs, storeDir+"/shards/"+shardName)
	require.NoError(t, err)
	it, err := db.NewIter(nil)
	require.NoError(t, err)
	for ok := it.First(); ok; ok = it.Next() {
		fn(bytes.Clone(it.Key()), bytes.Clone(it.Value()))
	}
	require.NoError(t, errors.Join(it.Close(), db.Close()))
}

// edited returns a copy of files whose views were changed behind the shard's back.
func edited(t *testing.T, files map[string][]byte, edit func(b *pebble.Batch)) *vfs.MemFS {
	t.Helper()
	mem := copyOf(t, files)
	db, err := pebble.Open(viewsDir, &pebble.Options{
		FS: mem, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}, DisableAutomaticCompactions: true,
	})
	require.NoError(t, err)
	b := db.NewBatch()
	edit(b)
	require.NoError(t, b.Commit(pebble.NoSync))
	require.NoError(t, errors.Join(db.Flush(), db.Close()))
	return mem
}

type quiet struct{}

func (quiet) Infof(string, ...any)         {}
func (quiet) Errorf(string, ...any)        {}
func (quiet) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

// onlyDerived are the keys that nothing but the whole log knows to be missing. A
// dead-letter command may have been refused, so its copy need not be there. The due
// key of a lease whose topic was deleted or purged has no record. A group that has set
// offsets may have started since.
func onlyDerived(key []byte) bool {
	if ref, err := keyspace.DecodeLeaseKey(key); err == nil && ref.Group == 4 {
		return true // those that are parked are in no index
	}
	if _, ref, err := keyspace.DecodeDueKey(key); err == nil && (ref.Topic == 2 || ref.Topic == 4 || ref.Group == 3) {
		return true
	}
	if id, _, err := keyspace.DecodeEntryKey(key); err == nil && id.Topic > 100 {
		return true
	}
	switch keyspace.KindOf(key) {
	case keyspace.KindGone, keyspace.KindProgress, keyspace.KindUnstarted, keyspace.KindPlacement:
		return true
	case keyspace.KindEnds: // of a queue that is empty
		return true
	}
	return false
}

func TestCheckFindsEveryMissingKey(t *testing.T) {
	stores(t, func(t *testing.T, mem *vfs.MemFS, trimmed bool) {
		files := tree(t, mem, "node")
		last := map[keyspace.Kind][]byte{}
		n := 0
		eachKey(t, mem, func(key, _ []byte) {
			n++
			kind := keyspace.KindOf(key)
			if kind == keyspace.KindEntry && n%13 != 0 {
				return // there are many
			}
			last[kind] = key
			lacks := edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Delete(key, nil)) })
			found, sum := check(t, lacks, true)
			require.NotEmpty(t, found, "key %x", key)
			if kind != keyspace.KindState {
				require.True(t, sum.Derived, sum.NotDerived)
				require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool {
					return f.Key == fmt.Sprintf("%x", key) && strings.Contains(f.Problem, "the log gives it")
				}), "key %x: %v", key, found)
			}
			if found, _ = check(t, lacks, false); !onlyDerived(key) {
				require.NotEmpty(t, found, "key %x, without deriving", key)
			}
		})
		require.GreaterOrEqual(t, len(last), 10) // used-up messages are moved as soon as they are
	})
}

func TestCheckFindsEveryKeyTooMany(t *testing.T) {
	files := tree(t, filledStore(t), "node")
	ref := keyspace.Ref{Sub: keyspace.Sub{Group: 1, Topic: 1}, Queue: 2, Offset: 1}
	sub := keyspace.Sub{Group: 9, Topic: 1}
	for what, key := range map[string][]byte{
		"entry behind the end":      keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 1, Queue: 1}, 1000),
		"entry of no topic":         keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 7, Queue: 0}, 0),
		"entry of no queue":         keyspace.AppendEntryKey(nil, keyspace.Queue{Topic: 1, Queue: 70}, 0),
		"due without a lease":       keyspace.AppendDueKey(nil, 12345, ref),
		"ready without a lease":     keyspace.AppendReadyKey(nil, ref.Sub, 1),
		"ready beyond the sequence": keyspace.AppendReadyKey(nil, ref.Sub, 1<<40),
		"by priority, no lease":     keyspace.AppendPriorityKey(nil, ref.Sub, 1, 1),
		"turn of no group":          keyspace.AppendTurnKey(nil, sub),
		"turn of any order":         keyspace.AppendTurnKey(nil, ref.Sub),
		"short priority key":        []byte("or12"),
		"used up without a lease":   keyspace.AppendUsedUpKey(nil, ref),
		"lease of no group":         keyspace.AppendLeaseKey(nil, keyspace.Ref{Sub: sub, Queue: 0, Offset: 0}),
		"progress of no group":      keyspace.AppendProgressKey(nil, sub, 0),
		"progress in no queue":      keyspace.AppendProgressKey(nil, ref.Sub, 77),
		"subscription of no group":  keyspace.AppendSubKey(nil, sub),
		"deleted and registered":    keyspace.AppendGoneTopicKey(nil, 1),
		"topic unheard of":          keyspace.AppendTopicKey(nil, 50),
		"group unheard of":          keyspace.AppendGroupKey(nil, 50),
		"unknown prefix":            []byte("z"),
		"longer state key":          append(keyspace.StateKey(), 'x'),
		"short lease key":           []byte("l12"),
		"short gone key":            []byte("nt"),
	} {
		t.Run(what, func(t *testing.T) {
			more := edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Set(key, []byte{1, 2, 3}, nil)) })
			for _, derive := range []bool{true, false} {
				found, _ := check(t, more, derive)
				require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool { return f.Key == fmt.Sprintf("%x", key) }),
					"deriving %t: %v", derive, found)
			}
		})
	}
}

func TestCheckFindsEveryChangedValue(t *testing.T) {
	stores(t, func(t *testing.T, mem *vfs.MemFS, trimmed bool) {
		files := tree(t, mem, "node")
		n, step := 0, 17
		if testing.Short() {
			step = 97
		}
		eachKey(t, mem, func(key, val []byte) {
			for i := range val {
				if n++; n%step != 0 {
					continue
				}
				changed := edited(t, files, func(b *pebble.Batch) {
					val[i] ^= 1
					require.NoError(t, b.Set(key, val, nil))
					val[i] ^= 1
				})
				found, sum := check(t, changed, true)
				require.NotEmpty(t, found, "byte %d of the value of %x", i, key)
				require.LessOrEqual(t, uint64(len(found)), sum.Findings)
			}
		})
		require.Greater(t, n, 1000)
	})
}

// Without deriving, the entries are still compared with the messages.
func TestCheckComparesEntriesWithTheirMessages(t *testing.T) {
	mem := filledStore(t)
	files := tree(t, mem, "node")
	id := keyspace.Queue{Topic: 1, Queue: 1}
	key := keyspace.AppendEntryKey(nil, id, 3)
	var e keyspace.Entry
	eachKey(t, mem, func(k, val []byte) {
		if bytes.Equal(k, key) {
			var err error
			e, err = keyspace.DecodeEntry(val)
			require.NoError(t, err)
		}
	})
	for what, change := range map[string]func(e *keyspace.Entry){
		"size":     func(e *keyspace.Entry) { e.Size-- },
		"time":     func(e *keyspace.Entry) { e.StoreTime++ },
		"tag":      func(e *keyspace.Entry) { e.Tag = []byte("blue") },
		"group":    func(e *keyspace.Entry) { e.Group++ },
		"position": func(e *keyspace.Entry) { e.Pos++ },
	} {
		wrong := e
		change(&wrong)
		changed := edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Set(key, keyspace.AppendEntry(nil, &wrong), nil)) })
		found, _ := check(t, changed, false)
		require.NotEmpty(t, found, what)
		require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool { return f.Key == fmt.Sprintf("%x", key) }), "%s: %v", what, found)
	}
}

func TestCheckNamesEachDamagedPlaceOfTheLogAndGoesOn(t *testing.T) {
	mem := filledStore(t)
	files := tree(t, mem, "node")
	var segments []string
	for name := range files {
		if strings.HasPrefix(name, logDir+"/") && strings.HasSuffix(name, ".log") {
			segments = append(segments, name)
		}
	}
	slices.Sort(segments)
	damaged := maps.Clone(files)
	for _, name := range segments[:2] {
		b := bytes.Clone(files[name])
		b[len(b)/2] ^= 1
		damaged[name] = b
	}
	found, sum := check(t, copyOf(t, damaged), true)
	var named []string
	for _, f := range found {
		if f.Offset > 0 {
			named = append(named, f.File)
		}
	}
	require.Equal(t, segments[:2], named)
	require.Equal(t, "the log is damaged", sum.NotDerived)
	// The entries of the messages that cannot be read point nowhere.
	require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool { return strings.Contains(f.Problem, "there is no message of it") }))

	for what, spoil := range map[string]func(m map[string][]byte){
		"last segment gone":   func(m map[string][]byte) { delete(m, segments[len(segments)-1]) },
		"first segment gone":  func(m map[string][]byte) { delete(m, segments[0]) },
		"second segment gone": func(m map[string][]byte) { delete(m, segments[1]) },
		"log gone": func(m map[string][]byte) {
			maps.DeleteFunc(m, func(name string, _ []byte) bool { return strings.HasPrefix(name, logDir) })
		},
	} {
		lacks := maps.Clone(files)
		spoil(lacks)
		found, sum := check(t, copyOf(t, lacks), true)
		require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool { return strings.HasPrefix(f.File, logDir) }), what)
		require.False(t, sum.Derived, what)
	}
}

func TestCheckNamesDamagedTablesAndStillChecksTheLog(t *testing.T) {
	files := tree(t, filledStore(t), "node")
	tables := 0
	for name, b := range files {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		tables++
		for at := 0; at < len(b); at += len(b)/9 + 1 {
			damaged := maps.Clone(files)
			damaged[name] = bytes.Clone(b)
			damaged[name][at] ^= 1
			found, sum := check(t, copyOf(t, damaged), true)
			require.NotEmpty(t, found, "byte %d of %s", at, name)
			require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool {
				return f.File == name || strings.Contains(f.Problem, name[strings.LastIndexByte(name, '/')+1:])
			}), "byte %d of %s: %v", at, name, found)
			require.Positive(t, sum.Log.Records)
		}
	}
	require.Positive(t, tables)
}

func TestCheckOfAStoreWithoutViewsChecksTheLog(t *testing.T) {
	files := tree(t, filledStore(t), "node")
	maps.DeleteFunc(files, func(name string, _ []byte) bool { return strings.HasPrefix(name, viewsDir) })
	found, sum := check(t, copyOf(t, files), true)
	require.Empty(t, found)
	require.Positive(t, sum.Log.Records)
	require.Contains(t, sum.NotDerived, "next start derives them")
}

// The base is what the views of a trimmed log are rebuilt from, and compared with.
func TestCheckNamesAMissingOrDamagedBase(t *testing.T) {
	files := tree(t, filledStore(t, shard.Retention{Age: 2 * time.Hour}), "node")
	var base string
	for name, b := range files {
		if b == nil && strings.Contains(name, "views.base-") {
			base = name
		}
	}
	require.NotEmpty(t, base)
	lacks := maps.Clone(files)
	maps.DeleteFunc(lacks, func(name string, _ []byte) bool { return strings.HasPrefix(name, base) })
	found, sum := check(t, copyOf(t, lacks), true)
	require.Len(t, found, 1)
	require.Contains(t, found[0].Problem, "there is no base of the views")
	require.False(t, sum.Derived)

	for name, b := range files {
		if !strings.HasPrefix(name, base) || !strings.HasSuffix(name, ".sst") {
			continue
		}
		damaged := maps.Clone(files)
		damaged[name] = bytes.Clone(b)
		damaged[name][len(b)/3] ^= 1
		found, sum := check(t, copyOf(t, damaged), true)
		require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool { return f.File == name }), "%v", found)
		require.False(t, sum.Derived)
	}

	// Without the views the log alone would not do.
	maps.DeleteFunc(files, func(name string, _ []byte) bool { return strings.HasPrefix(name, viewsDir+"/") || name == viewsDir })
	found, sum = check(t, copyOf(t, files), true)
	require.True(t, slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.File == viewsDir && strings.Contains(f.Problem, "restore-views")
	}), "%v", found)
	require.NotContains(t, sum.NotDerived, "next start derives them")
}

func TestCheckTellsManyFindingsOfAKindOnce(t *testing.T) {
	mem := filledStore(t)
	files := tree(t, mem, "node")
	many := edited(t, files, func(b *pebble.Batch) {
		for i := range 300 {
			require.NoError(t, b.Set(fmt.Appendf(nil, "z%03d", i), nil, nil))
		}
	})
	found, sum := check(t, many, false)
	require.Len(t, found, 11)
	require.Contains(t, found[10].Problem, "and 290 more of this kind")
	require.True(t, sum.Restorable)
	require.False(t, sum.LogDamaged)
	require.Equal(t, uint64(300), sum.Findings)
}

// A transaction has traces in the views and in the log, in whatever state it is.
func TestCheckKnowsTransactions(t *testing.T) {
	mem := vfs.NewMem()
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(store.Options{
			FS: mem, Dir: storeDir, Shards: []string{shardName}, SegmentSize: 8 << 10, ZeroFill: -1, CacheSize: 1 << 20,
			Transactions: shard.Transactions{MaxChecks: 1},
		})
		require.NoError(t, err)
		defer s.Close()
		ctx, orders, asked := context.Background(), topicOf(1, 2), topicOf(2, 1)
		half := func(topic *mq.Topic, id string) mq.PendingHandle {
			a, err := s.Append(ctx, shardName, topic, 0, []*mq.Message{{ID: id, Type: mq.Transaction, Body: []byte("body")}})
			require.NoError(t, err)
			return mq.PendingHandle{Shard: shardName, Topic: topic.ID, ID: a[0].Pending, MessageID: id}
		}
		require.NoError(t, s.EndTransaction(ctx, half(orders, "committed"), true))
		require.NoError(t, s.EndTransaction(ctx, half(orders, "rolled back"), false))
		half(orders, "half")
		for _, id := range []string{"given up", "asked"} {
			half(asked, id)
			checks, err := s.Checks(ctx, []mq.Resource{asked.Resource}, 1)
			require.NoError(t, err)
			require.Len(t, checks, 1)
			time.Sleep(25 * time.Second)
		}
		require.Equal(t, int64(1), s.Stats()[shardName].GivenUp)
		require.NoError(t, s.Close())
	})
	for _, derive := range []bool{false, true} {
		found, _ := check(t, mem, derive)
		require.Empty(t, found)
	}
	files := tree(t, mem, storeDir)
	states := map[keyspace.PendingState]bool{}
	eachKey(t, mem, func(key, val []byte) {
		if keyspace.KindOf(key) != keyspace.KindPending {
			return
		}
		p, err := keyspace.DecodePending(val)
		require.NoError(t, err)
		states[p.State] = true
		p.Checks++
		found, _ := check(t, edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Set(key, keyspace.AppendPending(nil, &p), nil)) }), true)
		require.NotEmpty(t, found, "another number of questions, %s", p.State)
		p.Checks--
		if p.State = keyspace.Half + keyspace.Committed - p.State; p.State != keyspace.Half && p.State != keyspace.Committed {
			return
		}
		found, _ = check(t, edited(t, files, func(b *pebble.Batch) { require.NoError(t, b.Set(key, keyspace.AppendPending(nil, &p), nil)) }), false)
		require.NotEmpty(t, found, "another state, %s", p.State)
	})
	require.Len(t, states, 5)
}
