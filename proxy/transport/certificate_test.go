package transport

import (
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestSelfSignedCertificateStaysTheSame(t *testing.T) {
	dir := t.TempDir()
	first, err := SelfSigned(dir, quiet())
	require.NoError(t, err)
	again, err := SelfSigned(dir, quiet())
	require.NoError(t, err)
	require.Equal(t, first.Certificate, again.Certificate)
	other, err := SelfSigned(t.TempDir(), quiet())
	require.NoError(t, err)
	require.NotEqual(t, first.Certificate, other.Certificate)
}

func TestSelfSignedCertificateStandsForTheLocalNames(t *testing.T) {
	cert, err := SelfSigned(t.TempDir(), quiet())
	require.NoError(t, err)
	host, err := os.Hostname()
	require.NoError(t, err)
	pool := x509.NewCertPool()
	pool.AddCert(cert.Leaf)
	for _, name := range []string{"localhost", "127.0.0.1", "[::1]", host} {
		_, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool})
		require.NoError(t, err, name)
	}
	_, err = cert.Leaf.Verify(x509.VerifyOptions{DNSName: "example.com", Roots: pool})
	require.Error(t, err)
	require.Equal(t, x509.ECDSA, cert.Leaf.PublicKeyAlgorithm)
	require.WithinDuration(t, time.Now().AddDate(10, 0, 0), cert.Leaf.NotAfter, time.Hour)
}

// gRPC for Python and C++ (BoringSSL) takes no self-signed certificate as its own issuer
// whose key usage leaves out the signing of certificates; others take no CA for a server.
func TestSelfSignedCertificateCanBeTrustedByAllSDKs(t *testing.T) {
	cert, err := SelfSigned(t.TempDir(), quiet())
	require.NoError(t, err)
	require.Zero(t, cert.Leaf.KeyUsage)
	require.False(t, cert.Leaf.IsCA)
	require.Equal(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, cert.Leaf.ExtKeyUsage)
}

func TestSelfSignedFileIsPrivateAndAlone(t *testing.T) {
	dir := t.TempDir()
	_, err := SelfSigned(dir, quiet())
	require.NoError(t, err)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "no temporary file is left")
	info, err := entries[0].Info()
	require.NoError(t, err)
	require.Equal(t, SelfSignedFile, info.Name())
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

func TestSelfSignedWarnsOnce(t *testing.T) {
	var log logBuffer
	cert, err := SelfSigned(t.TempDir(), slog.New(slog.NewJSONHandler(&log, nil)))
	require.NoError(t, err)
	lines := log.lines(t)
	require.Len(t, lines, 1)
	require.Equal(t, "WARN", lines[0]["level"])
	require.Len(t, lines[0]["sha256"], 64)
	require.Equal(t, cert.Leaf.NotAfter.Format(time.DateOnly), lines[0]["expires"])
}

func TestDamagedSelfSignedFileIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, SelfSignedFile)
	require.NoError(t, os.WriteFile(path, []byte("damaged"), 0o600))
	_, err := SelfSigned(dir, quiet())
	require.ErrorContains(t, err, path)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "damaged", string(data))
}

func TestMissingDataDirectoryIsAnError(t *testing.T) {
	_, err := SelfSigned(filepath.Join(t.TempDir(), "missing"), quiet())
	require.ErrorIs(t, err, os.ErrNotExist)
}

// write puts text into a new file and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// pair returns a certificate and its key in PEM, made at the given time.
func pair(t *testing.T, at time.Time) (cert, key string) {
	t.Helper()
	data, err := generate(at)
	require.NoError(t, err)
	cert, key, ok := strings.Cut(string(data), "-----BEGIN PRIVATE KEY-----")
	require.True(t, ok)
	return cert, "-----BEGIN PRIVATE KEY-----" + key
}

func TestCertificateAndKeyInTwoFilesAreLoaded(t *testing.T) {
	cert, key := pair(t, time.Now())
	got, err := LoadCertificate(KeyPair{CertFile: write(t, "cert.pem", cert+cert), KeyFile: write(t, "key.pem", key)})
	require.NoError(t, err)
	require.Len(t, got.Certificate, 2, "the whole chain is presented")
	block, _ := pem.Decode([]byte(cert))
	require.Equal(t, block.Bytes, got.Certificate[0])
}

func TestCertificateErrorsNameTheFileAndTheReason(t *testing.T) {
	cert, key := pair(t, time.Now())
	_, otherKey := pair(t, time.Now())
	oldCert, oldKey := pair(t, time.Now().AddDate(-11, 0, 0))
	newCert, newKey := pair(t, time.Now().AddDate(0, 0, 1))
	block := func(kind string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte("junk")}))
	}
	for _, tc := range []struct{ name, cert, key, file, reason string }{
		{"key of another certificate", cert, otherKey, "key.pem", "does not belong"},
		{"expired", oldCert, oldKey, "cert.pem", "expired on"},
		{"not valid yet", newCert, newKey, "cert.pem", "not valid before"},
		{"files swapped", key, cert, "cert.pem", "no PEM block CERTIFICATE"},
		{"no key", cert, "text", "key.pem", "no PEM block PRIVATE KEY"},
		{"empty", "", key, "cert.pem", "no PEM block CERTIFICATE"},
		{"damaged certificate", block("CERTIFICATE"), key, "cert.pem", "malformed"},
		{"damaged key", cert, block("PRIVATE KEY"), "key.pem", "asn1"},
		{"encrypted key", cert, block("ENCRYPTED PRIVATE KEY"), "key.pem", "there is no password for it"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := LoadCertificate(KeyPair{CertFile: write(t, "cert.pem", tc.cert), KeyFile: write(t, "key.pem", tc.key)})
			require.ErrorContains(t, err, tc.file)
			require.ErrorContains(t, err, tc.reason)
		})
	}
}

func TestUnreadableCertificateFilesAreNamed(t *testing.T) {
	cert, _ := pair(t, time.Now())
	missing := filepath.Join(t.TempDir(), "missing.pem")
	certFile := write(t, "cert.pem", cert)
	_, err := LoadCertificate(KeyPair{CertFile: missing, KeyFile: missing})
	require.ErrorContains(t, err, "certificate: open "+missing)
	_, err = LoadCertificate(KeyPair{CertFile: certFile, KeyFile: missing})
	require.ErrorContains(t, err, "private key: open "+missing)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadCertificate(KeyPair{CertFile: certFile, KeyFile: certFile, PasswordFile: missing})
	require.ErrorContains(t, err, "password of the private key: open "+missing)
}
