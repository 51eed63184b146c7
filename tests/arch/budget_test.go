package arch

import (
	"bytes"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// Budgets of the house style, in lines unless they say otherwise.
const (
	functionP95  = 45
	functionMax  = 100
	fileP95      = 600
	fileMax      = 800
	commentLeast = 0.15 // of the lines that aren't empty; the aim is 0.20 to 0.30
	commentMost  = 0.40
	wrapLeast    = 0.80 // of the calls of fmt.Errorf with an error
)

// percentile returns the value that the share p of the values doesn't exceed.
func percentile(values []int, p float64) int {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(p*float64(len(values))))]
}

func TestFunctionLength(t *testing.T) {
	tr := source(t)
	var lengths []int
	for _, f := range tr.product() {
		for _, decl := range f.ast.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := tr.fset.Position(function.End()).Line - tr.line(function) + 1
			lengths = append(lengths, n)
			if n > functionMax {
				t.Errorf("%s:%d: %s has %d lines, at most %d are allowed", f.name, tr.line(function), function.Name.Name, n,
					functionMax)
			}
		}
	}
	got := percentile(lengths, 0.95)
	t.Logf("%d functions, 95th percentile %d lines", len(lengths), got)
	if got > functionP95 {
		t.Errorf("the 95th percentile of function lengths is %d, at most %d is allowed", got, functionP95)
	}
}

func TestFileLength(t *testing.T) {
	var lengths []int
	for _, f := range source(t).product() {
		n := bytes.Count(f.text, []byte("\n"))
		lengths = append(lengths, n)
		if n > fileMax {
			t.Errorf("%s has %d lines, at most %d are allowed", f.name, n, fileMax)
		}
	}
	if got := percentile(lengths, 0.95); got > fileP95 {
		t.Errorf("the 95th percentile of file lengths is %d, at most %d is allowed", got, fileP95)
	}
}

// lines counts a file's lines that aren't empty, and those of them with a comment, alone or behind code.
func (t *tree) lines(f *goFile) (all, commented int) {
	for line := range bytes.Lines(f.text) {
		if len(bytes.TrimSpace(line)) > 0 {
			all++
		}
	}
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			commented += t.fset.Position(c.End()).Line - t.line(c) + 1
		}
	}
	return all, commented
}

// TestComments reports every package below the bound, and fails when the whole is.
func TestComments(t *testing.T) {
	tr := source(t)
	var all, commented, test int
	byPackage := make(map[string][2]int)
	for _, f := range tr.files {
		a, c := tr.lines(f)
		if f.test {
			test += a
			continue
		}
		all, commented = all+a, commented+c
		byPackage[f.dir] = [2]int{byPackage[f.dir][0] + a, byPackage[f.dir][1] + c}
	}
	share := float64(commented) / float64(all)
	t.Logf("%d lines, %.1f %% with a comment; %d lines of tests: %.2f of the code", all, 100*share, test,
		float64(test)/float64(all))
	for _, dir := range slices.Sorted(maps.Keys(byPackage)) {
		if n := byPackage[dir]; float64(n[1]) < commentLeast*float64(n[0]) {
			t.Logf("%s: %.1f %% of %d lines", dir, 100*float64(n[1])/float64(n[0]), n[0])
		}
	}
	if share < commentLeast || share > commentMost {
		t.Errorf("%.1f %% of the lines have a comment, allowed are %.0f to %.0f %%", 100*share, 100*commentLeast,
			100*commentMost)
	}
}

// TestErrorsAreWrapped looks at the calls of fmt.Errorf that have an error at hand. The others make a new one.
func TestErrorsAreWrapped(t *testing.T) {
	tr := source(t)
	var calls, wrapped int
	var plain []string
	for _, f := range tr.product() {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || selector(call.Fun) != "fmt.Errorf" || !slices.ContainsFunc(call.Args, namesError) {
				return true
			}
			calls++
			if format, ok := call.Args[0].(*ast.BasicLit); ok && strings.Contains(format.Value, "%w") {
				wrapped++
			} else {
				plain = append(plain, tr.fset.Position(call.Pos()).String())
			}
			return true
		})
	}
	share := float64(wrapped) / float64(max(calls, 1))
	t.Logf("%d calls of fmt.Errorf with an error, %.0f %% wrap it", calls, 100*share)
	if share < wrapLeast {
		t.Errorf("%.0f %% of the calls of fmt.Errorf wrap their error, at least %.0f %% must; the others:\n%s", 100*share,
			100*wrapLeast, strings.Join(plain, "\n"))
	}
}

// namesError reports whether an argument is an error, by its name.
func namesError(e ast.Expr) bool {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name == "err" || strings.HasSuffix(x.Name, "Err") || strings.HasPrefix(x.Name, "err")
	case *ast.SelectorExpr:
		return namesError(x.Sel) || strings.HasPrefix(x.Sel.Name, "Err")
	case *ast.CallExpr:
		s, ok := x.Fun.(*ast.SelectorExpr)
		return ok && s.Sel.Name == "Err"
	}
	return false
}
