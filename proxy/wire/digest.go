package wire

import (
	"crypto/md5"
	"encoding/hex"

	"google.golang.org/protobuf/encoding/protowire"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// digestSize is the encoded size of a Digest: a type below 128, and the text of
// an MD5 sum.
const (
	checksumSize = 2 * md5.Size
	digestSize   = (oneByteTag + 1) + (oneByteTag + 1 + checksumSize)
)

// hasDigest reports whether the stored system properties hold a body digest. They
// are in ascending field order, so few of them are looked at.
func hasDigest(system []byte) bool {
	for len(system) > 0 {
		field, _, n := protowire.ConsumeField(system)
		if n < 0 || field >= systemBodyDigest {
			return n > 0 && field == systemBodyDigest
		}
		system = system[n:]
	}
	return false
}

// appendDigest appends the MD5 digest of body. The hex digits are upper case:
// the SDKs compare texts. MD5 is what every SDK meets in use.
func appendDigest(b, body []byte) []byte {
	sum := md5.Sum(body)
	b = appendLen(b, systemBodyDigest, digestSize)
	b = appendInt(b, digestType, int64(rmqpb.DigestType_MD5))
	b = appendLen(b, digestChecksum, checksumSize)
	start := len(b)
	b = hex.AppendEncode(b, sum[:])
	for i, c := range b[start:] {
		if c >= 'a' {
			b[start+i] = c - 'a' + 'A'
		}
	}
	return b
}
