package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/perigee-mq/perigee/bench/proc"
	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
	"github.com/perigee-mq/perigee/internal/client"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// The rows about what is large take long, each on a server of its own, so that its
// memory is seen; they are measured in the first run only.

const (
	// fewLites is how many lite topics the row of many is held against, and how many the
	// consumers of both have.
	fewLites = 1000
	// smallSize is the body of what only has to be there.
	smallSize = 100
	// dueOver is the time over which the delayed messages become due; farAway is when those
	// are due that are only to be sent.
	dueOver = time.Minute
	farAway = 30 * 24 * time.Hour
	// settling is for how long a server may write what it has in memory.
	settling = 3 * time.Second
)

func rowLiteSend(n int64) string    { return fmt.Sprintf("send 1 KiB, lite topics: %d", n) }
func rowLiteReceive(n int64) string { return fmt.Sprintf("receive 32, ack 1, lite topics: %d", n) }
func rowDelayed(n int64) string     { return fmt.Sprintf("send 1 KiB, delayed, pending: %d", n) }

// largeRows are the rows about what is large, as the options want them.
func largeRows(o options) (names []string) {
	if o.Lites > 0 {
		for _, n := range liteNumbers(o) {
			names = append(names, rowLiteSend(n), rowLiteReceive(n))
		}
	}
	if o.Delays > 0 {
		names = append(names, rowDelayed(0), rowDelayed(o.Delays))
	}
	return names
}

func liteNumbers(o options) []int64 { return []int64{min(fewLites, o.Lites), max(fewLites, o.Lites)} }

// measureLarge measures the rows about what is large.
func measureLarge(ctx context.Context, o options, into results) (notes []string, err error) {
	use := func(measure func(*server) error) error {
		return withServer(func() (*server, error) { return startPerigee(ctx, o, o.Flush) }, measure)
	}
	if o.Lites > 0 {
		for _, n := range liteNumbers(o) {
			if err := use(func(s *server) error { return measureLites(ctx, s, o, into, n) }); err != nil {
				return nil, err
			}
		}
	}
	if o.Delays > 0 {
		err = use(func(s *server) (err error) {
			notes, err = measureDelays(ctx, s, o, into)
			return err
		})
	}
	return notes, err
}

// measureLites measures a LITE topic with so many lite topics, of which consumers have some.
func measureLites(ctx context.Context, s *server, o options, into results, n int64) error {
	const name = topicName + "-lite"
	if err := s.createOf(ctx, name, adminpb.TopicType_TOPIC_TYPE_LITE); err != nil {
		return err
	}
	load := loadgen.Load{Topic: name, Concurrency: o.Concurrency, Limit: loadgen.Limit{Count: n}}
	fill := loadgen.SendLoad{Load: load, Size: smallSize, Batch: 1, Lites: int(n)}
	if _, err := s.target.Send(ctx, fill); err != nil {
		return err
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	send := fill
	send.Size, send.Limit = bodySize, loadgen.Limit{Duration: o.Duration}
	if _, err := s.measure(into, rowLiteSend(n), func() (loadgen.Result, error) { return s.target.Send(ctx, send) }); err != nil {
		return err
	}
	send.Lites, send.Limit = fewLites, loadgen.Limit{Count: o.Messages}
	if _, err := s.target.Send(ctx, send); err != nil {
		return err
	}
	names := make([]string, fewLites)
	for i := range names {
		names[i] = loadgen.LiteName(i)
	}
	load.Limit = loadgen.Limit{}
	_, err := s.measure(into, rowLiteReceive(n), func() (loadgen.Result, error) {
		return s.target.Receive(ctx, loadgen.ReceiveLoad{
			Load: load, Group: name, Lites: names, Batch: maxBatch, AckBatch: 1, Invisible: invisible, Wait: time.Second, UntilEmpty: true,
		})
	})
	return err
}

// measureDelays measures sends of delayed messages without and with many others that wait,
// and how late those come that are due over a minute.
func measureDelays(ctx context.Context, s *server, o options, into results) (notes []string, err error) {
	const name = topicName + "-delay"
	if err := s.createOf(ctx, name, adminpb.TopicType_TOPIC_TYPE_DELAY); err != nil {
		return nil, err
	}
	load := loadgen.Load{Topic: name, Concurrency: o.Concurrency, Limit: loadgen.Limit{Duration: o.Duration}}
	send := loadgen.SendLoad{Load: load, Size: bodySize, Batch: 1, DeliverFrom: time.Now().Add(farAway), DeliverOver: dueOver}
	kept := int64(0) // those that are due in a month
	measure := func(row string) error {
		result, err := s.measure(into, row, func() (loadgen.Result, error) { return s.target.Send(ctx, send) })
		kept += result.Messages
		return err
	}
	if err := measure(rowDelayed(0)); err != nil {
		return nil, err
	}
	before, err := s.takes(ctx)
	if err != nil {
		return nil, err
	}
	// As much time as the sends may take, in batches at least twice as fast as one by one,
	// and the row behind them.
	rate := into[rowDelayed(0)][0].Rate
	from := time.Now().Add(2*o.Duration + 2*settling + time.Duration(float64(o.Delays)/rate/2*float64(time.Second)))
	fill := send
	fill.Size, fill.Batch, fill.Limit = smallSize, maxBatch, loadgen.Limit{Count: o.Delays}
	fill.DeliverFrom = from
	if _, err := s.target.Send(ctx, fill); err != nil {
		return nil, err
	}
	after, err := s.takes(ctx)
	if err != nil {
		return nil, err
	}
	if err := measure(rowDelayed(o.Delays)); err != nil {
		return nil, err
	}
	late := time.Until(from) < 0
	if err := pause(ctx, time.Until(from.Add(dueOver))); err != nil {
		return nil, err
	}
	text, err := s.lateness(ctx, kept)
	if err != nil {
		return nil, err
	}
	if late {
		text += " (this machine was too slow: some were due before the sends were over)"
	}
	return []string{
		fmt.Sprintf("%d pending messages of %d bytes: memory %+d MiB, disk %+d MiB", o.Delays, smallSize, (after.rss-before.rss)>>20, (after.disk-before.disk)>>20),
		fmt.Sprintf("%d delayed messages due over %v: %s", o.Delays, dueOver, text),
	}, nil
}

// use is what a server takes.
type use struct{ rss, disk int64 }

// takes returns what the server takes when it rests.
func (s *server) takes(ctx context.Context) (u use, err error) {
	if err := pause(ctx, settling); err != nil {
		return u, err
	}
	memory, err := proc.MemoryOf(s.parts[0].cmd.Process.Pid)
	if err != nil {
		return u, err
	}
	u.rss = memory.Resident
	err = filepath.WalkDir(s.folder, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if os.IsNotExist(err) {
			return nil // removed meanwhile
		}
		if err == nil {
			u.disk += info.Size()
		}
		return err
	})
	return u, err
}

