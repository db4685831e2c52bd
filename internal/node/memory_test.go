package node

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func files(content map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	for name, text := range content {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

func TestContainerMemoryIsTheLowestLimitOfTheGroupAndThoseAboveIt(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no control groups": {nil, 0},
		"version 2, its own": {map[string]string{
			"proc/self/cgroup":                  "0::/pod/c1\n",
			"sys/fs/cgroup/pod/c1/memory.max":   "536870912\n",
			"sys/fs/cgroup/pod/memory.max":      "max\n",
			"sys/fs/cgroup/pod/c1/memory.high":  "1\n",
			"sys/fs/cgroup/pod/c10/memory.max":  "1\n",
			"sys/fs/cgroup/other/c1/memory.max": "1\n",
		}, 512 << 20},
		"version 2, one above": {map[string]string{
			"proc/self/cgroup":                "0::/pod/c1\n",
			"sys/fs/cgroup/pod/c1/memory.max": "max\n",
			"sys/fs/cgroup/pod/memory.max":    "268435456\n",
		}, 256 << 20},
		"version 2, seen from inside": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "268435456\n",
		}, 256 << 20},
		"version 2, path of the host": {map[string]string{
			"proc/self/cgroup":         "0::/system.slice/docker-1.scope\n",
			"sys/fs/cgroup/memory.max": "268435456\n",
		}, 256 << 20},
		"version 2, none": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n",
		}, 0},
		"version 1": {map[string]string{
			"proc/self/cgroup": "12:cpu,cpuacct:/x\n5:memory:/docker/1\n",
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n",
		}, 1 << 30},
		"version 1, none": {map[string]string{
			"proc/self/cgroup":                           "5:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		"not a number": {map[string]string{
			"proc/self/cgroup":         "0::/\nnonsense\n",
			"sys/fs/cgroup/memory.max": "a lot\n",
		}, 0},
	} {
		require.Equal(t, c.want, containerMemory(files(c.files)), name)
	}
}

func TestMemoryPlanFollowsTheFirstLimitThereIs(t *testing.T) {
	none := planMemory(0, 0, 0, 0, 100_000)
	require.Equal(t, memoryPlan{cache: defaultCache, memTable: defaultMemTable, sends: defaultSends, settings: defaultSettings, known: defaultKnown, waiting: 100_000}, none)

	p := planMemory(1<<30, 2<<30, 3<<30, 4<<30, 0)
	require.Equal(t, int64(1<<30), p.limit)
	require.True(t, p.set)
	p = planMemory(0, 2<<30, 3<<30, 4<<30, 0)
	require.Equal(t, int64(2<<30), p.limit)
	require.False(t, p.set, "the runtime knows it")
	p = planMemory(0, 0, 1000<<20, 4<<30, 0)
	require.Equal(t, int64(900<<20), p.limit)
	require.True(t, p.set)
}

func TestMemoryPlanKeepsToItsLimit(t *testing.T) {
	for limit := int64(64 << 20); limit < 1<<40; limit *= 2 {
		p := planMemory(limit, 0, 0, 0, math.MaxInt32)
		// A send takes two to three times its bytes; two memtables beside the blocks.
		sum := p.cache + 4*p.memTable + 3*p.sends + p.settings + p.known + int64(p.waiting)*waitingReceive
		require.LessOrEqual(t, sum, limit, "of %d MiB", limit>>20)
		more := planMemory(2*limit, 0, 0, 0, math.MaxInt32)
		require.GreaterOrEqual(t, more.cache, p.cache)
		require.GreaterOrEqual(t, more.memTable, p.memTable)
		require.GreaterOrEqual(t, more.sends, p.sends)
		require.GreaterOrEqual(t, more.known, p.known)
		require.GreaterOrEqual(t, more.waiting, p.waiting)
	}
	require.Equal(t, 7, planMemory(1<<30, 0, 0, 0, 7).waiting)
	require.Zero(t, planMemory(1<<30, 0, 0, 0, 0).waiting, "no bound is no bound")
}

func TestWithoutALimitTheMachineBoundsTheReceivesThatWait(t *testing.T) {
	require.Equal(t, 16_384, planMemory(0, 0, 0, 1<<30, 100_000).waiting)
	require.Equal(t, 100_000, planMemory(0, 0, 0, 8<<30, 100_000).waiting)
	require.Equal(t, 7, planMemory(0, 0, 0, 1<<30, 7).waiting)
	require.Zero(t, planMemory(0, 0, 0, 1<<30, 0).waiting, "no bound is no bound")
	small := planMemory(0, 0, 0, 1<<30, 100_000)
	require.Zero(t, small.limit, "the machine's memory is no limit of the process")
	require.Equal(t, int64(defaultSends), small.sends)
}

func TestMachineMemoryIsWhatTheSystemSays(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want int64
	}{
		"as it is":     {"MemTotal:       16384256 kB\nMemFree:        1 kB\n", 16384256 << 10},
		"not first":    {"MemFree: 1 kB\nMemTotal: 2 kB\n", 2048},
		"not a number": {"MemTotal: much kB\n", 0},
		"too large":    {"MemTotal: 9223372036854775807 kB\n", 0},
		"nothing":      {"", 0},
	} {
		require.Equal(t, c.want, machineMemory(files(map[string]string{"proc/meminfo": c.text})), name)
	}
	require.Zero(t, machineMemory(files(nil)))
}
