package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
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
// after it. PERIGEE_DRAIN changes it, for a server of which it is known that something is
// wrong with it.
const drainTime = 90 * time.Second

func drains(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PERIGEE_DRAIN")
	if text == "" {
		return drainTime
	}
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

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
				t: t, column: "killed, " + flush, loads: newLoads(),
				rng: rand.New(rand.NewPCG(seed, 0)),
			}
			s := newServer(t, bin, flush, small...)
			r.server = s
			r.run(func(ctx context.Context) {
				for range kills {
					r.kill(ctx, s)
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

// A target is what trouble is made for.
type target interface {
	way
	// client returns where the client of that number makes its calls, and where it settles
	// what it receives; nil: there too.
	client(number int) (calls, settles way)
	shards() []string
	// start starts what does not run, and returns how long that took; down kills all of it.
	start() (time.Duration, error)
	down()
	// prepare makes what is needed to make trouble, once it has started.
	prepare(t *testing.T)
	checkAll(t *testing.T)
}

// A run is one server, or deployment, with its clients.
type run struct {
	t          *testing.T
	column     string // of the table
	calm       bool   // the server is not killed
	server     target
	loads      []*load
	rng        *rand.Rand
	recoveries []time.Duration
	killed     map[string]int
	before     func()        // called when there are topics and no clients yet; nil: nothing is done
	outages    *outages      // of shards
	cuts       *outages      // of anything
	longest    time.Duration // until clients went on without what was killed
	reached    time.Duration // until every proxy had found a store node again, the longest time
}

// run lets clients work while trouble is made, then lets them finish, and judges what
// they have seen.
func (r *run) run(trouble func(ctx context.Context)) {
	r.killed = map[string]int{}
	r.outages, r.cuts = new(outages), new(outages)
	r.start()
	r.server.prepare(r.t)
	r.create()
	if r.before != nil {
		r.before()
	}
	// Producers end first, then the consumers.
	ctx, cancel := context.WithCancel(r.t.Context())
	sendCtx, stopSending := context.WithCancel(ctx)
	var producers, consumers sync.WaitGroup
	defer func() { cancel(); producers.Wait(); consumers.Wait() }()
	defer stopSending()
	var gentle atomic.Bool
	clients := 0
	client := func() (calls, settles way) {
		clients++
		return r.server.client(clients)
	}
	for _, l := range r.loads {
		for i, group := range l.consumers {
			c := &consumer{
				name: fmt.Sprint(l.topic, "-c", i), group: group, tag: l.filters[group], topic: l.resource(), lite: l.kind == rmqpb.MessageType_LITE,
				shards: r.server.shards(), history: l.history, rng: r.newRNG(), gentle: &gentle,
			}
			c.server, c.settles = client()
			if c.lite { // what is sent before is not for it
				conn, err := c.server.connection(ctx)
				require.NoError(r.t, err)
				require.True(r.t, c.sync(ctx, rmqpb.NewMessagingServiceClient(conn)))
			}
			consumers.Go(func() { c.run(ctx) })
		}
	}
	for _, l := range r.loads {
		for i := range l.producers {
			calls, _ := client()
			p := &producer{name: fmt.Sprint(l.topic, "-p", i), topic: l.resource(), kind: l.kind, server: calls, history: l.history, rng: r.newRNG()}
			producers.Go(func() { p.run(sendCtx) })
			if l.kind == rmqpb.MessageType_TRANSACTION {
				asked := &producer{name: p.name, topic: p.topic, server: calls, history: l.history, rng: r.newRNG()}
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
	queues := map[*load]map[queue]int64{}
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
	r.server.checkAll(r.t)
}

// deployed reports whether the tiers are processes of their own.
func (r *run) deployed() bool { return len(r.server.shards()) > 0 }

func (r *run) newRNG() *rand.Rand { return rand.New(rand.NewPCG(r.rng.Uint64(), 1)) }

// upTo returns a random time below d.
func (r *run) upTo(d time.Duration) time.Duration { return time.Duration(r.rng.Int64N(int64(d))) }

func (r *run) start() {
	r.t.Helper()
	took, err := r.server.start()
	require.NoError(r.t, err)
	r.recoveries = append(r.recoveries, took)
}

func (r *run) down() { r.cutting(r.server.down) }

// cutting kills something.
func (r *run) cutting(kill func()) {
	end := r.cuts.begin(anything...)
	kill()
	end()
}

// kill lets the clients work for a while, kills the server in one of several
// ways and starts it again.
func (r *run) kill(ctx context.Context, s *server) {
	require.True(r.t, pause(ctx, 100*time.Millisecond+r.upTo(900*time.Millisecond)))
	switch r.rng.IntN(3) {
	case 0:
		r.killed["under load"]++
		r.down()
	case 1:
		r.killed["while closing"]++
		r.cutting(func() { s.terminate(r.upTo(30 * time.Millisecond)) })
	case 2:
		r.killed["under load"]++
		r.down()
		for range 1 + r.rng.IntN(3) {
			r.killed["while starting"]++
			require.NoError(r.t, s.killStarting(r.upTo(60*time.Millisecond)))
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
	if r.deployed() {
		cells = append(cells, text("repeats stored on another shard too", h.copies), text("given back at a proxy's death", h.handed),
			text("until clients went on, max", r.longest.Round(time.Millisecond)), text("until a store node was found again, max", r.reached.Round(time.Millisecond)))
		for what, n := range r.killed {
			cells = append(cells, text("killed: "+what, n))
		}
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
