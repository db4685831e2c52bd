package store

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/readonly"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/commitlog"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// A derivation makes the views of a shard again, in memory, by applying the records
// of its log up to the one that the views on disk have applied: to an empty machine, or
// when the log begins later to a copy of the base. What the two hold must be the same,
// key by key.
type derivation struct {
	*shardCheck
	mem     *pebble.DB
	machine *machine.Machine
	res     machine.Result
	done    bool // given up, or never begun
	begun   bool // the machine is there
}

// newDerivation begins one, if the views can be read and are not too large.
func newDerivation(c *shardCheck) *derivation {
	d := &derivation{shardCheck: c}
	switch {
	case c.views.keys == nil:
		d.done = true // NotDerived says why
	case c.opts.DeriveLimit == 0 || c.views.size > c.opts.DeriveLimit:
		d.giveUp(fmt.Sprintf("the views take %d bytes, the limit for deriving them is %d", c.views.size, c.opts.DeriveLimit))
	}
	return d
}

// begin makes the machine that the record first, the oldest of the log, is applied to
// or is in already.
func (d *derivation) begin(first uint64) {
	d.begun = true
	switch {
	case first > 1 && d.base == nil:
		d.giveUp(fmt.Sprintf("the log begins with record %d, and there is no sound base", first))
	case first > 1 && d.base.state.Index+1 < first:
		d.giveUp(fmt.Sprintf("the log begins with record %d, the base ends with record %d", first, d.base.state.Index))
	default:
		if err := d.open(first > 1); err != nil {
			d.giveUp(fmt.Sprintf("no views in memory: %v", err))
		}
	}
}

func (d *derivation) open(onBase bool) (err error) {
	d.mem, err = pebble.Open("derived", &pebble.Options{
		FS: vfs.NewMem(), DisableWAL: true, FormatMajorVersion: pebble.FormatNewest, Logger: silent{},
	})
	if err == nil && onBase {
		err = d.copyBase()
	}
	if err == nil {
		d.machine, err = machine.Open(d.mem)
	}
	return err
}

func (d *derivation) copyBase() error {
	batch := d.mem.NewBatch()
	defer func() { _ = batch.Close() }() // what counts was applied
	err := d.base.keys.scan(func(key, val []byte) error {
		if err := batch.Set(key, val, nil); err != nil || batch.Len() < 1<<20 {
			return err
		}
		err := d.mem.Apply(batch, pebble.NoSync)
		batch.Reset()
		return err
	})
	if err == nil && !batch.Empty() {
		err = d.mem.Apply(batch, pebble.NoSync)
	}
	return err
}

// silent drops what Pebble says; errors are returned as well.
type silent struct{}

// Infof implements pebble.Logger.
func (silent) Infof(string, ...any) {}

// Errorf implements pebble.Logger.
func (silent) Errorf(string, ...any) {}

// Fatalf implements pebble.Logger.
func (silent) Fatalf(string, ...any) {}

// giveUp ends the derivation without a comparison.
func (d *derivation) giveUp(why string) {
	if !d.done {
		d.done, d.sum.NotDerived = true, why
	}
}

// apply applies one record, unless the views on disk have not.
func (d *derivation) apply(rec commitlog.Record) {
	if !d.done && !d.begun {
		d.begin(rec.Index)
	}
	if d.done || rec.Index > d.views.state.Index || rec.Index <= d.machine.State().Index {
		return
	}
	err := readonly.Catch(func() error {
		d.machine.Effects.Reset()
		err := d.machine.Apply(machine.Record{
			Kind: command.Kind(rec.Kind), Payload: rec.Payload, PayloadPos: uint64(rec.PayloadPos), Next: uint64(rec.Next), Index: rec.Index,
		}, &d.res)
		if err == nil && rec.Index%256 == 0 {
			err = d.machine.Commit()
		}
		return err
	})
	if err != nil {
		d.found(Finding{File: d.logDir, Offset: -1}, "record %d at position %d cannot be applied: %v", rec.Index, rec.Pos, err)
		d.sum.LogDamaged = true
		d.giveUp("the log cannot be applied")
	}
}

// compare compares what was derived with what is on disk.
func (d *derivation) compare() {
	if !d.done && !d.begun {
		d.begin(d.sum.Log.First)
	}
	if d.done {
		return
	}
	if index := d.machine.State().Index; index != d.views.state.Index {
		d.giveUp(fmt.Sprintf("the log leads to record %d, the views have applied record %d", index, d.views.state.Index))
		return
	}
	err := d.machine.Commit()
	if err == nil {
		err = readonly.Catch(d.walk)
	}
	if err != nil {
		d.giveUp(fmt.Sprintf("comparison: %v", err))
		return
	}
	d.done, d.sum.Derived = true, true
}

// walk goes through both at once.
func (d *derivation) walk() (err error) {
	want, err := d.mem.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, want.Close()) }()
	have, err := d.views.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, have.Close()) }()
	w, h := want.First(), have.First()
	for w || h {
		var order int
		switch {
		case !h:
			order = -1
		case !w:
			order = 1
		default:
			order = bytes.Compare(want.Key(), have.Key())
		}
		switch {
		case order < 0:
			what, _, _ := keyspace.Describe(want.Key(), want.Value())
			d.views.inViews(want.Key(), "is missing; the log gives it: %s", what)
			w = want.Next()
		case order > 0:
			what, _, _ := keyspace.Describe(have.Key(), have.Value())
			d.views.inViews(have.Key(), "does not follow from the log: %s", what)
			h = have.Next()
		default:
			if !bytes.Equal(want.Value(), have.Value()) {
				what, _, _ := keyspace.Describe(have.Key(), have.Value())
				d.views.inViews(have.Key(), "has a value that does not follow from the log: %s", what)
			}
			w, h = want.Next(), have.Next()
		}
	}
	return errors.Join(want.Error(), have.Error())
}

func (d *derivation) close() {
	if d.machine != nil {
		_ = d.machine.Close() // in memory, and done with
	}
	if d.mem != nil {
		_ = d.mem.Close()
	}
}
