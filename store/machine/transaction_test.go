package machine_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
)

// Of two who ask the same question one notes it, and so only one asks.
func TestOneQuestionIsNotedOnce(t *testing.T) {
	h := openHalves(t)
	id := h.send("m")
	ask := &command.Checked{Op: command.CheckAsked, Max: 15, Refs: []command.CheckRef{{ID: id, To: 1, Wait: 10}}}
	require.NoError(t, h.ask(ask))
	require.ErrorIs(t, h.ask(ask), mq.ErrNotPending)
	p, found, err := h.m.Pending(id)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, uint32(1), p.Checks)
}

func TestAHalfMessageIsAskedAboutUntilItIsGivenUp(t *testing.T) {
	h := openHalves(t)
	id := h.send("m")
	for n := range uint32(3) {
		require.Equal(t, keyspace.Half, h.state(id))
		require.NoError(t, h.ask(&command.Checked{Op: command.CheckAsked, Max: 3, Refs: []command.CheckRef{{ID: id, From: n, To: n + 1, Wait: 1000}}}))
	}
	require.Equal(t, keyspace.LastAsked, h.state(id))
	giveUp := &command.Checked{Op: command.CheckGiveUp, Refs: []command.CheckRef{{ID: id}}}
	require.ErrorIs(t, h.ask(giveUp), mq.ErrNotPending, "its producer has time to answer")
	h.now += 1000
	require.NoError(t, h.ask(giveUp))
	require.Equal(t, keyspace.GivenUp, h.state(id))
	require.NoError(t, h.ask(&command.Checked{Op: command.CheckAgain, Refs: []command.CheckRef{{ID: id}}}))
	require.Equal(t, keyspace.Half, h.state(id))
	require.NoError(t, h.end(&command.EndTransaction{ID: id, Topic: 1, Hash: hash("m"), Keep: 5, Message: &mq.Message{ID: "m", Type: mq.Transaction}}))
	require.Equal(t, keyspace.Committed, h.state(id))
}

type halves struct {
	t   *testing.T
	m   *machine.Machine
	now int64
}

func openHalves(t *testing.T) *halves {
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), DisableWAL: true})
	require.NoError(t, err)
	m, err := machine.Open(db)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, m.Close())
		require.NoError(t, db.Close())
	})
	h := &halves{t: t, m: m}
	h.apply(command.KindTopic, func(now int64) []byte {
		return (&command.Topic{Time: now, ID: 1, Queues: 1, Version: 1}).Append(nil)
	})
	return h
}

func (h *halves) apply(kind command.Kind, payload func(now int64) []byte) (res machine.Result) {
	h.now++
	b, at := payload(h.now), h.m.Pos()
	require.NoError(h.t, h.m.Apply(machine.Record{Kind: kind, Payload: b, PayloadPos: at, Next: at + uint64(len(b)), Index: h.m.State().Index + 1}, &res))
	require.NoError(h.t, h.m.Commit())
	return res
}

func (h *halves) send(id string) mq.PendingID {
	res := h.apply(command.KindSend, func(now int64) []byte {
		return (&command.Send{Time: now, Topic: 1, Messages: []*mq.Message{{ID: id, Type: mq.Transaction}}}).Append(nil)
	})
	require.NoError(h.t, res.Err)
	return res.Stored[0].Pending
}

func (h *halves) ask(c *command.Checked) error {
	return h.apply(command.KindChecked, func(now int64) []byte {
		c.Time = now
		return c.Append(nil)
	}).Settled[0]
}

func (h *halves) end(c *command.EndTransaction) error {
	return h.apply(command.KindEndTransaction, func(now int64) []byte {
		c.Time = now
		return c.Append(nil)
	}).Err
}

func (h *halves) state(id mq.PendingID) keyspace.PendingState {
	p, found, err := h.m.Pending(id)
	require.NoError(h.t, err)
	require.True(h.t, found)
	return p.State
}
