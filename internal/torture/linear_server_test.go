package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminpb "github.com/perigee-mq/perigee/gen/perigee/admin/v1"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/torture/table"
	"github.com/perigee-mq/perigee/receipt"
)

// What a real server is asked for, and how late it may be on a machine with much to do.
const (
	serverBatch = 32 // of a receive
	serverLease = 10 * time.Second
	serverLate  = 5 * time.Second
)

// runServer starts a server of its own and returns a connection to it.
func runServer(t *testing.T) *grpc.ClientConn {
	t.Helper()
	bin := os.Getenv("PERIGEE_BIN")
	if bin == "" {
		bin = filepath.Join(t.TempDir(), "perigee")
		out, err := exec.Command("go", "build", "-o", bin, "../../cmd/perigee").CombinedOutput()
		require.NoError(t, err, "go build: %s", out)
	}
	cmd := exec.Command(bin, "standalone", "--json", "--data-dir", t.TempDir(), "--flush", "async",
		"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--tls-mode", "disabled",
		"--retention-disk-clean", "100%", "--retention-disk-force", "100%", "--retention-disk-refuse", "100%")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL) // its data are nobody's
		_ = cmd.Wait()
	})
	var info struct {
		Address string `json:"grpc_addr"`
	}
	for lines := bufio.NewScanner(out); info.Address == "" && lines.Scan(); {
		_ = json.Unmarshal(lines.Bytes(), &info) // other lines are none of it
	}
	require.NotEmpty(t, info.Address, "the server did not say where it listens")
	conn, err := grpc.NewClient("passthrough:///"+info.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A user is one of several clients of a real server, which use one group at a time.
type user struct {
	*lineup
	number  int
	service rmqpb.MessagingServiceClient
	rng     *rand.Rand
	had     []*rmqpb.Message
}

var (
	linearTopic = &rmqpb.Resource{Name: "linear"}
	linearGroup = &rmqpb.Resource{Name: "linear"}
)

// call makes some call and notes its answer.
func (u *user) call(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", fmt.Sprint("user-", u.number), "x-mq-language", "GO", "x-mq-client-version", "5.1.3")
	switch n := u.rng.IntN(10); {
	case n < 2:
		return u.send(ctx)
	case n < 5:
		return u.receive(ctx)
	case len(u.had) == 0:
		return nil
	}
	m := u.had[len(u.had)-1-u.rng.IntN(min(len(u.had), 1+u.rng.IntN(8)))]
	if u.rng.IntN(3) > 0 {
		return u.settle(m, anAck, 0, func() (*rmqpb.Status, error) {
			resp, err := u.service.AckMessage(ctx, &rmqpb.AckMessageRequest{Group: linearGroup, Topic: linearTopic, Entries: []*rmqpb.AckMessageEntry{
				{MessageId: m.GetSystemProperties().GetMessageId(), ReceiptHandle: m.GetSystemProperties().GetReceiptHandle()},
			}})
			return resp.GetStatus(), err
		})
	}
	lasts := time.Duration(u.rng.IntN(3)) * 300 * time.Millisecond
	return u.settle(m, aChange, lasts, func() (*rmqpb.Status, error) {
		resp, err := u.service.ChangeInvisibleDuration(ctx, &rmqpb.ChangeInvisibleDurationRequest{
			Group: linearGroup, Topic: linearTopic, MessageId: m.GetSystemProperties().GetMessageId(),
			ReceiptHandle: m.GetSystemProperties().GetReceiptHandle(), InvisibleDuration: durationpb.New(lasts),
		})
		return resp.GetStatus(), err
	})
}

func (u *user) send(ctx context.Context) error {
	id := fmt.Sprintf("u%d-%d", u.number, u.rng.Uint64())
	u.sending(id)
	began := u.begin()
	resp, err := u.service.SendMessage(ctx, &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: linearTopic, Body: []byte(id),
		SystemProperties: &rmqpb.SystemProperties{
			MessageId: id, BodyEncoding: rmqpb.Encoding_IDENTITY, MessageType: rmqpb.MessageType_NORMAL,
			BornTimestamp: timestamppb.Now(), BornHost: "torture",
		},
	}}})
	if err == nil && resp.GetStatus().GetCode() != rmqpb.Code_OK {
		err = fmt.Errorf("send: %v", resp.GetStatus())
	}
	if err == nil {
		u.end(u.number, began, leaseInput{id: id, what: aSend})
	}
	return err
}

