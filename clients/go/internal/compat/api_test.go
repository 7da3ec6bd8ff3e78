// Package compat compares the client with a pinned client of Datadog: every exported symbol, and the bytes of every
// message.
//
// It is a module of its own, so that the client has no dependencies.
package compat

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	// The packages compared; the imports make them dependencies of the test.
	_ "github.com/DataDog/datadog-go/v5/statsd"
	_ "github.com/DataDog/datadog-go/v5/statsd/mocks"
	_ "github.com/weir-dev/weir/clients/go/statsd"
	_ "github.com/weir-dev/weir/clients/go/statsd/mocks"
)

const (
	theirs = "github.com/DataDog/datadog-go/v5/statsd"
	ours   = "github.com/weir-dev/weir/clients/go/statsd"
)

// load returns a package as the compiler sees it.
func load(t *testing.T, paths ...string) map[string]*types.Package {
	t.Helper()
	args := append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}, paths...)
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		path, file, _ := strings.Cut(line, "\t")
		exports[path] = file
	}
	imports := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		data, err := os.ReadFile(exports[path])
		return io.NopCloser(bytes.NewReader(data)), err
	})
	found := map[string]*types.Package{}
	for _, path := range paths {
		if found[path], err = imports.Import(path); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return found
}

// text writes a type so that equal types of the two packages have equal texts.
func text(x types.Type) string {
	return types.TypeString(x, func(p *types.Package) string {
		switch p.Path() {
		case theirs, ours:
			return "statsd"
		case theirs + "/mocks", ours + "/mocks":
			return "mocks"
		}
		return p.Path()
	})
}

func TestEveryExportedSymbolIsHere(t *testing.T) {
	packages := load(t, theirs, ours)
	missing, checked := compare(packages[theirs], packages[ours])
	for _, m := range missing {
		t.Error(m)
	}
	// A list that got lost would make this test pass for nothing.
	if checked < 200 {
		t.Errorf("only %d symbols, fields and methods were compared", checked)
	}
	t.Logf("%d symbols, fields and methods compared", checked)
}

func TestEveryDoubleIsHere(t *testing.T) {
	packages := load(t, theirs+"/mocks", ours+"/mocks")
	missing, checked := compare(packages[theirs+"/mocks"], packages[ours+"/mocks"])
	for _, m := range missing {
		t.Error(m)
	}
	if checked < 40 {
		t.Errorf("only %d symbols were compared", checked)
	}
}

// TestComparisonFindsDifferences turns the comparison round: it must see what we have and they lack.
func TestComparisonFindsDifferences(t *testing.T) {
	packages := load(t, theirs, ours)
	missing, _ := compare(packages[ours], packages[theirs])
	all := strings.Join(missing, "\n")
	for _, want := range []string{"NewCounter", "WithMaxContexts", "Stats"} {
		if !strings.Contains(all, want) {
			t.Errorf("the comparison does not see that they have no %s", want)
		}
	}
}

func compare(from, in *types.Package) (missing []string, checked int) {
	report := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
	for _, name := range from.Scope().Names() {
		a := from.Scope().Lookup(name)
		if !a.Exported() {
			continue
		}
		checked++
		b := in.Scope().Lookup(name)
		if b == nil {
			report("%s is missing", name)
			continue
		}
		if fmt.Sprintf("%T", a) != fmt.Sprintf("%T", b) {
			report("%s is a %T, here a %T", name, a, b)
			continue
		}
		switch a := a.(type) {
		case *types.Const:
			if !constant.Compare(a.Val(), token.EQL, b.(*types.Const).Val()) || text(a.Type()) != text(b.Type()) {
				report("%s is %s %s, here %s %s", name, text(a.Type()), a.Val(), text(b.Type()), b.(*types.Const).Val())
			}
		case *types.Var, *types.Func:
			if text(a.Type()) != text(b.Type()) {
				report("%s is %s, here %s", name, text(a.Type()), text(b.Type()))
			}
		case *types.TypeName:
			checked += compareTypes(name, a.Type(), b.Type(), report)
		}
	}
	return missing, checked
}

