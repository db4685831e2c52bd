package proc

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCPUTimeGrowsWithWork(t *testing.T) {
	before, err := CPU(os.Getpid())
	require.NoError(t, err)
	for {
		after, err := CPU(os.Getpid())
		require.NoError(t, err)
		if after-before > 5*time.Millisecond {
			return
		}
	}
}

func TestAProcessThatIsNotThereIsAnError(t *testing.T) {
	const none = 1 << 22 // beyond the largest number that Linux gives
	_, err := CPU(none)
	require.ErrorContains(t, err, "process 4194304")
	_, err = MemoryOf(none)
	require.Error(t, err)
}

func TestMemoryIsReadFromTheStatus(t *testing.T) {
	m, err := parseStatus("Name:\tx\nVmRSS:\t  20 kB\nRssAnon:\t   8 kB\nRssFile:\t  12 kB\n")
	require.NoError(t, err)
	require.Equal(t, Memory{Resident: 20 << 10, Private: 8 << 10}, m)
	for _, bad := range []string{"", "VmRSS:\t20 kB\n", "VmRSS:\tx kB\nRssAnon:\t8 kB\n"} {
		_, err := parseStatus(bad)
		require.Error(t, err, bad)
	}
	own, err := MemoryOf(os.Getpid())
	require.NoError(t, err)
	require.Positive(t, own.Private)
	require.GreaterOrEqual(t, own.Resident, own.Private)
}

func TestATreeHasTheChildrenOfChildren(t *testing.T) {
	// The shell says when its child runs.
	cmd := exec.Command("sh", "-c", "sleep 100 & echo; wait")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = out.Read(make([]byte, 1))
	require.NoError(t, err)
	tree, err := Tree(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getpid(), tree[0])
	require.Contains(t, tree, cmd.Process.Pid)
	below, err := Tree(cmd.Process.Pid)
	require.NoError(t, err)
	require.Len(t, below, 2)
	require.Subset(t, tree, below)
	for _, pid := range below {
		p, err := os.FindProcess(pid)
		require.NoError(t, err)
		require.NoError(t, p.Kill())
	}
	require.Error(t, cmd.Wait())
}

func TestTheParentIsReadBehindTheName(t *testing.T) {
	for _, name := range []string{"(perigee)", "(a b)", "(a) S 1)"} {
		pid, parent, err := parseParent("42 " + name + " S 7 3 0 -1")
		require.NoError(t, err)
		require.Equal(t, 42, pid)
		require.Equal(t, 7, parent)
	}
	for _, bad := range []string{"", "42 (perigee) S", "x (perigee) S 1", "42 (perigee) S x"} {
		_, _, err := parseParent(bad)
		require.Error(t, err)
	}
}

func TestTheMachineIsDescribed(t *testing.T) {
	m := ThisMachine()
	require.Positive(t, m.Cores)
	require.Positive(t, m.Memory)
	require.NotEqual(t, "unknown", m.Kernel)
}

func TestClaimGivesBackWhatItClaims(t *testing.T) {
	before, err := MemoryOf(os.Getpid())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)) // VmHWM counts from now on
	require.NoError(t, Claim(64<<20))
	peak, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/self/status", "VmHWM"), " kB"), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, peak<<10, before.Resident+48<<20, "it has used none")
	after, err := MemoryOf(os.Getpid())
	require.NoError(t, err)
	require.Less(t, after.Resident-before.Resident, int64(32<<20))
	require.NoError(t, Claim(0))
}
