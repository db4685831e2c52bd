package crashtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"
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
				t: t, column: "killed, " + flush, server: newServer(t, bin, flush, small...), history: newHistory(),
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
		t: t, column: "not killed", server: newServer(t, binary(t), "sync", small...), history: newHistory(),
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
	history    *history
	rng        *rand.Rand
	recoveries []time.Duration
	killed     map[string]int
}

// filters are the groups and the tags they want.
var filters = map[string]string{"all": "", "all-too": "", "red": "red"}

// run lets clients work while trouble is made, then lets them finish, and judges what
// they have seen.
func (r *run) run(trouble func(ctx context.Context)) {
	r.killed = map[string]int{}
	r.start()
	r.createTopic()
	// Producers end first, then the consumers.
	ctx, cancel := context.WithCancel(r.t.Context())
	sendCtx, stopSending := context.WithCancel(ctx)
	var producers, consumers sync.WaitGroup
	defer func() { cancel(); producers.Wait(); consumers.Wait() }()
	for i := range 4 {
		p := &producer{name: fmt.Sprint("p", i), server: r.server, history: r.history, rng: r.newRNG()}
		producers.Go(func() { p.run(sendCtx) })
	}
	defer stopSending()
	var gentle atomic.Bool
	for i, group := range []string{"all", "all", "all-too", "all-too", "red"} {
		c := &consumer{
			name: fmt.Sprint("c", i), group: group, tag: filters[group],
			server: r.server, history: r.history, rng: r.newRNG(), gentle: &gentle,
		}
		consumers.Go(func() { c.run(ctx) })
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
	r.drain(ctx)
	queues := r.queues(ctx)
	cancel()
	consumers.Wait()
	faults := r.history.judge(filters, queues)
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
	r.history.cutOff()
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
		r.history.cutOff()
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

func (r *run) createTopic() {
	conn, err := r.server.connection(r.t.Context())
	require.NoError(r.t, err)
	admin := adminpb.NewAdminServiceClient(conn)
	_, err = admin.CreateTopic(r.t.Context(), &adminpb.CreateTopicRequest{Name: topicName, Queues: 4})
	require.NoError(r.t, err)
	for group := range filters {
		// Nothing is dead-lettered in this test, however often it is given up.
		_, err = admin.CreateGroup(r.t.Context(), &adminpb.CreateGroupRequest{Name: group, Retry: &adminpb.RetryPolicy{MaxAttempts: 1000}})
		require.NoError(r.t, err)
	}
}

// drain waits until every group has everything and nothing is in flight.
func (r *run) drain(ctx context.Context) {
	conn, err := r.server.connection(ctx)
	require.NoError(r.t, err)
	admin := adminpb.NewAdminServiceClient(conn)
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	left := func() (list []string) {
		for group, tag := range filters {
			resp, err := admin.GetGroup(ctx, &adminpb.GetGroupRequest{Name: group})
			if err != nil {
				return []string{err.Error()}
			}
			if n := r.history.missing(group, tag); n > 0 {
				list = append(list, fmt.Sprintf("%s has not got %d", group, n))
			}
			for _, topic := range resp.GetTopics() {
				if topic.GetReady()+topic.GetInFlight() > 0 {
					list = append(list, fmt.Sprintf("%s: ready %d, in flight %d", group, topic.GetReady(), topic.GetInFlight()))
				}
			}
		}
		return list
	}
	for {
		list := left()
		if len(list) == 0 {
			return
		}
		if !pause(ctx, 100*time.Millisecond) {
			r.report()
			require.Empty(r.t, list, "not drained in time")
		}
	}
}

// queues returns how many messages each queue holds.
func (r *run) queues(ctx context.Context) map[int32]int64 {
	conn, err := r.server.connection(ctx)
	require.NoError(r.t, err)
	resp, err := adminpb.NewAdminServiceClient(conn).GetTopic(ctx, &adminpb.GetTopicRequest{Name: topicName})
	require.NoError(r.t, err)
	queues := map[int32]int64{}
	for _, q := range resp.GetQueues() {
		require.Zero(r.t, q.GetMinOffset())
		queues[q.GetQueue()] = q.GetMaxOffset()
	}
	return queues
}

func (r *run) report() {
	h := r.history
	h.mu.Lock()
	defer h.mu.Unlock()
	times := slices.Sorted(slices.Values(r.recoveries))
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	r.t.Logf("messages sent: %d acknowledged, %d unknown; deliveries: %d, %d of them again; acks in time: %d, late: %d",
		h.acked, h.unknown, h.delivered, h.redelivered, h.acks, h.late)
	r.t.Logf("kills: %v; recovery in ms: min %d, median %d, max %d; worst lateness %v",
		r.killed, ms(times[0]), ms(times[len(times)/2]), ms(times[len(times)-1]), h.lateness.Round(time.Millisecond))
	require.NoError(r.t, table.Add(r.cells(times)...))
}

// cells returns what the run adds to the table.
func (r *run) cells(times []time.Duration) []table.Cell {
	h := r.history
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
		text("two holders at once", h.twoHolders), text("other faults", h.other),
		text("worst redelivery lateness", h.lateness.Round(time.Millisecond)),
	}
	if r.calm {
		return append(cells, text("duplicates without faults", h.duplicates))
	}
	return append(cells, text("recovery, median", times[len(times)/2].Round(time.Millisecond)),
		text("recovery, max", times[len(times)-1].Round(time.Millisecond)))
}