func compareTypes(name string, a, b types.Type, report func(string, ...any)) (checked int) {
	if i, ok := a.Underlying().(*types.Interface); ok {
		j, ok := b.Underlying().(*types.Interface)
		if !ok || text(i) != text(j) {
			report("interface %s is %s, here %s", name, text(i), text(b.Underlying()))
		}
		return i.NumMethods()
	}
	if s, ok := a.Underlying().(*types.Struct); ok {
		fields := map[string]*types.Var{}
		if u, ok := b.Underlying().(*types.Struct); ok {
			for i := 0; i < u.NumFields(); i++ {
				fields[u.Field(i).Name()] = u.Field(i)
			}
		}
		for i := 0; i < s.NumFields(); i++ {
			f := s.Field(i)
			if !f.Exported() {
				continue
			}
			checked++
			g := fields[f.Name()]
			if g == nil || text(f.Type()) != text(g.Type()) || f.Embedded() != g.Embedded() {
				report("field %s.%s %s is missing or different", name, f.Name(), text(f.Type()))
			}
		}
	} else if text(a.Underlying()) != text(b.Underlying()) {
		report("%s is %s, here %s", name, text(a.Underlying()), text(b.Underlying()))
	}
	// The method set of a pointer holds that of the value; both are compared, because they may be used differently.
	for _, pointer := range []bool{false, true} {
		x, y := a, b
		if pointer {
			x, y = types.NewPointer(a), types.NewPointer(b)
		}
		mx, my := types.NewMethodSet(x), types.NewMethodSet(y)
		for i := 0; i < mx.Len(); i++ {
			m := mx.At(i)
			if !m.Obj().Exported() {
				continue
			}
			checked++
			found := my.Lookup(m.Obj().Pkg(), m.Obj().Name())
			if found == nil || text(found.Type()) != text(m.Type()) {
				report("method %s.%s %s is missing or different", text(x), m.Obj().Name(), text(m.Type()))
			}
		}
	}
	return checked
}

// TestTypesOnOtherPlatforms checks the client and its tests for platforms that it only compiles for here. The types
// come from source: go vet would compile the standard library for each platform, which takes ten times as long.
func TestTypesOnOtherPlatforms(t *testing.T) {
	here := build.Default
	defer func() { build.Default = here }()
	for _, platform := range []struct {
		os, arch string
		tags     []string
		other    string // a file that is not compiled here
	}{
		{os: "windows", arch: "amd64", other: "socket_file_other.go"},
		{os: "darwin", arch: "amd64", other: "mmsg_other.go"},
		{os: "linux", arch: "arm64", other: "lanes_other.go"},
		{os: "linux", arch: "amd64", tags: []string{"purego"}, other: "memory_safe.go"},
	} {
		t.Run(strings.Join(append([]string{platform.os, platform.arch}, platform.tags...), "-"), func(t *testing.T) {
			// The importer reads the same variable, so the packages that are imported are those of the platform too.
			build.Default = here
			build.Default.GOOS, build.Default.GOARCH = platform.os, platform.arch
			build.Default.BuildTags, build.Default.CgoEnabled = platform.tags, false
			found, err := build.ImportDir("../../statsd", 0)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(found.GoFiles, platform.other) {
				t.Errorf("%s is not compiled", platform.other)
			}
			set := token.NewFileSet()
			checker := types.Config{
				Importer: importer.ForCompiler(set, "source", nil),
				Sizes:    types.SizesFor("gc", platform.arch),
				Error:    func(err error) { t.Error(err) },
			}
			// The checker returns the first of the errors that it reported.
			_, _ = checker.Check(ours, set, parsed(t, set, found, append(found.GoFiles, found.TestGoFiles...)), nil)
		})
	}
}

func parsed(t *testing.T, set *token.FileSet, from *build.Package, names []string) (files []*ast.File) {
	t.Helper()
	for _, name := range names {
		file, err := parser.ParseFile(set, filepath.Join(from.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}
