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
	// http2Start is how the HTTP/2 connection preface begins; no HTTP/1 method
	// begins like it.
	http2Start = "PRI "
	// peekSize is how much of a connection is read before it is judged at the
	// latest; what is read beyond the decision only serves the log line.
	peekSize = 16
)

// sniff judges a connection by the bytes it began with, as early as it can.
func sniff(first []byte) protocol {
	switch {
	case len(first) == 0:
		return undecided
	case first[0] == recordHandshake:
		return tlsHandshake
	case bytes.HasPrefix(first, []byte(http2Start)):
		return cleartextHTTP2
	case strings.HasPrefix(http2Start, string(first)):
		return undecided
	default:
		return foreign
	}
}

var (
	httpMethods = []string{"GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "PATCH ", "CONNECT ", "TRACE "}
	proxyHeads  = []string{"PROXY ", "\r\n\r\n\x00\r\nQUIT\n"}
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
		return "not HTTP/2: looks like a PROXY protocol header; switch it off at the load balancer"
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
