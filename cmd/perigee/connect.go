package main

import (
	"context"
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
	namespace string
}

// addEndpoint defines the flags of a client command and of those below it.
func (a *app) addEndpoint(cmd *cobra.Command) *cobra.Command {
	flags := cmd.PersistentFlags()
	flags.StringVar(&a.endpoint.address, "endpoint", a.getenv("PERIGEE_ENDPOINT", defaultEndpoint),
		"`host:port` of the server (environment: PERIGEE_ENDPOINT)")
	flags.BoolVar(&a.endpoint.tls, "tls", false, "connect with TLS")
	flags.BoolVar(&a.endpoint.insecure, "insecure", false, "with --tls, accept any certificate")
	flags.StringVar(&a.endpoint.namespace, "namespace", "", "`namespace` of topics and groups")
	return cmd
}

func (e endpointFlags) options() (client.Options, error) {
	if e.insecure && !e.tls {
		return client.Options{}, usagef("--insecure is about certificates and needs --tls")
	}
	return client.Options{
		Endpoint: e.address, TLS: e.tls, Insecure: e.insecure, Namespace: e.namespace, Version: protocolVersion,
	}, nil
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
