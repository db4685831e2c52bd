package shard_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/command"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/machine"
	"github.com/perigee-mq/perigee/store/shard"
)

// A wallClock is a wall clock that can be set.
type wallClock struct{ off atomic.Int64 }

func (w *wallClock) now() time.Time       { return time.Now().Add(time.Duration(w.off.Load())) }
func (w *wallClock) step(d time.Duration) { w.off.Add(int64(d)) }

// A delayed shard is a shard with delayed messages, and what a test knows of them.
type delayed struct {
	t       *testing.T
	fs      *vfs.MemFS
	wall    wallClock
	opts    shard.Options
	s       *shard.Shard
	topics  map[string]*mq.Topic
	group   *mq.Group
	handles map[string]mq.PendingHandle
	due     map[string]time.Time
	began   time.Time
}

func newDelayed(t *testing.T, opts shard.Options) *delayed {
	d := &delayed{
		t: t, fs: vfs.NewCrashableMem(), opts: opts, group: groupOf(16),
		topics: map[string]*mq.Topic{}, handles: map[string]mq.PendingHandle{}, due: map[string]time.Time{}, began: time.Now(),
	}
	d.topic("a")
	d.topic("b")
	d.open()
	return d
}

// topic makes a topic, or one of the same name that is another.
func (d *delayed) topic(name string) *mq.Topic {
	t := topicOf(2)
	t.ID, t.Name = mq.TopicID(len(d.topics)+1), name
	if old := d.topics[name]; old != nil {
		t.ID = old.ID + 100
	}
	d.topics[name] = t
	return t
}

func (d *delayed) open() {
	d.opts.Name, d.opts.FS, d.opts.Dir, d.opts.Wall = shardName, d.fs, "shard", d.wall.now
	if d.opts.SegmentSize == 0 {
		d.opts.SegmentSize = 1 << 20
	}
	d.opts.ZeroFill = -1
	s, err := shard.Open(d.opts)
	require.NoError(d.t, err)
	d.s = s
}

func (d *delayed) close() { require.NoError(d.t, d.s.Close()) }

// crash loses what was not synced.
func (d *delayed) crash() {
	left := d.fs.CrashClone(vfs.CrashCloneCfg{})
	d.close()
	d.fs = left
	d.open()
}

func (d *delayed) send(topic, id string, in time.Duration) mq.Appended {
	m := message(id, "")
	m.Type, m.DeliverAt = mq.Delay, d.wall.now().Add(in)
	a, err := d.s.Append(d.t.Context(), d.topics[topic], 0, []*mq.Message{m})
	require.NoError(d.t, err)
	d.sent(topic, m, a[0])
	return a[0]
}

func (d *delayed) sent(topic string, m *mq.Message, a mq.Appended) {
	d.handles[topic+"/"+m.ID] = mq.PendingHandle{Shard: shardName, Topic: d.topics[topic].ID, ID: a.Pending, MessageID: m.ID}
	d.due[topic+"/"+m.ID] = m.DeliverAt
	if m.DeliverAt.IsZero() {
		d.due[topic+"/"+m.ID] = d.wall.now()
	}
}

// receive takes everything there is, and settles it.
func (d *delayed) receive(topic string, wait time.Duration) (got []mq.Delivery) {
	for {
		list := receive(d.t, d.s, mq.Receive{Topic: d.topics[topic], Group: d.group, Wait: wait})
		if len(list) == 0 {
			return got
		}
		for _, one := range list {
			require.NoError(d.t, ack(d.t, d.s, one.Lease))
			if due, ok := d.due[topic+"/"+one.ID]; ok {
				require.False(d.t, d.wall.now().Before(due), "%s is early", one.ID)
			}
		}
		got = append(got, list...)
	}
}

func (d *delayed) change(topic string, op command.PendingOp, id string, in time.Duration) error {
	h := d.handles[topic+"/"+id]
	at := d.wall.now().Add(in)
	res, err := d.s.ChangePending(d.t.Context(), h.Topic, []command.PendingRef{{ID: h.ID, Hash: mq.HashName(h.MessageID)}}, op, at)
	require.NoError(d.t, err)
	if op == command.PostponePending && res[0] == nil {
		d.due[topic+"/"+id] = at
	}
	return res[0]
}

