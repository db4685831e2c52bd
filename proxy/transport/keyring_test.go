package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// An authority signs certificates, each with the next serial number.
type authority struct {
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, serial: 1}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue returns a certificate for names and its key, in PEM.
func (a *authority) issue(t *testing.T, names ...string) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	a.serial++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Duration(a.serial) * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// client returns a certificate for a client.
func (a *authority) client(t *testing.T) *tls.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(a.issue(t))
	require.NoError(t, err)
	return &cert
}

// put writes a certificate and its key into dir, and returns the pair.
func put(t *testing.T, dir string, cert, key []byte) KeyPair {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	pair := KeyPair{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	require.NoError(t, os.WriteFile(pair.CertFile, cert, 0o600))
	require.NoError(t, os.WriteFile(pair.KeyFile, key, 0o600))
	return pair
}

// issued returns a pair in a new folder.
func (a *authority) issued(t *testing.T, names ...string) KeyPair {
	t.Helper()
	cert, key := a.issue(t, names...)
	return put(t, t.TempDir(), cert, key)
}

func openKeyring(t *testing.T, opts KeyringOptions) *Keyring {
	t.Helper()
	k, err := OpenKeyring(opts)
	require.NoError(t, err)
	return k
}

// shown does a handshake and returns the serial number that a client is shown
// which asks for name.
func shown(t *testing.T, k *Keyring, name string) int64 {
	t.Helper()
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	done := make(chan error, 1)
	go func() { done <- tls.Server(server, k.serverConfig()).Handshake() }()
	conn := tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, conn.Handshake())
	require.NoError(t, <-done)
	require.Equal(t, "h2", conn.ConnectionState().NegotiatedProtocol)
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

func TestCertificatesAreChosenByTheNameAskedFor(t *testing.T) {
	a := newAuthority(t)
	k := openKeyring(t, KeyringOptions{
		Default: a.issued(t, "default.example"),
		Others: []KeyPair{
			a.issued(t, "inside.example", "INSIDE.local"),
			a.issued(t, "*.public.example"),
			a.issued(t, "vip.public.example", "*.x.public.example"),
		},
	})
	const dflt, inside, public, vip = 2, 3, 4, 5
	for name, want := range map[string]int64{
		"": dflt, "IPAuthority": dflt, "unknown.example": dflt, "default.example": dflt, "public.example": dflt,
		"inside.example": inside, "Inside.Local": inside,
		"a.public.example": public, "A.PUBLIC.example": public,
		"vip.public.example": vip, "a.x.public.example": vip, "a.b.public.example": dflt,
	} {
		require.Equal(t, want, shown(t, k, name), name)
	}
}

func TestAWildcardOfTheDefaultGivesWayToAWholeName(t *testing.T) {
	a := newAuthority(t)
	k := openKeyring(t, KeyringOptions{Default: a.issued(t, "*.example"), Others: []KeyPair{a.issued(t, "b.example")}})
	require.EqualValues(t, 2, shown(t, k, "a.example"))
	require.EqualValues(t, 3, shown(t, k, "b.example"))
}

func TestBadKeyringsAreRefusedWithFileAndReason(t *testing.T) {
	a := newAuthority(t)
	good := a.issued(t, "a.example")
	nameless := a.issued(t)
	mismatch := KeyPair{CertFile: good.CertFile, KeyFile: nameless.KeyFile}
	noCA := write(t, "ca.pem", "nothing")
	for _, tc := range []struct {
		name         string
		opts         KeyringOptions
		file, reason string
	}{
		{"default", KeyringOptions{Default: mismatch}, nameless.KeyFile, "does not belong"},
		{"other", KeyringOptions{Default: good, Others: []KeyPair{mismatch}}, nameless.KeyFile, "does not belong"},
		{"other without a name", KeyringOptions{Default: good, Others: []KeyPair{nameless}}, nameless.CertFile, "no DNS name"},
		{"authorities", KeyringOptions{Default: good, ClientAuth: ClientAuthOptional, ClientCAFile: noCA}, noCA, "no PEM block CERTIFICATE"},
		{"authorities missing", KeyringOptions{Default: good, ClientAuth: ClientAuthRequire, ClientCAFile: "missing.pem"}, "missing.pem", "no such file"},
	} {
		_, err := OpenKeyring(tc.opts)
		require.ErrorContains(t, err, tc.file, tc.name)
		require.ErrorContains(t, err, tc.reason, tc.name)
	}
	_, err := OpenKeyring(KeyringOptions{Default: nameless})
	require.NoError(t, err, "the default needs no name")
}

func TestAKeyIsDecryptedWithTheFirstLineOfItsPasswordFile(t *testing.T) {
	plain, err := parseKey(readFile(t, "encrypted", "plain.pem"), "")
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, plain.Public(), plain)
	require.NoError(t, err)
	pair := put(t, t.TempDir(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), readFile(t, "encrypted", "aes-256-cbc.pem"))
	for _, text := range []string{keyPassword, keyPassword + "\n", keyPassword + "\r\n"} {
		pair.PasswordFile = write(t, "password", text)
		require.EqualValues(t, 7, shown(t, openKeyring(t, KeyringOptions{Default: pair}), ""))
	}
	pair.PasswordFile = write(t, "password", "wrong\n")
	_, err = OpenKeyring(KeyringOptions{Default: pair})
	require.ErrorContains(t, err, pair.KeyFile+": cannot be decrypted: the password is wrong")
	pair.PasswordFile, pair.Password = "", keyPassword
	require.EqualValues(t, 7, shown(t, openKeyring(t, KeyringOptions{Default: pair}), ""))
}

func TestAMountedSecretIsTakenOverWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, mount := newAuthority(t), t.TempDir()
		// As Kubernetes does it: the files are links through a link to a folder.
		link := filepath.Join(mount, "..data")
		publish := func(version string) {
			cert, key := a.issue(t, "a.example")
			put(t, filepath.Join(mount, version), cert, key)
			require.NoError(t, os.Symlink(version, link+"_tmp"))
			require.NoError(t, os.Rename(link+"_tmp", link))
		}
		publish("..1")
		pair := KeyPair{CertFile: filepath.Join(mount, "tls.crt"), KeyFile: filepath.Join(mount, "tls.key")}
		require.NoError(t, os.Symlink("..data/tls.crt", pair.CertFile))
		require.NoError(t, os.Symlink("..data/tls.key", pair.KeyFile))
		var log logBuffer
		k := openKeyring(t, KeyringOptions{Default: pair, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		go k.Watch(ctx)
		require.EqualValues(t, 2, shown(t, k, ""))
		publish("..2")
		require.NoError(t, os.RemoveAll(filepath.Join(mount, "..1")))
		time.Sleep(time.Minute)
		require.EqualValues(t, 3, shown(t, k, ""))
		require.EqualValues(t, 1, k.Reloads())
		require.Len(t, log.lines(t), 1)
		require.Equal(t, pair.CertFile, log.lines(t)[0]["file"])
		time.Sleep(time.Hour)
		require.EqualValues(t, 1, k.Reloads(), "what has not changed is not taken over again")
		require.Zero(t, k.Failures())
		cancel()
	})
}

func TestABrokenPairLeavesTheLastGoodOne(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, "a.example")
	otherCert, otherKey := a.issue(t, "a.example")
	pair := put(t, dir, cert, key)
	var log logBuffer
	k := openKeyring(t, KeyringOptions{Default: pair, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	for i, spoil := range []func(){
		func() { put(t, dir, cert, otherKey) },
		func() { put(t, dir, []byte("damaged"), key) },
		func() { require.NoError(t, os.Remove(pair.KeyFile)) },
	} {
		before := k.Failures()
		spoil()
		k.look()
		require.Equal(t, before, k.Failures(), "it may be half written")
		for range 3 {
			k.look()
			require.EqualValues(t, 2, shown(t, k, ""))
		}
		require.Equal(t, before+3, k.Failures())
		require.Len(t, log.lines(t), i+1, "one line for each")
		require.Equal(t, "WARN", log.lines(t)[i]["level"])
		require.Equal(t, pair.CertFile, log.lines(t)[i]["file"])
	}
	put(t, dir, otherCert, otherKey)
	failures := k.Failures()
	k.look()
	require.EqualValues(t, 3, shown(t, k, ""))
	k.look()
	require.Equal(t, failures, k.Failures())
	require.EqualValues(t, 1, k.Reloads())
}

func TestFilesThatAreReplacedOneByOneAreNoFailure(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, "a.example")
	nextCert, nextKey := a.issue(t, "a.example")
	k := openKeyring(t, KeyringOptions{Default: put(t, dir, cert, key)})
	put(t, dir, nextCert, key)
	k.look()
	require.EqualValues(t, 2, shown(t, k, ""))
	put(t, dir, nextCert, nextKey)
	k.look()
	require.EqualValues(t, 3, shown(t, k, ""))
	require.Zero(t, k.Failures())
}

func TestEachPairIsReloadedByItself(t *testing.T) {
	a, dir, others := newAuthority(t), t.TempDir(), t.TempDir()
	cert, key := a.issue(t, "a.example")
	otherCert, otherKey := a.issue(t, "b.example")
	k := openKeyring(t, KeyringOptions{Default: put(t, dir, cert, key), Others: []KeyPair{put(t, others, otherCert, otherKey)}})
	put(t, others, []byte("damaged"), otherKey)
	cert, key = a.issue(t, "a.example")
	put(t, dir, cert, key)
	k.look()
	k.look()
	require.EqualValues(t, 4, shown(t, k, ""))
	require.EqualValues(t, 3, shown(t, k, "b.example"))
	require.EqualValues(t, 1, k.Failures())
	// The one that expires first: serial 3 lives for three hours.
	require.WithinDuration(t, time.Now().Add(3*time.Hour), k.Expires(), time.Minute)
	otherCert, otherKey = a.issue(t, "c.example")
	put(t, others, otherCert, otherKey)
	k.look()
	require.EqualValues(t, 5, shown(t, k, "c.example"))
	require.EqualValues(t, 4, shown(t, k, "b.example"), "nobody has that name any more")
}

