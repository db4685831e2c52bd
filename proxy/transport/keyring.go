package transport

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/perigee-mq/perigee/mq"
)

// reloadInterval is how often the files of a keyring are looked at. They are read,
// not only asked for their times: a mounted secret changes by a link that points
// elsewhere.
const reloadInterval = 5 * time.Second

// ClientAuth says what certificates of clients are for.
type ClientAuth uint8

const (
	// ClientAuthOff asks for none.
	ClientAuthOff ClientAuth = iota
	// ClientAuthOptional checks those that clients show.
	ClientAuthOptional
	// ClientAuthRequire refuses TLS clients without one.
	ClientAuthRequire
)

var clientAuthNames = [...]string{ClientAuthOff: "off", ClientAuthOptional: "optional", ClientAuthRequire: "require"}

// String returns the name the configuration uses.
func (a ClientAuth) String() string {
	if int(a) < len(clientAuthNames) {
		return clientAuthNames[a]
	}
	return fmt.Sprintf("ClientAuth(%d)", uint8(a))
}

// ParseClientAuth returns what the configuration calls s. The error is an
// *mq.InvalidError.
func ParseClientAuth(s string) (ClientAuth, error) {
	for a, name := range clientAuthNames {
		if name == s {
			return ClientAuth(a), nil
		}
	}
	return 0, &mq.InvalidError{
		Kind: mq.ErrInvalid, Field: "client auth", Value: mq.Shorten(s),
		Reason: "must be one of " + strings.Join(clientAuthNames[:], ", "),
	}
}

// KeyringOptions configure OpenKeyring.
type KeyringOptions struct {
	// Default is what clients are shown that ask for no name, or one that no
	// certificate has: Java sends a placeholder.
	Default KeyPair
	// SelfSigned is the default instead, where it is not nil. It is not reloaded.
	SelfSigned *tls.Certificate
	// Others are shown to clients that ask for a name in them.
	Others []KeyPair
	// ClientAuth says whether clients are asked for certificates, which those in
	// the PEM file ClientCAFile must have signed. Zero: ClientAuthOff.
	ClientAuth   ClientAuth
	ClientCAFile string
	// Logger gets a line for each change of a file. Nil: none are written.
	Logger *slog.Logger
}

// A Keyring holds the certificates of a server and keeps up with their files.
// What is newly read counts for the next handshake; open connections go on. A
// file that turns bad changes nothing: the last good one stays.
type Keyring struct {
	opts     KeyringOptions
	log      *slog.Logger
	pairs    []*watched[*tls.Certificate] // the default first, unless it is self-signed
	clients  *watched[*x509.CertPool]     // nil: clients are not asked
	config   atomic.Pointer[tls.Config]
	reloads  atomic.Uint64
	failures atomic.Uint64
}

// OpenKeyring reads the files of opts. The error names the file that cannot be
// used and the reason.
func OpenKeyring(opts KeyringOptions) (*Keyring, error) {
	k := &Keyring{opts: opts, log: opts.Logger}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	pairs := opts.Others
	if opts.SelfSigned == nil {
		pairs = append([]KeyPair{opts.Default}, pairs...)
	}
	for i, pair := range pairs {
		named := i > 0 || opts.SelfSigned != nil
		w := &watched[*tls.Certificate]{file: pair.CertFile, look: func() (*tls.Certificate, fingerprint, error) {
			return lookAtPair(pair, named)
		}}
		if err := w.open(); err != nil {
			return nil, err
		}
		k.pairs = append(k.pairs, w)
	}
	if opts.ClientAuth != ClientAuthOff {
		k.clients = &watched[*x509.CertPool]{file: opts.ClientCAFile, look: func() (*x509.CertPool, fingerprint, error) {
			return lookAtPool(opts.ClientCAFile)
		}}
		if err := k.clients.open(); err != nil {
			return nil, err
		}
	}
	k.build()
	return k, nil
}

// Watch looks at the files until ctx ends.
func (k *Keyring) Watch(ctx context.Context) {
	if len(k.pairs) == 0 && k.clients == nil {
		return
	}
	ticker := time.NewTicker(reloadInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			k.look()
		}
	}
}

// Reloads returns how often a changed file has been taken over.
func (k *Keyring) Reloads() uint64 { return k.reloads.Load() }

// Failures returns how often the files were looked at while one of them could not
// be used. It rises for as long as that lasts.
func (k *Keyring) Failures() uint64 { return k.failures.Load() }

