package receipt

import (
	"encoding/base64"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
)

// TestPendingHandlesOfVersion1StayReadable: handles live as long as a message may be
// delayed, which outlasts an upgrade.
func TestPendingHandlesOfVersion1StayReadable(t *testing.T) {
	const golden = "cAEAAAAHAAAAAAAMBAEHc2hhcmQtYTAxQUIxKhEU"
	want := mq.PendingHandle{Shard: "shard-a", Topic: 7, ID: 787_457, MessageID: "01AB"}
	require.Equal(t, golden, EncodePending(want))
	got, err := DecodePending(golden)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestEveryPendingHandleIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := mq.PendingHandle{
			Shard: strings.Repeat("s", rapid.IntRange(1, MaxShard).Draw(t, "shard")), Topic: mq.TopicID(rapid.Uint32().Draw(t, "topic")),
			ID: mq.PendingID(rapid.Uint64().Draw(t, "id")), MessageID: strings.Repeat("m", rapid.IntRange(1, 255).Draw(t, "message id")),
		}
		text := EncodePending(h)
		require.LessOrEqual(t, len(text), MaxPendingLen)
		got, err := DecodePending(text)
		require.NoError(t, err)
		require.Equal(t, h, got)
	})
}

func TestWhatIsNoPendingHandleIsRefusedWithItsReason(t *testing.T) {
	good := EncodePending(mq.PendingHandle{Shard: "shard-a", Topic: 7, ID: 9, MessageID: "01AB"})
	raw, err := base64.RawURLEncoding.DecodeString(good)
	require.NoError(t, err)
	edit := func(at int, b byte) string {
		changed := append([]byte(nil), raw[:len(raw)-sumSize]...)
		changed[at] = b
		return seal(changed)
	}
	for name, c := range map[string]struct{ handle, why string }{
		"empty":             {"", "wrong length"},
		"too long":          {strings.Repeat("A", MaxPendingLen+1), "wrong length"},
		"no base64":         {"not a handle", "base64"},
		"padded":            {good + "==", "base64"},
		"broken over lines": {good[:8] + "\n" + good[8:], "base64"},
		"a receipt":         {Encode(sample()), "no handle of a pending message"},
		"from the future":   {edit(1, 2), "version 2 is unknown"},
		"too short":         {seal([]byte{kindPending, pendingVersion1, 0}), "wrong length"},
		"no shard":          {edit(offPendingLength, 0), "wrong length"},
		"all shard":         {edit(offPendingLength, 11), "wrong length"},
		"more than all":     {edit(offPendingLength, 100), "wrong length"},
	} {
		_, err := DecodePending(c.handle)
		require.ErrorIs(t, err, mq.ErrInvalidHandle, name)
		require.ErrorContains(t, err, c.why, name)
	}
	for i := range raw {
		flipped := append([]byte(nil), raw...)
		flipped[i] ^= 1
		_, err := DecodePending(base64.RawURLEncoding.EncodeToString(flipped))
		require.ErrorIs(t, err, mq.ErrInvalidHandle, "byte %d", i)
	}
	_, err = Decode(good)
	require.ErrorIs(t, err, mq.ErrInvalidReceipt, "it is no receipt either")
}

func FuzzDecodePending(f *testing.F) {
	f.Add(EncodePending(mq.PendingHandle{Shard: "shard-a", Topic: math.MaxUint32, ID: 9, MessageID: "01AB"}))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		h, err := DecodePending(s)
		if err != nil {
			require.ErrorIs(t, err, mq.ErrInvalidHandle)
			return
		}
		require.Equal(t, s, EncodePending(h))
	})
}
