package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReport has the events of short runs, as go test -json writes them, and what is left of them.
func TestReport(t *testing.T) {
	tests := []struct {
		name, in, want string
		failed         bool
	}{
		{"passes and skips", `{"Action":"run","Package":"a","Test":"T"}
{"Action":"output","Package":"a","Test":"T","Output":"noise\n"}
{"Action":"pass","Package":"a","Test":"T"}
{"Action":"output","Package":"a","Test":"S","Output":"=== RUN   S\n"}
{"Action":"output","Package":"a","Test":"S","Output":"    s_test.go:3: no peers\n"}
{"Action":"output","Package":"a","Test":"S","Output":"--- SKIP: S (0.00s)\n"}
{"Action":"skip","Package":"a","Test":"S"}
{"Action":"pass","Package":"a","Elapsed":1.25}
{"Action":"skip","Package":"no/tests"}
`, "pass  a 1.2s\nskipped: a S: s_test.go:3: no peers\n", false},
		{"failure", `{"Action":"output","Package":"a","Test":"T","Output":"wrong\n"}
{"Action":"fail","Package":"a","Test":"T"}
{"Action":"fail","Package":"a","Elapsed":0.5}
`, "wrong\nfail  a 0.5s\n", true},
		{"build failure", `{"Action":"build-output","ImportPath":"a","Output":"undefined: x\n"}
{"Action":"build-fail","ImportPath":"a"}
`, "undefined: x\n", true},
		{"not a test's line", "go: downloading x\n{\"Action\":\"pass\",\"Package\":\"a\"}\n", "go: downloading x\npass  a 0.0s\n", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			failed, err := report(strings.NewReader(tt.in), &out)
			if err != nil || failed != tt.failed {
				t.Errorf("failed %v, error %v", failed, err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
	if failed, err := report(strings.NewReader(""), &strings.Builder{}); !failed || err == nil {
		t.Errorf("nothing tested: failed %v, error %v", failed, err)
	}
}
