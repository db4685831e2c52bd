// Package tiercreds says who may speak between the tiers of a deployment: those with a
// certificate of its authority (mutual TLS), those that know its token, or, on networks
// that are trusted, everybody.
//
// Both ends of every service between tiers use it, and get with it that a connection whose
// peer has vanished is given up within seconds. The files are read again while the
// process runs, so that certificates and tokens can be replaced without a restart; what
// cannot be read leaves what was read before in force.
package tiercreds

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/perigee-mq/perigee/mq"
)

// Options name the files, in PEM where they are of TLS. The zero value is cleartext for
// everybody.
type Options struct {
	// CertFile and KeyFile are what this process shows to others; they come together.
	CertFile, KeyFile string
	// CAFile has the certificates by which those of others are judged. A server with it
	// accepts only clients that show one.
	CAFile string
	// TokenFile has tokens, one on each line. A client shows the first, a server accepts
	// each of them: to replace a token, let both be there for a while.
	TokenFile string
}

// How long a connection may be silent before its peer is asked whether it lives, and how
// long that answer may take. gRPC does not ask more often than every ten seconds.
const (
	aliveAfter  = 10 * time.Second
	aliveAnswer = 3 * time.Second
)

// refresh is how long a token is used before its file is looked at again.
const refresh = 10 * time.Second

// maxToken bounds the token file.
const maxToken = 64 << 10

// Open reports whether a server with these options lets everybody in.
func (o Options) Open() bool { return o.CAFile == "" && o.TokenFile == "" }

func (o Options) check() error {
	if (o.CertFile == "") != (o.KeyFile == "") {
		missing, there := "key", o.CertFile
		if o.CertFile == "" {
			missing, there = "cert", o.KeyFile
		}
		return &mq.InvalidError{Kind: mq.ErrInvalid, Field: missing, Reason: "must be set together with " + mq.Shorten(there)}
	}
	return nil
}

// Server returns the options of a gRPC server that lets in whom o says. Everybody else is
// answered UNAUTHENTICATED, or fails in the handshake.
func Server(o Options) ([]grpc.ServerOption, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.CAFile != "" && o.CertFile == "" {
		return nil, &mq.InvalidError{Kind: mq.ErrInvalid, Field: "ca", Value: mq.Shorten(o.CAFile), Reason: "needs a certificate and a key of the server"}
	}
	opts := []grpc.ServerOption{
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: aliveAfter, Timeout: aliveAnswer}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: aliveAfter / 2, PermitWithoutStream: true}),
	}
	if o.CertFile != "" {
		f := &files{o: o, server: true}
		if _, err := f.config(); err != nil {
			return nil, err
		}
		opts = append(opts, grpc.Creds(&reloading{files: f}))
	}
	if o.TokenFile != "" {
		t, err := openToken(o.TokenFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, grpc.ChainUnaryInterceptor(t.unary), grpc.ChainStreamInterceptor(t.stream))
	}
	return opts, nil
}

// Client returns the options of a gRPC client that shows what o says, and judges servers
// by it. Without CAFile it speaks cleartext.
func Client(o Options) ([]grpc.DialOption, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.CertFile != "" && o.CAFile == "" {
		return nil, &mq.InvalidError{Kind: mq.ErrInvalid, Field: "cert", Value: mq.Shorten(o.CertFile), Reason: "needs a CA by which servers are judged"}
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: aliveAfter, Timeout: aliveAnswer}),
	}
	if o.CAFile != "" {
		f := &files{o: o}
		if _, err := f.config(); err != nil {
			return nil, err
		}
		opts[0] = grpc.WithTransportCredentials(&reloading{files: f})
	}
	if o.TokenFile != "" {
		t, err := openToken(o.TokenFile)
		if err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithPerRPCCredentials(t))
	}
	return opts, nil
}

// files are what TLS is made of.
type files struct {
	o      Options
	server bool
	mu     struct {
		sync.Mutex
		last *tls.Config
	}
}

// config returns the configuration by the files as they are now, or as they were when they
// could be read.
func (f *files) config() (*tls.Config, error) {
	c, err := f.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		if f.mu.last != nil {
			return f.mu.last, nil
		}
		return nil, err
	}
	f.mu.last = c
	return c, nil
}

