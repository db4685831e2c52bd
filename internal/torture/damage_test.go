//go:build !race

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/faultfs"
	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/internal/torture/table"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// A damage is one change of one file, or the loss of one file or directory.
type damage struct {
	file string
	what string
	do   func(b []byte) []byte // nil: it is deleted
}

func (d damage) String() string { return d.what + " of " + d.file }

// files returns every file below dir, and every directory as nil.
func files(t *testing.T, fs vfs.FS, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{dir: nil}
	names, err := fs.List(dir)
	require.NoError(t, err)
	for _, name := range names {
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		require.NoError(t, err)
		if info.IsDir() {
			maps.Copy(all, files(t, fs, path))
			continue
		}
		f, err := fs.Open(path)
		require.NoError(t, err)
		b, err := io.ReadAll(f)
		require.NoError(t, errors.Join(err, f.Close()))
		all[path] = append([]byte{}, b...)
	}
	return all
}

// diskWith returns a disk with the files, all of them durable.
func diskWith(t *testing.T, all map[string][]byte) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewMem()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if all[name] == nil {
			require.NoError(t, mem.MkdirAll(name, 0o755))
			continue
		}
		f, err := mem.Create(name, vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		_, err = f.Write(bytes.Clone(all[name]))
		require.NoError(t, errors.Join(err, f.Close()))
	}
	return mem
}

// damages returns what to do to each file: all of it, in so far as it is small, or
// what the seed chooses.
func damages(all map[string][]byte, rng *rand.Rand, whole bool) []damage {
	var list []damage
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, damage{file: name, what: "loss"})
		b := all[name]
		if b == nil {
			continue
		}
		used := len(bytes.TrimRight(b, "\x00")) // the rest was zero-filled
		for _, n := range []int{0, 1, used / 3, used / 2, used - 1, used, len(b) - 1} {
			if n >= 0 && n < len(b) {
				list = append(list, damage{name, fmt.Sprintf("cut at %d", n), func(b []byte) []byte { return b[:n] }})
			}
		}
		if used == 0 {
			continue
		}
		list = append(list, damage{name, "zeros in all", func(b []byte) []byte { return make([]byte, len(b)) }})
		for range 4 {
			from := rng.IntN(used)
			to := min(from+1+rng.IntN(600), len(b))
			list = append(list, damage{name, fmt.Sprintf("zeros from %d to %d", from, to), func(b []byte) []byte {
				clear(b[from:to])
				return b
			}})
		}
		flip := func(at int) {
			bit := byte(1) << rng.IntN(8)
			list = append(list, damage{name, fmt.Sprintf("bit %#x of byte %d", bit, at), func(b []byte) []byte {
				b[at] ^= bit
				return b
			}})
		}
		if whole && used <= 4<<10 {
			for at := range used {
				flip(at)
			}
			continue
		}
		n := 10
		if whole {
			n = 400
		}
		for range n {
			flip(rng.IntN(used))
		}
	}
	return list
}

// outcome is what came of a damage.
type outcome int

const (
	served   outcome = iota // everything as it was
	refused                 // the start was refused, by name
	readOnly                // a read was refused, by name
)

func (o outcome) String() string {
	return [...]string{"the same content was served", "the start was refused", "a read was refused"}[o]
}

// With the race detector Pebble checks its invariants and panics where it would return
// an error, so this test is not for it.

// TestDamageOfAnyFileIsNamedOrHarmless damages every kind of file that a node has, in
// all ways. What must come of it: the same content is served, or the start or a read is
// refused with an error that names the file or its directory, nothing is deleted, and
// the check finds it too. Never are there fewer messages without a word.
//
// With PERIGEE_DAMAGE=all it tries every byte of small files, else a sample chosen by
// PERIGEE_SEED.
func TestDamageOfAnyFileIsNamedOrHarmless(t *testing.T) {
	seed := number(t, "PERIGEE_SEED", rand.Uint64N(1<<40))
	whole := os.Getenv("PERIGEE_DAMAGE") == "all"
	tried := 0
	for end, fill := range map[string]func(t *testing.T) *filled{
		"closed":  func(t *testing.T) *filled { return filledNode(t, false) },
		"killed":  func(t *testing.T) *filled { return filledNode(t, true) },
		"trimmed": trimmedNode,
	} {
		t.Run(end, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			node := fill(t)
			all := node.files
			list := damages(all, rng, whole)
			n := len(list)
			if !whole {
				rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				sample := 250
				if testing.Short() {
					sample = 60
				}
				list = list[:min(sample, n)]
			}
			t.Logf("PERIGEE_SEED=%d, %d of %d damages of %d files", seed, len(list), n, len(all))
			var mu sync.Mutex
			outcomes := map[outcome]int{}
			tried += len(list)
			inParallel(t, len(list), func(t *testing.T, i int) {
				o := tryDamage(t, node, list[i])
				mu.Lock()
				defer mu.Unlock()
				outcomes[o]++
			})
			for _, o := range []outcome{served, refused, readOnly} {
				t.Logf("%s: %d", o, outcomes[o])
			}
		})
	}
	require.NoError(t, table.Add(table.Cell{Column: "simulated, sync", Row: "faults: damaged files", Value: fmt.Sprint(tried)}))
}

