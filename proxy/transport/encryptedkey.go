package transport

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"hash"
)

// Private keys that are encrypted with a password, in the form that openssl
// writes (PKCS #8, RFC 5208, with PBES2, RFC 8018): a key is derived from the
// password with PBKDF2, and the private key is encrypted with AES in CBC mode.
//
//	encryptedKey  ::= { { pbes2, pbes2 }, encrypted bytes }
//	pbes2         ::= { { pbkdf2, derivation }, { cipher, iv } }
//	derivation    ::= { salt, iterations, [key length], [hash] }

type encryptedKey struct {
	Algorithm pkix.AlgorithmIdentifier
	Data      []byte
}

type pbes2 struct {
	Derivation pkix.AlgorithmIdentifier
	Cipher     pkix.AlgorithmIdentifier
}

type derivation struct {
	Salt       []byte
	Iterations int
	KeyLength  int                      `asn1:"optional"`
	Hash       pkix.AlgorithmIdentifier `asn1:"optional"`
}

// maxIterations bounds what loading a key may cost; openssl uses 2,048, and some
// advise a million.
const maxIterations = 10_000_000

// errWrongPassword says that what was decrypted is no key.
var errWrongPassword = errors.New("cannot be decrypted: the password is wrong, or the key is damaged")

// decryptKey returns the PKCS #8 private key that data holds encrypted.
func decryptKey(data []byte, password string) ([]byte, error) {
	var outer encryptedKey
	if err := unmarshalAll(data, &outer); err != nil {
		return nil, err
	}
	if !outer.Algorithm.Algorithm.Equal(oid(1, 2, 840, 113549, 1, 5, 13)) {
		return nil, fmt.Errorf("is encrypted with %v; only PBES2 can be read (openssl pkcs8 -topk8 -v2 aes-256-cbc)", outer.Algorithm.Algorithm)
	}
	var scheme pbes2
	if err := unmarshalAll(outer.Algorithm.Parameters.FullBytes, &scheme); err != nil {
		return nil, err
	}
	keyLength, err := cipherKeyLength(scheme.Cipher.Algorithm)
	if err != nil {
		return nil, err
	}
	var iv []byte
	if err := unmarshalAll(scheme.Cipher.Parameters.FullBytes, &iv); err != nil {
		return nil, err
	}
	key, err := deriveKey(scheme.Derivation, password, keyLength)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	if len(iv) != aes.BlockSize || len(outer.Data) == 0 || len(outer.Data)%aes.BlockSize != 0 {
		return nil, errors.New("is damaged: its encrypted part has no whole blocks")
	}
	plain := make([]byte, len(outer.Data))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(plain, outer.Data)
	return unpad(plain)
}

func deriveKey(algorithm pkix.AlgorithmIdentifier, password string, length int) ([]byte, error) {
	if !algorithm.Algorithm.Equal(oid(1, 2, 840, 113549, 1, 5, 12)) {
		return nil, fmt.Errorf("derives its key with %v; only PBKDF2 can be read", algorithm.Algorithm)
	}
	var d derivation
	if err := unmarshalAll(algorithm.Parameters.FullBytes, &d); err != nil {
		return nil, err
	}
	if d.Iterations < 1 || d.Iterations > maxIterations {
		return nil, fmt.Errorf("derives its key with %d iterations; must be 1 to %d", d.Iterations, maxIterations)
	}
	newHash, err := derivationHash(d.Hash.Algorithm)
	if err != nil {
		return nil, err
	}
	return pbkdf2.Key(newHash, password, d.Salt, d.Iterations, length)
}

func derivationHash(id asn1.ObjectIdentifier) (func() hash.Hash, error) {
	hmac := func(n int) asn1.ObjectIdentifier { return oid(1, 2, 840, 113549, 2, n) }
	switch {
	case len(id) == 0, id.Equal(hmac(7)):
		return sha1.New, nil
	case id.Equal(hmac(9)):
		return sha256.New, nil
	case id.Equal(hmac(10)):
		return sha512.New384, nil
	case id.Equal(hmac(11)):
		return sha512.New, nil
	default:
		return nil, fmt.Errorf("derives its key with the hash %v, which cannot be read", id)
	}
}

func cipherKeyLength(id asn1.ObjectIdentifier) (int, error) {
	cbc := func(n int) asn1.ObjectIdentifier { return oid(2, 16, 840, 1, 101, 3, 4, 1, n) }
	switch {
	case id.Equal(cbc(2)):
		return 16, nil
	case id.Equal(cbc(22)):
		return 24, nil
	case id.Equal(cbc(42)):
		return 32, nil
	default:
		return 0, fmt.Errorf("is encrypted with the cipher %v; only AES in CBC mode can be read", id)
	}
}

// unpad removes the padding: n bytes of value n, at least one and at most a block.
func unpad(plain []byte) ([]byte, error) {
	n := int(plain[len(plain)-1])
	if n == 0 || n > aes.BlockSize {
		return nil, errWrongPassword
	}
	for _, b := range plain[len(plain)-n:] {
		if int(b) != n {
			return nil, errWrongPassword
		}
	}
	return plain[:len(plain)-n], nil
}

func oid(arcs ...int) asn1.ObjectIdentifier { return arcs }

// unmarshalAll decodes data, which must hold nothing else.
func unmarshalAll(data []byte, into any) error {
	rest, err := asn1.Unmarshal(data, into)
	if err == nil && len(rest) > 0 {
		err = errors.New("bytes are left over")
	}
	if err != nil {
		return fmt.Errorf("is damaged: %w", err)
	}
	return nil
}
