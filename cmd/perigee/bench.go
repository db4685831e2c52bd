package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/internal/loadgen"
)

// benchFlags describe a load.
type benchFlags struct {
	group           string
	size            string
	batch           int
	receiveBatch    int
	ackBatch        int
	concurrency     int
	connections     int
	duration        time.Duration
	count           int64
	rate            float64
	invisible, wait time.Duration
	tag             string
	untilEmpty      bool
}

func (a *app) benchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "bench", Short: "Measure a server of the RocketMQ 5 protocol", Args: noSubcommand, RunE: showHelp,
		Long: "Measure a server of the RocketMQ 5 protocol, Perigee or not. The topic must exist.",
	}
	cmd.AddCommand(a.benchSend(), a.benchReceive(), a.benchEndToEnd())
	return a.addEndpoint(cmd)
}

func (f *benchFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&f.concurrency, "concurrency", 16, "`number` of calls in flight")
	flags.IntVar(&f.connections, "connections", 1, "`number` of connections")
	flags.DurationVar(&f.duration, "duration", 0, "`time` to run for; 10s when there is no --count either")
	flags.Int64Var(&f.count, "count", 0, "`number` of messages after which to end")
	flags.Float64Var(&f.rate, "rate", 0, "`number` of messages per second to aim at; 0: as many as possible")
}

func (f *benchFlags) addSend(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.size, "size", "1KiB", "`size` of a body")
	cmd.Flags().IntVar(&f.batch, "batch", 1, "`number` of messages in a request")
	cmd.Flags().StringVar(&f.tag, "tag", "", "`tag` of the messages")
}

func (f *benchFlags) addReceive(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.group, "group", "perigee-bench", "consumer `group`")
	flags.IntVar(&f.receiveBatch, "receive-batch", maxReceiveBatch, "`number` of messages a receive asks for")
	flags.IntVar(&f.ackBatch, "ack-batch", maxReceiveBatch, "`number` of messages in an acknowledgment; 0: acknowledge none")
	flags.DurationVar(&f.invisible, "invisible", time.Minute, "`time` that others do not get the messages for")
	flags.DurationVar(&f.wait, "wait", 5*time.Second, "`time` that an empty receive waits")
}

func (f *benchFlags) load(a *app, topic string) loadgen.Load {
	limit := loadgen.Limit{Duration: f.duration, Count: f.count}
	if limit == (loadgen.Limit{}) {
		limit.Duration = 10 * time.Second
	}
	load := loadgen.Load{Topic: topic, Concurrency: f.concurrency, Limit: limit, Rate: f.rate}
	if isTerminal(a.stderr) {
		load.Progress = progressLine(a.stderr)
	}
	return load
}

// progressLine returns a report that prints what the last second brought.
func progressLine(w io.Writer) func(loadgen.Progress) {
	var last loadgen.Progress
	return func(p loadgen.Progress) {
		s := (p.Elapsed - last.Elapsed).Seconds()
		fmt.Fprintf(w, "%6.0fs  %9.0f msgs/s  %8.1f MB/s  %d errors\n", p.Elapsed.Seconds(),
			float64(p.Messages-last.Messages)/s, float64(p.Bytes-last.Bytes)/s/1e6, p.Errors)
		last = p
	}
}

func (f *benchFlags) sendLoad(a *app, topic string) (loadgen.SendLoad, error) {
	size, err := config.ParseSize(f.size)
	if err != nil {
		return loadgen.SendLoad{}, usagef("size %q: %w", f.size, err)
	}
	return loadgen.SendLoad{Load: f.load(a, topic), Size: int(size), Batch: f.batch, Tag: f.tag}, nil
}

func (f *benchFlags) receiveLoad(a *app, topic string) loadgen.ReceiveLoad {
	return loadgen.ReceiveLoad{
		Load: f.load(a, topic), Group: f.group, Batch: f.receiveBatch, AckBatch: f.ackBatch,
		Invisible: f.invisible, Wait: f.wait, UntilEmpty: f.untilEmpty,
	}
}

// withTarget runs do against the server.
func (a *app) withTarget(f *benchFlags, do func(*loadgen.Target) error) error {
	opts, err := a.endpoint.options()
	if err != nil {
		return err
	}
	target, err := loadgen.Dial(opts, f.connections)
	if err != nil {
		return &usageError{err}
	}
	defer target.Close()
	return a.explain(do(target))
}

func (a *app) benchSend() *cobra.Command {
	var flags benchFlags
	cmd := &cobra.Command{
		Use: "send TOPIC", Short: "Measure sends", Args: arguments("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			load, err := flags.sendLoad(a, args[0])
			if err != nil {
				return err
			}
			return a.withTarget(&flags, func(target *loadgen.Target) error {
				result, err := target.Send(cmd.Context(), load)
				if err != nil {
					return err
				}
				return a.printResults(measured{"send", result})
			})
		},
	}
	flags.add(cmd)
	flags.addSend(cmd)
	return cmd
}

