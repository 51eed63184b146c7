package arch

import (
	"bytes"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// inPrograms reports whether a folder is a program or a helper of tests, where some rules of packages don't hold.
func inPrograms(dir string) bool {
	return strings.HasPrefix(dir, "cmd/") || strings.HasPrefix(dir, "tests/")
}

func TestGoroutinesAreOwned(t *testing.T) {
	tr := source(t)
	for _, f := range tr.product() {
		if f.dir == "internal/lifecycle" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s:%d: a go statement; a lifecycle.Group starts goroutines", f.name, tr.line(n))
			case *ast.CallExpr:
				// A Group's Go has a name and a function, a WaitGroup's a function alone.
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Go" && len(n.Args) == 1 {
					t.Errorf("%s:%d: Go of something other than a lifecycle.Group", f.name, tr.line(n))
				}
			}
			return true
		})
	}
}

// TestLeaksAreLookedFor: a package that starts goroutines has a test that fails on one left behind.
func TestLeaksAreLookedFor(t *testing.T) {
	starts, checks := make(map[string]string), make(map[string]bool)
	for _, f := range source(t).files {
		if f.test {
			checks[f.dir] = checks[f.dir] || bytes.Contains(f.text, []byte("goleak.")) ||
				bytes.Contains(f.text, []byte("NoLeaks("))
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && selector(call.Fun) == "lifecycle.New" {
				starts[f.dir] = f.name
			}
			if _, ok := n.(*ast.GoStmt); ok {
				starts[f.dir] = f.name
			}
			return true
		})
	}
	starts["internal/lifecycle"] = "internal/lifecycle/group.go"
	starts["internal/observe"] = "internal/observe/trace.go" // the exporter's
	for dir, name := range starts {
		if !checks[dir] && !inPrograms(dir) {
			t.Errorf("%s starts goroutines, and no test of the package looks for leaks", name)
		}
	}
}

// forbiddenCalls are functions with the folders and files that may call them, and why the others mayn't.
var forbiddenCalls = map[string]struct {
	allowed []string
	reason  string
}{
	"os.Getenv":    {[]string{"internal/config"}, "only internal/config reads the environment"},
	"os.LookupEnv": {[]string{"internal/config"}, "only internal/config reads the environment"},
	"os.Environ":   {[]string{"internal/config"}, "only internal/config reads the environment"},
	"os.Setenv":    {nil, "the environment belongs to the operator"},
	"os.Exit":      {nil, "only programs end the process"},
	"log.Fatal":    {nil, "only programs end the process"},
	"log.Printf":   {nil, "log with slog"},
	"log.Println":  {nil, "log with slog"},
	"fmt.Println":  {nil, "packages don't print"},
	"fmt.Printf":   {nil, "packages don't print"},
	"fmt.Print":    {nil, "packages don't print"},
	// A socket is bound and a template is tried out in constructors, both at once and bounded.
	"context.Background": {[]string{"internal/router/callhome/listener.go", "internal/prepost/chattmpl/chattmpl.go"}, "the caller's context is the first parameter; after its end, context.WithoutCancel"},
	"context.TODO":       {nil, "the caller's context is the first parameter"},
	// A writer holds a burst back for a millisecond or so: less than what a timer and its select cost.
	"time.Sleep": {[]string{"internal/server/sse/writer.go"}, "a wait ends with its context: a timer and a select"},
	"time.Tick":  {nil, "a ticker is stopped by who made it"},
}

func TestForbiddenCalls(t *testing.T) {
	tr := source(t)
	for _, f := range tr.product() {
		if inPrograms(f.dir) || f.dir == "internal/testkit" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			name := selector(call.Fun)
			if name == "lifecycle.New" {
				return false // a group that its owner's Close stops needs no context above it
			}
			if rule, forbidden := forbiddenCalls[name]; forbidden && !slices.Contains(rule.allowed, f.dir) &&
				!slices.Contains(rule.allowed, f.name) {
				t.Errorf("%s:%d: %s: %s", f.name, tr.line(call), name, rule.reason)
			}
			return true
		})
	}
}

// TestNoInitFunctions: what a program does is found from its main.
func TestNoInitFunctions(t *testing.T) {
	tr := source(t)
	for _, f := range tr.product() {
		for _, decl := range f.ast.Decls {
			if d, ok := decl.(*ast.FuncDecl); ok && d.Name.Name == "init" && d.Recv == nil {
				t.Errorf("%s:%d: an init function", f.name, tr.line(d))
			}
		}
	}
}

// TestPanicsAreInvariants: nothing on the way of a request panics. Files built with the tag invariants may, and so may
// a line whose comment says which invariant it is about.
func TestPanicsAreInvariants(t *testing.T) {
	tr := source(t)
	for _, f := range tr.product() {
		if inPrograms(f.dir) || bytes.HasPrefix(f.text, []byte("//go:build invariants")) || f.dir == "internal/testkit" {
			continue
		}
		lines := bytes.Split(f.text, []byte("\n"))
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if name, isIdent := callee(call, ok); !isIdent || name != "panic" {
				return true
			}
			at := tr.line(call)
			if !bytes.Contains(lines[at-1], []byte("// invariant: ")) {
				t.Errorf("%s:%d: panic without \"// invariant: …\"", f.name, at)
			}
			return true
		})
	}
}

func callee(call *ast.CallExpr, ok bool) (string, bool) {
	if !ok {
		return "", false
	}
	ident, ok := call.Fun.(*ast.Ident)
	if !ok {
		return "", false
	}
	return ident.Name, true
}

// Texts that must not be in the repository: the brackets keep this file from matching itself.
var forbiddenTexts = map[string]*regexp.Regexp{
	"a path of some machine": regexp.MustCompile(`(^|[^A-Za-z0-9_.])/(work|farm|tmp/lab|root|home/[a-z]+)/`),
	"the host of a package registry": regexp.MustCompile(`pypi[.]org|files[.]pythonhosted|proxy[.]golang[.]org|` +
		`sum[.]golang[.]org|registry[.]npmjs|index[.]crates[.]io|static[.]crates[.]io|repo1?[.]maven|deb[.]debian[.]org`),
	"a folder outside the repository": regexp.MustCompile(`[.][.]/shared`),
}

// Words of unfinished work, which belong to an issue.
var unfinished = regexp.MustCompile(`TO[D]O|FIX[M]E|XX[X]|panic[(]"(todo|unimplemented)`)

func TestForbiddenTexts(t *testing.T) {
	for _, name := range tracked(t) {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if bytes.IndexByte(data, 0) >= 0 {
			continue // not text
		}
		for what, pattern := range forbiddenTexts {
			for n, line := range matches(data, pattern) {
				t.Errorf("%s:%d: %s: %s", name, n, what, line)
			}
		}
		switch filepath.Ext(strings.TrimSuffix(name, "_test.go")) {
		case ".go", ".rs", ".py":
			for n, line := range matches(data, unfinished) {
				t.Errorf("%s:%d: unfinished: %s", name, n, line)
			}
		}
		if len(data) > 3_000_000 {
			t.Errorf("%s has %d bytes: compress it, or fetch it where it is needed", name, len(data))
		}
	}
}

// matches returns the lines that match, cut short, by their number.
func matches(data []byte, pattern *regexp.Regexp) map[int]string {
	found := make(map[int]string)
	if !pattern.Match(data) {
		return found
	}
	n := 0
	for line := range bytes.Lines(data) {
		n++
		if pattern.Match(line) {
			found[n] = strings.TrimSpace(string(line[:min(len(line), 120)]))
		}
	}
	return found
}
