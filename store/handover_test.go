package store_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store"
)

// A keptScene is a store with messages that a proxy has received and renews.
type keptScene struct {
	*store.Store
	t     *testing.T
	fs    vfs.FS
	topic *mq.Topic
	group *mq.Group
	held  []mq.Lease
}

const slice = time.Minute

func keep(t *testing.T, n int) *keptScene {
	s := &keptScene{t: t, fs: vfs.NewMem()}
	s.open()
	s.topic = &mq.Topic{ID: 1, Resource: mq.Resource{Name: "t"}, Version: 1, Shards: []mq.ShardQueues{{Shard: "s", Read: 1, Write: 1}}}
	s.group = &mq.Group{ID: 1, Resource: mq.Resource{Name: "g"}, Version: 1, Retry: mq.RetryPolicy{MaxAttempts: 3}}
	s.sendAndReceive(n)
	return s
}

func (s *keptScene) sendAndReceive(n int) {
	var msgs []*mq.Message
	for i := range n {
		msgs = append(msgs, &mq.Message{ID: fmt.Sprint(i), Body: []byte("x")})
	}
	_, err := s.Append(s.t.Context(), "s", s.topic, 0, msgs)
	require.NoError(s.t, err)
	got := s.receive()
	require.Len(s.t, got, n)
	for _, d := range got {
		s.held = append(s.held, d.Lease)
	}
}

func (s *keptScene) open() {
	var err error
	s.Store, err = store.Open(store.Options{FS: s.fs, Dir: "data", Shards: []string{"s"}, SegmentSize: 1 << 20, ZeroFill: 1 << 16})
	require.NoError(s.t, err)
}

func (s *keptScene) close() { require.NoError(s.t, s.Close()) }

func (s *keptScene) receive() []mq.Delivery {
	got, err := s.Receive(s.t.Context(), "s", mq.Receive{Topic: s.topic, Group: s.group, Max: 32, Invisible: slice, AutoRenew: true})
	require.NoError(s.t, err)
	return got
}

// renew renews everything for a client, and returns the first error.
func (s *keptScene) renew(keeper mq.KeeperID, client string, orphaned bool) error {
	return s.change(mq.LeaseChange{Reason: mq.Renew, Invisible: slice, Keeper: keeper, Holder: client, Orphaned: orphaned}, s.held...)
}

func (s *keptScene) change(c mq.LeaseChange, leases ...mq.Lease) error {
	var changes []mq.LeaseChange
	for _, l := range leases {
		c.Lease = l
		changes = append(changes, c)
	}
	for _, err := range s.ChangeInvisible(s.t.Context(), changes) {
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *keptScene) orphans() []string {
	clients, err := s.Orphans(s.t.Context())
	require.NoError(s.t, err)
	return clients
}

func (s *keptScene) adopt(keeper mq.KeeperID, clients ...string) []mq.Adopted {
	adopted, err := s.Adopt(s.t.Context(), mq.Adoption{Clients: clients, Keeper: keeper, Invisible: slice})
	require.NoError(s.t, err)
	return adopted
}

func TestALeaseThatIsNotRenewedInTimeIsAnOrphanForOneProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keep(t, 3)
		defer s.close()
		require.NoError(t, s.renew(1, "c", false))
		time.Sleep(44 * time.Second)
		require.Empty(t, s.orphans())
		require.Empty(t, s.adopt(2, "c"), "it may be in time yet")
		time.Sleep(time.Second)
		require.Equal(t, []string{"c"}, s.orphans())
		require.Empty(t, s.adopt(2, "another one"))
		adopted := s.adopt(2, "c", "c", "d")
		require.Len(t, adopted, 3)
		require.ElementsMatch(t, s.held, []mq.Lease{adopted[0].Lease, adopted[1].Lease, adopted[2].Lease})
		require.Equal(t, "c", adopted[0].Client)
		require.InDelta(t, 45*time.Second, adopted[0].Age, float64(time.Second))
		require.Empty(t, s.orphans())
		require.Empty(t, s.adopt(3, "c"), "another one was faster")
		time.Sleep(44 * time.Second)
		require.Empty(t, s.receive(), "they were renewed")
		time.Sleep(17 * time.Second)
		require.Empty(t, s.orphans(), "they are over")
		require.Len(t, s.receive(), 3)
	})
}

