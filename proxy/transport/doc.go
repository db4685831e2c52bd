// Package transport is what lies between a socket and the proxy's handlers:
// TLS and cleartext HTTP/2 on one port, certificates, the codec that sends
// responses which are bytes already, the options of the gRPC server, and the
// HTTP endpoints for health and metrics.
//
// It knows no topic, no RPC and no store. internal/node wires it.
package transport
