package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
)

// groupFlags describe a consumer group on the command line.
type groupFlags struct {
	fifo         bool
	broadcast    bool
	maxAttempts  int32
	delays       []time.Duration
	initial, max time.Duration
	multiplier   float64
	start        string
	liteTopic    string
	exclusive    bool
}

// The flags that belong to exponential back-off.
var backoffFlags = []string{"retry-initial", "retry-max", "retry-multiplier"}

func (f *groupFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.fifo, "fifo", false, "deliver the messages of a message group strictly in order")
	flags.Int32Var(&f.maxAttempts, "max-attempts", 0, "`number` of deliveries until a message is dead-lettered; 0: the server's default")
	flags.DurationSliceVar(&f.delays, "retry-delays", nil, "delays after the first, second, ... delivery, such as `1s,5s,10s`")
	flags.DurationVar(&f.initial, "retry-initial", time.Second, "back-off: `delay` after the first delivery")
	flags.DurationVar(&f.max, "retry-max", 2*time.Hour, "back-off: longest `delay`")
	flags.Float64Var(&f.multiplier, "retry-multiplier", 2, "back-off: `factor` from one delay to the next")
	flags.StringVar(&f.liteTopic, "lite-topic", "", "`name` of the only topic from whose lite topics the group receives; empty: any")
	flags.BoolVar(&f.broadcast, "broadcast", false, "give every message to each client of the group")
	flags.BoolVar(&f.exclusive, "lite-exclusive", false, "let one client of the group at a time have a lite topic")
	flags.StringVar(&f.start, "start", "earliest", "where to start reading: earliest, latest or a `time` as in 2026-01-31T08:00:00Z")
}

func anyChanged(cmd *cobra.Command, names ...string) bool {
	for _, name := range names {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// retryPolicy returns the policy that the flags describe; nil when they describe
// none.
func (f *groupFlags) retryPolicy(cmd *cobra.Command) (*adminpb.RetryPolicy, error) {
	delays, backoff := anyChanged(cmd, "retry-delays"), anyChanged(cmd, backoffFlags...)
	switch {
	case delays && backoff:
		return nil, usagef("--retry-delays and --%s exclude each other", strings.Join(backoffFlags, ", --"))
	case delays:
		return &adminpb.RetryPolicy{MaxAttempts: f.maxAttempts, Customized: durations(f.delays)}, nil
	case backoff:
		return &adminpb.RetryPolicy{
			MaxAttempts: f.maxAttempts,
			Initial:     durationpb.New(f.initial), Max: durationpb.New(f.max), Multiplier: f.multiplier,
		}, nil
	case anyChanged(cmd, "max-attempts"):
		return &adminpb.RetryPolicy{MaxAttempts: f.maxAttempts}, nil
	}
	return nil, nil
}

// complete fills what the flags leave open in retry from the policy that the
// group has.
func (f *groupFlags) complete(cmd *cobra.Command, retry, have *adminpb.RetryPolicy) *adminpb.RetryPolicy {
	if !anyChanged(cmd, "max-attempts") {
		retry.MaxAttempts = have.GetMaxAttempts()
	}
	switch {
	case anyChanged(cmd, "retry-delays"):
		return retry
	case !anyChanged(cmd, backoffFlags...):
		retry.Customized = have.GetCustomized()
		retry.Initial, retry.Max, retry.Multiplier = have.GetInitial(), have.GetMax(), have.GetMultiplier()
	case len(have.GetCustomized()) == 0 && have.GetInitial() != nil:
		if !anyChanged(cmd, "retry-initial") {
			retry.Initial = have.GetInitial()
		}
		if !anyChanged(cmd, "retry-max") {
			retry.Max = have.GetMax()
		}
		if !anyChanged(cmd, "retry-multiplier") {
			retry.Multiplier = have.GetMultiplier()
		}
	}
	return retry
}

// startPosition returns where the flags say to start; nil when they do not.
func (f *groupFlags) startPosition(cmd *cobra.Command) (*adminpb.StartPosition, error) {
	if !anyChanged(cmd, "start") {
		return nil, nil
	}
	switch strings.ToLower(f.start) {
	case "earliest":
		return &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_EARLIEST}, nil
	case "latest":
		return &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_LATEST}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, f.start)
	if err != nil {
		return nil, usagef("start %q: must be earliest, latest or a time as in 2026-01-31T08:00:00Z", f.start)
	}
	return &adminpb.StartPosition{Policy: adminpb.StartPosition_POLICY_TIMESTAMP, Time: timestamppb.New(at)}, nil
}

func viewStart(p *adminpb.StartPosition) string {
	switch p.GetPolicy() {
	case adminpb.StartPosition_POLICY_LATEST:
		return "latest"
	case adminpb.StartPosition_POLICY_TIMESTAMP:
		return p.GetTime().AsTime().Format(time.RFC3339Nano)
	default:
		return "earliest"
	}
}
