package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/perigee-mq/perigee/internal/node"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
	"github.com/perigee-mq/perigee/store"
)

// A story is one fixed sequence of everything that a node does, on one file system:
// metadata and messages, segments that roll, views that are flushed, leases that end,
// dead letters, deletions, closes. Its calls come one after the other, so the
// operation of the file system with a given index is nearly always the same one.
type story struct {
	settings
	ctx    context.Context
	ledger *ledger
	life   int // of the ledger, in which the story runs
	nextID int

	router  *router.Router
	store   *store.Store
	told    [2]atomic.Int64 // failures told by router and store
	stopped atomic.Int64    // when the store failed or the story ended, in Unix nanoseconds
	states  []string        // of the metadata, after each change that was answered
	atEnd   func()          // called before the last close
	topic   *mq.Topic
	readers *mq.Group
	doomed  *mq.Topic
	types   *types // messages of other types, if it tells of them
}

func newStory(o settings) *story {
	return &story{settings: o, ctx: context.Background(), ledger: newLedger()}
}

// run carries the story out and returns its first error. It leaves nothing open.
func (c *story) run(fs vfs.FS) error {
	err := c.tell(fs)
	c.stopped.CompareAndSwap(0, time.Now().UnixNano())
	if err != nil {
		synctest.Wait()
		c.checkStopped()
	}
	if c.store != nil {
		err = errors.Join(err, c.store.Close())
	}
	if c.router != nil {
		err = errors.Join(err, c.router.Close())
	}
	return err
}

