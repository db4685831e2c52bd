package tiercreds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

// An authority signs certificates into a folder.
type authority struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func write(t *testing.T, path, kind string, der []byte) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	write(t, a.ca(), "CERTIFICATE", der)
	return a
}

func (a *authority) ca() string { return filepath.Join(a.dir, "ca.pem") }

// issue makes a certificate for the host and returns the options that use it.
func (a *authority) issue(t *testing.T, host string) Options {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	return Options{
		CertFile: write(t, filepath.Join(a.dir, host+".pem"), "CERTIFICATE", der),
		KeyFile:  write(t, filepath.Join(a.dir, host+".key"), "EC PRIVATE KEY", private),
		CAFile:   a.ca(),
	}
}

func tokens(t *testing.T, lines string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(lines), 0o600))
	return path
}

// serve returns a dialer of a server with the options.
func serve(t *testing.T, o Options) *bufconn.Listener {
	t.Helper()
	opts, err := Server(o)
	require.NoError(t, err)
	lis := bufconn.Listen(1 << 16)
	server := grpc.NewServer(opts...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(server.Stop)
	return lis
}

func dial(t *testing.T, lis *bufconn.Listener, o Options) healthpb.HealthClient {
	t.Helper()
	opts, err := Client(o)
	require.NoError(t, err)
	opts = append(opts, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:///node", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// call makes a unary call and a stream, and returns the code in which both end.
func call(t *testing.T, c healthpb.HealthClient) codes.Code {
	t.Helper()
	_, unary := c.Check(t.Context(), &healthpb.HealthCheckRequest{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	require.Equal(t, status.Code(unary), status.Code(err))
	return status.Code(unary)
}

func TestMutualTLSLetsInWhoeverTheAuthoritySigned(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	server := a.issue(t, "node")
	lis := serve(t, server)
	require.Equal(t, codes.OK, call(t, dial(t, lis, a.issue(t, "client"))))
	stranger := other.issue(t, "client")
	stranger.CAFile = a.ca()
	require.Equal(t, codes.Unavailable, call(t, dial(t, lis, stranger)))
	require.Equal(t, codes.Unavailable, call(t, dial(t, lis, Options{CAFile: a.ca()})), "without a certificate")
	require.Equal(t, codes.Unavailable, call(t, dial(t, lis, Options{})), "cleartext")
	require.Equal(t, codes.Unavailable, call(t, dial(t, serve(t, a.issue(t, "elsewhere")), a.issue(t, "client"))), "a server for another address")
}

func TestACertificateIsReplacedWithoutARestart(t *testing.T) {
	a := newAuthority(t)
	server := a.issue(t, "node")
	lis := serve(t, server)
	require.Equal(t, codes.OK, call(t, dial(t, lis, a.issue(t, "client"))))
	require.NoError(t, os.WriteFile(server.CertFile, []byte("half written"), 0o600))
	require.Equal(t, codes.OK, call(t, dial(t, lis, a.issue(t, "client"))), "what cannot be read changes nothing")
	// Another authority takes over, for both sides.
	b := newAuthority(t)
	next := b.issue(t, "node")
	for from, to := range map[string]string{next.CertFile: server.CertFile, next.KeyFile: server.KeyFile, b.ca(): a.ca()} {
		data, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, data, 0o600))
	}
	require.Equal(t, codes.OK, call(t, dial(t, lis, b.issue(t, "client"))))
}

func TestATokenLetsInWhoeverKnowsIt(t *testing.T) {
	lis := serve(t, Options{TokenFile: tokens(t, "old\nnew\n")})
	require.Equal(t, codes.OK, call(t, dial(t, lis, Options{TokenFile: tokens(t, "new\n")})))
	require.Equal(t, codes.OK, call(t, dial(t, lis, Options{TokenFile: tokens(t, "\nold\n")})))
	wrong := dial(t, lis, Options{TokenFile: tokens(t, "other")})
	require.Equal(t, codes.Unauthenticated, call(t, wrong))
	_, err := wrong.Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.ErrorContains(t, err, "wrong token")
	none := dial(t, lis, Options{})
	require.Equal(t, codes.Unauthenticated, call(t, none))
	_, err = none.Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.ErrorContains(t, err, "no token")
}

func TestATokenIsReplacedWithoutARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := tokens(t, "old")
		known, err := openToken(path)
		require.NoError(t, err)
		shown := func() string {
			m, err := known.GetRequestMetadata(t.Context())
			require.NoError(t, err)
			return m[header]
		}
		require.NoError(t, os.WriteFile(path, []byte("new"), 0o600))
		require.Equal(t, "Bearer old", shown())
		time.Sleep(refresh)
		require.Equal(t, "Bearer new", shown())
		require.NoError(t, os.Remove(path))
		time.Sleep(refresh)
		require.Equal(t, "Bearer new", shown())
	})
}

func TestWhatGuardsNothingIsRefused(t *testing.T) {
	a := newAuthority(t)
	full := a.issue(t, "node")
	for _, o := range []Options{
		{CertFile: full.CertFile},
		{KeyFile: full.KeyFile},
		{CAFile: full.CAFile},
		{CertFile: full.CertFile, KeyFile: full.CertFile},
		{CertFile: full.CertFile, KeyFile: full.KeyFile, CAFile: full.KeyFile},
		{TokenFile: tokens(t, "\n \n")},
		{TokenFile: tokens(t, "two words")},
		{TokenFile: filepath.Join(t.TempDir(), "missing")},
		{TokenFile: tokens(t, string(make([]byte, maxToken+1)))},
	} {
		_, err := Server(o)
		require.Error(t, err, "%+v", o)
	}
	_, err := Client(Options{CertFile: full.CertFile, KeyFile: full.KeyFile})
	require.Error(t, err)
	require.True(t, Options{}.Open())
	require.True(t, Options{CertFile: full.CertFile, KeyFile: full.KeyFile}.Open(), "encrypted, and still for everybody")
	require.False(t, full.Open())
	require.False(t, Options{TokenFile: "x"}.Open())
}
