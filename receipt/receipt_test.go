package receipt

import (
	"encoding/base64"
	"encoding/binary"
	"flag"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/perigee-mq/perigee/mq"
)

var rewrite = flag.Bool("rewrite", false, "write the golden handles anew")

func sample() mq.Lease {
	return mq.Lease{
		Shard: "shard-a", Topic: 7, Group: 11, Queue: 3, Offset: 123_456_789,
		PopID: 0x0102030405060708, Attempt: 2, AutoRenew: true,
	}
}

// seal gives raw the checksum it needs to be judged by its content.
func seal(raw []byte) string {
	return base64.RawURLEncoding.EncodeToString(
		binary.BigEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli)))
}

// unsealed returns the bytes of the sample's handle without the checksum.
func unsealed(t *testing.T) []byte {
	t.Helper()
	raw, err := base64.RawURLEncoding.DecodeString(Encode(sample()))
	require.NoError(t, err)
	return raw[:len(raw)-sumSize]
}

func TestVersion1HandlesStayReadable(t *testing.T) {
	leases := map[string]mq.Lease{
		"v1-typical": sample(),
		"v1-longest": {
			Shard: strings.Repeat("s", MaxShard), Topic: math.MaxUint32, Group: math.MaxUint32, Queue: math.MaxInt32,
			Offset: math.MaxInt64, PopID: math.MaxUint64, Attempt: math.MaxInt32,
		},
		"v1-smallest": {Shard: "a", Attempt: 1},
	}
	for name, want := range leases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".txt")
			if *rewrite {
				require.NoError(t, os.WriteFile(path, []byte(Encode(want)+"\n"), 0o644))
			}
			golden, err := os.ReadFile(path)
			require.NoError(t, err)
			handle := strings.TrimSuffix(string(golden), "\n")
			got, err := Decode(handle)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Equal(t, handle, Encode(want))
		})
	}
}

func TestEveryLeaseSurvivesTheRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := mq.Lease{
			Shard:     rapid.StringN(1, -1, MaxShard).Draw(t, "shard"),
			Topic:     mq.TopicID(rapid.Uint32().Draw(t, "topic")),
			Group:     mq.GroupID(rapid.Uint32().Draw(t, "group")),
			Queue:     mq.QueueID(rapid.Int32Min(0).Draw(t, "queue")),
			Offset:    mq.QueueOffset(rapid.Int64Min(0).Draw(t, "offset")),
			PopID:     mq.PopID(rapid.Uint64().Draw(t, "pop id")),
			Attempt:   mq.Attempt(rapid.Int32Min(1).Draw(t, "attempt")),
			AutoRenew: rapid.Bool().Draw(t, "auto renew"),
		}
		handle := Encode(want)
		if len(handle) > MaxLen {
			t.Fatalf("handle of %d characters, MaxLen is %d", len(handle), MaxLen)
		}
		got, err := Decode(handle)
		if err != nil || got != want {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	})
}

func TestEverySingleBitFlipIsRefused(t *testing.T) {
	for _, l := range []mq.Lease{sample(), {Shard: "a", Attempt: 1}, {Shard: "ab", Attempt: 1}, {Shard: "abc", Attempt: 1}} {
		handle := Encode(l)
		for i := range len(handle) * 8 {
			flipped := []byte(handle)
			flipped[i/8] ^= 1 << (i % 8)
			_, err := Decode(string(flipped))
			require.ErrorIs(t, err, mq.ErrInvalidReceipt, "bit %d of %s", i, handle)
		}
		raw, err := base64.RawURLEncoding.DecodeString(handle)
		require.NoError(t, err)
		for i := range len(raw) * 8 {
			raw[i/8] ^= 1 << (i % 8)
			_, err := Decode(base64.RawURLEncoding.EncodeToString(raw))
			require.ErrorIs(t, err, mq.ErrInvalidReceipt, "bit %d of the bytes of %s", i, handle)
			raw[i/8] ^= 1 << (i % 8)
		}
	}
}

func TestEveryCutIsRefused(t *testing.T) {
	handle := Encode(sample())
	for n := range len(handle) {
		_, err := Decode(handle[:n])
		require.ErrorIs(t, err, mq.ErrInvalidReceipt, "%d characters", n)
	}
}

func TestOnlyTheCanonicalTextIsAccepted(t *testing.T) {
	handle := Encode(sample())
	for name, other := range map[string]string{
		"padding":             handle + "=",
		"line break at end":   handle + "\n",
		"line break inside":   handle[:8] + "\r\n" + handle[8:],
		"leading blank":       " " + handle,
		"trailing character":  handle + "A",
		"trailing characters": handle + "AAAA",
		"empty":               "",
		"classic handle":      "0 1700000000000 60000 1 0 broker-a 0 42 42",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Decode(other)
			require.ErrorIs(t, err, mq.ErrInvalidReceipt)
		})
	}
}

