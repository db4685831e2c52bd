package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/torture/table"
)

// number returns the number in an environment variable, or the fallback.
func number(t *testing.T, name string, fallback uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, name)
	return n
}

// drainTime bounds the wait for the last message: a lease and the redeliveries
// after it.
const drainTime = 90 * time.Second

func TestNothingAcknowledgedIsLostHoweverOftenTheServerIsKilled(t *testing.T) {
	fallback := uint64(3)
	if testing.Short() {
		fallback = 1
	}
	kills := int(number(t, "PERIGEE_KILLS", fallback))
	seed := number(t, "PERIGEE_SEED", rand.Uint64())
	bin := binary(t)
	for _, flush := range []string{"sync", "async"} {
		t.Run(flush, func(t *testing.T) {
			t.Parallel()
			t.Logf("PERIGEE_SEED=%d", seed)
			r := &run{
				t: t, column: "killed, " + flush, server: newServer(t, bin, flush, small...), loads: newLoads(),
				rng: rand.New(rand.NewPCG(seed, 0)),
			}
			r.run(func(ctx context.Context) {
				for range kills {
					r.kill(ctx)
				}
				require.True(t, pause(ctx, r.upTo(500*time.Millisecond)))
			})
		})
	}
}

// A server that nothing happens to sends nothing twice without a reason.
func TestNothingComesTwiceFromAServerThatIsLeftAlone(t *testing.T) {
	seconds := number(t, "PERIGEE_CALM", 3)
	r := &run{
		t: t, column: "not killed", server: newServer(t, binary(t), "sync", small...), loads: newLoads(),
		rng: rand.New(rand.NewPCG(number(t, "PERIGEE_SEED", rand.Uint64()), 0)), calm: true,
	}
	r.run(func(ctx context.Context) { require.True(t, pause(ctx, time.Duration(seconds)*time.Second)) })
}

// small lets a short run fill many segments.
var small = []string{"--segment-size", "256KiB", "--max-body-size", "64KiB"}

// A run is one server with its clients.
type run struct {
	t          *testing.T
	column     string // of the table
	calm       bool   // the server is not killed
	server     *server
	loads      []*load
	rng        *rand.Rand
	recoveries []time.Duration
	killed     map[string]int
}

// run lets clients work while trouble is made, then lets them finish, and judges what
// they have seen.
func (r *run) run(trouble func(ctx context.Context)) {
	r.killed = map[string]int{}
	r.start()
	r.create()
	// Producers end first, then the consumers.
	ctx, cancel := context.WithCancel(r.t.Context())
	sendCtx, stopSending := context.WithCancel(ctx)
	var producers, consumers sync.WaitGroup
	defer func() { cancel(); producers.Wait(); consumers.Wait() }()
	defer stopSending()
	var gentle atomic.Bool
	for _, l := range r.loads {
		for i, group := range l.consumers {
			c := &consumer{
				name: fmt.Sprint(l.topic, "-c", i), group: group, tag: l.filters[group], topic: l.resource(), lite: l.kind == rmqpb.MessageType_LITE,
				server: r.server, history: l.history, rng: r.newRNG(), gentle: &gentle,
			}
			if c.lite { // what is sent before is not for it
				conn, err := r.server.connection(ctx)
				require.NoError(r.t, err)
				require.True(r.t, c.sync(ctx, rmqpb.NewMessagingServiceClient(conn)))
			}
			consumers.Go(func() { c.run(ctx) })
		}
	}
	for _, l := range r.loads {
		for i := range l.producers {
			p := &producer{name: fmt.Sprint(l.topic, "-p", i), topic: l.resource(), kind: l.kind, server: r.server, history: l.history, rng: r.newRNG()}
			producers.Go(func() { p.run(sendCtx) })
			if l.kind == rmqpb.MessageType_TRANSACTION {
				asked := &producer{name: p.name, topic: p.topic, server: r.server, history: l.history, rng: r.newRNG()}
				producers.Go(func() { asked.listen(sendCtx) })
			}
		}
	}
	trouble(ctx)
	stopSending()
	producers.Wait()
	if !r.calm {
		// With the producers gone the server is killed once more: idle but for
		// what is in flight.
		r.down()
		r.killed["without producers"]++
		r.start()
	}
	gentle.Store(true)
	r.endTransactions(ctx)
	r.drain(ctx)
	queues := map[*load]map[int32]int64{}
	for _, l := range r.loads {
		queues[l] = r.queues(ctx, l)
	}
	cancel()
	consumers.Wait()
	var faults []string
	for _, l := range r.loads {
		for _, f := range l.history.judge(l.filters, queues[l]) {
			faults = append(faults, l.topic+": "+f)
		}
	}
	r.report()
	require.Empty(r.t, faults)
	r.server.down()
	r.check()
}