// serveKeyring serves TLS only, and returns the address.
func serveKeyring(t *testing.T, k *Keyring, log io.Writer) string {
	t.Helper()
	creds, err := NewCredentials(CredentialsOptions{Mode: Required, Keyring: k, Logger: slog.New(slog.NewJSONHandler(log, nil))})
	require.NoError(t, err)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	serve(t, NewListener(lis, ListenerOptions{}), creds, &service{receive: func(stream grpc.ServerStream) error {
		for {
			if err := stream.SendMsg(&rmqpb.ReceiveMessageResponse{}); err != nil {
				return err
			}
		}
	}})
	return lis.Addr().String()
}

func TestOpenStreamsOutliveAReload(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	cert, key := a.issue(t, "a.example")
	k := openKeyring(t, KeyringOptions{Default: put(t, dir, cert, key)})
	addr := serveKeyring(t, k, io.Discard)
	stream, err := dial(t, addr, trusting()).ReceiveMessage(t.Context(), &rmqpb.ReceiveMessageRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	cert, key = a.issue(t, "a.example")
	put(t, dir, cert, key)
	k.look()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	require.NoError(t, err)
	require.EqualValues(t, 3, conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64())
	require.NoError(t, conn.Close())
	for range 10_000 { // more than was under way
		_, err = stream.Recv()
		require.NoError(t, err)
	}
}

// showing are the credentials of a client that shows cert, if there is one.
func showing(cert *tls.Certificate) credentials.TransportCredentials {
	config := &tls.Config{InsecureSkipVerify: true}
	if cert != nil {
		// Go would not show one that the server does not ask for.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return cert, nil }
	}
	return credentials.NewTLS(config)
}

func TestClientsAreAskedForCertificatesAsConfigured(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	caFile := write(t, "ca.pem", string(a.pem()))
	known, unknown := a.client(t), stranger.client(t)
	for _, tc := range []struct {
		auth                   ClientAuth
		without, with, foreign bool
	}{
		{ClientAuthOff, true, true, true},
		{ClientAuthOptional, true, true, false},
		{ClientAuthRequire, false, true, false},
	} {
		var log logBuffer
		k := openKeyring(t, KeyringOptions{Default: a.issued(t, "a.example"), ClientAuth: tc.auth, ClientCAFile: caFile})
		addr := serveKeyring(t, k, &log)
		for _, c := range []struct {
			cert   *tls.Certificate
			served bool
		}{{nil, tc.without}, {known, tc.with}, {unknown, tc.foreign}} {
			_, err := heartbeat(t, dial(t, addr, showing(c.cert)))
			require.Equal(t, c.served, err == nil, "%v: %v", tc.auth, err)
		}
		if !tc.foreign {
			// The client is told first.
			require.Eventually(t, func() bool { return len(log.lines(t)) > 0 }, 10*time.Second, time.Millisecond)
			require.Contains(t, log.lines(t)[0]["reason"], "certificate")
		}
	}
}

func TestAuthoritiesOfClientsAreReloaded(t *testing.T) {
	a, next := newAuthority(t), newAuthority(t)
	caFile := write(t, "ca.pem", string(a.pem()))
	k := openKeyring(t, KeyringOptions{Default: a.issued(t, "a.example"), ClientAuth: ClientAuthRequire, ClientCAFile: caFile})
	addr := serveKeyring(t, k, io.Discard)
	_, err := heartbeat(t, dial(t, addr, showing(next.client(t))))
	require.Error(t, err)
	require.NoError(t, os.WriteFile(caFile, next.pem(), 0o600))
	k.look()
	_, err = heartbeat(t, dial(t, addr, showing(next.client(t))))
	require.NoError(t, err)
	_, err = heartbeat(t, dial(t, addr, showing(a.client(t))))
	require.Error(t, err)
	require.NoError(t, os.WriteFile(caFile, []byte("damaged"), 0o600))
	k.look()
	k.look()
	require.EqualValues(t, 1, k.Failures())
	_, err = heartbeat(t, dial(t, addr, showing(next.client(t))))
	require.NoError(t, err)
}

func TestClientAuthsHaveTheirConfigurationNames(t *testing.T) {
	for _, auth := range []ClientAuth{ClientAuthOff, ClientAuthOptional, ClientAuthRequire} {
		got, err := ParseClientAuth(auth.String())
		require.NoError(t, err)
		require.Equal(t, auth, got)
	}
	_, err := ParseClientAuth("on")
	require.ErrorContains(t, err, "off, optional, require")
}
