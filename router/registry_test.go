package router

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
)

func storeNode(name string, shards ...string) Node {
	return Node{Name: name, Tier: TierStore, Address: name + ":8083", Shards: shards, Identity: "of " + name}
}

func namesOf(n *Nodes) []string {
	names := []string{}
	for _, node := range n.List {
		names = append(names, node.Name)
	}
	return names
}

// inBubble runs f with a registry in fake time.
func inBubble(t *testing.T, f func(t *testing.T, r *Registry)) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry(RegistryOptions{})
		defer r.Close()
		f(t, r)
	})
}

func TestANodeLivesForALeaseBehindItsLastHeartbeat(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Registry) {
		a, err := r.Register(storeNode("a", "s1"))
		require.NoError(t, err)
		_, err = r.Register(storeNode("b", "s2"))
		require.NoError(t, err)
		time.Sleep(DefaultLease - 1)
		synctest.Wait()
		require.Equal(t, []string{"a", "b"}, namesOf(r.Nodes()))
		require.True(t, a.Heartbeat())
		known := r.Nodes()
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, []string{"a"}, namesOf(r.Nodes()))
		select {
		case <-known.Superseded():
		default:
			t.Fatal("nobody was told")
		}
		time.Sleep(DefaultLease)
		synctest.Wait()
		require.Empty(t, r.Nodes().List)
		require.False(t, a.Heartbeat(), "it has to register again")
		_, err = r.Register(storeNode("a", "s1"))
		require.NoError(t, err)
	})
}

func TestANodeThatLeavesIsGoneAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Registry) {
		a, err := r.Register(storeNode("a", "s1"))
		require.NoError(t, err)
		a.Leave()
		require.Empty(t, r.Nodes().List)
		_, err = r.Register(storeNode("b", "s1"))
		require.NoError(t, err)
		a.Leave() // what is said late changes nothing
		require.Equal(t, []string{"b"}, namesOf(r.Nodes()))
	})
}

func TestANameOrShardOfALivingNodeIsRefusedInWords(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Registry) {
		_, err := r.Register(storeNode("a", "s1", "s2"))
		require.NoError(t, err)
		before := r.Nodes()

		other := storeNode("a", "s3")
		other.Identity = "another"
		_, err = r.Register(other)
		require.ErrorIs(t, err, mq.ErrInvalid)
		require.EqualError(t, err, `name "a": is that of another node, store a at a:8083, which is alive`)
		_, err = r.Register(storeNode("b", "s4", "s2"))
		require.EqualError(t, err, `shard "s2": is that of another node, store a at a:8083, which is alive`)
		require.Same(t, before, r.Nodes(), "a refusal changes nothing")

		time.Sleep(DefaultLease)
		_, err = r.Register(storeNode("b", "s4", "s2"))
		require.NoError(t, err, "the former is gone")
		require.Equal(t, []string{"b"}, namesOf(r.Nodes()))
	})
}

func TestTheSameNodeTakesItsOwnPlaceAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Registry) {
		before, err := r.Register(storeNode("a", "s1"))
		require.NoError(t, err)
		renamed := storeNode("a2", "s1")
		renamed.Identity = "of a"
		_, err = r.Register(renamed)
		require.NoError(t, err)
		require.Equal(t, []string{"a2"}, namesOf(r.Nodes()))
		require.False(t, before.Heartbeat())
		before.Leave()
		require.Equal(t, []string{"a2"}, namesOf(r.Nodes()))

		earlier := renamed
		earlier.Started = time.Now().Add(-time.Hour)
		later := renamed
		later.Started = time.Now()
		_, err = r.Register(later)
		require.NoError(t, err)
		_, err = r.Register(earlier)
		require.ErrorIs(t, err, mq.ErrInvalid, "a process over a copy of the directory does not come back")

		nameless := Node{Name: "p", Tier: TierProxy}
		_, err = r.Register(nameless)
		require.NoError(t, err)
		_, err = r.Register(nameless)
		require.ErrorIs(t, err, mq.ErrInvalid, "without an identity nobody is the same")
	})
}

