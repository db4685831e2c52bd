package shard_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/store/keyspace"
	"github.com/perigee-mq/perigee/store/shard"
)

// half sends a half message.
func (d *delayed) half(topic, id string, recovery time.Duration) mq.Appended {
	m := message(id, "")
	m.Type, m.Recovery = mq.Transaction, recovery
	a, err := d.s.Append(d.t.Context(), d.topics[topic], 0, []*mq.Message{m})
	require.NoError(d.t, err)
	d.handles[topic+"/"+id] = mq.PendingHandle{Shard: shardName, Topic: d.topics[topic].ID, ID: a[0].Pending, MessageID: id}
	return a[0]
}

func (d *delayed) end(topic, id string, commit bool) error {
	return d.s.EndTransaction(d.t.Context(), d.handles[topic+"/"+id], commit)
}

// checks waits for questions for so long, as somebody does who has producers.
func (d *delayed) checks(wait time.Duration, topics ...string) []mq.Check {
	ctx, cancel := context.WithTimeout(d.t.Context(), wait)
	defer cancel()
	var names []mq.Resource
	for _, t := range topics {
		names = append(names, d.topics[t].Resource)
	}
	checks, err := d.s.Checks(ctx, names, 10)
	require.NoError(d.t, err)
	return checks
}

// TestStoriesOfTransactions runs the stories in testdata/transaction. Their commands:
//
//	half ID... [recovery=DURATION] [topic=b]    repeat ID: what the send was answered before
//	commit ID   rollback ID   again ID: it is to be asked about anew
//	producer DURATION [topic=b] [unasked]: somebody who has one waits for questions for so
//	  long; unasked: and can reach it no more
//	wait DURATION   receive [topic=b]   list [topic=b]   count [topic=b]
//	down DURATION: the shard is closed for so long     crash
//	purge [topic=b]   delete [topic=b]: another one of the name takes its place
//
// Times are told from the beginning of the story.
func TestStoriesOfTransactions(t *testing.T) {
	tell(t, "testdata/transaction", func(t *testing.T) narrator {
		return transactions{newDelayed(t, shard.Options{Transactions: shard.Transactions{MaxChecks: 4, MaxInterval: time.Minute}})}
	})
}

// transactions tell stories of half messages.
type transactions struct{ *delayed }

func (d transactions) story(c *datadriven.TestData) string {
	topic, recovery := "a", time.Duration(0)
	c.MaybeScanArgs(d.t, "topic", &topic)
	if c.HasArg("recovery") {
		var text string
		c.ScanArgs(d.t, "recovery", &text)
		recovery = d.duration(text)
	}
	names := names(c)
	out := &strings.Builder{}
	switch c.Cmd {
	case "half":
		for _, id := range names {
			require.NotZero(d.t, d.half(topic, id, recovery).Pending)
		}
	case "commit", "rollback":
		fmt.Fprintln(out, endInWords(d.end(topic, names[0], c.Cmd == "commit")))
	case "again":
		res, err := d.s.CheckAgain(d.t.Context(), []mq.PendingHandle{d.handles[topic+"/"+names[0]]})
		require.NoError(d.t, err)
		fmt.Fprintln(out, endInWords(res[0]))
	case "producer":
		end := time.Now().Add(d.duration(names[0]))
		for time.Now().Before(end) {
			checks := d.checks(time.Until(end), topic)
			for _, check := range checks {
				fmt.Fprintf(out, "%s: %s, check %d\n", time.Since(d.began), check.MessageID, check.Checks)
				require.Equal(d.t, check.MessageID, check.Message.ID)
			}
			if slices.Contains(names, "unasked") && len(checks) > 0 {
				require.NoError(d.t, d.s.Unasked(d.t.Context(), checks))
				break
			}
		}
	case "wait":
		time.Sleep(d.duration(names[0]))
	case "list":
		for state := keyspace.Timed; state < keyspace.PendingStates; state++ {
			for _, m := range d.list(topic, state) {
				at := "never"
				if !m.At.IsZero() {
					at = m.At.Sub(d.began).String()
				}
				fmt.Fprintf(out, "%s: %s, checks %d, until %s\n", m.MessageID, state, m.Checks, at)
			}
		}
	case "count":
		survey, err := d.s.Survey(d.t.Context())
		require.NoError(d.t, err)
		if i := slices.IndexFunc(survey.Topics, func(r shard.TopicRow) bool { return r.Topic.Name == topic }); i >= 0 {
			row := survey.Topics[i]
			fmt.Fprintf(out, "half=%d given-up=%d stored=%d\n", row.Half, row.GivenUp, row.Stored)
		}
	default:
		return d.delayed.story(c)
	}
	return out.String()
}

func endInWords(err error) string {
	for _, kind := range []error{mq.ErrUnknownTransaction, mq.ErrTransactionEnded, mq.ErrTopicNotFound} {
		if errors.Is(err, kind) {
			return err.Error()
		}
	}
	return inWords(err)
}