// check runs `perigee check` on what the last kill has left.
func (r *run) check() checkedShard {
	out, err := exec.Command(r.server.bin, "check", "--json", "--data-dir", r.server.dataDir).CombinedOutput()
	require.NoError(r.t, err, "perigee check: %s", out)
	var line struct {
		Shard checkedShard `json:"shard"`
	}
	first, _, _ := bytes.Cut(out, []byte("\n"))
	require.NoError(r.t, json.Unmarshal(first, &line), "%s", out)
	return line.Shard
}

// checkedShard is what a check says of a shard.
type checkedShard struct {
	End       int64 `json:"end_position"`
	AppliedTo int64 `json:"applied_position"`
	Derived   bool  `json:"derived"`
}

func (r *run) newRNG() *rand.Rand { return rand.New(rand.NewPCG(r.rng.Uint64(), 1)) }

// upTo returns a random time below d.
func (r *run) upTo(d time.Duration) time.Duration { return time.Duration(r.rng.Int64N(int64(d))) }

func (r *run) start() {
	r.t.Helper()
	took, err := r.server.start()
	require.NoError(r.t, err)
	r.recoveries = append(r.recoveries, took)
}

func (r *run) down() {
	r.server.down()
	r.cutOff()
}

func (r *run) cutOff() {
	for _, l := range r.loads {
		l.history.cutOff()
	}
}

// kill lets the clients work for a while, kills the server in one of several
// ways and starts it again.
func (r *run) kill(ctx context.Context) {
	require.True(r.t, pause(ctx, 100*time.Millisecond+r.upTo(900*time.Millisecond)))
	switch r.rng.IntN(3) {
	case 0:
		r.killed["under load"]++
		r.down()
	case 1:
		r.killed["while closing"]++
		r.server.terminate(r.upTo(30 * time.Millisecond))
		r.cutOff()
	case 2:
		r.killed["under load"]++
		r.down()
		for range 1 + r.rng.IntN(3) {
			r.killed["while starting"]++
			require.NoError(r.t, r.server.killStarting(r.upTo(60*time.Millisecond)))
		}
	}
	r.start()
}

// cells returns what the run adds to the table.
func (r *run) cells(times []time.Duration) []table.Cell {
	h := r.sum()
	text := func(row string, value any) table.Cell {
		return table.Cell{Column: r.column, Row: row, Value: fmt.Sprint(value)}
	}
	kills := 0
	for _, n := range r.killed {
		kills += n
	}
	cells := []table.Cell{
		text("kills", kills), text("acknowledged messages", h.acked), text("deliveries", h.delivered),
		text("lost", h.lost), text("stuck", h.stuck), text("deliveries after an OK ack", h.afterAck),
		text("two holders at once", h.twoHolders), text("delivered early", h.early),
		text("seen against a recall or rollback", h.visible), text("other faults", h.other),
		text("recalls answered OK", h.recalls), text("transactions ended", h.ends), text("questions to producers", h.questions), text("sends repeated", h.repeats),
		text("worst redelivery lateness", h.lateness.Round(time.Millisecond)),
	}
	for _, l := range r.loads {
		if l.row != "" {
			cells = append(cells, text(l.row, l.history.acked))
		}
	}
	if r.calm {
		return append(cells, text("duplicates without faults", h.duplicates))
	}
	return append(cells, text("recovery, median", times[len(times)/2].Round(time.Millisecond)),
		text("recovery, max", times[len(times)-1].Round(time.Millisecond)))
}
