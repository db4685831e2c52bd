package store

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
)

func leaseAt(i int) mq.Lease {
	return mq.Lease{Shard: "s", Topic: 1, Group: 1, Offset: mq.QueueOffset(i), PopID: mq.PopID(i), AutoRenew: true}
}

// holding100 returns holders with so many leases of 100 clients.
func holding100(n int) *holders {
	h := newHolders()
	for i := range n {
		h.renewed(&mq.LeaseChange{Lease: leaseAt(i), Reason: mq.Renew, Invisible: time.Minute, Keeper: 1, Holder: fmt.Sprint(i % 100)})
	}
	return h
}

// TestHoldersKeepTheirListsWhateverComes compares them with a plain list after random changes.
func TestHoldersKeepTheirListsWhateverComes(t *testing.T) {
	h := newHolders()
	type one struct {
		client   string
		orphaned bool
	}
	plain := map[mq.Lease]one{}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		l, client := leaseAt(rnd.IntN(50)), fmt.Sprint(rnd.IntN(5))
		switch rnd.IntN(4) {
		case 0:
			h.drop(l)
			delete(plain, l)
		case 1:
			claimed := h.claim(&mq.Adoption{Clients: []string{client}, Keeper: 1, Invisible: time.Hour}, 100)
			for _, c := range claimed {
				require.Equal(t, one{client, true}, plain[c.Lease])
				plain[c.Lease] = one{client, false}
			}
			for l, is := range plain {
				require.False(t, is.client == client && is.orphaned, l)
			}
		default:
			orphaned := rnd.IntN(2) == 0
			h.renewed(&mq.LeaseChange{Lease: l, Reason: mq.Renew, Invisible: time.Hour, Keeper: 1, Holder: client, Orphaned: orphaned})
			plain[l] = one{client, orphaned}
		}
		want := map[string]bool{}
		for _, is := range plain {
			if is.orphaned {
				want[is.client] = true
			}
		}
		clients := h.orphans(1000)
		require.Len(t, clients, len(want))
		for _, client := range clients {
			require.True(t, want[client])
		}
		require.EqualValues(t, len(plain), h.count.Load())
		require.Len(t, h.mu.due, len(plain))
		listed := 0
		for client, e := range h.mu.clients {
			require.Nil(t, e.prev)
			for ; e != nil; e = e.next {
				require.Equal(t, client, e.client)
				listed++
			}
		}
		require.Equal(t, len(plain), listed)
	}
}

func TestAnAnswerAboutOrphansIsBounded(t *testing.T) {
	h := newHolders()
	for i := range 100 {
		h.renewed(&mq.LeaseChange{Lease: leaseAt(i), Reason: mq.Renew, Invisible: time.Hour, Keeper: 1, Holder: fmt.Sprintf("%010d", i), Orphaned: true})
	}
	require.Len(t, h.orphans(155), 15)
}

// BenchmarkSettled is what an acknowledgement costs beside what is remembered.
func BenchmarkSettled(b *testing.B) {
	for _, n := range []int{0, 1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := &Store{holders: holding100(n)}
			leases, results := []mq.Lease{leaseAt(n + 1)}, []error{nil}
			for b.Loop() {
				s.settled(leases, results)
			}
		})
	}
}

// BenchmarkRenewed is what a renewal costs.
func BenchmarkRenewed(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := holding100(n)
			i := 0
			for b.Loop() {
				h.renewed(&mq.LeaseChange{Lease: leaseAt(i % n), Reason: mq.Renew, Invisible: time.Minute, Keeper: 1, Holder: fmt.Sprint(i % n % 100)})
				i++
			}
		})
	}
}

// BenchmarkOrphans is what the question of a proxy costs while there are none, and while all are.
func BenchmarkOrphans(b *testing.B) {
	for _, all := range []bool{false, true} {
		b.Run(fmt.Sprintf("100000 leases, orphans %t", all), func(b *testing.B) {
			h := holding100(100_000)
			for _, e := range h.mu.due {
				if all {
					e.due = 0
				}
			}
			for b.Loop() {
				h.orphans(maxOrphans)
			}
		})
	}
}