func TestSpareBitsOfTheLastCharacterAreRefused(t *testing.T) {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for _, shard := range []string{"a", "ab", "abc"} {
		handle := Encode(mq.Lease{Shard: shard, Attempt: 1})
		for _, c := range alphabet {
			other := handle[:len(handle)-1] + string(c)
			if other == handle {
				continue
			}
			_, err := Decode(other)
			require.ErrorIs(t, err, mq.ErrInvalidReceipt, "last character %c", c)
		}
	}
}

func TestWrongContentUnderAGoodChecksumIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		change     func(raw []byte) []byte
	}{
		{"newer version", "version 2 is unknown", func(raw []byte) []byte { raw[offVersion] = 2; return raw }},
		{"version zero", "version 0 is unknown", func(raw []byte) []byte { raw[offVersion] = 0; return raw }},
		{"unknown flag", errFlags.Error(), func(raw []byte) []byte { raw[offFlags] |= 2; return raw }},
		{"negative queue", errLease.Error(), func(raw []byte) []byte { raw[offQueue] = 0x80; return raw }},
		{"negative offset", errLease.Error(), func(raw []byte) []byte { raw[offOffset] = 0x80; return raw }},
		{"negative attempt", errLease.Error(), func(raw []byte) []byte { raw[offAttempt] = 0x80; return raw }},
		{"attempt zero", errLease.Error(), func(raw []byte) []byte { clear(raw[offAttempt:offLength]); return raw }},
		{"trailing byte", errLength.Error(), func(raw []byte) []byte { return append(raw, 0) }},
		{"missing byte", errLength.Error(), func(raw []byte) []byte { return raw[:len(raw)-1] }},
		{"no shard", errLength.Error(), func(raw []byte) []byte { raw[offLength] = 0; return raw[:offShard] }},
		{"shard length past the limit", errLength.Error(), func(raw []byte) []byte { raw[offLength] = 128; return raw }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Decode(seal(tc.change(unsealed(t))))
			require.ErrorIs(t, err, mq.ErrInvalidReceipt)
			require.ErrorContains(t, err, tc.text)
		})
	}
	got, err := Decode(seal(unsealed(t)))
	require.NoError(t, err, "the unchanged bytes must be readable, else the cases above prove nothing")
	require.Equal(t, sample(), got)
}

func TestTooLongInputIsRefusedWithoutAllocatingForIt(t *testing.T) {
	long := strings.Repeat("A", 64<<20)
	var err error
	perRun := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err = Decode(long)
		}
	}).AllocedBytesPerOp()
	require.ErrorIs(t, err, mq.ErrInvalidReceipt)
	require.Less(t, perRun, int64(1024))
}

func TestErrorsDoNotRepeatTheHandle(t *testing.T) {
	handle := Encode(sample())
	_, err := Decode(handle + "A")
	require.Error(t, err)
	require.NotContains(t, err.Error(), handle)
}

func TestEncodePanicsOnAShardNameNoHandleCanCarry(t *testing.T) {
	require.Panics(t, func() { Encode(mq.Lease{Shard: strings.Repeat("s", MaxShard+1), Attempt: 1}) })
}

func TestAppendEncodeKeepsWhatIsBefore(t *testing.T) {
	require.Equal(t, "before"+Encode(sample()), string(AppendEncode([]byte("before"), sample())))
}

func TestAppendEncodeAllocatesNothingIntoRoom(t *testing.T) {
	l, buf := sample(), make([]byte, 0, 2*MaxLen)
	require.Zero(t, testing.AllocsPerRun(100, func() { buf = AppendEncode(buf[:0], l) }))
	handle := Encode(l)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = Decode(handle) }), 2.0)
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(sample()))
	f.Add(Encode(mq.Lease{Shard: "a", Attempt: 1}))
	f.Add("")
	f.Add("AQ")
	f.Add(strings.Repeat("A", MaxLen+1))
	f.Fuzz(func(t *testing.T, s string) {
		l, err := Decode(s)
		if err != nil {
			require.ErrorIs(t, err, mq.ErrInvalidReceipt)
			require.Zero(t, l)
			return
		}
		require.Equal(t, s, Encode(l))
	})
}

// FuzzDecodeSealed lets the fuzzer past the checksum.
func FuzzDecodeSealed(f *testing.F) {
	raw, err := base64.RawURLEncoding.DecodeString(Encode(sample()))
	require.NoError(f, err)
	f.Add(raw[:len(raw)-sumSize])
	f.Fuzz(func(t *testing.T, raw []byte) {
		handle := seal(raw[:len(raw):len(raw)])
		if l, err := Decode(handle); err == nil {
			require.Equal(t, handle, Encode(l))
		}
	})
}

func BenchmarkAppendEncode(b *testing.B) {
	l, buf := sample(), make([]byte, 0, 2*MaxLen)
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendEncode(buf[:0], l)
	}
}

func BenchmarkEncode(b *testing.B) {
	l := sample()
	b.ReportAllocs()
	for b.Loop() {
		_ = Encode(l)
	}
}

func BenchmarkDecode(b *testing.B) {
	handle := Encode(sample())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(handle); err != nil {
			b.Fatal(err)
		}
	}
}
