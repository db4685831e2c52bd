package transport

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// A KeyPair names the PEM files of a certificate chain and its private key, which
// may be the same file.
type KeyPair struct {
	CertFile, KeyFile string
	// PasswordFile holds the password of an encrypted key; an end of line after it
	// does not count. Empty: Password is it.
	PasswordFile string
	Password     string
}

// LoadCertificate reads what pair names. Errors name the file and say what is
// wrong with it: unreadable, no certificate or key inside, a key of another
// certificate, a wrong password, not valid today.
func LoadCertificate(pair KeyPair) (*tls.Certificate, error) {
	files, err := pair.read()
	if err != nil {
		return nil, err
	}
	return pair.parse(files, time.Now())
}

// pairFiles are the contents of the files of a pair.
type pairFiles struct {
	cert, key, password []byte
}

func (p KeyPair) read() (f pairFiles, err error) {
	if f.cert, err = os.ReadFile(p.CertFile); err != nil {
		return f, fmt.Errorf("certificate: %w", err)
	}
	if f.key, err = os.ReadFile(p.KeyFile); err != nil {
		return f, fmt.Errorf("private key: %w", err)
	}
	f.password = []byte(p.Password)
	if p.PasswordFile != "" {
		if f.password, err = os.ReadFile(p.PasswordFile); err != nil {
			return f, fmt.Errorf("password of the private key: %w", err)
		}
	}
	return f, nil
}

func (p KeyPair) parse(f pairFiles, now time.Time) (*tls.Certificate, error) {
	chain, err := parseChain(f.cert)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", p.CertFile, err)
	}
	key, err := parseKey(f.key, strings.TrimRight(string(f.password), "\r\n"))
	if err != nil {
		return nil, fmt.Errorf("private key %s: %w", p.KeyFile, err)
	}
	leaf := chain[0]
	if pub, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("private key %s does not belong to the first certificate in %s", p.KeyFile, p.CertFile)
	}
	switch {
	case now.After(leaf.NotAfter):
		return nil, fmt.Errorf("certificate %s: expired on %s", p.CertFile, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return nil, fmt.Errorf("certificate %s: is not valid before %s", p.CertFile, leaf.NotBefore.Format(time.RFC3339))
	}
	cert := &tls.Certificate{PrivateKey: key, Leaf: leaf}
	for _, c := range chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	return cert, nil
}

func parseChain(data []byte) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		chain = append(chain, cert)
	}
	if len(chain) == 0 {
		return nil, errors.New("holds no PEM block CERTIFICATE")
	}
	return chain, nil
}

func parseKey(data []byte, password string) (crypto.Signer, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var (
			key any
			err error
		)
		switch block.Type {
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "ENCRYPTED PRIVATE KEY":
			key, err = parseEncrypted(block.Bytes, password)
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		default:
			continue
		}
		if block.Headers["DEK-Info"] != "" {
			return nil, errors.New("is encrypted in a form that is not safe; convert it with openssl pkcs8 -topk8 -v2 aes-256-cbc")
		}
		if err != nil {
			return nil, err
		}
		signer, ok := key.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("a key of type %T cannot sign", key)
		}
		return signer, nil
	}
	return nil, errors.New("holds no PEM block PRIVATE KEY")
}

func parseEncrypted(data []byte, password string) (any, error) {
	if password == "" {
		return nil, errors.New("is encrypted, and there is no password for it (key_password_file)")
	}
	plain, err := decryptKey(data, password)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(plain)
	if err != nil {
		return nil, errWrongPassword // the padding was right by chance
	}
	return key, nil
}