func (f *files) read() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.o.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(f.o.CertFile, f.o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("certificate %s: %w", f.o.CertFile, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.o.CAFile != "" {
		pem, err := os.ReadFile(f.o.CAFile)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", f.o.CAFile)
		}
		if f.server {
			c.ClientCAs, c.ClientAuth = pool, tls.RequireAndVerifyClientCert
		} else {
			c.RootCAs = pool
		}
	}
	return c, nil
}

// reloading are transport credentials that look at the files with each handshake.
// Connections between tiers are few and live long.
type reloading struct {
	files *files
	name  string // what the certificate of the server must be for; empty: the address
}

func (r *reloading) now() (credentials.TransportCredentials, error) {
	c, err := r.files.config()
	if err != nil {
		return nil, err
	}
	c = c.Clone()
	c.ServerName = r.name
	return credentials.NewTLS(c), nil
}

func (r *reloading) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	creds, err := r.now()
	if err != nil {
		return nil, nil, err
	}
	return creds.ClientHandshake(ctx, authority, conn)
}

func (r *reloading) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	creds, err := r.now()
	if err != nil {
		return nil, nil, err
	}
	return creds.ServerHandshake(conn)
}

func (r *reloading) Info() credentials.ProtocolInfo {
	return credentials.NewTLS(&tls.Config{ServerName: r.name, MinVersion: tls.VersionTLS12}).Info()
}

func (r *reloading) Clone() credentials.TransportCredentials {
	return &reloading{files: r.files, name: r.name}
}

func (r *reloading) OverrideServerName(name string) error {
	r.name = name
	return nil
}

// A token is what both sides know.
type token struct {
	path string
	mu   struct {
		sync.Mutex
		first string
		sums  [][sha256.Size]byte
		read  time.Time
	}
}

func openToken(path string) (*token, error) {
	t := &token{path: path}
	return t, t.readLocked(time.Now())
}

func (t *token) readLocked(now time.Time) error {
	info, err := os.Stat(t.path)
	if err != nil {
		return err
	}
	if info.Size() > maxToken {
		return fmt.Errorf("token file %s has %d bytes, the limit is %d", t.path, info.Size(), maxToken)
	}
	data, err := os.ReadFile(t.path)
	if err != nil {
		return err
	}
	var tokens []string
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if strings.ContainsFunc(line, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("token file %s: a token may hold only printable ASCII without spaces", t.path)
		}
		tokens = append(tokens, line)
	}
	if len(tokens) == 0 {
		return fmt.Errorf("token file %s is empty", t.path)
	}
	t.mu.first, t.mu.sums, t.mu.read = tokens[0], nil, now
	for _, token := range tokens {
		t.mu.sums = append(t.mu.sums, sha256.Sum256([]byte(token)))
	}
	return nil
}

func (t *token) refreshLocked() {
	if now := time.Now(); now.Sub(t.mu.read) >= refresh {
		if t.readLocked(now) != nil {
			t.mu.read = now // the one before stays in force
		}
	}
}

// The key and the prefix of the header that carries the token.
const (
	header = "authorization"
	scheme = "Bearer "
)

// GetRequestMetadata adds the token to a call.
func (t *token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refreshLocked()
	return map[string]string{header: scheme + t.mu.first}, nil
}

// RequireTransportSecurity is false: whether the network may read it is the operator's
// to decide.
func (t *token) RequireTransportSecurity() bool { return false }

var (
	errNoToken    = errors.New("no token, and this server asks for one")
	errWrongToken = errors.New("wrong token")
)

func (t *token) admit(ctx context.Context) error {
	values := metadata.ValueFromIncomingContext(ctx, header)
	if len(values) != 1 || !strings.HasPrefix(values[0], scheme) {
		return status.Error(codes.Unauthenticated, errNoToken.Error())
	}
	sum := sha256.Sum256([]byte(values[0][len(scheme):]))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refreshLocked()
	for _, known := range t.mu.sums {
		if subtle.ConstantTimeCompare(sum[:], known[:]) == 1 {
			return nil
		}
	}
	return status.Error(codes.Unauthenticated, errWrongToken.Error())
}

func (t *token) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if err := t.admit(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (t *token) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if err := t.admit(stream.Context()); err != nil {
		return err
	}
	return handler(srv, stream)
}
