package node_test

import (
	"crypto/tls"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// newCertificate returns a PEM file with a new certificate and its key.
func newCertificate(t *testing.T) (file, serial string) {
	t.Helper()
	dir := t.TempDir()
	cert, err := transport.SelfSigned(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return filepath.Join(dir, transport.SelfSignedFile), cert.Leaf.SerialNumber.String()
}

// shown returns the serial number of the certificate that a new connection gets.
func shown(t *testing.T, address string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func TestAReplacedCertificateIsShownToNewConnectionsOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the next look at the files")
	}
	file, serial := newCertificate(t)
	next, nextSerial := newCertificate(t)
	r := start(t, t.TempDir(), func(c *config.Config) { c.TLS.CertFile, c.TLS.KeyFile = file, file })
	stream, err := rmqpb.NewMessagingServiceClient(connect(t, r.info.GRPCAddr, overTLS())).Telemetry(as(t.Context()))
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
	require.Equal(t, serial, shown(t, r.info.GRPCAddr))

	require.NoError(t, os.Rename(next, file))
	require.Eventually(t, func() bool { return shown(t, r.info.GRPCAddr) == nextSerial }, time.Minute, 100*time.Millisecond)
	require.Contains(t, r.metrics(t), "perigee_tls_reloads_total 1")
	require.NoError(t, stream.Send(&rmqpb.TelemetryCommand{Command: &rmqpb.TelemetryCommand_Settings{Settings: &rmqpb.Settings{
		ClientType: rmqpb.ClientType_PRODUCER.Enum(), PubSub: &rmqpb.Settings_Publishing{Publishing: &rmqpb.Publishing{}},
	}}}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	require.NotNil(t, answer.GetSettings())
	require.Contains(t, r.metrics(t), "perigee_tls_reload_failures_total 0")
	r.stop(t)
}
