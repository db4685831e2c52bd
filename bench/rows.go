package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/perigee-mq/perigee/bench/proc"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

const (
	bodySize  = 1024
	topicName = "bench"
	groupName = "bench"
	// producers is the concurrency of the row about group commit.
	producers = 16
	warmUp    = 300 * time.Millisecond
	// invisible is beyond the end of any run: nothing is delivered twice.
	invisible = time.Hour
)

var nan = math.NaN()

// measure is one row of one server in one run.
type measure struct {
	CPU      float64 // microseconds of the server per message
	Own      float64 // microseconds of the load generator per message
	Allocs   float64 // per message
	Rate     float64 // messages per second
	P50, P99 float64 // microseconds per request
	PerSync  float64 // messages per fsync
	RSS      float64 // MiB of the server, after the row
}

// rowNames are the rows in their order.
var rowNames = []string{
	rowSend, rowSendBatch, rowReceive, rowAckBatch, rowAck, rowSync, rowUnordered, rowGroups(1), rowGroups(100), rowGroups(100_000), rowFilter, rowSparse,
}

// noopRows are those of the no-op server, which deployments have too.
var noopRows = []string{rowSend, rowSendBatch, rowReceive, rowAckBatch, rowAck}

// The rows.
const (
	rowSend      = "send 1 KiB"
	rowSendBatch = "send 32 x 1 KiB"
	rowReceive   = "receive 32 x 1 KiB"
	rowAckBatch  = "ack 32"
	rowAck       = "ack 1"
	rowFilter    = "SQL filter, 1 % match"
	rowSparse    = "SQL filter, 0.01 % match"
	rowSync      = "send 1 KiB, sync, 16 producers"
	rowUnordered = "receive 32, ack 1, unordered"
)

// rowGroups is the row of a FIFO group with so many message groups.
func rowGroups(n int) string { return fmt.Sprintf("receive 32, ack 1, FIFO, groups: %d", n) }

// messageGroups are the numbers of message groups that are measured; 0: no order.
var messageGroups = []int{0, 1, 100, 100_000}

// results are the measures of a server, by row, one per run.
type results map[string][]measure

// compare measures the servers in turn.
func compare(ctx context.Context, o options, progress io.Writer) (report, error) {
	rep := report{Machine: proc.ThisMachine(), Options: o, noop: results{}, perigee: results{}}
	for run := range o.Runs {
		fmt.Fprintf(progress, "run %d of %d\n", run+1, o.Runs)
		if err := withServer(func() (*server, error) { return startNoop(ctx, o) }, func(s *server) error {
			return measureAll(ctx, s, o, rep.noop)
		}); err != nil {
			return rep, err
		}
		if o.Server == withoutServer {
			continue
		}
		if err := withServer(func() (*server, error) { return startPerigee(ctx, o, o.Flush) }, func(s *server) error {
			if err := measureAll(ctx, s, o, rep.perigee); err != nil {
				return err
			}
			if err := measureGroups(ctx, s, o, rep.perigee); err != nil {
				return err
			}
			if err := measureFilter(ctx, s, o, rep.perigee, rowFilter, 100); err != nil {
				return err
			}
			return measureFilter(ctx, s, o, rep.perigee, rowSparse, 10_000)
		}); err != nil {
			return rep, err
		}
		if err := withServer(func() (*server, error) { return startPerigee(ctx, o, "sync") }, func(s *server) error {
			return measureSync(ctx, s, o, rep.perigee)
		}); err != nil {
			return rep, err
		}
		if o.Tiers {
			if err := measureDeployments(ctx, o, rep.perigee); err != nil {
				return rep, err
			}
		}
		if run > 0 {
			continue
		}
		var err error
		if rep.Notes, err = measureLarge(ctx, o, rep.perigee); err != nil {
			return rep, err
		}
	}
	return rep, nil
}

func withServer(start func() (*server, error), use func(*server) error) error {
	s, err := start()
	if err != nil {
		return err
	}
	err = use(s)
	if stopErr := s.stop(); err == nil {
		err = stopErr
	}
	return err
}

