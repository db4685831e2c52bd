package shard_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/shard"
)

// A narrator carries out the commands of a story.
type narrator interface {
	story(c *datadriven.TestData) string
	close()
}

// tell runs each story of a folder in a bubble of fake time; -rewrite writes down what
// happens now.
func tell(t *testing.T, dir string, begin func(t *testing.T) narrator) {
	datadriven.Walk(t, dir, func(t *testing.T, path string) {
		// The reader of the story says every ten seconds that it still waits: it must not
		// have the time of the bubble, where days pass.
		work, answers := make(chan *datadriven.TestData), make(chan string)
		go func() {
			defer close(answers)
			synctest.Test(t, func(t *testing.T) {
				n := begin(t)
				defer n.close()
				for c := range work {
					answer := n.story(c)
					synctest.Wait()
					answers <- answer
				}
			})
		}()
		datadriven.RunTest(t, path, func(t *testing.T, c *datadriven.TestData) string {
			work <- c
			answer, ok := <-answers
			if !ok {
				t.Fatalf("%s: failed", c.Pos)
			}
			return answer
		})
		close(work)
		_, more := <-answers
		require.False(t, more)
	})
}

// A typed shard is a shard with messages of the types that are told about in one way, and
// what a test knows of them.
type typed struct {
	t      *testing.T
	fs     *vfs.MemFS
	opts   shard.Options
	s      *shard.Shard
	ttl    time.Duration
	topics map[string]*mq.Topic
	groups map[string]*mq.Group
	leases map[string]mq.Lease // the latest delivery of a message to a group
}

func newTyped(t *testing.T) narrator {
	return &typed{
		t: t, fs: vfs.NewCrashableMem(), topics: map[string]*mq.Topic{}, groups: map[string]*mq.Group{}, leases: map[string]mq.Lease{},
		opts: shard.Options{Name: shardName, Dir: "shard", SegmentSize: 1 << 20, ZeroFill: -1},
	}
}

func (y *typed) open() {
	y.opts.FS = y.fs
	y.opts.LiteTTL = func(mq.TopicID) time.Duration { return y.ttl }
	s, err := shard.Open(y.opts)
	require.NoError(y.t, err)
	y.s = s
}

func (y *typed) close() { require.NoError(y.t, y.s.Close()) }

// TestStoriesOfPriorities tells which message comes first.
func TestStoriesOfPriorities(t *testing.T) { tell(t, "testdata/priority", newTyped) }

// TestStoriesOfLiteTopics tells who is given what of which lite topic.
func TestStoriesOfLiteTopics(t *testing.T) { tell(t, "testdata/lite", newTyped) }

// TestStoriesOfRepeatedSends tells when a send is the one before, once more.
func TestStoriesOfRepeatedSends(t *testing.T) { tell(t, "testdata/repeat", newTyped) }

// TestStoriesOfFilters tells who is given what when consumers choose.
func TestStoriesOfFilters(t *testing.T) { tell(t, "testdata/filter", newTyped) }

// story carries out one command:
//
//	topic NAME [type=T] [queues=N] [dedup=D]    the first one is meant where none is named
//	group NAME [attempts=N]                     g is meant where none is named
//	shard [flush=async] [lite-topics=N] [lite-ttl=D]: with these limits from now on
//	send ID... [queue=N | priority=N | lite=L] [tag=T] [body=B] [with=(name,value,...)]
//	receive [max=N] [client=C] [tags=(T,...)]: for a minute; an SQL filter stands below
//	ack ID...   nack ID... [for=D]   suspend ID... [for=D]
//	subscribe L... client=C [exclusive] [quota=N] [from=min]: to lite topics
//	unsubscribe L... client=C   only L... client=C: and to no others   leave client=C
//	lites: how many lite topics there are       backlog: what the group still has to do
//	wait D   crash   down D: closed for so long
//	delete NAME: another topic of the name takes its place
//
// topic= and group= name others than the first.
func (y *typed) story(c *datadriven.TestData) string {
	if y.s == nil && c.Cmd != "shard" {
		y.open()
	}
	out := &strings.Builder{}
	switch c.Cmd {
	case "shard":
		y.limits(c)
	case "topic":
		y.topic(c)
	case "group":
		y.group(c)
	case "send":
		y.send(c, out)
	case "receive":
		y.receive(c, out)
	case "ack":
		y.each(c, out, func(l mq.Lease) error { return ack(y.t, y.s, l) })
	case "nack":
		y.each(c, out, func(l mq.Lease) error { return change(y.t, y.s, l, y.span(c, "for"), mq.Nack) })
	case "suspend":
		y.each(c, out, func(l mq.Lease) error { return change(y.t, y.s, l, y.span(c, "for"), mq.Suspend) })
	case "subscribe", "unsubscribe", "only", "leave":
		y.subscribe(c, out)
	case "lites":
		n, err := y.s.LiteTopics(y.t.Context(), y.topicOf(c).ID)
		require.NoError(y.t, err)
		fmt.Fprintln(out, n)
	case "backlog":
		list, err := y.s.Backlogs(y.t.Context(), y.groupOf(c).ID)
		require.NoError(y.t, err)
		for _, b := range list {
			fmt.Fprintf(out, "%d to be delivered, %d in flight, %d used up\n", b.Ready, b.InFlight, b.UsedUp)
		}
	case "wait":
		time.Sleep(y.duration(c.CmdArgs[0].Key))
	case "crash":
		left := y.fs.CrashClone(vfs.CrashCloneCfg{})
		y.close()
		y.fs = left
		y.open()
	case "down":
		y.close()
		time.Sleep(y.duration(c.CmdArgs[0].Key))
		y.open()
	case "delete":
		name := c.CmdArgs[0].Key
		old := *y.topics[name]
		require.NoError(y.t, y.s.DeleteTopic(y.t.Context(), old.ID))
		old.ID += 100
		y.topics[name] = &old
	default:
		y.t.Fatalf("%s: unknown command %s", c.Pos, c.Cmd)
	}
	return out.String()
}

