// Package arch holds what the project asks of its own source: which package may import which, how long functions and
// files may be, what must be documented and what mustn't be written at all. It only parses, so it is quick and runs
// without the native library.
package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/portico-llm/portico"

// root is the top folder, from here.
const root = "../.."

// goFile is one parsed file of the main module.
type goFile struct {
	name string // from the top folder, with slashes
	dir  string // its folder
	test bool
	ast  *ast.File
	text []byte
}

// tree is all Go source of the main module.
type tree struct {
	fset  *token.FileSet
	files []*goFile
}

// load parses the tree once for all tests.
var load = sync.OnceValues(func() (*tree, error) {
	t := &tree{fset: token.NewFileSet()}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if entry.IsDir() {
			return skipFolder(name, rel)
		}
		// Files with names like zz_… are made by builds.
		if !strings.HasSuffix(rel, ".go") || strings.HasPrefix(path.Base(rel), "zz_") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(t.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		t.files = append(t.files, &goFile{rel, path.Dir(rel), strings.HasSuffix(rel, "_test.go"), file, text})
		return nil
	})
	return t, err
})

// skipFolder leaves out hidden folders, test data and nested modules.
func skipFolder(name, rel string) error {
	base := path.Base(rel)
	if rel == "." {
		return nil
	}
	if strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules" || base == "bin" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

func source(t *testing.T) *tree {
	t.Helper()
	loaded, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(loaded.files) < 50 {
		t.Fatalf("only %d Go files found", len(loaded.files))
	}
	return loaded
}

// product are the files that end up in programs.
func (t *tree) product() (files []*goFile) {
	for _, f := range t.files {
		if !f.test {
			files = append(files, f)
		}
	}
	return files
}

// line is where a node begins.
func (t *tree) line(n ast.Node) int { return t.fset.Position(n.Pos()).Line }

// tracked lists all files that are, or are about to be, in the repository.
func tracked(t *testing.T) []string {
	t.Helper()
	command := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	command.Dir = root
	out, err := command.Output()
	if err != nil {
		t.Skipf("not a git work tree, so what is tracked is unknown: %v", err)
	}
	var names []string
	for name := range strings.SplitSeq(string(out), "\x00") {
		if info, err := os.Stat(filepath.Join(root, name)); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names
}

// selector returns the package-qualified name of an expression as it is written: "os.Getenv".
func selector(e ast.Expr) string {
	s, ok := e.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		return x.Name + "." + s.Sel.Name
	}
	return ""
}