func (d *delayed) list(topic string, state keyspace.PendingState) (list []mq.PendingMessage) {
	for from := (machine.PendingMark{}); ; {
		page, next, err := d.s.Pending(d.t.Context(), d.topics[topic].ID, state, from, 3, nil)
		require.NoError(d.t, err)
		list = append(list, page...)
		if from = next; next == (machine.PendingMark{}) {
			return list
		}
	}
}

func inWords(err error) string {
	for _, kind := range []error{mq.ErrNotPending, mq.ErrInvalidHandle} {
		if errors.Is(err, kind) {
			return err.Error()
		}
	}
	if err == nil {
		return "ok"
	}
	return "UNEXPECTED: " + err.Error()
}

// TestStoriesOfDelayedMessages runs the stories in testdata/delay. Their commands:
//
//	send ID... in=DURATION [topic=b]   recall ID   postpone ID in=DURATION
//	wait DURATION                      receive [topic=b]: everything there is
//	list [topic=b]                     count [topic=b]
//	clock DURATION: the wall clock is set forward, or back
//	down DURATION: the shard is closed for so long     crash
//	purge [topic=b]   delete [topic=b]: another one of the name takes its place
//
// Times are told from the beginning of the story, by the wall clock.
func TestStoriesOfDelayedMessages(t *testing.T) {
	tell(t, "testdata/delay", func(t *testing.T) narrator { return newDelayed(t, shard.Options{}) })
}

func (d *delayed) story(c *datadriven.TestData) string {
	topic, in := "a", time.Duration(0)
	c.MaybeScanArgs(d.t, "topic", &topic)
	if c.HasArg("in") {
		var text string
		c.ScanArgs(d.t, "in", &text)
		in = d.duration(text)
	}
	names := names(c)
	out := &strings.Builder{}
	switch c.Cmd {
	case "send":
		for _, id := range names {
			if a := d.send(topic, id, in); a.Pending == 0 {
				fmt.Fprintf(out, "%s: at once\n", id)
			} else {
				fmt.Fprintf(out, "%s: pending\n", id)
			}
		}
	case "recall":
		fmt.Fprintln(out, inWords(d.change(topic, command.RecallPending, names[0], 0)))
	case "postpone":
		fmt.Fprintln(out, inWords(d.change(topic, command.PostponePending, names[0], in)))
	case "wait":
		time.Sleep(d.duration(names[0]))
	case "clock":
		d.wall.step(d.duration(names[0]))
	case "receive":
		for _, m := range d.receive(topic, 0) {
			fmt.Fprintln(out, m.ID)
		}
		if out.Len() == 0 {
			fmt.Fprintln(out, "nothing")
		}
	case "list":
		for _, m := range d.list(topic, keyspace.Timed) {
			fmt.Fprintf(out, "%s at %s\n", m.MessageID, m.At.Sub(d.began))
		}
	case "count":
		survey, err := d.s.Survey(d.t.Context())
		require.NoError(d.t, err)
		i := slices.IndexFunc(survey.Topics, func(r shard.TopicRow) bool { return r.Topic.Name == topic })
		if i >= 0 {
			fmt.Fprintf(out, "pending=%d stored=%d\n", survey.Topics[i].Timed, survey.Topics[i].Stored)
		}
	case "down":
		d.close()
		time.Sleep(d.duration(names[0]))
		d.open()
	case "crash":
		d.crash()
	case "purge":
		require.NoError(d.t, d.s.PurgeTopic(d.t.Context(), d.topics[topic].ID))
	case "delete":
		require.NoError(d.t, d.s.DeleteTopic(d.t.Context(), d.topics[topic].ID))
		d.topic(topic)
	default:
		d.t.Fatalf("%s: unknown command %s", c.Pos, c.Cmd)
	}
	return out.String()
}

func (d *delayed) duration(text string) time.Duration {
	v, err := time.ParseDuration(text)
	require.NoError(d.t, err)
	return v
}