func (y *typed) limits(c *datadriven.TestData) {
	if y.s != nil {
		y.close()
	}
	if c.HasArg("flush") {
		y.opts.Flush = shard.FlushAsync
	}
	c.MaybeScanArgs(y.t, "lite-topics", &y.opts.LiteTopics)
	y.ttl = y.span(c, "lite-ttl")
	y.open()
}

func (y *typed) topic(c *datadriven.TestData) {
	kind, queues := "NORMAL", int32(1)
	c.MaybeScanArgs(y.t, "type", &kind)
	c.MaybeScanArgs(y.t, "queues", &queues)
	t := topicOf(queues)
	var err error
	t.Type, err = mq.ParseTopicType(kind)
	require.NoError(y.t, err)
	t.ID, t.Name, t.Dedup = mq.TopicID(len(y.topics)+1), c.CmdArgs[0].Key, y.span(c, "dedup")
	if was := y.topics[t.Name]; was != nil {
		t.ID, t.Version = was.ID, was.Version+1
	}
	y.topics[t.Name] = t
}

func (y *typed) group(c *datadriven.TestData) {
	attempts := mq.Attempt(16)
	c.MaybeScanArgs(y.t, "attempts", &attempts)
	g := groupOf(attempts)
	g.ID, g.Name = mq.GroupID(len(y.groups)+1), c.CmdArgs[0].Key
	g.DeadLetter = mq.TopicID(1000 + len(y.groups))
	y.groups[g.Name] = g
}

// topicOf returns the topic that a command is about.
func (y *typed) topicOf(c *datadriven.TestData) *mq.Topic {
	var name string
	c.MaybeScanArgs(y.t, "topic", &name)
	for _, t := range y.topics {
		if t.Name == name || name == "" && t.ID%100 == 1 {
			return t
		}
	}
	y.t.Fatalf("%s: no topic", c.Pos)
	return nil
}

func (y *typed) groupOf(c *datadriven.TestData) *mq.Group {
	name := "g"
	c.MaybeScanArgs(y.t, "group", &name)
	if y.groups[name] == nil {
		g := groupOf(16)
		g.ID, g.Name, g.DeadLetter = mq.GroupID(len(y.groups)+1), name, mq.TopicID(1000+len(y.groups))
		y.groups[name] = g
	}
	return y.groups[name]
}

