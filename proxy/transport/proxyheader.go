package transport

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/perigee-mq/perigee/mq"
)

// The PROXY protocol, with which a balancer that forwards bytes tells from where
// they came. A header stands in front of everything else, TLS included.
//
// Version 1 is one line:
//
//	PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n
//	PROXY UNKNOWN\r\n
//
// Version 2 is binary, numbers big-endian:
//
//	 0        12       13        14       16
//	┌─────────┬────────┬─────────┬────────┬──────────────────────────────┐
//	│signature│2|cmd   │family   │length  │source, destination, ports,   │
//	│12 bytes │1 byte  │1 byte   │2 bytes │further fields: length bytes  │
//	└─────────┴────────┴─────────┴────────┴──────────────────────────────┘
const (
	proxyV1Start = "PROXY "
	proxyV2Start = "\r\n\r\n\x00\r\nQUIT\n"
	// proxyV1Max is the longest line of version 1, its end included.
	proxyV1Max = 107
	// proxyV2Head is the part of fixed length; proxyV2Max bounds what follows it.
	// Balancers put names and certificates there, a few hundred bytes.
	proxyV2Head = 16
	proxyV2Max  = 4096
)

// ProxyMode says whether the connections of a listener begin with a header of
// the PROXY protocol.
type ProxyMode uint8

const (
	// ProxyOff refuses connections that begin with a header.
	ProxyOff ProxyMode = iota
	// ProxyOptional takes connections with and without one. Whoever can reach the
	// port can then pretend to come from anywhere.
	ProxyOptional
	// ProxyRequired refuses connections that begin with anything else.
	ProxyRequired
)

var proxyModeNames = [...]string{ProxyOff: "off", ProxyOptional: "optional", ProxyRequired: "required"}

// String returns the name the configuration uses.
func (m ProxyMode) String() string {
	if int(m) < len(proxyModeNames) {
		return proxyModeNames[m]
	}
	return fmt.Sprintf("ProxyMode(%d)", uint8(m))
}

// ParseProxyMode returns the mode the configuration calls s. The error is an
// *mq.InvalidError.
func ParseProxyMode(s string) (ProxyMode, error) {
	for m, name := range proxyModeNames {
		if name == s {
			return ProxyMode(m), nil
		}
	}
	return 0, &mq.InvalidError{
		Kind: mq.ErrInvalid, Field: "proxy protocol", Value: mq.Shorten(s),
		Reason: "must be one of " + strings.Join(proxyModeNames[:], ", "),
	}
}

// A proxyHeader is what a header tells. Source and destination are not valid when
// the balancer speaks for itself, as its health checks do, or for something that
// is not TCP.
type proxyHeader struct {
	source, destination netip.AddrPort
}

// errNoProxyHeader says that a connection begins with something else.
var errNoProxyHeader = errors.New("no PROXY protocol header")

// parseProxyHeader returns the header that b begins with and its length. Length 0
// without an error means that more bytes are needed; no further bytes change an
// answer that is different from that.
func parseProxyHeader(b []byte) (h proxyHeader, length int, err error) {
	switch {
	case bytes.HasPrefix(b, []byte(proxyV2Start)):
		return parseProxyV2(b)
	case bytes.HasPrefix(b, []byte(proxyV1Start)):
		return parseProxyV1(b)
	case strings.HasPrefix(proxyV1Start, string(b)), strings.HasPrefix(proxyV2Start, string(b)):
		return h, 0, nil
	default:
		return h, 0, errNoProxyHeader
	}
}

func parseProxyV1(b []byte) (h proxyHeader, length int, err error) {
	line, _, ended := bytes.Cut(b[:min(len(b), proxyV1Max)], []byte("\r\n"))
	switch {
	case !ended && len(b) >= proxyV1Max:
		return h, 0, fmt.Errorf("line of version 1 does not end within %d bytes", proxyV1Max)
	case !ended:
		return h, 0, nil
	}
	length = len(line) + len("\r\n")
	fields := strings.Split(string(line[len(proxyV1Start):]), " ")
	if fields[0] == "UNKNOWN" {
		return h, length, nil // what follows means nothing
	}
	if fields[0] != "TCP4" && fields[0] != "TCP6" {
		return h, 0, fmt.Errorf("protocol %q of version 1 must be TCP4, TCP6 or UNKNOWN", fields[0])
	}
	if len(fields) != 5 {
		return h, 0, fmt.Errorf("line of version 1 has %d fields after PROXY, must have 5", len(fields))
	}
	four := fields[0] == "TCP4"
	if h.source, err = proxyAddress(fields[1], fields[3], four); err != nil {
		return proxyHeader{}, 0, fmt.Errorf("source: %w", err)
	}
	if h.destination, err = proxyAddress(fields[2], fields[4], four); err != nil {
		return proxyHeader{}, 0, fmt.Errorf("destination: %w", err)
	}
	return h, length, nil
}

func proxyAddress(host, port string, four bool) (netip.AddrPort, error) {
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Is4() != four || addr.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address of the family", host)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not a port", port)
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), nil
}

// Values of the thirteenth and fourteenth byte of version 2.
const (
	proxyV2Local = 0x20
	proxyV2Proxy = 0x21
	proxyV2TCP4  = 0x11
	proxyV2TCP6  = 0x21
	// proxyV2Families and proxyV2Transports are the largest numbers in the two
	// halves of the family.
	proxyV2Families   = 3
	proxyV2Transports = 2
)

func parseProxyV2(b []byte) (h proxyHeader, length int, err error) {
	const command, family = 12, 13
	if len(b) > command && b[command] != proxyV2Local && b[command] != proxyV2Proxy {
		return h, 0, fmt.Errorf("version and command %#02x of version 2 must be %#02x or %#02x", b[command], proxyV2Local, proxyV2Proxy)
	}
	if len(b) > family && (b[family]>>4 > proxyV2Families || b[family]&0xf > proxyV2Transports) {
		return h, 0, fmt.Errorf("family %#02x of version 2 is unknown", b[family])
	}
	if len(b) < proxyV2Head {
		return h, 0, nil
	}
	size := int(binary.BigEndian.Uint16(b[14:]))
	if size > proxyV2Max {
		return h, 0, fmt.Errorf("length %d of version 2 is above %d", size, proxyV2Max)
	}
	width := 0 // of one address
	switch {
	case b[command] == proxyV2Local:
	case b[family] == proxyV2TCP4:
		width = 4
	case b[family] == proxyV2TCP6:
		width = 16
	}
	if need := 2*width + 4; width > 0 && size < need {
		return h, 0, fmt.Errorf("length %d of version 2 is below the %d bytes of its addresses", size, need)
	}
	if length = proxyV2Head + size; len(b) < length {
		return h, 0, nil
	}
	if width == 0 {
		return h, length, nil
	}
	at := func(i, port int) netip.AddrPort {
		from := proxyV2Head + i*width
		addr, _ := netip.AddrFromSlice(b[from : from+width]) // 4 or 16 bytes are always one
		return netip.AddrPortFrom(addr.Unmap(), binary.BigEndian.Uint16(b[port:]))
	}
	ports := proxyV2Head + 2*width
	return proxyHeader{source: at(0, ports), destination: at(1, ports+2)}, length, nil
}
