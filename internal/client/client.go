// Package client is a thin client of the RocketMQ 5 protocol: connections with
// the headers of an SDK, message ids, sessions and errors with the protocol's
// codes. The command line and the load generator build their requests with the
// generated code and send them through it.
//
// It retries nothing and balances nothing: one call is one request.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// The protocol's metadata keys.
const (
	headerLanguage      = "x-mq-language"
	headerProtocol      = "x-mq-protocol"
	headerClientVersion = "x-mq-client-version"
	headerClientID      = "x-mq-client-id"
	headerRequestID     = "x-mq-request-id"
	headerDateTime      = "x-mq-date-time"
	headerNamespace     = "x-mq-namespace"
)

// Language is what the client calls itself; servers of other makers know no
// other name for a Go client.
const Language = "GO"

// dateTimeLayout is the one SDKs use, in UTC.
const dateTimeLayout = "20060102T150405Z"

// Options configure Dial.
type Options struct {
	// Endpoint is the server's host:port.
	Endpoint string
	// TLS encrypts the connection; Insecure then accepts any certificate.
	TLS      bool
	Insecure bool
	// Certificate is shown to servers that ask for one; nil: none.
	Certificate *tls.Certificate
	// Authorities are those that may have signed the server's certificate; nil: the
	// system's.
	Authorities *x509.CertPool
	// Namespace goes out as a header; empty is the default namespace.
	Namespace string
	// Version is the version the client says it has. Servers of other makers
	// compare it with the SDK's, so it should look like one.
	Version string
	// FixedHeaders sends the same request id and date with every call, which
	// costs both sides less. For load generators.
	FixedHeaders bool
	// DialOptions are added to the client's own.
	DialOptions []grpc.DialOption
}

// Conn is a connection to a server, with the identity of one client. Its
// methods may be called from several goroutines at once.
type Conn struct {
	*grpc.ClientConn
	id   string
	opts Options
}

// Dial returns a connection for opts. It does no I/O: a server that is not
// there is the error of the first call.
func Dial(opts Options) (*Conn, error) {
	if _, _, err := net.SplitHostPort(opts.Endpoint); err != nil {
		return nil, fmt.Errorf("endpoint %q: must be host:port", opts.Endpoint)
	}
	c := &Conn{id: newClientID(), opts: opts}
	transport := insecure.NewCredentials()
	if opts.TLS {
		config := &tls.Config{InsecureSkipVerify: opts.Insecure, RootCAs: opts.Authorities, NextProtos: []string{"h2"}}
		if opts.Certificate != nil {
			config.Certificates = []tls.Certificate{*opts.Certificate}
		}
		transport = credentials.NewTLS(config)
	}
	outgoing := func(ctx context.Context) context.Context {
		return metadata.NewOutgoingContext(ctx, c.headers())
	}
	if opts.FixedHeaders {
		fixed := c.headers()
		outgoing = func(ctx context.Context) context.Context { return metadata.NewOutgoingContext(ctx, fixed) }
	}
	conn, err := grpc.NewClient("passthrough:///"+opts.Endpoint, append([]grpc.DialOption{
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any,
			cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			return invoke(outgoing(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc,
			cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return stream(outgoing(ctx), desc, cc, method, opts...)
		}),
	}, opts.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", opts.Endpoint, err)
	}
	c.ClientConn = conn
	return c, nil
}

// ID returns the client id that the connection sends.
func (c *Conn) ID() string { return c.id }

func (c *Conn) headers() metadata.MD {
	return metadata.Pairs(
		headerLanguage, Language,
		headerProtocol, "v2",
		headerClientVersion, c.opts.Version,
		headerClientID, c.id,
		headerRequestID, uuid.NewString(),
		headerDateTime, time.Now().UTC().Format(dateTimeLayout),
		headerNamespace, c.opts.Namespace,
	)
}

// newClientID returns host@pid@index@time, the form SDKs use; the index is
// random, because one process may have several clients.
func newClientID() string {
	return fmt.Sprintf("%s@%d@%d@%s", Host(), os.Getpid(), uuid.New().ID(),
		strconv.FormatInt(time.Now().UnixNano(), 36))
}

// Host returns the name of this host, or "localhost" when it has none.
func Host() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name
	}
	return "localhost"
}
