package transport

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// keyPassword is that of every key in testdata, which openssl has written.
const keyPassword = "correct horse"

func readFile(t testing.TB, name ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{"testdata"}, name...)...))
	require.NoError(t, err)
	return data
}

func TestEncryptedKeysAreReadWithTheirPassword(t *testing.T) {
	plain, err := parseKey(readFile(t, "encrypted", "plain.pem"), "")
	require.NoError(t, err)
	files, err := filepath.Glob("testdata/encrypted/aes-*.pem")
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		key, err := parseKey(data, keyPassword)
		require.NoError(t, err, file)
		require.True(t, plain.(*ecdsa.PrivateKey).Equal(key), file)
		_, err = parseKey(data, "wrong")
		require.ErrorIs(t, err, errWrongPassword, file)
		_, err = parseKey(data, "")
		require.ErrorContains(t, err, "there is no password", file)
	}
}

func TestAPasswordOfAPlainKeyIsNotNeeded(t *testing.T) {
	_, err := parseKey(readFile(t, "encrypted", "plain.pem"), "anything")
	require.NoError(t, err)
}

func TestKeysThatCannotBeReadSayHowTheyAreEncrypted(t *testing.T) {
	for file, reason := range map[string]string{
		"scrypt.pem":   "only PBKDF2",
		"des3.pem":     "only AES in CBC mode",
		"pbes1.pem":    "only PBES2",
		"dek-info.pem": "openssl pkcs8 -topk8",
	} {
		_, err := parseKey(readFile(t, "unreadable", file), keyPassword)
		require.ErrorContains(t, err, reason, file)
	}
}

func FuzzEncryptedKey(f *testing.F) {
	for _, name := range []string{"aes-256-cbc.pem", "aes-128-cbc.pem", "aes-256-cbc-hmacWithSHA1.pem"} {
		block, _ := pem.Decode(readFile(f, "encrypted", name))
		f.Add(block.Bytes, keyPassword)
	}
	f.Fuzz(func(t *testing.T, data []byte, password string) {
		if bytes.Contains(data, []byte{0x02, 0x03}) || bytes.Contains(data, []byte{0x02, 0x04}) {
			return // millions of iterations are legal, and slow
		}
		plain, err := decryptKey(data, password)
		if err == nil {
			require.Less(t, len(plain), len(data))
		}
	})
}
