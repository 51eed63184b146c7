package loadgen

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h, a, b hist
	var all []time.Duration
	for i := range 20_000 {
		d := time.Duration(r.ExpFloat64() * float64(5*time.Millisecond))
		all = append(all, d)
		h.add(d)
		if i%2 == 0 {
			a.add(d)
		} else {
			b.add(d)
		}
	}
	slices.Sort(all)
	a.merge(&b)
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
		exact := all[min(int(q*float64(len(all))), len(all)-1)]
		got := h.quantile(q)
		if diff := float64(got-exact) / float64(exact); diff < -0.01 || diff > 0.01 {
			t.Errorf("quantile %v: %s, exact %s", q, got, exact)
		}
		if merged := a.quantile(q); merged != got {
			t.Errorf("quantile %v: %s after merging, want %s", q, merged, got)
		}
	}
	if s := h.summary(); s.Count != 20_000 || s.Max != float64(all[len(all)-1])/1e6 {
		t.Errorf("summary %+v", s)
	}
	if s := new(hist).summary(); s != (Latency{}) {
		t.Errorf("summary of nothing: %+v", s)
	}
}

func TestHistogramBuckets(t *testing.T) {
	for shift := range 63 {
		for _, v := range []uint64{1 << shift, 1<<shift + 1, 1<<(shift+1) - 1} {
			b := bucket(v)
			if u := upper(b); u < v || float64(u) > float64(v)*1.01+1 {
				t.Errorf("%d is in a bucket up to %d", v, u)
			}
			if b > 0 && upper(b-1) >= v {
				t.Errorf("%d belongs into an earlier bucket than %d", v, b)
			}
		}
	}
}

func TestPrompts(t *testing.T) {
	o := Options{Model: `m"x`, Seed: 7}
	distinct := map[string]bool{}
	for i := range uint64(50) {
		body := o.appendBody(nil, i, 200, 5, true)
		if string(body) != string(o.appendBody(nil, i, 200, 5, true)) {
			t.Fatal("the same prompt came out differently")
		}
		var decoded struct {
			Model    string
			Messages []struct{ Content string }
			Stream   bool
		}
		if err := json.Unmarshal(body, &decoded); err != nil || decoded.Model != o.Model || !decoded.Stream {
			t.Fatalf("%v in %s", err, body)
		}
		words := strings.Fields(decoded.Messages[0].Content)
		if len(words) != 200 {
			t.Errorf("%d words, want 200", len(words))
		}
		for _, w := range words {
			distinct[strings.ToLower(strings.Trim(w, ".,"))] = true
		}
	}
	if len(distinct) < 4000 {
		t.Errorf("%d distinct words in 10,000", len(distinct))
	}
	if string(o.appendBody(nil, 1, 9, 5, false)) == string(o.appendBody(nil, 2, 9, 5, false)) {
		t.Error("two prompts are equal")
	}
}

func TestParseStat(t *testing.T) {
	line := "42 (a) b) c) S 7 1 1 0 -1 4194304 1 2 3 4 100 20 3 1 20 0 5 0 99 1000 12 18446744073709551615"
	s, ok := parseStat([]byte(line))
	want := procStat{parent: 7, cpu: 1240 * time.Millisecond, rss: 12 * int64(os.Getpagesize()), threads: 5}
	if !ok || s != want {
		t.Errorf("%+v, %v; want %+v", s, ok, want)
	}
	for _, bad := range []string{"", "42 (a", "42 (a) S 1"} {
		if _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q: accepted", bad)
		}
	}
}

// TestUsageOfChildren spends time in a child and looks at the parent.
func TestUsageOfChildren(t *testing.T) {
	const script = `(i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; echo done; sleep 30) & wait`
	cmd := exec.Command("sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	if _, err := out.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	u, err := readUsage(cmd.Process.Pid)
	tree, treeErr := processTree()
	for pid := range tree { // the child, its sleep and the shell itself
		if pid != cmd.Process.Pid && descends(tree, pid, cmd.Process.Pid) {
			if p, err := os.FindProcess(pid); err == nil {
				p.Kill()
			}
		}
	}
	cmd.Process.Kill()
	if err != nil || treeErr != nil {
		t.Fatal(err, treeErr)
	}
	if u.cpu == 0 || u.rss == 0 || u.threads < 2 {
		t.Errorf("usage %+v", u)
	}
	if _, err := readUsage(1 << 30); err == nil {
		t.Error("usage of no process")
	}
}