func (c *story) tell(fs vfs.FS) (err error) {
	if c.router, err = openRouter(fs, func() { c.told[0].Add(1) }); err != nil {
		return err
	}
	c.note()
	if err := c.metadata(); err != nil {
		return err
	}
	for i, part := range []func() error{c.first, c.second} {
		if err := c.open(fs); err != nil {
			return err
		}
		if err := part(); err != nil {
			return err
		}
		synctest.Wait() // dead letters under way
		if c.atEnd != nil && i == 1 {
			c.atEnd()
		}
		s := c.store
		c.store = nil
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// checkStopped checks that a tier that has failed says so, once, and answers no
// change any more, and that the other one goes on.
func (c *story) checkStopped() {
	refused := func(what string, err error) {
		if !errors.Is(err, mq.ErrStopped) {
			c.ledger.wrong("%s after the failure: %v", what, err)
		}
	}
	if c.router != nil && c.router.Err() != nil {
		before := describe(c.router)
		_, _, err := c.router.CreateTopic(c.ctx, router.TopicSpec{Resource: mq.Resource{Name: "late"}})
		refused("create topic", err)
		if n := c.told[0].Load(); n != 1 {
			c.ledger.wrong("the failure of the router was told %d times", n)
		}
		if describe(c.router) != before {
			c.ledger.wrong("a refused change of the metadata can be seen")
		}
	}
	if c.store == nil {
		return
	}
	if c.store.Err() == nil {
		if _, err := c.store.Queues(c.ctx, shardName, 1); err != nil {
			c.ledger.wrong("the store has not failed and answers: %v", err)
		}
		return
	}
	if n := c.told[1].Load(); n != 1 {
		c.ledger.wrong("the failure of the store was told %d times", n)
	}
	refused("send", c.send(c.topic, 0, 1))
	_, err := c.receive(1)
	refused("receive", err)
	lease := mq.Lease{Shard: shardName, Topic: c.topic.ID, Group: c.readers.ID}
	refused("ack", c.store.Ack(c.ctx, []mq.Lease{lease})[0])
	refused("change", c.store.ChangeInvisible(c.ctx, []mq.LeaseChange{{Lease: lease}})[0])
	refused("forward", c.store.DeadLetter(c.ctx, lease))
	_, err = c.store.Queues(c.ctx, shardName, c.topic.ID)
	refused("look", err)
	refused("delete", c.store.DeleteTopic(c.ctx, c.topic.ID))
}

// verify opens what is left on the disk and checks it against what was answered; lost
// says that the last of it may be gone. final are all states of the metadata when
// nothing fails.
func (c *story) verify(fs vfs.FS, lost bool, final []string) (faults []string) {
	l := c.ledger.copy()
	l.ends(lost, c.end())
	v := &story{settings: c.settings, ctx: c.ctx, ledger: l, life: l.now()}
	v.onFailure = nil
	note := func(what string, err error) {
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", what, err))
		}
	}
	defer func() { faults = append(faults, l.faults...) }()
	var err error
	if v.router, err = openRouter(fs, nil); err != nil {
		return []string{fmt.Sprintf("open of the metadata: %v", err)}
	}
	defer func() {
		note("close of the metadata", v.router.Close())
		for _, f := range metadataFindings(fs) {
			note("check", errors.New(f))
		}
	}()
	answered := len(c.states)
	got := describe(v.router)
	if allowed := final[max(answered-1, 0):min(answered+1, len(final))]; !slices.Contains(allowed, got) {
		faults = append(faults, fmt.Sprintf("metadata is\n%safter\n%s", got, strings.Join(allowed, "or\n")))
	}
	if v.store, err = openStore(fs, v.settings); err != nil {
		return append(faults, fmt.Sprintf("open of the store: %v", err))
	}
	defer func() {
		note("close of the store", v.store.Close())
		for _, f := range findings(fs) {
			note("check", errors.New(f))
		}
	}()
	note("reconcile", v.reconcile())
	if c.topic != nil && c.readers != nil {
		note("drain", drain(v.ctx, v.store, l, append([]*mq.Topic{c.topic}, c.types.topics()...), liteNames, []consumers{{Group: c.readers}}))
	}
	return faults
}

// reconcile does what a node does first.
func (c *story) reconcile() error { return node.Reconcile(c.ctx, c.store, c.router, metadataDir) }

func (c *story) open(fs vfs.FS) (err error) {
	o := c.settings
	o.onFailure = func() {
		if c.told[1].Add(1) == 1 {
			c.stopped.Store(time.Now().UnixNano())
		}
	}
	c.store, err = openStore(fs, o)
	return err
}

// end returns when the story ended, or the store failed.
func (c *story) end() time.Time { return time.Unix(0, c.stopped.Load()) }

// note remembers the state of the metadata.
func (c *story) note() { c.states = append(c.states, describe(c.router)) }

// describe returns everything the router knows, as text.
func describe(r *router.Router) string {
	var b strings.Builder
	all := router.Selection{AllNamespaces: true, DeadLetters: true}
	ctx := context.Background()
	topic, group := r.LastIDs()
	fmt.Fprintf(&b, "revision %d, ids %d %d\n", r.Revision(), topic, group)
	for _, t := range r.ListTopics(ctx, all) {
		line, err := json.Marshal(t)
		fmt.Fprintln(&b, string(line), err)
	}
	for _, g := range r.ListGroups(ctx, all) {
		line, err := json.Marshal(g)
		fmt.Fprintln(&b, string(line), err)
	}
	return b.String()
}

func (c *story) metadata() (err error) {
	steps := []func() error{
		func() (err error) {
			c.topic, _, err = c.router.CreateTopic(c.ctx, router.TopicSpec{Resource: mq.Resource{Name: "orders"}, Queues: 2})
			return err
		},
		func() (err error) {
			spec := router.GroupSpec{Resource: mq.Resource{Name: "readers"}, Retry: mq.DefaultRetryPolicy()}
			spec.Retry.MaxAttempts = 2
			c.readers, _, err = c.router.CreateGroup(c.ctx, spec)
			return err
		},
		func() (err error) {
			c.doomed, _, err = c.router.CreateTopic(c.ctx, router.TopicSpec{Resource: mq.Resource{Name: "doomed"}, Queues: 1})
			return err
		},
	}
	if c.types != nil {
		steps = append(steps, c.moreMetadata()...)
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
		c.note()
	}
	return nil
}

func (c *story) send(topic *mq.Topic, queue mq.QueueID, n int) error {
	ids := newIDs(&c.nextID, n)
	msgs := make([]*mq.Message, n)
	for i, id := range ids {
		msgs[i] = message(id, "")
		msgs[i].Properties = make([]byte, 900) // no valid properties, and not looked at
	}
	if topic == c.doomed {
		_, err := c.store.Append(c.ctx, shardName, topic, queue, msgs)
		return err
	}
	sn := c.ledger.beginSend(&sent{ids: ids, topic: topic.ID, kind: mq.Normal, queues: []mq.QueueID{queue}})
	a, err := c.store.Append(c.ctx, shardName, topic, queue, msgs)
	if err == nil {
		c.ledger.endSend(sn, c.life, a)
	}
	return err
}

func (c *story) receive(n int) ([]mq.Delivery, error) {
	const invisible = 10 * time.Second
	start := time.Now()
	got, err := c.store.Receive(c.ctx, shardName, mq.Receive{Topic: c.topic, Group: c.readers, Max: n, Invisible: invisible, Wait: 5 * time.Second})
	c.ledger.delivered(c.life, consumers{Group: c.readers}, start, invisible, got)
	if err == nil && len(got) == 0 {
		err = errors.New("nothing received")
	}
	return got, err
}

func (c *story) ack(d mq.Delivery) error {
	f := c.ledger.beginAck(c.readers.ID, d.ID, d.Lease, false)
	err := c.store.Ack(c.ctx, []mq.Lease{d.Lease})[0]
	c.ledger.endAck(c.life, f, d.ID, d.Lease, err)
	return err
}

func (c *story) forward(d mq.Delivery) error {
	f := c.ledger.beginAck(c.readers.ID, d.ID, d.Lease, true)
	err := c.store.DeadLetter(c.ctx, d.Lease)
	c.ledger.endAck(c.life, f, d.ID, d.Lease, err)
	return err
}

func (c *story) change(d mq.Delivery, after time.Duration, reason mq.ChangeReason) error {
	f := c.ledger.beginChange(c.readers.ID, d.ID, d.Lease)
	err := c.store.ChangeInvisible(c.ctx, []mq.LeaseChange{{Lease: d.Lease, Invisible: after, Reason: reason}})[0]
	c.ledger.endChange(c.life, f, d.ID, d.Lease, after, err)
	return err
}

func (c *story) first() error {
	if err := errors.Join(c.send(c.topic, 0, 1), c.send(c.topic, 1, 1), c.send(c.doomed, 0, 2)); err != nil {
		return err
	}
	if err := c.send(c.topic, 0, 5); err != nil {
		return err
	}
	got, err := c.receive(4)
	if err != nil {
		return err
	}
	if err := c.ack(got[0]); err != nil {
		return err
	}
	if err := c.change(got[1], 0, mq.Extend); err != nil {
		return err
	}
	if err := c.change(got[2], 30*time.Second, mq.Renew); err != nil {
		return err
	}
	if got, err = c.receive(1); err != nil { // again
		return err
	}
	if err := c.change(got[0], time.Second, mq.Nack); err != nil { // its last attempt
		return err
	}
	if _, err := c.store.Receive(c.ctx, shardName, mq.Receive{Topic: c.doomed, Group: c.readers, Max: 1, Invisible: time.Minute}); err != nil {
		return err
	}
	if _, err := c.router.DeleteTopic(c.ctx, c.doomed.Resource); err != nil {
		return err
	}
	c.note()
	if err := c.store.DeleteTopic(c.ctx, c.doomed.ID); err != nil {
		return err
	}
	if err := c.send(c.topic, 1, 4); err != nil || c.types == nil {
		return err
	}
	return c.firstOfTypes()
}

func (c *story) second() error {
	retry := mq.DefaultRetryPolicy()
	retry.MaxAttempts = 3
	changed, err := c.router.UpdateGroup(c.ctx, c.readers.Resource, router.GroupUpdate{Retry: &retry})
	if err != nil {
		return err
	}
	c.note()
	if err := c.store.UpdateGroup(c.ctx, changed); err != nil {
		return err
	}
	c.readers = changed
	if err := c.send(c.topic, 1, 3); err != nil {
		return err
	}
	got, err := c.receive(8)
	if err != nil {
		return err
	}
	if err := c.forward(got[0]); err != nil {
		return err
	}
	if err := c.ack(got[1]); err != nil {
		return err
	}
	if c.types != nil {
		if err := c.secondOfTypes(); err != nil {
			return err
		}
	}
	time.Sleep(11 * time.Second) // the other leases end
	return c.send(c.topic, 0, 1)
}
