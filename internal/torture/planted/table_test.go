package main

import (
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var root = filepath.Join("..", "..", "..")

// The table must not rot: what a mutation replaces stands in the product still, once, and
// what comes of it is Go.
func TestEveryMutationStillHasItsPlace(t *testing.T) {
	names := map[string]bool{}
	of := map[kind]int{}
	for _, m := range all() {
		require.False(t, names[m.name], "two mutations are named %q", m.name)
		names[m.name] = true
		of[m.kind]++
		require.NotEmpty(t, m.rule, m.name)
		text, err := m.apply(root)
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	texts, err := woven(root, all())
	require.NoError(t, err)
	for name, text := range texts {
		_, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
	}
	require.GreaterOrEqual(t, len(names), 140)
	for _, k := range kinds {
		require.Positive(t, of[k], "no rule is broken of the kind %q", k)
	}
}

// What does not build shows nothing.
func TestWhatIsPlantedBuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a part of the product")
	}
	from, err := filepath.Abs(root)
	require.NoError(t, err)
	texts, err := woven(from, all())
	require.NoError(t, err)
	overlay, err := writeOverlay(from, t.TempDir(), texts)
	require.NoError(t, err)
	args := []string{"build", "-overlay", overlay}
	for name := range texts {
		if pkg := "./" + filepath.Dir(name); !slices.Contains(args, pkg) {
			args = append(args, pkg)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = from
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
