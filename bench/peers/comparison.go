package peers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/perigee-mq/perigee/bench/drive"
	"github.com/perigee-mq/perigee/bench/figures"
	"github.com/perigee-mq/perigee/bench/proc"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// comparison is a comparison that runs.
type comparison struct {
	options
	deadline time.Time
	progress io.Writer
	record   *figures.Record
}

func (c *comparison) wants(name string) bool { return slices.Contains(c.wanted(), name) }

func (c *comparison) say(format string, args ...any) {
	fmt.Fprintf(c.progress, "%s "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}

func (c *comparison) note(format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	c.record.Notes = append(c.record.Notes, note)
	c.say("%s", note)
}

// fsyncShare is the part of the rest of the time that the class with an fsync may take, which
// more servers are in.
const fsyncShare = 0.54

// startShare is the part of the time that the starts may take.
const startShare = 0.15

// measure measures everything. An error is the end of ctx; what else goes wrong is noted.
func (c *comparison) measure(ctx context.Context, k kinds) error {
	left := time.Until(c.deadline)
	c.measureStarts(ctx, k, time.Now().Add(time.Duration(startShare*float64(left))))
	classes := []string{figures.Fsync, figures.Cache}
	for i, class := range classes {
		left := time.Until(c.deadline)
		if i+1 < len(classes) {
			left = time.Duration(float64(left) * fsyncShare)
		}
		c.measureClass(ctx, class, k.contenders(class, c.plan.rounds), time.Now().Add(left))
	}
	return ctx.Err()
}

// settling is how long a server rests until its idle memory is read.
const settling = time.Second

// measureStarts measures how long servers take to start, and what they take then, those
// with an fsync, in turn.
func (c *comparison) measureStarts(ctx context.Context, k kinds, deadline time.Time) {
	all := k.contenders(figures.Fsync, 0)
	if k.noop != nil {
		all = append(all, k.contenders(figures.Cache, 0)[0]) // it keeps nothing anyway
	}
	all = slices.DeleteFunc(all, func(s *contender) bool { return s.consumers })
	rounds(ctx, c.plan.starts, deadline, func(round int) {
		for _, s := range rotated(all, round) {
			if s.gone || ctx.Err() != nil {
				continue
			}
			c.say("start %d: %s", round, s.name)
			if err := c.measureStart(ctx, s, round); err != nil {
				c.failed(s, fmt.Errorf("start: %w", err))
			}
		}
	})
}

func (c *comparison) measureStart(ctx context.Context, s *contender, round int) error {
	defer s.stop()
	took, err := s.start(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	used, err := s.server.Usage()
	if err != nil {
		return err
	}
	c.record.Samples = append(c.record.Samples, figures.Sample{
		Server: s.name, Row: figures.Start, Round: round, Messages: 1, Seconds: took.Seconds(),
		Rate: figures.NaN, ServerCPU: figures.NaN, OwnCPU: figures.NaN, P50: figures.NaN, P99: figures.NaN, P999: figures.NaN,
		Resident: mib(used.Resident), Private: mib(used.Private),
	})
	return nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// rounds calls round for 1 to n, unless it must be expected to end after the deadline.
func rounds(ctx context.Context, n int, deadline time.Time, round func(n int)) (done int) {
	longest := time.Duration(0)
	for i := 1; i <= n && ctx.Err() == nil; i++ {
		began := time.Now()
		if i > 1 && began.Add(longest).After(deadline) {
			break
		}
		round(i)
		longest, done = max(longest, time.Since(began)), i
	}
	return done
}

// rotated returns all, beginning elsewhere in each round.
func rotated[T any](all []T, round int) []T {
	if len(all) == 0 {
		return nil
	}
	first := (round - 1) % len(all)
	return slices.Concat(all[first:], all[:first])
}

// measureClass measures the servers of a class in turn.
func (c *comparison) measureClass(ctx context.Context, class string, all []*contender, deadline time.Time) {
	defer func() {
		for _, s := range all {
			s.stop()
		}
	}()
	for _, s := range all {
		if !s.lasting || ctx.Err() != nil {
			continue
		}
		c.say("%s: start and warm up %s", class, s.name)
		if err := c.startLasting(ctx, s); err != nil {
			c.note("%s, %s is not compared: %v", class, s.name, err)
			s.gone = true
		}
	}
	done := rounds(ctx, c.plan.rounds, deadline, func(round int) {
		for _, s := range rotated(all, round) {
			if s.gone || ctx.Err() != nil {
				continue
			}
			c.say("%s: round %d: %s", class, round, s.name)
			if err := c.measureRound(ctx, s, round); err != nil {
				c.failed(s, fmt.Errorf("round %d: %w", round, err))
			}
		}
		// What there is stays if the rest does not come about.
		if err := c.record.WriteSamples(c.out); err != nil {
			c.note("samples: %v", err)
		}
	})
	if done < c.plan.rounds {
		c.note("%s: %d of %d rounds, for more there was no time", class, done, c.plan.rounds)
	}
}

// mostFailures is the number of failures after which a server is left out.
const mostFailures = 3

func (c *comparison) failed(s *contender, err error) {
	if errors.Is(err, context.Canceled) {
		return // everything ends
	}
	c.note("%s: %v", s.name, err)
	// After a call that did not end its driver is not to be used again.
	if s.failures++; s.failures >= mostFailures || errors.Is(err, errHangs) {
		c.note("%s failed %d times and is left out from there on", s.name, s.failures)
		s.gone = true
		s.stop()
	}
}

func (c *comparison) startLasting(ctx context.Context, s *contender) error {
	if _, err := s.start(ctx); err != nil {
		return err
	}
	if err := prepare(ctx, s, 0); err != nil {
		return err
	}
	if err := c.warmUp(ctx, s, c.plan.warmLasting); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	s.close()
	return s.server.Pause()
}

// prepareTimeout bounds the making of topics.
const prepareTimeout = 30 * time.Second

func prepare(ctx context.Context, s *contender, round int) error {
	_, err := bounded(ctx, prepareTimeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.driver.Prepare(ctx, round)
	})
	return err
}

// warmUp loads a server with some of everything that is measured.
func (c *comparison) warmUp(ctx context.Context, s *contender, d time.Duration) error {
	_, err := bounded(ctx, d+rowGrace, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, warm(ctx, s, d)
	})
	return err
}

func warm(ctx context.Context, s *contender, d time.Duration) error {
	limit := func(share float64) loadgen.Limit {
		return loadgen.Limit{Duration: time.Duration(share * float64(d))}
	}
	_, err := s.driver.Send(ctx, drive.Load{InFlight: 64, Batch: 1, Limit: limit(0.4)})
	if err == nil {
		_, err = s.driver.Send(ctx, drive.Load{InFlight: fillInFlight, Batch: drive.ReceiveBatch, Limit: limit(0.2)})
	}
	if err == nil {
		_, err = s.driver.Receive(ctx, drive.Load{InFlight: 16, Limit: limit(0.2)})
	}
	if err == nil {
		_, err = s.driver.Receive(ctx, drive.Load{InFlight: 64, Each: true, Limit: limit(0.2)})
	}
	return err
}

// resumed is how long a server that was paused gets to do what was due meanwhile.
const resumed = time.Second

// claimed is about what a server writes and keeps in a round.
const claimed = 2 << 30

// measureRound measures all rows of a server once.
func (c *comparison) measureRound(ctx context.Context, s *contender, round int) (err error) {
	if err := proc.Claim(claimed); err != nil {
		return err
	}
	if s.lasting {
		if err := s.server.Resume(); err != nil {
			return err
		}
		defer func() {
			s.close()
			if s.server != nil {
				err = errors.Join(err, s.server.Pause())
			}
		}()
		if err := pause(ctx, resumed); err != nil {
			return err
		}
		opening, cancel := context.WithTimeout(ctx, prepareTimeout)
		defer cancel()
		if err := s.open(opening); err != nil {
			return err
		}
	} else {
		defer s.stop()
		if _, err := s.start(ctx); err != nil {
			return err
		}
	}
	if err := prepare(ctx, s, round); err != nil {
		return err
	}
	s.backlog = 0
	r := &roundOf{comparison: c, contender: s, round: round}
	return r.measure(ctx)
}

// roundOf is a round of a server.
type roundOf struct {
	*comparison
	*contender
	round int
}

func (r *roundOf) measure(ctx context.Context) error {
	if !r.lasting {
		if err := r.warmUp(ctx, r.contender, r.plan.warmFresh); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	var errs []error
	for _, step := range r.steps() {
		if err := step(ctx); err != nil {
			errs = append(errs, err)
		}
		if len(errs) >= mostFailures || errors.Is(errors.Join(errs...), errHangs) || ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// steps are what is measured in a round, in order.
func (r *roundOf) steps() (steps []func(context.Context) error) {
	add := func(step func(context.Context) error) { steps = append(steps, step) }
	if r.consumers {
		add(r.fill)
	} else {
		for _, n := range r.plan.inFlight {
			add(func(ctx context.Context) error { return r.sends(ctx, figures.Send, drive.Load{InFlight: n, Batch: 1}) })
		}
		for _, n := range r.plan.inFlight {
			add(func(ctx context.Context) error {
				return r.sends(ctx, figures.Batch, drive.Load{InFlight: n, Batch: drive.ReceiveBatch})
			})
		}
	}
	inFlight := r.plan.inFlight
	if r.consumers {
		// It answers none of more in the time of a row, and is busy with them for several.
		inFlight = slices.DeleteFunc(slices.Clone(inFlight), func(n int) bool { return n > eachInFlight })
	}
	rows := len(inFlight) + 1
	for i, n := range inFlight {
		add(func(ctx context.Context) error {
			return r.receives(ctx, figures.Receive, drive.Load{InFlight: n}, rows-i)
		})
	}
	add(func(ctx context.Context) error {
		return r.receives(ctx, figures.Each, drive.Load{InFlight: eachInFlight, Each: true}, 1)
	})
	if !r.endless {
		add(r.latency)
	}
	add(func(context.Context) error { return r.memory() })
	return steps
}

// fill sends what is to be received.
func (r *roundOf) fill(ctx context.Context) error {
	result, err := bounded(ctx, r.plan.fill+rowGrace, func(ctx context.Context) (loadgen.Result, error) {
		return r.driver.Send(ctx, drive.Load{InFlight: fillInFlight, Batch: drive.ReceiveBatch, Limit: loadgen.Limit{Duration: r.plan.fill}})
	})
	r.backlog += result.Messages
	return err
}

// sends measures a row of sends.
func (r *roundOf) sends(ctx context.Context, row string, l drive.Load) error {
	send := func(ctx context.Context, d time.Duration) (loadgen.Result, error) {
		l.Limit = loadgen.Limit{Duration: d}
		result, err := r.driver.Send(ctx, l)
		r.backlog += result.Messages
		return result, err
	}
	return r.row(ctx, row, l.InFlight, r.plan.row, func(ctx context.Context) error {
		_, err := send(ctx, r.plan.warmUp)
		return err
	}, func(ctx context.Context) (loadgen.Result, error) { return send(ctx, r.plan.row) })
}

// backlogUse is the part of its share of the backlog that a row receives: no row is to
// run out of messages.
const backlogUse = 0.8

// receives measures a row of receives, one of so many that the backlog is for.
func (r *roundOf) receives(ctx context.Context, row string, l drive.Load, rows int) error {
	share := int64(backlogUse * float64(r.backlog) / float64(rows))
	receive := func(ctx context.Context, d time.Duration, most int64) (loadgen.Result, error) {
		l.Limit = loadgen.Limit{Duration: d}
		if !r.endless {
			l.Limit.Count = max(most, 1)
		}
		result, err := r.driver.Receive(ctx, l)
		r.backlog = max(0, r.backlog-result.Messages)
		return result, err
	}
	return r.row(ctx, row, l.InFlight, r.plan.row, func(ctx context.Context) error {
		_, err := receive(ctx, r.plan.warmUp, share/5)
		return err
	}, func(ctx context.Context) (loadgen.Result, error) {
		result, err := receive(ctx, r.plan.row, share*4/5)
		result.Latency = nil // of a message that waits in a client it says nothing
		return result, err
	})
}

func (r *roundOf) latency(ctx context.Context) error {
	return r.row(ctx, figures.Latency, 0, r.plan.latency, func(ctx context.Context) error {
		_, err := r.driver.EndToEnd(ctx, r.plan.rate, r.plan.warmUp)
		return err
	}, func(ctx context.Context) (loadgen.Result, error) {
		return r.driver.EndToEnd(ctx, r.plan.rate, r.plan.latency)
	})
}

// rowGrace is how much longer than it lasts a row may take, with its warm-up and its last
// answers.
const rowGrace = 30 * time.Second

// row measures a row.
func (r *roundOf) row(ctx context.Context, row string, inFlight int, lasts time.Duration, warm func(context.Context) error,
	load func(context.Context) (loadgen.Result, error),
) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fail := func(err error) error {
		return fmt.Errorf("%s, %d in flight: %w", row, inFlight, err)
	}
	syncDisks()
	if _, err := bounded(ctx, lasts+rowGrace, func(ctx context.Context) (struct{}, error) { return struct{}{}, warm(ctx) }); err != nil {
		return fail(err)
	}
	before, err := r.server.Usage()
	if err != nil {
		return fail(err)
	}
	own, err := proc.CPU(os.Getpid())
	if err != nil {
		return fail(err)
	}
	result, err := bounded(ctx, lasts+rowGrace, load)
	if err != nil {
		return fail(err)
	}
	ownAfter, err := proc.CPU(os.Getpid())
	if err != nil {
		return fail(err)
	}
	after, err := r.server.Usage()
	if err != nil {
		return fail(err)
	}
	if result.Messages == 0 {
		return fail(fmt.Errorf("nothing succeeded: %v", result.Errors))
	}
	n := float64(result.Messages)
	quantile := func(q float64) float64 {
		if result.Latency == nil || result.Latency.TotalCount() == 0 {
			return figures.NaN
		}
		return float64(result.Latency.ValueAtQuantile(q)) / float64(time.Microsecond)
	}
	perSecond, _ := result.PerSecond()
	r.record.Samples = append(r.record.Samples, figures.Sample{
		Class: r.class, Server: r.name, Row: row, InFlight: inFlight, Round: r.round,
		Messages: result.Messages, Errors: result.Failures(), Seconds: result.Elapsed.Seconds(), Rate: perSecond,
		ServerCPU: micros(after.CPU-before.CPU) / n, OwnCPU: micros(ownAfter-own) / n,
		P50: quantile(50), P99: quantile(99), P999: quantile(99.9),
		Resident: mib(after.Resident), Private: mib(after.Private),
	})
	if result.Failures() > 0 {
		r.note("%s, %s, %s, %d in flight, round %d: %s", r.name, r.class, row, inFlight, r.round, reasons(result.Errors))
	}
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// reasons lists what failed and how often.
func reasons(errs map[string]int64) string {
	var texts []string
	for reason, n := range errs {
		texts = append(texts, fmt.Sprintf("%d times %s", n, reason))
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

// memory reads what the server takes after all its loads.
func (r *roundOf) memory() error {
	used, err := r.server.Usage()
	if err != nil {
		return err
	}
	r.record.Samples = append(r.record.Samples, figures.Sample{
		Class: r.class, Server: r.name, Row: figures.Memory, Round: r.round,
		Seconds: math.NaN(), Rate: math.NaN(), ServerCPU: math.NaN(), OwnCPU: math.NaN(), P50: math.NaN(), P99: math.NaN(), P999: math.NaN(),
		Resident: mib(used.Resident), Private: mib(used.Private),
	})
	return nil
}

// syncTimeout bounds the wait for the disks; others may write to them without end.
const syncTimeout = 2 * time.Second

// syncDisks waits until what was written is on the disks.
func syncDisks() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		unix.Sync()
	}()
	timer := time.NewTimer(syncTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
