package sdktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheExampleOfTheReadmeWorksAsItStands builds the program that the README
// shows, with nothing changed but the port, and runs it.
func TestTheExampleOfTheReadmeWorksAsItStands(t *testing.T) {
	t.Parallel()
	s := ownOneShardServer(t) // the example receives once
	_, err := s.Perigee(t.Context(), "topic", "create", "hello")
	require.NoError(t, err)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	example := regexp.MustCompile("(?s)<!-- example: go -->\n```go\n(.*?)```").FindSubmatch(readme)
	require.NotNil(t, example)
	file := filepath.Join(t.TempDir(), "main.go")
	program := strings.Replace(string(example[1]), "127.0.0.1:8081", s.Endpoint(), 1)
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))

	cmd := exec.CommandContext(t.Context(), "go", "run", file)
	cmd.Env = append(os.Environ(), "rocketmq.client.logRoot="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?m)^sent \w+$`, string(out))
	require.Regexp(t, `(?m)^received hello from Go$`, string(out))
}
