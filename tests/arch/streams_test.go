package arch

import (
	"bytes"
	"go/ast"
	"strings"
	"testing"
)

// unlinted are the files of tests that speak HTTP past the linter of streams, and why they may.
var unlinted = map[string]string{
	"internal/config/tls_test.go":               "a server of the test's own, without streams",
	"internal/server/sse/sse_test.go":           "the writer alone: its events are those of no interface",
	"internal/server/abuse_test.go":             "connections that send what is no request; none gets a stream",
	"internal/server/hardship_test.go":          "connections that hang up at random, unread, and a header without an end",
	"internal/server/bench_test.go":             "benchmarks: what is measured is the server",
	"tests/bench/router/load.go":                "a benchmark: its clients take no time of the server's",
	"tests/e2e/stack/stack.go":                  "waits for models, and reads no streams",
	"tests/e2e/stack/servers.go":                "waits for a server that isn't ours",
	"internal/router/callhome/callhome_test.go": "a listener that speaks no HTTP",
	"internal/router/zmtp/zmtp_test.go":         "a listener that speaks no HTTP",
}

// TestStreamsAreLinted: whatever a test reads over HTTP goes through testkit, which lints every stream by what its
// request asked for. Clients are testkit.Client or have a testkit.LintTransport; handlers stand in testkit.LintHandler;
// connections of a test's own end in testkit.LintResponse.
func TestStreamsAreLinted(t *testing.T) {
	needed := map[string]bool{}
	tr := source(t)
	for _, f := range tr.files {
		if !f.test && !strings.HasPrefix(f.dir, "tests/") || f.dir == "internal/testkit" {
			continue
		}
		for _, found := range pastLinter(f) {
			needed[f.name] = true
			if unlinted[f.name] == "" {
				t.Errorf("%s:%d: %s", f.name, tr.line(found.node), found.what)
			}
		}
	}
	for name := range unlinted {
		if !needed[name] {
			t.Errorf("%s needs no exception", name)
		}
	}
}

// past is a place where a test may read a stream that nobody lints.
type past struct {
	node ast.Node
	what string
}

// plainClients are the ways of net/http to send a request without a transport of one's own.
var plainClients = map[string]bool{
	"http.Get": true, "http.Post": true, "http.PostForm": true, "http.Head": true, "http.DefaultClient": true,
}

// pastLinter finds them in one file.
func pastLinter(f *goFile) (found []past) {
	add := func(n ast.Node, what string) { found = append(found, past{n, what}) }
	inLinter := map[ast.Node]bool{}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if selector(n.Fun) == "testkit.LintHandler" && len(n.Args) == 2 {
				inLinter[n.Args[1]] = true
			}
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Handler" && len(n.Args) == 0 && !inLinter[n] {
				add(n, "a handler outside of testkit.LintHandler")
			}
			if selector(n.Fun) == "net.Dial" && bytes.Contains(f.text, []byte("HTTP/1.1")) &&
				!bytes.Contains(f.text, []byte("testkit.LintResponse(")) {
				add(n, "a connection whose answers don't end in testkit.LintResponse")
			}
		case *ast.SelectorExpr:
			if plainClients[selector(n)] {
				add(n, selector(n)+": testkit.Client lints what it reads")
			}
		case *ast.CompositeLit:
			if selector(n.Type) == "http.Client" && !lints(f, n) {
				add(n, "a client without testkit.LintTransport")
			}
		}
		return true
	})
	return found
}

// lints reports whether a client's transport is a LintTransport, or a variable that the file makes one.
func lints(f *goFile, client *ast.CompositeLit) bool {
	for _, e := range client.Elts {
		field, ok := e.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch v := field.Value.(type) {
		case *ast.CompositeLit:
			if selector(v.Type) == "testkit.LintTransport" {
				return true
			}
		case *ast.Ident:
			if bytes.Contains(f.text, []byte(v.Name+" := testkit.LintTransport{")) {
				return true
			}
		}
	}
	return false
}