// Expires returns when the first of the certificates does.
func (k *Keyring) Expires() time.Time {
	var first time.Time
	for _, cert := range k.config.Load().Certificates {
		if first.IsZero() || cert.Leaf.NotAfter.Before(first) {
			first = cert.Leaf.NotAfter
		}
	}
	return first
}

// serverConfig returns a configuration that follows the keyring.
func (k *Keyring) serverConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		// A resumed session would skip what a changed ClientCAFile refuses.
		SessionTicketsDisabled: k.opts.ClientAuth != ClientAuthOff,
		GetConfigForClient:     func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.config.Load(), nil },
	}
}

// look takes over what has changed.
func (k *Keyring) look() {
	changed, failed := false, false
	for _, w := range k.pairs {
		c, f := w.again(k.log)
		changed, failed = changed || c, failed || f
	}
	if k.clients != nil {
		c, f := k.clients.again(k.log)
		changed, failed = changed || c, failed || f
	}
	if failed {
		k.failures.Add(1)
	}
	if changed {
		k.reloads.Add(1)
		k.build()
	}
}

// build makes the configuration of the next handshakes.
func (k *Keyring) build() {
	var certs []*tls.Certificate
	if k.opts.SelfSigned != nil {
		certs = append(certs, k.opts.SelfSigned)
	}
	for _, w := range k.pairs {
		certs = append(certs, w.value)
	}
	config := k.serverConfig()
	config.GetConfigForClient = nil
	config.GetCertificate = namesOf(certs).choose
	for _, cert := range certs {
		config.Certificates = append(config.Certificates, *cert)
	}
	if k.clients != nil {
		config.ClientCAs = k.clients.value
		config.ClientAuth = tls.VerifyClientCertIfGiven
		if k.opts.ClientAuth == ClientAuthRequire {
			config.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	k.config.Store(config)
}

// names finds certificates by the names in them.
type names struct {
	byName map[string][]*tls.Certificate // in lower case; a wildcard begins with "*."
	other  *tls.Certificate              // for every other name
}

// namesOf returns the names of certs, of which the first is the default.
func namesOf(certs []*tls.Certificate) names {
	n := names{byName: map[string][]*tls.Certificate{}, other: certs[0]}
	for _, cert := range certs {
		for _, name := range cert.Leaf.DNSNames {
			name = strings.ToLower(name)
			n.byName[name] = append(n.byName[name], cert)
		}
	}
	return n
}

// choose implements tls.Config.GetCertificate. A whole name goes before a
// wildcard, and among certificates of the same name the first that the client
// can use.
func (n names) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	_, parent, _ := strings.Cut(name, ".")
	for _, certs := range [][]*tls.Certificate{n.byName[name], n.byName["*."+parent]} {
		for _, cert := range certs {
			if hello.SupportsCertificate(cert) == nil {
				return cert, nil
			}
		}
	}
	return n.other, nil
}

// lookAtPair reads a pair. One that is chosen by name must have some.
func lookAtPair(pair KeyPair, named bool) (*tls.Certificate, fingerprint, error) {
	files, err := pair.read()
	if err != nil {
		return nil, fingerprintOf([]byte(err.Error())), err
	}
	seen := fingerprintOf(files.cert, files.key, files.password)
	cert, err := pair.parse(files, time.Now())
	if err == nil && named && len(cert.Leaf.DNSNames) == 0 {
		err = fmt.Errorf("certificate %s: holds no DNS name that a client could ask for", pair.CertFile)
	}
	return cert, seen, err
}

func lookAtPool(file string) (*x509.CertPool, fingerprint, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fingerprintOf([]byte(err.Error())), fmt.Errorf("certificates of client authorities: %w", err)
	}
	chain, err := parseChain(data)
	if err != nil {
		return nil, fingerprintOf(data), fmt.Errorf("certificates of client authorities %s: %w", file, err)
	}
	pool := x509.NewCertPool()
	for _, cert := range chain {
		pool.AddCert(cert)
	}
	return pool, fingerprintOf(data), nil
}

type fingerprint [sha256.Size]byte

func fingerprintOf(parts ...[]byte) fingerprint {
	all := sha256.New()
	for _, part := range parts {
		sum := sha256.Sum256(part)
		all.Write(sum[:])
	}
	return fingerprint(all.Sum(nil))
}