// filled is what a node has left behind.
type filled struct {
	files map[string][]byte
	end   time.Time
	// serve opens what is on a disk, reads everything and compares it with what there
	// was. The error is a refusal, or says how the two differ.
	serve func(fs vfs.FS) (outcome, error)
}

// filledNode returns the files that a story has left that has run to its end: when
// everything was closed, or else those of a kill at the end of the second half.
func filledNode(t *testing.T, killed bool) *filled {
	var c *story
	var all map[string][]byte
	bubble(t, t.Name(), func(t *testing.T) {
		mem := vfs.NewMem()
		c = newStory(settings{flush: shard.FlushSync, segment: 8 << 10, fill: 4 << 10})
		if killed {
			c.atEnd = func() { all = files(t, mem, "node") }
		}
		require.NoError(t, c.run(faultfs.New(mem)))
		if !killed {
			all = files(t, mem, "node")
		}
	})
	return &filled{files: all, end: c.end(), serve: c.serve}
}

func tryDamage(t *testing.T, node *filled, d damage) (o outcome) {
	all := node.files
	bubble(t, t.Name(), func(t *testing.T) {
		damaged := maps.Clone(all)
		if d.do != nil {
			damaged[d.file] = d.do(bytes.Clone(all[d.file]))
		} else {
			maps.DeleteFunc(damaged, func(name string, _ []byte) bool {
				return name == d.file || strings.HasPrefix(name, d.file+"/")
			})
		}
		if len(damaged) == 0 {
			return // without any file it is a new node
		}
		disk := diskWith(t, damaged)
		checked := nodeFindings(disk)
		require.Equal(t, damaged, files(t, disk, "node"), "%s: the check has changed something", d)

		time.Sleep(time.Until(node.end)) // time goes on from where the story ended
		var err error
		o, err = node.serve(disk)
		if err != nil {
			named := d.file
			if all[d.file] != nil || strings.HasPrefix(d.file, storeDir+"/shards") {
				named = d.file[:strings.LastIndexByte(d.file, '/')]
			}
			require.ErrorContains(t, err, named, d)
			require.NotEmpty(t, checked, "%s: %v, and the check finds nothing", d, err)
			after := files(t, disk, "node")
			for name, b := range damaged {
				switch {
				case strings.HasSuffix(name, "/SYNCED"): // it may have been brought up to date
				case strings.Contains(name, "/log/") && o == readOnly:
					require.GreaterOrEqual(t, len(after[name]), len(b), "%s: %s is gone or cut after %v", d, name, err)
				case strings.Contains(name, "/log/"), strings.HasPrefix(name, metadataDir) && strings.HasPrefix(d.file, metadataDir):
					require.Equal(t, b, after[name], "%s: %s is gone or changed after %v", d, name, err)
				}
			}
		}
	})
	return o
}

// serve opens what is on the disk, reads everything, and compares it with what the
// story knows. The error is a refusal; other differences are in its ledger and fail
// the test there.
func (c *story) serve(fs vfs.FS) (outcome, error) {
	v := &story{settings: c.settings, ctx: context.Background(), ledger: c.ledger.copy(), topic: c.topic, readers: c.readers}
	v.onFailure = nil
	v.ledger.ends(false, time.Now())
	v.life = v.ledger.now()
	var err error
	if v.router, err = openRouter(fs, nil); err != nil {
		return refused, err
	}
	defer func() { _ = v.router.Close() }()
	if err := node.CheckPlaced(fs, storeDir, v.router, shardName); err != nil {
		return refused, err
	}
	if v.store, err = openStore(fs, v.settings); err != nil {
		return refused, err
	}
	defer func() { _ = v.store.Close() }()
	if err := v.reconcile(); err != nil {
		return refused, err
	}
	if describe(v.router) != c.states[len(c.states)-1] {
		return served, fmt.Errorf("BUG: the metadata is\n%sand was\n%s", describe(v.router), c.states[len(c.states)-1])
	}
	if err := drain(v.ctx, v.store, v.ledger, []*mq.Topic{v.topic}, nil, []consumers{{Group: v.readers}}); err != nil {
		return readOnly, err
	}
	if len(v.ledger.faults) > 0 {
		return served, fmt.Errorf("BUG: %s", strings.Join(v.ledger.faults, "; "))
	}
	return served, nil
}
