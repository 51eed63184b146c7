package arch

import (
	"go/ast"
	"go/token"
	"os"
	gopath "path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := make(map[string]int)
	for _, f := range source(t).product() {
		comments[f.dir] += 0
		if f.ast.Doc != nil && !strings.HasPrefix(f.ast.Doc.Text(), "Code generated") {
			comments[f.dir]++
		}
	}
	for dir, n := range comments {
		if n != 1 {
			t.Errorf("%s has %d package comments, not one", dir, n)
		}
	}
}

func TestEveryExportedNameIsDocumented(t *testing.T) {
	tr := source(t)
	for _, f := range tr.product() {
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && exportedReceiver(d) && !documents(d.Doc, d.Name.Name) {
					t.Errorf("%s:%d: %s needs a comment that begins with its name", f.name, tr.line(d), d.Name.Name)
				}
			case *ast.GenDecl:
				checkGenDecl(t, tr, f, d)
			}
		}
	}
}

// checkGenDecl wants a comment on each exported type, and on each exported constant or variable or their group.
func checkGenDecl(t *testing.T, tr *tree, f *goFile, d *ast.GenDecl) {
	t.Helper()
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			doc := s.Doc
			if doc == nil {
				doc = d.Doc
			}
			if s.Name.IsExported() && !documents(doc, s.Name.Name) {
				t.Errorf("%s:%d: %s needs a comment that begins with its name", f.name, tr.line(s), s.Name.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() && s.Doc == nil && s.Comment == nil && (d.Doc == nil || d.Tok == token.IMPORT) {
					t.Errorf("%s:%d: %s needs a comment", f.name, tr.line(s), name.Name)
				}
			}
		}
	}
}

// exportedReceiver reports whether a function is one, or a method of an exported type.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	receiver := d.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	switch generic := receiver.(type) {
	case *ast.IndexExpr:
		receiver = generic.X
	case *ast.IndexListExpr:
		receiver = generic.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}

// documents reports whether a comment is a sentence about the name; an article may come first.
func documents(doc *ast.CommentGroup, name string) bool {
	if doc == nil {
		return false
	}
	text := doc.Text()
	for _, article := range []string{"", "A ", "An ", "The "} {
		if strings.HasPrefix(text, article+name) {
			return true
		}
	}
	return false
}

// requirement is a line of go.mod that names a module, and reason a row of CONTRIBUTING.md's table.
var (
	requirement = regexp.MustCompile(`(?m)^(?:require\s+|\t)(\S+) v\S+`)
	reason      = regexp.MustCompile("(?m)^\\| `([^`]+/[^`]+)` \\|")
)

// TestEveryDependencyHasAReason: the modules that our source imports are those of CONTRIBUTING.md's table.
func TestEveryDependencyHasAReason(t *testing.T) {
	read := func(name string, pattern *regexp.Regexp) map[string]bool {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]bool)
		for _, match := range pattern.FindAllSubmatch(data, -1) {
			found[string(match[1])] = true
		}
		return found
	}
	required, explained := read("go.mod", requirement), read("CONTRIBUTING.md", reason)
	imported := make(map[string]string) // by module, a file that needs it
	for _, f := range source(t).files {
		for _, spec := range f.ast.Imports {
			for path := strings.Trim(spec.Path.Value, `"`); path != "."; path = gopath.Dir(path) {
				if required[path] {
					imported[path] = f.name
					break
				}
			}
		}
	}
	for name, file := range imported {
		if !explained[name] {
			t.Errorf("CONTRIBUTING.md gives no reason for %s, which %s imports", name, file)
		}
	}
	for name := range explained {
		if imported[name] == "" {
			t.Errorf("CONTRIBUTING.md explains %s, which nothing imports", name)
		}
	}
	t.Logf("%d modules are imported", len(imported))
}

// TestFrontPage: the README names the two commands, and CI runs the one for tests.
func TestFrontPage(t *testing.T) {
	for name, want := range map[string][]string{
		"README.md": {"make run", "make test", "curl"},
		".ci/run":   {"make test"},
		"LICENSE":   {"Apache License"},
		"Makefile":  {"run:", "build:", "test:", "race:", "lint:", "e2e:", "bench:", "fuzz:", "fixtures:", "clean:"},
	} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, text := range want {
			if !strings.Contains(string(data), text) {
				t.Errorf("%s doesn't say %q", name, text)
			}
		}
	}
}
