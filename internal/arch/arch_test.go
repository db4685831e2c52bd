package arch

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/perigee-mq/perigee"

const root = "../.."

type listed struct {
	ImportPath string
	Dir        string
	Imports    []string
	Deps       []string
	GoFiles    []string
	Doc        string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,Deps,GoFiles,Doc", "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	var list []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		list = append(list, p)
	}
}

// within reports whether path is the package named, or below it.
func within(path, name string) bool {
	path = strings.TrimPrefix(path, module+"/")
	return path == name || strings.HasPrefix(path, name+"/")
}

// TestTiersMeetOnlyInInterfaces keeps what makes the tiers separable: each can
// run in a process of its own, and none knows how the others do their work.
func TestTiersMeetOnlyInInterfaces(t *testing.T) {
	// A tier speaks to the others through its package remote, and a router to an etcd that
	// it shares with others through its package etcd. The tier itself imports neither.
	const remote, etcd = "/remote", "/etcd"
	rules := []struct {
		from, never, why string
	}{
		{"proxy", "github.com/cockroachdb/pebble", "the front stores nothing"},
		{"proxy", module + "/store", "the tiers meet in interfaces"},
		{"proxy", module + "/router", "the tiers meet in interfaces"},
		{"router", module + "/store", "the tiers meet in interfaces"},
		{"router", module + "/proxy", "the tiers meet in interfaces"},
		{"router", module + "/gen", "the tier is called, its package remote serves"},
		{"router", "google.golang.org/grpc", "the tier is called, its package remote serves"},
		{"router/remote", module + "/gen/apache", "the public protocol is the front's business"},
		{"router/remote", module + "/store", "the tiers meet in interfaces"},
		{"router/remote", module + "/proxy", "the tiers meet in interfaces"},
		{"store", module + "/proxy", "the tiers meet in interfaces"},
		{"store", module + "/router", "the tiers meet in interfaces"},
		{"store", module + "/gen", "the tier is called, its package remote serves"},
		{"store", "google.golang.org/grpc", "the tier is called, its package remote serves"},
		{"store/remote", module + "/gen/apache", "the public protocol is the front's business"},
		{"store/remote", module + "/router", "the tiers meet in interfaces"},
		{"store/remote", module + "/proxy", "the tiers meet in interfaces"},
		{"admin", module + "/store", "the tiers meet in interfaces"},
		{"receipt", module + "/gen", "a receipt is text to the protocol"},
		{"store/commitlog", module + "/store/machine", "the log knows no rule of the queue"},
		{"store/commitlog", module + "/store/command", "the log knows no command"},
		{"store/machine", module + "/store/commitlog", "the machine does no I/O of its own but Pebble's"},
		{"store/machine", module + "/store/shard", "imports point down"},
	}
	for _, p := range packages(t) {
		for _, r := range rules {
			if !within(p.ImportPath, r.from) || !strings.HasSuffix(r.from, remote) && within(p.ImportPath, r.from+remote) {
				continue
			}
			if within(p.ImportPath, r.from+etcd) && r.never == "google.golang.org/grpc" {
				continue
			}
			for _, dep := range p.Deps {
				inside := dep == r.never || strings.HasPrefix(dep, r.never+"/")
				require.False(t, inside, "%s depends on %s: %s", p.ImportPath, dep, r.why)
			}
		}
	}
}

// TestVocabularyNeedsOnlyTheStandardLibrary lets every package use mq.
func TestVocabularyNeedsOnlyTheStandardLibrary(t *testing.T) {
	for _, p := range packages(t) {
		if p.ImportPath != module+"/mq" {
			continue
		}
		for _, dep := range p.Deps {
			require.NotContains(t, strings.Split(dep, "/")[0], ".", "mq depends on %s", dep)
		}
	}
}

// TestOnlyNodeSeesAllTiers keeps the wiring in one place.
func TestOnlyNodeSeesAllTiers(t *testing.T) {
	for _, p := range packages(t) {
		if within(p.ImportPath, "internal/node") {
			continue
		}
		imports := func(name string) bool { return slices.Contains(p.Imports, module+"/"+name) }
		require.False(t, imports("proxy") && imports("router") && imports("store"), "%s imports all three tiers", p.ImportPath)
	}
}