func (a *app) benchReceive() *cobra.Command {
	var flags benchFlags
	cmd := &cobra.Command{
		Use: "receive TOPIC", Short: "Measure receives and acknowledgments", Args: arguments("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTarget(&flags, func(target *loadgen.Target) error {
				result, err := target.Receive(cmd.Context(), flags.receiveLoad(a, args[0]))
				if err != nil {
					return err
				}
				return a.printResults(measured{"receive", result})
			})
		},
	}
	flags.add(cmd)
	flags.addReceive(cmd)
	cmd.Flags().BoolVar(&flags.untilEmpty, "until-empty", false, "end when there is no message left")
	return cmd
}

func (a *app) benchEndToEnd() *cobra.Command {
	var flags benchFlags
	var drain time.Duration
	cmd := &cobra.Command{
		Use: "e2e TOPIC", Short: "Measure the time from a send to its receive", Args: arguments("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			send, err := flags.sendLoad(a, args[0])
			if err != nil {
				return err
			}
			load := loadgen.EndToEndLoad{Send: send, Receive: flags.receiveLoad(a, args[0]), Drain: drain}
			return a.withTarget(&flags, func(target *loadgen.Target) error {
				sent, received, err := target.EndToEnd(cmd.Context(), load)
				if err != nil {
					return err
				}
				return a.printResults(measured{"send", sent}, measured{"end to end", received})
			})
		},
	}
	flags.add(cmd)
	flags.addSend(cmd)
	flags.addReceive(cmd)
	cmd.Flags().DurationVar(&drain, "drain", 10*time.Second, "`time` to wait for messages after the last send")
	return cmd
}

// measured is a result and what it is of.
type measured struct {
	name   string
	result loadgen.Result
}

// printResults prints what was measured. It is an error when nothing went well, or the
// server was gone in the end.
func (a *app) printResults(all ...measured) error {
	for _, m := range all {
		v := viewResult(m.name, m.result)
		if err := a.print(v, v.write); err != nil {
			return err
		}
	}
	for _, m := range all {
		if m.result.Gone {
			return &goneError{endpoint: a.endpoint.address, done: fmt.Sprintf("%s: %d messages went well, what failed: %v", m.name, m.result.Messages, m.result.Errors)}
		}
		if m.result.Messages == 0 && m.result.Failures() > 0 {
			return fmt.Errorf("%s: nothing succeeded: %v", m.name, m.result.Errors)
		}
	}
	return nil
}

// resultView is how a result is printed.
type resultView struct {
	Load        string           `json:"load"`
	Seconds     float64          `json:"seconds"`
	Messages    int64            `json:"messages"`
	Requests    int64            `json:"requests"`
	PerSecond   float64          `json:"messages_per_second"`
	MBPerSecond float64          `json:"mb_per_second"`
	Latency     *latencyView     `json:"latency_us,omitempty"`
	AckLatency  *latencyView     `json:"ack_latency_us,omitempty"`
	Errors      map[string]int64 `json:"errors"`
}

// latencyView is in microseconds.
type latencyView struct {
	P50  int64 `json:"p50"`
	P90  int64 `json:"p90"`
	P99  int64 `json:"p99"`
	P999 int64 `json:"p99_9"`
	Max  int64 `json:"max"`
}

func (v resultView) write(w io.Writer) {
	fmt.Fprintf(w, "%s: %d messages in %.1f s with %d requests\n", v.Load, v.Messages, v.Seconds, v.Requests)
	fmt.Fprintf(w, "  rate         %.0f msgs/s, %.1f MB/s\n", v.PerSecond, v.MBPerSecond)
	v.Latency.write(w, "latency")
	v.AckLatency.write(w, "ack latency")
	for _, name := range slices.Sorted(maps.Keys(v.Errors)) {
		fmt.Fprintf(w, "  errors       %d × %s\n", v.Errors[name], name)
	}
}

func (v *latencyView) write(w io.Writer, name string) {
	if v != nil {
		fmt.Fprintf(w, "  %-11s  p50 %d, p90 %d, p99 %d, p99.9 %d, max %d µs\n", name, v.P50, v.P90, v.P99, v.P999, v.Max)
	}
}

func viewResult(name string, r loadgen.Result) resultView {
	messages, bytes := r.PerSecond()
	return resultView{
		Load: name, Seconds: r.Elapsed.Seconds(), Messages: r.Messages, Requests: r.Requests,
		PerSecond: messages, MBPerSecond: bytes / 1e6, Errors: r.Errors,
		Latency: viewLatency(r.Latency), AckLatency: viewLatency(r.AckLatency),
	}
}

func viewLatency(h *hdrhistogram.Histogram) *latencyView {
	if h.TotalCount() == 0 {
		return nil
	}
	us := func(quantile float64) int64 { return h.ValueAtQuantile(quantile) / int64(time.Microsecond) }
	return &latencyView{us(50), us(90), us(99), us(99.9), h.Max() / int64(time.Microsecond)}
}