func (y *typed) send(c *datadriven.TestData, out *strings.Builder) {
	topic, queue := y.topicOf(c), mq.QueueID(0)
	var tag, lite, body string
	c.MaybeScanArgs(y.t, "queue", &queue)
	c.MaybeScanArgs(y.t, "tag", &tag)
	c.MaybeScanArgs(y.t, "lite", &lite)
	c.MaybeScanArgs(y.t, "body", &body)
	if c.HasArg("priority") {
		var priority int32
		c.ScanArgs(y.t, "priority", &priority)
		queue = mq.QueueID(min(priority, topic.Shards[0].Write-1)) // as the server does
	}
	var with []string
	if arg, ok := c.Arg("with"); ok {
		with = arg.Vals
	}
	var msgs []*mq.Message
	for _, id := range names(c) {
		m := message(id, tag)
		m.Properties, m.Lite, m.Type = properties(with...), lite, topic.Type.MessageTypes()[0]
		if body != "" {
			m.Body = []byte(body)
		}
		msgs = append(msgs, m)
	}
	stored, err := y.s.Append(y.t.Context(), topic, queue, msgs)
	if err != nil {
		require.ErrorIs(y.t, err, mq.ErrLiteTopicQuota)
		fmt.Fprintln(out, mq.ErrLiteTopicQuota)
		return
	}
	for i, a := range stored {
		if a.Repeated {
			fmt.Fprintf(out, "%s is the one at %d/%d\n", msgs[i].ID, a.Queue, a.Offset)
		} else if topic.Dedup > 0 {
			fmt.Fprintf(out, "%s is stored at %d/%d\n", msgs[i].ID, a.Queue, a.Offset)
		}
	}
}

func (y *typed) receive(c *datadriven.TestData, out *strings.Builder) {
	r := mq.Receive{Topic: y.topicOf(c), Group: y.groupOf(c), Invisible: time.Minute}
	c.MaybeScanArgs(y.t, "max", &r.Max)
	c.MaybeScanArgs(y.t, "client", &r.Lite)
	if arg, ok := c.Arg("tags"); ok {
		r.Tags = slices.Sorted(slices.Values(arg.Vals))
	}
	if c.Input != "" {
		r.Filter = sql(y.t, c.Input)
	}
	list := receive(y.t, y.s, r)
	for _, d := range list {
		y.leases[r.Group.Name+"/"+d.ID] = d.Lease
		fmt.Fprint(out, d.ID)
		if d.Lease.Attempt > 1 {
			fmt.Fprintf(out, ", attempt %d", d.Lease.Attempt)
		}
		if string(d.Body) != "body of "+d.ID {
			fmt.Fprintf(out, ": %s", d.Body)
		}
		fmt.Fprintln(out)
	}
	if len(list) == 0 {
		fmt.Fprintln(out, "nothing")
	}
}

// each settles deliveries by the ids of their messages, and says which could not be.
func (y *typed) each(c *datadriven.TestData, out *strings.Builder, do func(mq.Lease) error) {
	for _, id := range names(c) {
		lease, ok := y.leases[y.groupOf(c).Name+"/"+id]
		require.True(y.t, ok, "%s: %s was never delivered", c.Pos, id)
		if err := do(lease); err != nil {
			require.ErrorIs(y.t, err, mq.ErrLeaseEnded)
			fmt.Fprintf(out, "%s: too late\n", id)
		}
	}
}

func (y *typed) subscribe(c *datadriven.TestData, out *strings.Builder) {
	r := mq.LiteSync{
		Topic: y.topicOf(c), Group: y.groupOf(c), Names: names(c), Exclusive: c.HasArg("exclusive"),
		Action: map[string]mq.LiteAction{
			"subscribe": mq.LiteAdd, "unsubscribe": mq.LiteRemove, "only": mq.LiteReplace, "leave": mq.LiteLeave,
		}[c.Cmd],
	}
	r.Names = slices.DeleteFunc(r.Names, func(s string) bool { return s == "exclusive" })
	c.ScanArgs(y.t, "client", &r.Client)
	c.MaybeScanArgs(y.t, "quota", &r.ClientQuota)
	var from string
	if c.MaybeScanArgs(y.t, "from", &from); from == "min" {
		r.Place = mq.LitePlace{Start: mq.LiteMin, Again: true}
	}
	lost, err := y.s.SyncLite(y.t.Context(), r)
	for _, l := range lost {
		fmt.Fprintf(out, "%s is taken from %s\n", l.Name, l.Client)
	}
	for _, kind := range []error{mq.ErrLiteSubscriptionQuota, mq.ErrLiteTopicQuota} {
		if errors.Is(err, kind) {
			fmt.Fprintln(out, kind)
			return
		}
	}
	require.NoError(y.t, err)
}

// names returns the arguments of a command that stand alone.
func names(c *datadriven.TestData) (list []string) {
	for _, arg := range c.CmdArgs {
		if len(arg.Vals) == 0 {
			list = append(list, arg.Key)
		}
	}
	return list
}

func (y *typed) span(c *datadriven.TestData, name string) time.Duration {
	var text string
	if !c.MaybeScanArgs(y.t, name, &text) {
		return 0
	}
	return y.duration(text)
}

func (y *typed) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(y.t, err)
	return d
}