func (u *user) receive(ctx context.Context) error {
	began, start := u.begin(), time.Now().UnixNano()
	stream, err := u.service.ReceiveMessage(ctx, &rmqpb.ReceiveMessageRequest{
		Group: linearGroup, MessageQueue: &rmqpb.MessageQueue{Topic: linearTopic},
		FilterExpression: &rmqpb.FilterExpression{Type: rmqpb.FilterType_TAG, Expression: "*"},
		BatchSize:        serverBatch, InvisibleDuration: durationpb.New(serverLease), LongPollingTimeout: durationpb.New(20 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	var ids []string
	var ins []leaseInput
	for {
		resp, err := stream.Recv()
		if err != nil {
			break
		}
		m := resp.GetMessage()
		if m == nil {
			continue
		}
		p := m.GetSystemProperties()
		lease, err := receipt.Decode(p.GetReceiptHandle())
		if err != nil {
			return err
		}
		u.had = append(u.had, m)
		ids = append(ids, p.GetMessageId())
		ins = append(ins, leaseInput{id: p.GetMessageId(), what: aGet, receipt: uint64(lease.PopID), lo: start, hi: time.Now().UnixNano(), lasts: int64(serverLease)})
	}
	if len(ids) < serverBatch {
		for _, id := range u.others(ids) {
			ins = append(ins, leaseInput{id: id, what: aMiss, lo: start})
		}
	}
	u.end(u.number, began, ins...)
	return nil
}

// settle makes a call with a receipt.
func (u *user) settle(m *rmqpb.Message, what leaseCall, lasts time.Duration, fn func() (*rmqpb.Status, error)) error {
	lease, err := receipt.Decode(m.GetSystemProperties().GetReceiptHandle())
	if err != nil {
		return err
	}
	in := leaseInput{id: m.GetSystemProperties().GetMessageId(), what: what, receipt: uint64(lease.PopID), lasts: int64(lasts)}
	began := u.begin()
	in.lo = time.Now().UnixNano()
	status, err := fn()
	in.hi = time.Now().UnixNano()
	switch code := status.GetCode(); {
	case err != nil:
		return err
	case code == rmqpb.Code_INVALID_RECEIPT_HANDLE:
		in.what += noAck - anAck
	case code != rmqpb.Code_OK:
		return fmt.Errorf("%d of %s: %v", what, in.id, status)
	}
	u.end(u.number, began, in)
	return nil
}

// The same of a real server, with all that is in front of the store.
func TestCallsToARealServerAreLinearizable(t *testing.T) {
	calls := 120
	if testing.Short() {
		calls = 40
	}
	seed := number(t, "PERIGEE_SEED", rand.Uint64N(1<<40))
	t.Logf("PERIGEE_SEED=%d", seed)
	conn := runServer(t)
	admin := adminpb.NewAdminServiceClient(conn)
	_, err := admin.CreateTopic(t.Context(), &adminpb.CreateTopicRequest{Name: linearTopic.GetName(), Queues: 2})
	require.NoError(t, err)
	_, err = admin.CreateGroup(t.Context(), &adminpb.CreateGroupRequest{Name: linearGroup.GetName(), Retry: &adminpb.RetryPolicy{MaxAttempts: 1000}})
	require.NoError(t, err)
	h := &lineup{}
	var running sync.WaitGroup
	for n := range 4 {
		u := &user{lineup: h, number: n, service: rmqpb.NewMessagingServiceClient(conn), rng: rand.New(rand.NewPCG(seed, uint64(n)))}
		running.Go(func() {
			for range calls {
				if err := u.call(t.Context()); err != nil {
					t.Errorf("client %d: %v", u.number, err)
					return
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d answers", len(h.ops))
	if wrong := h.wrong(leaseRules{late: serverLate, repeats: true}); len(wrong) > 0 {
		t.Errorf("PERIGEE_SEED=%d: no order explains\n%s", seed, strings.Join(wrong, "\n"))
	}
	require.NoError(t, table.Add(table.Cell{Column: "not killed", Row: "answers in a linear order", Value: fmt.Sprint(len(h.ops))}))
}