// TestEveryPackageSaysWhatItIs: the package comment is where a reader begins.
func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if within(p.ImportPath, "gen") || len(p.GoFiles) == 0 {
			continue
		}
		require.NotEmpty(t, p.Doc, "%s has no package comment", p.ImportPath)
	}
}

// TestFilesStaySmall: a file above the limit holds more than one thing.
func TestFilesStaySmall(t *testing.T) {
	eachFile(t, func(path string, _ *token.FileSet, _ *ast.File, lines int) {
		limit := 800
		if strings.HasSuffix(path, "_test.go") {
			limit = 1200
		}
		require.LessOrEqual(t, lines, limit, "%s", path)
	})
}

// TestNothingHappensBehindTheBack: init functions and blank imports act without
// being called, so what runs could not be read.
func TestNothingHappensBehindTheBack(t *testing.T) {
	eachFile(t, func(path string, set *token.FileSet, file *ast.File, _ int) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		for _, imp := range file.Imports {
			require.False(t, imp.Name != nil && imp.Name.Name == "_", "%s: blank import of %s", set.Position(imp.Pos()), imp.Path.Value)
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				require.False(t, fn.Recv == nil && fn.Name.Name == "init", "%s: init function", set.Position(fn.Pos()))
			}
		}
	})
}

// TestMachineKnowsNoTime: time comes into the machine with the commands, or a
// replay would not give the same state.
func TestMachineKnowsNoTime(t *testing.T) {
	eachFile(t, func(path string, set *token.FileSet, file *ast.File, _ int) {
		if !strings.Contains(path, "store/machine/") && !strings.Contains(path, "store/command/") || strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call := selector(n); slices.Contains([]string{"time.Now", "time.Since", "time.After", "time.Sleep", "rand.Int", "rand.N"}, call) {
				t.Errorf("%s: %s", set.Position(n.Pos()), call)
			}
			if _, ok := n.(*ast.GoStmt); ok {
				t.Errorf("%s: a goroutine in the machine", set.Position(n.Pos()))
			}
			return true
		})
	})
}

// TestNoTimersThatPileUp: time.After in a loop keeps every timer until it fires.
func TestNoTimersThatPileUp(t *testing.T) {
	eachFile(t, func(path string, set *token.FileSet, file *ast.File, _ int) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			body := loopBody(n)
			if body == nil {
				return true
			}
			ast.Inspect(body, func(n ast.Node) bool {
				if selector(n) == "time.After" {
					t.Errorf("%s: time.After in a loop", set.Position(n.Pos()))
				}
				return true
			})
			return true
		})
	})
}

// TestTestsSleepOnlyInBubbles: a sleep in real time makes a test slow, flaky or
// both. A package whose tests sleep must run them in fake time.
func TestTestsSleepOnlyInBubbles(t *testing.T) {
	bubbles, sleeps := map[string]bool{}, map[string][]token.Position{}
	eachFile(t, func(path string, set *token.FileSet, file *ast.File, _ int) {
		if !strings.HasSuffix(path, "_test.go") {
			return
		}
		dir := filepath.Dir(path)
		if slices.ContainsFunc(file.Imports, func(imp *ast.ImportSpec) bool { return imp.Path.Value == `"testing/synctest"` }) {
			bubbles[dir] = true
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if selector(n) == "time.Sleep" {
				sleeps[dir] = append(sleeps[dir], set.Position(n.Pos()))
			}
			return true
		})
	})
	for dir, positions := range sleeps {
		require.True(t, bubbles[dir], "time.Sleep without fake time: %v", positions)
	}
}

func loopBody(n ast.Node) *ast.BlockStmt {
	switch n := n.(type) {
	case *ast.ForStmt:
		return n.Body
	case *ast.RangeStmt:
		return n.Body
	}
	return nil
}

// selector returns "pkg.Name" for a call of that form.
func selector(n ast.Node) string {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := sel.X.(*ast.Ident); ok {
		return x.Name + "." + sel.Sel.Name
	}
	return ""
}

// eachFile calls fn for every Go file that people wrote, in this module and in
// those below it.
func eachFile(t *testing.T, fn func(path string, set *token.FileSet, file *ast.File, lines int)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "gen" || name == "node_modules" || path != root && strings.HasPrefix(name, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(path), set, file, set.File(file.Pos()).LineCount())
		return nil
	})
	require.NoError(t, err)
}