// measureAll measures every row but the one about syncs. Sends and receives
// have topics of their own: what is received was stored just before.
func measureAll(ctx context.Context, s *server, o options, into results) error {
	if err := s.createTopics(ctx, topicName, topicName+"-receive"); err != nil {
		return err
	}
	load := loadgen.Load{Topic: topicName, Concurrency: o.Concurrency, Limit: loadgen.Limit{Duration: warmUp}}
	send := loadgen.SendLoad{Load: load, Size: bodySize, Batch: 1}
	if _, err := s.target.Send(ctx, send); err != nil {
		return err
	}
	send.Limit.Duration = o.Duration
	if _, err := s.measure(into, rowSend, func() (loadgen.Result, error) { return s.target.Send(ctx, send) }); err != nil {
		return err
	}
	send.Batch = maxBatch
	if _, err := s.measure(into, rowSendBatch, func() (loadgen.Result, error) { return s.target.Send(ctx, send) }); err != nil {
		return err
	}
	return s.measureConsumer(ctx, o, load, into)
}

func (s *server) measureConsumer(ctx context.Context, o options, load loadgen.Load, into results) error {
	load.Topic, load.Limit = topicName+"-receive", loadgen.Limit{Count: o.Messages}
	if _, err := s.target.Send(ctx, loadgen.SendLoad{Load: load, Size: bodySize, Batch: maxBatch}); err != nil {
		return err
	}
	received, err := s.measure(into, rowReceive, func() (loadgen.Result, error) {
		return s.target.Receive(ctx, loadgen.ReceiveLoad{
			Load: load, Group: groupName, Batch: maxBatch, Invisible: invisible, Wait: time.Second, UntilEmpty: true, Keep: true,
		})
	})
	if err != nil {
		return err
	}
	handles := received.Handles
	half := len(handles) / 2
	ack := loadgen.AckLoad{Load: load, Group: groupName, Batch: maxBatch, Handles: handles[:half]}
	if _, err := s.measure(into, rowAckBatch, func() (loadgen.Result, error) { return s.target.Ack(ctx, ack) }); err != nil {
		return err
	}
	ack.Batch, ack.Handles = 1, handles[half:]
	_, err = s.measure(into, rowAck, func() (loadgen.Result, error) { return s.target.Ack(ctx, ack) })
	return err
}

// measureFilter measures a receive with an SQL filter that wants one message of so many.
// The measures are those of a message that the server has looked at, wanted or not.
func measureFilter(ctx context.Context, s *server, o options, into results, row string, of int64) error {
	topic := fmt.Sprint(topicName, "-filter-", of)
	if err := s.createTopics(ctx, topic); err != nil {
		return err
	}
	wanted := max(o.Messages/of, 1)
	rounds := min(wanted, 10)
	load := loadgen.Load{Topic: topic, Concurrency: o.Concurrency}
	for round := range rounds {
		share := func(n int64) loadgen.Limit { return loadgen.Limit{Count: n*(round+1)/rounds - n*round/rounds} }
		for _, kind := range []struct {
			price string
			loadgen.Limit
		}{{"3", share(wanted*of - wanted)}, {"12", share(wanted)}} {
			load.Limit = kind.Limit
			send := loadgen.SendLoad{Load: load, Size: bodySize, Batch: maxBatch, Properties: map[string]string{"price": kind.price, "region": "eu"}}
			if _, err := s.target.Send(ctx, send); err != nil {
				return err
			}
		}
	}
	load.Limit = loadgen.Limit{Count: wanted}
	_, err := s.measure(into, row, func() (loadgen.Result, error) {
		result, err := s.target.Receive(ctx, loadgen.ReceiveLoad{
			Load: load, Group: groupName, Batch: maxBatch, Invisible: invisible, Wait: time.Second, SQL: "price > 5 AND region IN ('eu', 'us')",
		})
		result.Messages *= of
		return result, err
	})
	return err
}

// measureSync measures how many messages of a few producers share an fsync.
func measureSync(ctx context.Context, s *server, o options, into results) error {
	if err := s.createTopics(ctx, topicName); err != nil {
		return err
	}
	load := loadgen.Load{Topic: topicName, Concurrency: producers, Limit: loadgen.Limit{Duration: warmUp}}
	send := loadgen.SendLoad{Load: load, Size: bodySize, Batch: 1}
	if _, err := s.target.Send(ctx, send); err != nil {
		return err
	}
	send.Limit.Duration = o.Duration
	_, err := s.measure(into, rowSync, func() (loadgen.Result, error) { return s.target.Send(ctx, send) })
	return err
}

