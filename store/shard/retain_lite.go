package shard

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/machine"
)

// trimLites takes what is past its time, or below the cut, out of the lite topics of a
// topic, also what is under delivery. An index leads to the oldest: nothing is done for
// those that keep everything.
func (r *retainer) trimLites(t *trimming, now int64, cut cut) error {
	before := int64(math.MinInt64)
	if t.known && t.age > 0 {
		before = now - t.age + 1
	}
	for {
		began := time.Now()
		var oldest machine.LiteOldest
		err := r.view(func(v *machine.View) (err error) {
			oldest, err = v.LiteOldest(t.id, t.liteLow)
			return err
		})
		if err != nil || !oldest.Found {
			return err
		}
		t.liteLow = oldest.Pos
		if oldest.StoreTime >= before && commitlog.Pos(oldest.Pos) >= cut.pos {
			t.next = min(t.next, t.expiry(oldest.StoreTime))
			return nil
		}
		limit, err := r.s.liteShare(context.Background(), t.id, liteTrimLimit)
		if err != nil {
			return err
		}
		req := r.s.newRequest(command.KindLiteTrim)
		req.internal = true
		req.liteTrim = command.LiteTrim{Topic: t.id, Before: before, Pos: uint64(cut.pos), Limit: limit}
		if err := r.s.do(context.Background(), req); err != nil {
			if errors.Is(err, mq.ErrTopicNotFound) {
				return nil // deleted meanwhile
			}
			return err
		}
		r.s.release(req)
		r.s.rest(began)
		if err := r.stopped(); err != nil {
			return err
		}
	}
}