// latenessSeconds is the histogram of how late delayed messages come, pendingMessages how many
// wait.
const (
	latenessSeconds = "perigee_delayed_lateness_seconds"
	pendingMessages = "perigee_delayed_pending_messages"
)

// lateness waits until no more delayed messages than kept wait, and says how late those were
// that came.
func (s *server) lateness(ctx context.Context, kept int64) (string, error) {
	for {
		families, err := s.parts[0].metrics()
		if err != nil {
			return "", err
		}
		late, pending := families[latenessSeconds].GetMetric(), families[pendingMessages].GetMetric()
		if len(late) == 0 || len(pending) == 0 {
			return "", fmt.Errorf("%s: does not export %s and %s", s.name, latenessSeconds, pendingMessages)
		}
		if pending[0].GetGauge().GetValue() <= float64(kept) {
			h := late[0].GetHistogram()
			return fmt.Sprintf("%d have waited, and came late by p50 %s, p99 %s, at most %s", h.GetSampleCount(), quantileOf(h, 0.5), quantileOf(h, 0.99), quantileOf(h, 1)), nil
		}
		if err := pause(ctx, time.Second); err != nil {
			return "", err
		}
	}
}

// quantileOf returns the bound of the bucket that the quantile is in.
func quantileOf(h *dto.Histogram, q float64) string {
	for _, b := range h.GetBucket() {
		if float64(b.GetCumulativeCount()) >= q*float64(h.GetSampleCount()) {
			return fmt.Sprintf("<= %v", time.Duration(b.GetUpperBound()*float64(time.Second)))
		}
	}
	return "more than can be told"
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// createOf creates a topic of a type, whose name a group has too.
func (s *server) createOf(ctx context.Context, name string, kind adminpb.TopicType) error {
	conn, err := client.Dial(client.Options{Endpoint: s.at.GRPC, Version: "5.1.4"})
	if err != nil {
		return err
	}
	defer conn.Close()
	admin := adminpb.NewAdminServiceClient(conn)
	if _, err := admin.CreateTopic(ctx, &adminpb.CreateTopicRequest{Name: name, Type: kind}); err != nil {
		return fmt.Errorf("topic %s: %w", name, err)
	}
	if _, err := admin.CreateGroup(ctx, &adminpb.CreateGroupRequest{Name: name}); err != nil {
		return fmt.Errorf("group %s: %w", name, err)
	}
	return nil
}
