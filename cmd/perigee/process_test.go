package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// asCommand makes the test binary the command itself.
const asCommand = "PERIGEE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// A process is a standalone server in a process of its own.
type process struct {
	cmd   *exec.Cmd
	info  serverInfo
	lines chan string // of its log
	conn  *grpc.ClientConn
	rmq   rmqpb.MessagingServiceClient
}

func startProcess(t *testing.T, folder string, args ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	p := &process{cmd: exec.Command(executable, append([]string{
		"standalone", "--json", "--data-dir", folder, "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--auto-create-topics",
	}, args...)...), lines: make(chan string, 1000)}
	p.cmd.Env = append(os.Environ(), asCommand+"=1")
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	stderr, err := p.cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	go func() {
		defer close(p.lines)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			p.lines <- lines.Text()
		}
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill() }) // it has ended, as a rule
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &p.info))
	p.conn, err = grpc.NewClient("passthrough:///"+p.info.GRPCAddr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	require.NoError(t, err)
	t.Cleanup(func() { p.conn.Close() })
	p.rmq = rmqpb.NewMessagingServiceClient(p.conn)
	return p
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
}

// logged waits until the process has logged text.
func (p *process) logged(t *testing.T, text string) {
	t.Helper()
	for line := range p.lines {
		if strings.Contains(line, text) {
			return
		}
	}
	t.Fatalf("the process has ended without %q in its log", text)
}

// exit waits for the end, and returns the exit code, -1 after a signal.
func (p *process) exit(t *testing.T) int {
	t.Helper()
	for range p.lines { // Wait closes the pipe
	}
	err := p.cmd.Wait()
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		require.NoError(t, err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func asClient(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "x-mq-client-id", id)
}

func (p *process) send(ctx context.Context, body string) (*rmqpb.SendMessageResponse, error) {
	return p.rmq.SendMessage(asClient(ctx, "sender"), &rmqpb.SendMessageRequest{Messages: []*rmqpb.Message{{
		Topic: &rmqpb.Resource{Name: "orders"}, Body: []byte(body), SystemProperties: &rmqpb.SystemProperties{MessageId: rand.Text()},
	}}})
}

func (p *process) receive(t *testing.T, topic string, wait time.Duration) grpc.ServerStreamingClient[rmqpb.ReceiveMessageResponse] {
	t.Helper()
	stream, err := p.rmq.ReceiveMessage(asClient(t.Context(), "receiver"), &rmqpb.ReceiveMessageRequest{
		Group: &rmqpb.Resource{Name: "g"}, MessageQueue: &rmqpb.MessageQueue{Topic: &rmqpb.Resource{Name: topic}},
		BatchSize: 32, InvisibleDuration: durationpb.New(time.Minute), LongPollingTimeout: durationpb.New(wait),
	})
	require.NoError(t, err)
	return stream
}

func TestASignalEndsEveryCallWell(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			folder := t.TempDir()
			p := startProcess(t, folder)
			telemetry, err := p.rmq.Telemetry(asClient(t.Context(), "receiver"))
			require.NoError(t, err)
			_, err = telemetry.Header()
			require.NoError(t, err)
			_, err = p.rmq.QueryRoute(asClient(t.Context(), "receiver"), &rmqpb.QueryRouteRequest{
				Topic: &rmqpb.Resource{Name: "empty"}, Endpoints: &rmqpb.Endpoints{Addresses: []*rmqpb.Address{{Host: "h", Port: 1}}},
			})
			require.NoError(t, err)
			poll := p.receive(t, "empty", 20*time.Second)

			var acknowledged [8]int
			var cutOff [8]error
			var senders sync.WaitGroup
			var started sync.WaitGroup
			for i := range acknowledged {
				started.Add(1)
				senders.Go(func() {
					for {
						res, err := p.send(t.Context(), "x")
						if err != nil || res.GetStatus().GetCode() != rmqpb.Code_OK {
							cutOff[i] = err
							if err == nil {
								cutOff[i] = errors.New(res.GetStatus().String())
							}
							return
						}
						if acknowledged[i]++; acknowledged[i] == 20 {
							started.Done()
						}
					}
				})
			}
			started.Wait()
			p.signal(t, signal)

			frame, err := poll.Recv()
			require.NoError(t, err)
			require.Equal(t, rmqpb.Code_MESSAGE_NOT_FOUND, frame.GetStatus().GetCode())
			_, err = poll.Recv() // the time
			require.NoError(t, err)
			_, err = poll.Recv()
			require.Equal(t, io.EOF, err)
			_, err = telemetry.Recv()
			require.ErrorContains(t, err, "the server is closing")
			require.Zero(t, p.exit(t))
			senders.Wait()
			sent := 0
			for i, err := range cutOff {
				// Only calls that had not begun have failed: the port is closed.
				require.ErrorContains(t, err, "connection refused")
				sent += acknowledged[i]
			}

			p = startProcess(t, folder)
			got := 0
			for got < sent {
				stream := p.receive(t, "orders", 0)
				before := got
				for {
					frame, err := stream.Recv()
					if errors.Is(err, io.EOF) {
						break
					}
					require.NoError(t, err)
					if frame.GetMessage() != nil {
						got++
					}
				}
				require.Greater(t, got, before, "sent %d", sent)
			}
			p.signal(t, signal)
			require.Zero(t, p.exit(t))
		})
	}
}

// blocked returns a server with a call that does not end by itself: its client
// does not read.
func blocked(t *testing.T, args ...string) *process {
	t.Helper()
	p := startProcess(t, t.TempDir(), args...)
	for range 4 {
		res, err := p.send(t.Context(), strings.Repeat("x", 1<<20))
		require.NoError(t, err)
		require.Equal(t, rmqpb.Code_OK, res.GetStatus().GetCode())
	}
	stream := p.receive(t, "orders", 0)
	_, err := stream.Recv() // the status; the messages wait
	require.NoError(t, err)
	return p
}

func TestCallsThatDoNotEndAreCutOffInTime(t *testing.T) {
	p := blocked(t, "--shutdown-timeout", "1s")
	p.signal(t, syscall.SIGTERM)
	p.logged(t, "calls under way are cut off")
	require.Zero(t, p.exit(t))
}

func TestASecondSignalEndsTheProcessAtOnce(t *testing.T) {
	p := blocked(t, "--shutdown-timeout", "1h")
	p.signal(t, syscall.SIGTERM)
	p.logged(t, "msg=stopping")
	again := time.NewTicker(sameSignal / 5)
	defer again.Stop()
	ended := make(chan int, 1)
	go func() { ended <- p.exit(t) }()
	for {
		select {
		case <-again.C:
			_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		case code := <-ended:
			require.Equal(t, exitSignaled, code)
			return
		}
	}
}

func TestASignalThatComesTwiceAtOnceIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 3)
		stopped := 0
		signals <- syscall.SIGTERM
		signals <- syscall.SIGTERM
		time.AfterFunc(time.Minute, func() { signals <- syscall.SIGINT })
		start := time.Now()
		require.Equal(t, syscall.SIGINT, secondOf(signals, func() { stopped++ }))
		require.Equal(t, time.Minute, time.Since(start))
		require.Equal(t, 1, stopped)
	})
}

func TestADamagedStartExitsWithAnError(t *testing.T) {
	executable, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(executable, "standalone", "--data-dir", t.TempDir(), "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
		"--tls-cert", "missing.pem", "--tls-key", "missing.pem")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
	require.Contains(t, string(out), "certificate: open missing.pem: no such file or directory")
}
