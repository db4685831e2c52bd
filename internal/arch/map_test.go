package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheMapShowsEveryPackageAndNothingElse keeps "Where things are" in
// docs/architecture.md true. A package is shown by itself or with one that it is below;
// files are named after the first folder of their row.
func TestTheMapShowsEveryPackageAndNothingElse(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	require.NoError(t, err)
	var shown []string
	code := regexp.MustCompile("`([a-z_/]+(?:/|[a-z]\\*?\\.go))`")
	for line := range strings.Lines(string(text)) {
		where, what, found := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if !strings.HasPrefix(line, "| `") || !found {
			continue
		}
		var folders []string
		for _, m := range code.FindAllStringSubmatch(where, -1) {
			require.DirExists(t, filepath.Join(root, m[1]), "docs/architecture.md")
			folders = append(folders, m[1])
		}
		require.NotEmpty(t, folders, line)
		shown = append(shown, folders...)
		for _, m := range code.FindAllStringSubmatch(what, -1) {
			if strings.HasSuffix(m[1], "/") {
				continue
			}
			files, err := filepath.Glob(filepath.Join(root, folders[0], m[1]))
			require.NoError(t, err)
			elsewhere, err := filepath.Glob(filepath.Join(root, m[1]))
			require.NoError(t, err)
			if m[1] != "malformed_test.go" { // in the packages that the row names
				require.NotEmpty(t, append(files, elsewhere...), "docs/architecture.md: %s of %s", m[1], folders[0])
			}
		}
	}
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module+"/") + "/"
		below := func(folder string) bool { return strings.HasPrefix(path, folder) }
		require.True(t, slices.ContainsFunc(shown, below), "docs/architecture.md does not show %s", path)
	}
}
