package machine

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTableFindsEveryRecordOfAHashAndFewOthers(t *testing.T) {
	const n = 300_000
	for _, expected := range []int{0, n / 2, n} {
		table := table{expected: expected}
		base := uint64(1)<<tableIndex - n/2 // indexes outgrow their bits on the way
		for i := range uint64(n) {
			table.add(mix(i/2), base+i) // two records each
		}
		others := 0
		for i := range uint64(n) {
			found := table.find(nil, mix(i/2), base+n)
			require.True(t, slices.Contains(found, base+i), "hash %d", i/2)
			others += len(found) - 2
			others += len(table.find(nil, mix(n+i), base+n))
		}
		require.Less(t, others, n/1000)
		require.Equal(t, n, table.n)
		buckets := 0
		for _, l := range table.layers {
			buckets += len(l.buckets)
		}
		require.Less(t, buckets*64, 64*n, "bytes")
	}
}

func TestTableTakesAnyNumberOfEqualHashes(t *testing.T) {
	var table table
	for i := range uint64(1000) {
		table.add(mix(1), i+1)
	}
	require.Len(t, table.find(nil, mix(1), 1000), 1000)
}
