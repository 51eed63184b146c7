// Package fieldreports_test keeps the list of failures reported of other frontends, and the tests for those that have
// none elsewhere.
package fieldreports_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named finds the tests that a row names: a folder of this module, a dot, and a function.
var named = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz)\\w+)`")

// TestTable checks that every report has a row, and that the tests it names exist.
func TestTable(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, outside := map[string]bool{}, 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 3 || strings.Contains(cells[0], "report ") || strings.HasPrefix(cells[0], "---") {
			continue
		}
		id := strings.TrimSpace(cells[0])
		if id == "report" {
			continue
		}
		if rows[id] {
			t.Errorf("%s has two rows", id)
		}
		rows[id] = true
		t.Run(id, func(t *testing.T) {
			tests := named.FindAllStringSubmatch(cells[2], -1)
			if strings.HasPrefix(strings.TrimSpace(cells[2]), "outside: ") {
				outside++
			} else if len(tests) == 0 {
				t.Errorf("neither a test nor a reason: %s", cells[2])
			}
			for _, m := range tests {
				if !exists(t, m[1], m[2]) {
					t.Errorf("there is no %s in %s", m[2], m[1])
				}
			}
		})
	}
	if len(rows) != reports {
		t.Errorf("%d rows, want %d", len(rows), reports)
	}
	count := fmt.Sprintf("Of %d reports %d are tests, and %d are outside.", reports, reports-outside, outside)
	t.Log(count)
	if !bytes.Contains(text, []byte(count)) {
		t.Errorf("the page doesn't say: %s", count)
	}
}

// reports is how many reports were gathered. One that gets a row is not to lose it.
const reports = 49

// exists looks for a test function in a folder.
func exists(t *testing.T, folder, function string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(source, []byte("\nfunc "+function+"(")) {
			return true
		}
	}
	return false
}
