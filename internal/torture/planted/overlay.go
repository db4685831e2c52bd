package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// switchEnv says in a process which mutation is planted, by its number in the list, from
// 1; 0: none.
const switchEnv = "PERIGEE_PLANTED"

// All mutations are built into one program, which the environment switches: to build it for
// each of them would take many times as long as to find out what comes of it. So every
// function that a mutation changes has a twin for it, and asks at its beginning whether it is
// to be that one.

// weave returns the text of a file with the mutations of it, by their numbers, in it.
func weave(name, src string, of map[int]*mutation) (string, error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, src, parser.SkipObjectResolution)
	if err != nil {
		return "", err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	begins := map[int]string{} // what is put in, by offset
	var twins strings.Builder
	numbers := make([]int, 0, len(of))
	for n := range of {
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	for _, n := range numbers {
		m := of[n]
		from := strings.Index(src, m.old)
		to := from + len(m.old)
		i := slices.IndexFunc(file.Decls, func(d ast.Decl) bool {
			fn, ok := d.(*ast.FuncDecl)
			return ok && at(fn.Body.Lbrace) < from && to <= at(fn.End())
		})
		if i < 0 {
			return "", fmt.Errorf("%s: what it replaces is not in one function", m.name)
		}
		fn := file.Decls[i].(*ast.FuncDecl)
		twin := fmt.Sprintf("%sPlanted%d", fn.Name.Name, n)
		call, err := callOf(fn, twin)
		if err != nil {
			return "", fmt.Errorf("%s: %w", m.name, err)
		}
		begins[at(fn.Body.Lbrace)+1] += fmt.Sprintf(" if planted == %d { %s };", n, call)
		fmt.Fprintf(&twins, "\n%s%s%s%s%s\n", src[at(fn.Pos()):at(fn.Name.Pos())], twin, src[at(fn.Name.End()):from], m.new, src[to:at(fn.End())])
	}
	offsets := make([]int, 0, len(begins))
	for offset := range begins {
		offsets = append(offsets, offset)
	}
	slices.Sort(offsets)
	var out strings.Builder
	last := 0
	for _, offset := range offsets {
		out.WriteString(src[last:offset] + begins[offset])
		last = offset
	}
	return out.String() + src[last:] + twins.String(), nil
}

// callOf returns the statements that call the twin of a function in its place.
func callOf(fn *ast.FuncDecl, twin string) (string, error) {
	var args []string
	for _, p := range fn.Type.Params.List {
		for _, name := range p.Names {
			arg := name.Name
			if _, many := p.Type.(*ast.Ellipsis); many {
				arg += "..."
			}
			args = append(args, arg)
		}
		if len(p.Names) == 0 {
			return "", errors.New("a parameter has no name")
		}
	}
	if slices.Contains(args, "_") {
		return "", errors.New("a parameter has no name")
	}
	if fn.Recv != nil {
		if names := fn.Recv.List[0].Names; len(names) == 1 {
			twin = names[0].Name + "." + twin
		} else {
			return "", errors.New("the receiver has no name")
		}
	}
	call := fmt.Sprintf("%s(%s)", twin, strings.Join(args, ", "))
	if fn.Type.Results != nil {
		return "return " + call, nil
	}
	return call + "; return", nil
}

// woven returns the texts of all files that the mutations change, and those that say in each
// package which mutation is planted, by their paths from the root.
func woven(root string, list []mutation) (map[string]string, error) {
	of := map[string]map[int]*mutation{}
	for i := range list {
		m := &list[i]
		if of[m.file] == nil {
			of[m.file] = map[int]*mutation{}
		}
		of[m.file][i+1] = m
	}
	texts := map[string]string{}
	for name, mutations := range of {
		src, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		for _, m := range mutations {
			if _, err := m.apply(root); err != nil {
				return nil, err
			}
		}
		if texts[name], err = weave(name, string(src), mutations); err != nil {
			return nil, err
		}
		dir := filepath.Dir(name)
		texts[filepath.Join(dir, "planted_here.go")] = fmt.Sprintf(
			"package %s\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar planted, _ = strconv.Atoi(os.Getenv(%q))\n", filepath.Base(dir), switchEnv)
	}
	return texts, nil
}

// writeOverlay writes the files into dir and returns the one for -overlay.
func writeOverlay(root, dir string, texts map[string]string) (string, error) {
	var overlay struct{ Replace map[string]string }
	overlay.Replace = map[string]string{}
	for name, text := range texts {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "+"))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", err
		}
		overlay.Replace[filepath.Join(root, name)] = path
	}
	b, err := json.Marshal(overlay)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, b, 0o644)
}
