package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/perigee-mq/perigee/mq"
)

const (
	// maxOrphans bounds one answer of Orphans, in bytes.
	maxOrphans = 1 << 20
	// maxAdopted bounds one answer of Adopt.
	maxAdopted = 1024
)

// errTakenOver refuses a change by a proxy whose lease another one renews by now.
var errTakenOver = fmt.Errorf("another proxy renews it: %w", mq.ErrLeaseEnded)

// Orphans returns the clients that hold leases which were renewed for them and are renewed no
// more although there is a quarter left of the time: their proxy is gone, or said that it goes.
// They are in no order, and may not be all when they are many.
func (s *Store) Orphans(context.Context) ([]string, error) {
	return s.holders.orphans(maxOrphans), nil
}

// Adopt renews orphans of the clients, and makes them those of another proxy. What was settled,
// given up or delivered again is not among them. It returns those that it has renewed, 1,024 at
// most: when there are any, there may be more. After an error others have been renewed, or
// may have been; they are orphans again when nobody goes on renewing them.
func (s *Store) Adopt(ctx context.Context, a mq.Adoption) ([]mq.Adopted, error) {
	if a.Keeper == 0 || a.Invisible <= 0 {
		return nil, fmt.Errorf("adoption by keeper %d for %v: both must be above 0: %w", a.Keeper, a.Invisible, mq.ErrInvalid)
	}
	changes := s.holders.claim(&a, maxAdopted)
	if len(changes) == 0 {
		return nil, nil
	}
	var adopted []mq.Adopted
	var failed error
	for i, err := range s.change(ctx, changes) {
		l := changes[i].Lease
		switch {
		case err == nil:
			adopted = append(adopted, mq.Adopted{Client: changes[i].Holder, Lease: l, Age: s.shards[l.Shard].Age(l.PopID)})
		case over(err):
			s.holders.drop(l)
		default:
			s.holders.unclaim(l, a.Keeper)
			failed = err
		}
	}
	return adopted, failed
}

// over reports whether err says that the delivery is over.
func over(err error) bool {
	return errors.Is(err, mq.ErrLeaseEnded) || errors.Is(err, mq.ErrTopicNotFound) || errors.Is(err, mq.ErrGroupNotFound)
}

// ChangeInvisible sets when deliveries become visible again, and answers like Ack. It
// remembers who holds those that a proxy renews, see mq.LeaseChange.
func (s *Store) ChangeInvisible(ctx context.Context, changes []mq.LeaseChange) []error {
	results := s.changeOwn(ctx, changes)
	for i, err := range results {
		c := &changes[i]
		switch {
		case err != nil && !over(err) || errors.Is(err, errTakenOver):
		case err != nil, c.Reason != mq.Renew:
			s.holders.drop(c.Lease)
		case c.Holder != "":
			s.holders.renewed(c)
		}
	}
	return results
}

// changeOwn makes the changes but those by proxies whose lease another one has taken over.
func (s *Store) changeOwn(ctx context.Context, changes []mq.LeaseChange) []error {
	refused := s.holders.takenOver(changes)
	if len(refused) == 0 {
		return s.change(ctx, changes)
	}
	results := make([]error, len(changes))
	var own []mq.LeaseChange
	var places []int
	for i := range changes {
		if len(refused) > 0 && refused[0] == i {
			refused, results[i] = refused[1:], errTakenOver
			continue
		}
		own, places = append(own, changes[i]), append(places, i)
	}
	for at, err := range s.change(ctx, own) {
		results[places[at]] = err
	}
	return results
}

// settled notes that deliveries were settled, or found to be over.
func (s *Store) settled(leases []mq.Lease, results []error) {
	if s.holders.none() {
		return
	}
	for i := range leases {
		if results[i] == nil || over(results[i]) {
			s.holders.drop(leases[i])
		}
	}
}

// redelivered notes that an attempt was given its messages once more: whether they arrived is
// not known.
func (s *Store) redelivered(r *mq.Receive, got []mq.Delivery) {
	if r.Attempt == "" || !r.AutoRenew || s.holders.none() {
		return
	}
	for i := range got {
		s.holders.drop(got[i].Lease)
	}
}
