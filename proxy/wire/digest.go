package wire

import (
	"crypto/sha1"
	"encoding/hex"

	"google.golang.org/protobuf/encoding/protowire"

	rmqpb "github.com/perigee-mq/perigee/gen/apache/rocketmq/v2"
)

// digestSize is the encoded size of a Digest: a type below 128, and the text of
// an SHA-1 sum.
const (
	checksumSize = 2 * sha1.Size
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

// appendDigest appends the SHA-1 digest of body. The hex digits are upper case: the SDKs
// compare texts. Every SDK knows CRC32, MD5 and SHA-1, but they write a CRC32 in different
// ways. SHA-1 takes less than half the time of MD5 where processors have instructions for
// it, at both ends, and there are clients on which MD5 is switched off.
func appendDigest(b, body []byte) []byte {
	sum := sha1.Sum(body)
	b = appendLen(b, systemBodyDigest, digestSize)
	b = appendInt(b, digestType, int64(rmqpb.DigestType_SHA1))
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
