package server

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/bench/proc"
)

// script is a server that is a shell script for each process.
type script []string

func (k script) processes(*Server) (commands []command, err error) {
	for _, text := range k {
		commands = append(commands, command{Cmd: exec.Command("sh", "-c", text)})
	}
	return commands, nil
}

func alive(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestAStoppedServerLeavesNoProcessAndNoFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, err := Start(t.Context(), "script", script{"sleep 1000 & sleep 1000", "exec sleep 1000"})
	require.NoError(t, err)
	require.DirExists(t, s.folder.path)
	var pids []int
	for len(pids) < 4 { // until the shell has started its children
		pids = s.pids()
	}
	require.NoError(t, s.Stop())
	for _, pid := range pids {
		for alive(pid) { // the kernel ends it soon
		}
	}
	require.NoDirExists(t, s.folder.path)
	require.NoError(t, s.Stop(), "again")
}

func TestAProcessThatEndsIsAnErrorWithItsLog(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, err := Start(t.Context(), "script", script{"echo no such port; exit 3"})
	require.NoError(t, err)
	<-s.running[0].ended
	err = s.Failed()
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no such port")
	_, err = s.Usage()
	require.Error(t, err)
	require.NoError(t, s.Stop())
}

func TestAServerThatCannotBeStartedLeavesNothing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	_, err := Start(t.Context(), "none", Noop{Binary: "/no/such/program"})
	require.ErrorIs(t, err, os.ErrNotExist)
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestAPausedServerUsesNoProcessor(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	s, err := Start(t.Context(), "script", script{"while :; do :; done"})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop()) }()
	cpu := func() time.Duration {
		used, err := s.Usage()
		require.NoError(t, err)
		return used.CPU
	}
	for cpu() == 0 {
	}
	require.NoError(t, s.Pause())
	pid := s.running[0].cmd.Process.Pid
	for !strings.Contains(status(t, pid), ") T ") {
	}
	before := cpu()
	own, err := proc.CPU(os.Getpid())
	require.NoError(t, err)
	for { // this process works meanwhile
		now, err := proc.CPU(os.Getpid())
		require.NoError(t, err)
		if now-own > 10*time.Millisecond {
			break
		}
	}
	require.Equal(t, before, cpu())
	require.NoError(t, s.Resume())
	for cpu() == before {
	}
}

func status(t *testing.T, pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	require.NoError(t, err)
	return string(text)
}

func TestFoldersOfOthersThatHaveEndedAreSwept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	mine, err := newFolder()
	require.NoError(t, err)
	defer func() { require.NoError(t, mine.remove()) }()
	left, err := newFolder()
	require.NoError(t, err)
	require.NoError(t, left.lock.Close()) // as the end of a process does
	require.NoError(t, Sweep())
	require.DirExists(t, mine.path)
	require.NoDirExists(t, left.path)
}

func TestPortsThatAreTakenAreNotGiven(t *testing.T) {
	first, err := ports(3)
	require.NoError(t, err)
	require.GreaterOrEqual(t, first, firstPort)
	require.Less(t, first+2, lastPort)
	require.NoError(t, free(first, 3))
	l, err := net.Listen("tcp", address(first+1))
	require.NoError(t, err)
	defer l.Close()
	require.ErrorIs(t, free(first, 3), syscall.EADDRINUSE)
	require.True(t, listens(first+1))
	require.False(t, listens(first))
}

func TestApacheRocketMQHasItsTopicsFromTheStart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	k := RocketMQ{Java: "java", Classpath: "x.jar", Sync: true, KV: true, Topics: []string{"a", "b"}, Groups: []string{"g"}}
	s := &Server{}
	var err error
	s.folder, err = newFolder()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop()) }()
	commands, err := k.processes(s)
	require.NoError(t, err)
	require.Len(t, commands, 2)
	topics, err := os.ReadFile(s.path("store", "config", "topics.json"))
	require.NoError(t, err)
	require.Contains(t, string(topics), `"a":{`)
	require.Contains(t, string(topics), `"b":{`)
	groups, err := os.ReadFile(s.path("store", "config", "subscriptionGroup.json"))
	require.NoError(t, err)
	require.Contains(t, string(groups), `"groupName":"g"`)
	broker, err := os.ReadFile(s.path("conf", "broker.conf"))
	require.NoError(t, err)
	require.Contains(t, string(broker), "flushDiskType=SYNC_FLUSH\n")
	require.Contains(t, string(broker), "popConsumerKVServiceEnable=true\n")
}
