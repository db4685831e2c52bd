package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// certificate writes a certificate that is its own authority, and its key.
func certificate(t *testing.T, lives time.Duration) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(lives),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return certFile, keyFile
}

func TestACertificateThatCannotBeUsedStopsTheStart(t *testing.T) {
	cert, key := certificate(t, time.Hour)
	_, otherKey := certificate(t, time.Hour)
	oldCert, oldKey := certificate(t, -time.Hour)
	encrypted := filepath.Join(t.TempDir(), "encrypted.pem")
	data, err := os.ReadFile("../../proxy/transport/testdata/encrypted/aes-256-cbc.pem")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(encrypted, data, 0o600))
	for _, tc := range []struct{ name, cert, key, password, file, reason string }{
		{"unreadable", "missing.pem", key, "", "missing.pem", "no such file"},
		{"of another key", cert, otherKey, "", otherKey, "does not belong to the first certificate in " + cert},
		{"expired", oldCert, oldKey, "", oldCert, "expired on"},
		{"no password", cert, encrypted, "", encrypted, "there is no password"},
		{"wrong password", cert, encrypted, "wrong", encrypted, "the password is wrong"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := perigee(t, []string{"PERIGEE_TLS_KEY_PASSWORD=" + tc.password}, "", "standalone", "--data-dir", t.TempDir(),
				"--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--tls-cert", tc.cert, "--tls-key", tc.key)
			require.Equal(t, exitFailed, o.code)
			require.Empty(t, o.stdout)
			require.Contains(t, o.stderr, tc.file)
			require.Contains(t, o.stderr, tc.reason)
		})
	}
}

func TestCommandsShowTheirCertificate(t *testing.T) {
	cert, key := certificate(t, time.Hour)
	server := startServer(t, t.TempDir(), "--tls-mode", "required", "--tls-cert", cert, "--tls-key", key,
		"--tls-client-auth", "require", "--tls-client-ca", cert)
	require.Equal(t, exitFailed, server.perigee(t, "topic", "create", "orders", "--tls", "--tls-ca", cert).code)
	flags := []string{"--tls", "--tls-ca", cert, "--tls-cert", cert, "--tls-key", key}
	require.Zero(t, server.perigee(t, append([]string{"topic", "create", "orders"}, flags...)...).code)
	require.Zero(t, server.perigee(t, append([]string{"send", "orders", "x"}, flags...)...).code)
	got := server.perigee(t, append([]string{"receive", "orders", "--group", "g", "--json"}, flags...)...).lines(t)
	require.Equal(t, "x", got[0]["body"])
}

func TestCertificatesOfCommandsNeedTLSAndFiles(t *testing.T) {
	cert, key := certificate(t, time.Hour)
	for want, args := range map[string][]string{
		"need --tls":             {"--tls-ca", cert},
		"holds no certificate":   {"--tls", "--tls-ca", key},
		"--tls-ca: open missing": {"--tls", "--tls-ca", "missing"},
		"--tls-cert and":         {"--tls", "--tls-cert", cert},
	} {
		o := perigee(t, nil, "", append([]string{"send", "orders", "x"}, args...)...)
		require.Equal(t, exitUsage, o.code)
		require.Contains(t, o.stderr, want)
	}
}
