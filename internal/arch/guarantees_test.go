package arch

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryGuaranteeNamesTestsThatExist keeps docs/guarantees.md honest: a promise that
// nothing shows any more has to be noticed.
func TestEveryGuaranteeNamesTestsThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	require.NoError(t, err)
	exist := map[string]bool{}
	eachFile(t, func(path string, _ *token.FileSet, file *ast.File, _ int) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				exist[fn.Name.Name] = true
			}
		}
	})
	named := 0
	test := regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	for line := range strings.Lines(string(text)) {
		names := test.FindAllStringSubmatch(line, -1)
		for _, name := range names {
			named++
			require.True(t, exist[name[1]], "docs/guarantees.md names %s, which is not there", name[1])
		}
		row := strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| promise") && !strings.HasPrefix(line, "| ---")
		if row && !strings.Contains(line, "takes what it held") { // that nobody promises
			require.NotEmpty(t, names, "no test for: %s", line)
		}
	}
	require.Greater(t, named, 40)
}
