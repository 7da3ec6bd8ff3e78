package statsd

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// exported returns the exported names that a folder's package declares.
func exported(t *testing.T, folder string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	add := func(id *ast.Ident) {
		if id.IsExported() {
			names[id.Name] = true
		}
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					add(d.Name)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						add(s.Name)
					case *ast.ValueSpec:
						for _, id := range s.Names {
							add(id)
						}
					}
				}
			}
		}
	}
	return names
}

// TestEveryNameIsHere: a name that the client has and this module lacks would be missing for all libraries.
// internal/compat shows that the client has all of datadog-go's.
func TestEveryNameIsHere(t *testing.T) {
	for here, least := range map[string]int{".": 120, "mocks": 6} {
		theirs := exported(t, filepath.Join("..", "..", "statsd", here))
		if len(theirs) == 0 {
			t.Skip("the module of the client is not beside this one")
		}
		ours := exported(t, here)
		for name := range theirs {
			if !ours[name] {
				t.Errorf("%s: %s is missing", here, name)
			}
		}
		if len(theirs) < least {
			t.Errorf("%s: only %d names were compared", here, len(theirs))
		}
	}
}

// TestIsTheClient sends through a client that a library made.
func TestIsTheClient(t *testing.T) {
	var lines strings.Builder
	c, err := NewWithWriter(writer{&lines}, WithNamespace("shop"), WithoutTelemetry(), WithoutOriginDetection())
	if err != nil {
		t.Fatal(err)
	}
	var _ ClientInterface = c
	_ = c.Incr("orders", []string{"country:ch"}, 1)
	c.NewCounter("hits").Inc()
	_ = c.Close()
	for _, want := range []string{"shop.orders:1|c|#country:ch\n", "shop.hits:1|c\n"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("%q is missing in %q", want, lines.String())
		}
	}
}

type writer struct{ *strings.Builder }

func (writer) Close() error { return nil }
