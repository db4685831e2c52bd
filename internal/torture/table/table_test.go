package table_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/perigee-mq/perigee/internal/torture/table"
)

func TestCellsOfSeveralRunsBecomeOneTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results")
	t.Setenv(table.Env, path)
	require.NoError(t, table.Add(table.Cell{"b", "lost", "0"}, table.Cell{"b", "extra", "x"}))
	require.NoError(t, table.Add(table.Cell{"a", "sent", "12"}))
	require.NoError(t, table.Add(table.Cell{"a", "sent", "13"}))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var out strings.Builder
	require.NoError(t, table.Print(&out, f, []string{"a", "b", "c"}, []string{"sent", "lost"}))
	require.Equal(t, []string{"a b", "sent 13 -", "lost - 0", "extra - x"}, fields(out.String()))

	t.Setenv(table.Env, "")
	require.NoError(t, table.Add(table.Cell{"a", "sent", "1"}))
	require.Error(t, table.Print(&out, strings.NewReader("{"), nil, nil))
}

func fields(text string) (lines []string) {
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}