func TestALeaseThatWasTakenOverIsNotChangedByItsFormerProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keep(t, 2)
		defer s.close()
		require.NoError(t, s.renew(1, "c", true))
		require.Len(t, s.adopt(2, "c"), 2, "its proxy has said that it stops")
		for _, c := range []mq.LeaseChange{
			{Reason: mq.Renew, Invisible: slice, Holder: "c"}, {Reason: mq.Renew, Invisible: slice}, {Reason: mq.Extend, Invisible: time.Second}, {Reason: mq.Nack},
		} {
			c.Keeper = 1
			err := s.change(c, s.held...)
			require.ErrorIs(t, err, mq.ErrLeaseEnded)
			require.ErrorContains(t, err, "another proxy renews it")
		}
		mixed := []mq.LeaseChange{
			{Lease: s.held[0], Reason: mq.Extend, Keeper: 1}, {Lease: s.held[1], Reason: mq.Extend, Invisible: time.Second, Keeper: 2},
		}
		errs := s.ChangeInvisible(t.Context(), mixed)
		require.ErrorIs(t, errs[0], mq.ErrLeaseEnded)
		require.NoError(t, errs[1])
		time.Sleep(2 * time.Second)
		require.Len(t, s.receive(), 1)
		require.NoError(t, s.change(mq.LeaseChange{Reason: mq.Nack}, s.held[0]), "a client asks for it")
		require.Len(t, s.receive(), 1)
	})
}

func TestWhatIsOverIsNoOrphan(t *testing.T) {
	for name, end := range map[string]func(s *keptScene) error{
		"acknowledged": func(s *keptScene) error { return s.Ack(s.t.Context(), s.held)[0] },
		"given up": func(s *keptScene) error {
			return s.change(mq.LeaseChange{Reason: mq.Nack, Invisible: slice}, s.held...)
		},
		"let go": func(s *keptScene) error {
			return s.change(mq.LeaseChange{Reason: mq.Extend, Invisible: slice, Keeper: 1}, s.held...)
		},
		"given back": func(s *keptScene) error { return s.change(mq.LeaseChange{Reason: mq.GiveBack}, s.held...) },
		"deleted":    func(s *keptScene) error { return s.DeleteGroup(s.t.Context(), 1) },
		"redelivered": func(s *keptScene) error {
			if err := s.change(mq.LeaseChange{Reason: mq.Extend}, s.held...); err != nil {
				return err
			}
			if len(s.receive()) != 1 {
				return errors.New("not delivered again")
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := keep(t, 1)
				defer s.close()
				require.NoError(t, s.renew(1, "c", false))
				require.NoError(t, end(s))
				time.Sleep(50 * time.Second)
				require.Empty(t, s.adopt(2, "c"))
				require.Empty(t, s.orphans())
			})
		})
	}
}

func TestWhoHoldsALeaseIsKnownAgainWithTheFirstRenewalAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keep(t, 1)
		require.NoError(t, s.renew(1, "c", false))
		s.close()
		s.open()
		defer s.close()
		time.Sleep(50 * time.Second)
		require.Empty(t, s.adopt(2, "c"), "nobody has said it since")
		require.NoError(t, s.renew(1, "c", false))
		time.Sleep(50 * time.Second)
		require.Equal(t, []string{"c"}, s.orphans())
		adopted := s.adopt(2, "c")
		require.Len(t, adopted, 1)
		require.InDelta(t, 100*time.Second, adopted[0].Age, float64(time.Second))
	})
}

func TestManyOrphansAreTakenOverInParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keep(t, 32)
		defer s.close()
		for range 74 {
			s.sendAndReceive(32)
		}
		require.NoError(t, s.renew(1, "c", true))
		for _, want := range []int{1024, 1024, 352, 0} {
			require.Len(t, s.adopt(2, "c"), want)
		}
	})
}

func TestAnAdoptionNeedsAKeeperAndATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := keep(t, 1)
		defer s.close()
		require.NoError(t, s.renew(1, "c", true))
		for _, a := range []mq.Adoption{{Clients: []string{"c"}, Invisible: slice}, {Clients: []string{"c"}, Keeper: 2}, {Clients: []string{"c"}, Keeper: 2, Invisible: -1}} {
			_, err := s.Adopt(t.Context(), a)
			require.ErrorIs(t, err, mq.ErrInvalid)
		}
		require.Len(t, s.adopt(2, "c"), 1, "nothing was changed")
	})
}
