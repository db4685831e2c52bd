package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/perigee-mq/perigee/internal/client"
)

const (
	defaultEndpoint = "127.0.0.1:8081"

	// protocolVersion is the SDK version whose protocol the client speaks;
	// servers compare it with the versions of SDKs.
	protocolVersion = "5.1.4"

	// callTimeout bounds a call that does not wait for messages.
	callTimeout = 15 * time.Second
)

// endpointFlags say which server a client command talks to.
type endpointFlags struct {
	address   string
	tls       bool
	insecure  bool
	ca        string
	cert, key string
	namespace string
}

// addEndpoint defines the flags of a client command and of those below it.
func (a *app) addEndpoint(cmd *cobra.Command) *cobra.Command {
	flags := cmd.PersistentFlags()
	flags.StringVar(&a.endpoint.address, "endpoint", a.getenv("PERIGEE_ENDPOINT", defaultEndpoint),
		"`host:port` of the server (environment: PERIGEE_ENDPOINT)")
	flags.BoolVar(&a.endpoint.tls, "tls", false, "connect with TLS")
	flags.BoolVar(&a.endpoint.insecure, "insecure", false, "with --tls, accept any certificate")
	flags.StringVar(&a.endpoint.ca, "tls-ca", "", "with --tls, PEM `file` with the authorities that sign the server's certificate; empty: the system's")
	flags.StringVar(&a.endpoint.cert, "tls-cert", "", "with --tls, PEM `file` with a certificate to show")
	flags.StringVar(&a.endpoint.key, "tls-key", "", "with --tls, PEM `file` with the certificate's key")
	flags.StringVar(&a.endpoint.namespace, "namespace", "", "`namespace` of topics and groups")
	return cmd
}

func (e endpointFlags) options() (client.Options, error) {
	if e.insecure && !e.tls {
		return client.Options{}, usagef("--insecure is about certificates and needs --tls")
	}
	opts := client.Options{
		Endpoint: e.address, TLS: e.tls, Insecure: e.insecure, Namespace: e.namespace, Version: protocolVersion,
	}
	if e.ca != "" || e.cert != "" || e.key != "" {
		if err := e.certificates(&opts); err != nil {
			return client.Options{}, &usageError{err}
		}
	}
	return opts, nil
}

// certificates reads the files that the flags name.
func (e endpointFlags) certificates(opts *client.Options) error {
	if !e.tls {
		return errors.New("--tls-ca, --tls-cert and --tls-key need --tls")
	}
	if e.ca != "" {
		data, err := os.ReadFile(e.ca)
		if err != nil {
			return fmt.Errorf("--tls-ca: %w", err)
		}
		opts.Authorities = x509.NewCertPool()
		if !opts.Authorities.AppendCertsFromPEM(data) {
			return fmt.Errorf("--tls-ca: %s holds no certificate", e.ca)
		}
	}
	if e.cert == "" && e.key == "" {
		return nil
	}
	cert, err := tls.LoadX509KeyPair(e.cert, e.key)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	opts.Certificate = &cert
	return nil
}

// withConn runs do with a connection to the server and explains its error.
func (a *app) withConn(do func(conn *client.Conn) error) error {
	opts, err := a.endpoint.options()
	if err != nil {
		return err
	}
	conn, err := client.Dial(opts)
	if err != nil {
		return &usageError{err}
	}
	defer conn.Close()
	return a.explain(do(conn))
}

// call runs do, which makes one call, under a deadline.
func call[Request, Response any](ctx context.Context, do func(context.Context, Request) (Response, error), req Request) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return do(ctx, req)
}