func TestARegistrySettlesAfterALease(t *testing.T) {
	inBubble(t, func(t *testing.T, r *Registry) {
		first := r.Nodes()
		require.False(t, first.Settled)
		<-first.Superseded()
		require.True(t, r.Nodes().Settled)
	})
}

func TestWhatANodeSaysIsChecked(t *testing.T) {
	r := NewRegistry(RegistryOptions{})
	defer r.Close()
	long := string(make([]byte, 256))
	for field, node := range map[string]Node{
		"name":    {Tier: TierProxy},
		"tier":    {Name: "a"},
		"address": {Name: "a", Tier: TierStore, Shards: []string{"s"}},
		"shards":  {Name: "a", Tier: TierProxy, Shards: []string{"s"}},
		"shard":   {Name: "a", Tier: TierStore, Address: "x:1", Shards: []string{"a b"}},
		"version": {Name: "a", Tier: TierProxy, Version: long},
	} {
		_, err := r.Register(node)
		var in *mq.InvalidError
		require.ErrorAs(t, err, &in, field)
		require.Equal(t, field, in.Field)
	}
	for _, address := range []string{"", "x", ":8083", "0.0.0.0:8083", "[::]:8083", "x:0", "x:65536", "x:http", "dns:///x:1", long + ":1"} {
		_, err := r.Register(Node{Name: "a", Tier: TierStore, Address: address, Shards: []string{"s"}})
		require.ErrorContains(t, err, "at which others reach the node", address)
	}
	for _, shards := range [][]string{nil, {"s", "s"}, make([]string, maxNodeShards+1)} {
		_, err := r.Register(Node{Name: "a", Tier: TierStore, Address: "x:1", Shards: shards})
		require.ErrorIs(t, err, mq.ErrInvalid)
	}
	require.Empty(t, r.Nodes().List)
	r.Close()
	_, err := r.Register(storeNode("a", "s"))
	require.ErrorIs(t, err, mq.ErrStopped)
}

// TestTheRegistryBehavesLikeAPlainModel: of every name and shard there is at most one
// node, and who lives follows from registrations, heartbeats and time alone.
func TestTheRegistryBehavesLikeAPlainModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.IntRange(0, 999), 1, 60).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			r := NewRegistry(RegistryOptions{})
			defer r.Close()
			type lived struct {
				node  Node
				reg   *Registration
				until time.Time
			}
			model := map[string]*lived{}
			for _, step := range steps {
				now := time.Now()
				for name, l := range model {
					if !now.Before(l.until) {
						delete(model, name)
					}
				}
				name := fmt.Sprint("n", step/10%3)
				switch step % 10 {
				case 0, 1, 2, 3:
					node := storeNode(name, fmt.Sprint("s", step/100%3))
					node.Identity = fmt.Sprint("i", step/30%4)
					want, replaced := true, []string{}
					for other, l := range model {
						if other == name || l.node.Shards[0] == node.Shards[0] {
							want = want && l.node.Identity == node.Identity
							replaced = append(replaced, other)
						}
					}
					reg, err := r.Register(node)
					require.Equal(t, want, err == nil, "%v", err)
					if want {
						for _, other := range replaced {
							delete(model, other)
						}
						model[name] = &lived{node, reg, now.Add(DefaultLease)}
					}
				case 4, 5:
					if l := model[name]; l != nil {
						require.True(t, l.reg.Heartbeat())
						l.until = now.Add(DefaultLease)
					}
				case 6:
					if l := model[name]; l != nil {
						l.reg.Leave()
						delete(model, name)
					}
				default:
					time.Sleep(time.Duration(step) * time.Millisecond * 10)
					synctest.Wait()
					continue
				}
				got := map[string]Node{}
				for _, node := range r.Nodes().List {
					got[node.Name] = node
				}
				want := map[string]Node{}
				for name, l := range model {
					want[name] = l.node
				}
				require.Equal(t, want, got)
			}
		})
	})
}
