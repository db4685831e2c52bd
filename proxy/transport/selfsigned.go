package transport

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// SelfSignedFile is the file in the data directory that holds the generated
// certificate and its private key, both in PEM. One file, so that the two can
// only be replaced together.
const SelfSignedFile = "tls-self-signed.pem"

const selfSignedYears = 10

// SelfSigned returns the self-signed certificate of the data directory dir and
// makes it first where there is none, so that restarts present the same one. It
// stands for localhost, the loopback addresses and the name of the host.
//
// The file is readable by its owner only. One that is damaged or expired is an
// error, not replaced. The log gets one warning: clients that check
// certificates refuse this one.
func SelfSigned(dir string, log *slog.Logger) (*tls.Certificate, error) {
	path := filepath.Join(dir, SelfSignedFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		data, err := generate(time.Now())
		if err != nil {
			return nil, fmt.Errorf("self-signed certificate: %w", err)
		}
		if err := writeFile(path, data); err != nil {
			return nil, fmt.Errorf("self-signed certificate: %w", err)
		}
	}
	cert, err := LoadCertificate(KeyPair{CertFile: path, KeyFile: path})
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate (remove the file to have a new one made): %w", err)
	}
	sum := sha256.Sum256(cert.Leaf.Raw)
	log.Warn("serving TLS with a self-signed certificate; clients that check certificates refuse it",
		"file", path, "sha256", hex.EncodeToString(sum[:]), "expires", cert.Leaf.NotAfter.Format(time.DateOnly))
	return cert, nil
}

// generate returns a new certificate and its key in PEM.
func generate(now time.Time) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	names := []string{"localhost"}
	if host, err := os.Hostname(); err == nil && host != "" && host != "localhost" {
		names = append(names, host)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "perigee self-signed"},
		// An hour of slack for clients whose clock is behind.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.AddDate(selfSignedYears, 0, 0),
		// No KeyUsage: one without the signing of certificates keeps BoringSSL, and with it
		// gRPC for Python and C++, from trusting a self-signed certificate that it was told
		// to trust; one with it would make a CA of this, which others refuse as a server.
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              names,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert}); err != nil {
		return nil, err
	}
	if err := pem.Encode(&out, &pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// writeFile puts data into path so that a crash leaves either all of it or no
// file of that name.
func writeFile(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	_, err = tmp.Write(data)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err = os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
