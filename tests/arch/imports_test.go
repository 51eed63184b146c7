package arch

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rules is the content of imports.txt: the allowed imports by package.
func rules(t *testing.T) map[string][]string {
	t.Helper()
	data, err := os.ReadFile("imports.txt")
	if err != nil {
		t.Fatal(err)
	}
	allowed := make(map[string][]string)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		from, to, ok := strings.Cut(line, ":")
		if !ok {
			t.Fatalf("imports.txt: %q has no colon", line)
		}
		for _, pkg := range expand(from) {
			if _, twice := allowed[pkg]; twice {
				t.Errorf("imports.txt: %s is there twice", pkg)
			}
			allowed[pkg] = strings.Fields(to)
		}
	}
	return allowed
}

// expand writes a/{b,c} out as a/b and a/c.
func expand(pattern string) []string {
	before, rest, ok := strings.Cut(pattern, "{")
	words, after, closed := strings.Cut(rest, "}")
	if !ok || !closed {
		return []string{pattern}
	}
	var names []string
	for word := range strings.SplitSeq(words, ",") {
		names = append(names, before+word+after)
	}
	return names
}

func TestImports(t *testing.T) {
	allowed := rules(t)
	used := make(map[string]bool)
	for _, f := range source(t).product() {
		if strings.HasPrefix(f.dir, "tests/") || f.dir == "internal/testkit" {
			continue // helpers of tests may use anything
		}
		to, known := allowed[f.dir]
		if !known {
			t.Errorf("%s: the package isn't in imports.txt", f.name)
			continue
		}
		used[f.dir] = true
		for _, spec := range f.ast.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			target, own := strings.CutPrefix(name, module+"/")
			if !own {
				continue
			}
			used[f.dir+" "+target] = true
			if target == "internal/testkit" || strings.HasPrefix(target, "tests/") {
				t.Errorf("%s imports %s: that is for tests", f.name, target)
			} else if !slices.Contains(to, target) && !slices.Contains(to, "*") {
				t.Errorf("%s imports %s: imports.txt doesn't allow it", f.name, target)
			}
		}
	}
	for from, targets := range allowed {
		for _, to := range targets {
			if !used[from+" "+to] && used[from] && to != "*" {
				t.Errorf("imports.txt: %s no longer imports %s", from, to)
			}
		}
		if !used[from] {
			t.Errorf("imports.txt: there is no package %s", from)
		}
	}
}

// areas never import each other, whatever imports.txt says.
func TestAreasStayApart(t *testing.T) {
	areas := []string{"internal/prepost", "internal/multimodal", "internal/router"}
	area := func(pkg string) string {
		for _, a := range areas {
			if pkg == a || strings.HasPrefix(pkg, a+"/") {
				return a
			}
		}
		return ""
	}
	for from, targets := range rules(t) {
		for _, to := range targets {
			if a, b := area(from), area(to); a != "" && b != "" && a != b {
				t.Errorf("imports.txt: %s and %s are different areas", from, to)
			}
			if a := area(from); a != "" && a == area(to) && strings.HasPrefix(to, from+"/") {
				t.Errorf("imports.txt: the parent %s imports its child %s", from, to)
			}
			if a := area(from); a != "" && slices.Contains([]string{"internal/server", "internal/pipeline",
				"internal/catalog", "internal/config"}, path.Clean(to)) {
				t.Errorf("imports.txt: %s is below %s", from, to)
			}
		}
	}
}

// TestOnlyTheProgramJoinsAreas: the constructors of different areas meet in cmd/frontend alone, so nothing but the
// programs and tests imports the configuration.
func TestOnlyProgramsReadTheConfiguration(t *testing.T) {
	for from, targets := range rules(t) {
		if slices.Contains(targets, "internal/config") && !strings.HasPrefix(from, "cmd/") {
			t.Errorf("imports.txt: %s imports internal/config; it takes an Options struct instead", from)
		}
	}
}
