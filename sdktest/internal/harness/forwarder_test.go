package harness

import (
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestForwarderPassesBothDirectionsAndEndsWithClose(t *testing.T) {
	t.Parallel()
	target, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { target.Close() })
	go func() { // echoes one connection, and ends with it
		conn, err := target.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	}()
	f, err := OpenForwarder(target.Addr().String())
	require.NoError(t, err)

	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.Port())))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = conn.Write([]byte("ping"))
	require.NoError(t, err)
	answer := make([]byte, 4)
	_, err = io.ReadFull(conn, answer)
	require.NoError(t, err)
	require.Equal(t, "ping", string(answer))
	require.Equal(t, 1, f.Accepted())

	require.NoError(t, f.Close())
	_, err = conn.Read(answer)
	require.Error(t, err, "the connection outlived the forwarder")
}

func TestFreeAddressesAreDifferent(t *testing.T) {
	t.Parallel()
	addresses, err := freeAddresses(20)
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, a := range addresses {
		require.False(t, seen[a], a)
		seen[a] = true
	}
}
