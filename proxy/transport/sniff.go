package transport

import (
	"bytes"
	"strings"
)

// A protocol is what the first bytes of a connection tell.
type protocol int

const (
	undecided protocol = iota
	tlsHandshake
	cleartextHTTP2
	foreign
)

const (
	// recordHandshake is the type of the TLS record a client begins with.
	recordHandshake = 0x16
	// http2Preface is what a client of HTTP/2 begins with; no HTTP/1 method begins
	// like it. It is looked at as a whole: what only begins like it would be left
	// to gRPC, which waits for the rest.
	http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// peekSize is how much of a connection is read before it is judged at the
	// latest; what is read beyond the decision only serves the log line.
	peekSize = len(http2Preface)
)

// sniff judges a connection by the bytes it began with, as early as it can.
func sniff(first []byte) protocol {
	switch {
	case len(first) == 0:
		return undecided
	case first[0] == recordHandshake:
		return tlsHandshake
	case bytes.HasPrefix(first, []byte(http2Preface)):
		return cleartextHTTP2
	case strings.HasPrefix(http2Preface, string(first)):
		return undecided
	default:
		return foreign
	}
}

var (
	httpMethods = []string{"GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "PATCH ", "CONNECT ", "TRACE "}
	proxyHeads  = []string{proxyV1Start, proxyV2Start}
)

// describeForeign says for an operator what a connection that sniff called
// foreign looks like, and what to do about it.
func describeForeign(first []byte) string {
	switch {
	case first[0] == 0:
		// A frame of the classic protocol begins with its length in four bytes,
		// which is below 16 MiB.
		return "not HTTP/2: looks like the classic remoting protocol; use a RocketMQ 5 client, which speaks gRPC"
	case beginsLike(first, proxyHeads):
		return "not HTTP/2: looks like a PROXY protocol header; switch it off at the balancer, or set proxy_protocol"
	case beginsLike(first, httpMethods):
		return "not HTTP/2: looks like HTTP/1; this port speaks gRPC only"
	default:
		return "neither TLS nor HTTP/2"
	}
}

// beginsLike reports whether first begins with one of heads, or is the
// beginning of one.
func beginsLike(first []byte, heads []string) bool {
	for _, head := range heads {
		n := min(len(head), len(first))
		if head[:n] == string(first[:n]) {
			return true
		}
	}
	return false
}