// measureGroups measures what it costs to keep the order of message groups. There is no
// such thing at a server that does nothing.
func measureGroups(ctx context.Context, s *server, o options, into results) error {
	for _, groups := range messageGroups {
		name, row := fmt.Sprintf("%s-groups-%d", topicName, groups), rowUnordered
		if groups > 0 {
			row = rowGroups(groups)
		}
		if err := s.createOrdered(ctx, name, groups > 0); err != nil {
			return err
		}
		load := loadgen.Load{Topic: name, Concurrency: o.Concurrency, Limit: loadgen.Limit{Count: o.Messages}}
		if _, err := s.target.Send(ctx, loadgen.SendLoad{Load: load, Size: bodySize, Batch: 1, Groups: groups}); err != nil {
			return err
		}
		if _, err := s.measure(into, row, func() (loadgen.Result, error) {
			return s.target.Receive(ctx, loadgen.ReceiveLoad{
				Load: load, Group: name, Batch: maxBatch, AckBatch: 1, Invisible: invisible, Wait: time.Second, UntilEmpty: true,
			})
		}); err != nil {
			return err
		}
	}
	return nil
}

// createOrdered creates a topic and a group of that name, FIFO or not.
func (s *server) createOrdered(ctx context.Context, name string, fifo bool) error {
	conn, err := client.Dial(client.Options{Endpoint: s.at.GRPC, Version: "5.1.4"})
	if err != nil {
		return err
	}
	defer conn.Close()
	admin, typ := adminpb.NewAdminServiceClient(conn), adminpb.TopicType_TOPIC_TYPE_NORMAL
	if fifo {
		typ = adminpb.TopicType_TOPIC_TYPE_FIFO
	}
	if _, err := admin.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name, Type: typ}); err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	if _, err := admin.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: name, Fifo: fifo}); err != nil {
		return fmt.Errorf("group %s: %w", name, err)
	}
	return nil
}

// measure runs a load and adds what it took to a row.
func (s *server) measure(into results, row string, load func() (loadgen.Result, error)) (loadgen.Result, error) {
	before, err := s.sample()
	if err != nil {
		return loadgen.Result{}, err
	}
	result, err := load()
	if err != nil {
		return result, fmt.Errorf("%s: %s: %w", s.name, row, err)
	}
	after, err := s.sample()
	if err != nil {
		return result, err
	}
	if result.Messages == 0 || result.Failures() > 0 {
		return result, fmt.Errorf("%s: %s: %d messages, errors %v", s.name, row, result.Messages, result.Errors)
	}
	n := float64(result.Messages)
	rate, _ := result.PerSecond()
	quantile := func(q float64) float64 { return float64(result.Latency.ValueAtQuantile(q)) / float64(time.Microsecond) }
	into[row] = append(into[row], measure{
		CPU:     float64((after.cpu - before.cpu).Microseconds()) / n,
		Own:     float64((after.own - before.own).Microseconds()) / n,
		Allocs:  (after.mallocs - before.mallocs) / n,
		Rate:    rate,
		P50:     quantile(50),
		P99:     quantile(99),
		PerSync: perSync(n, after.syncs-before.syncs),
		RSS:     float64(after.rss) / (1 << 20),
	})
	return result, nil
}

func perSync(messages, syncs float64) float64 {
	if syncs > 0 {
		return messages / syncs
	}
	return nan // not counted, or none
}

// createTopics creates topics on a server that needs them to be there.
func (s *server) createTopics(ctx context.Context, names ...string) error {
	if s.name == "no-op" {
		return nil
	}
	conn, err := client.Dial(client.Options{Endpoint: s.at.GRPC, Version: "5.1.4"})
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, name := range names {
		_, err := adminpb.NewAdminServiceClient(conn).CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name})
		if err != nil {
			return fmt.Errorf("topic %s: %w", name, err)
		}
	}
	return nil
}
