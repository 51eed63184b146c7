package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

//go:embed crate.tsv
var crateTable string

// crate is the other side: Dynamo's published crates on the same scenario, built here and run in turn with this side;
// where that isn't wanted or cargo isn't there, figures that were recorded elsewhere.
type crate struct {
	ctx     context.Context
	program string               // empty: recorded
	figures map[string][]float64 // by row and measure, one of each round
}

// newCrate builds the program, which takes some minutes the first time, or as many more times as within makes of it: what
// was built stays. Where that fails, the recorded figures do.
func newCrate(ctx context.Context, recorded bool, within time.Duration) (*crate, error) {
	c := &crate{ctx: ctx, figures: parseFigures([]byte(crateTable))}
	cargo, err := exec.LookPath("cargo")
	if recorded || err != nil {
		fmt.Println("crate: figures recorded on another machine, see README.md")
		return c, nil
	}
	target, err := filepath.Abs(".build/kvindex-crate")
	if err != nil {
		return nil, fmt.Errorf("target folder: %w", err)
	}
	building, stop := context.WithTimeout(ctx, within)
	defer stop()
	build := exec.CommandContext(building, cargo, "build", "--quiet", "--release", "--locked",
		"--manifest-path", "tests/bench/kvindex/crate/Cargo.toml", "--target-dir", target)
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	build.Cancel = func() error { return build.Process.Signal(os.Interrupt) }
	build.WaitDelay = 10 * time.Second
	if err := build.Run(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if building.Err() != nil {
			err = fmt.Errorf("more than %v", within)
		}
		fmt.Printf("crate: figures recorded on another machine, because building it failed: %v\n", err)
		return c, nil
	}
	fmt.Println("crate: dynamo-kv-router 1.6.1, built here and run in turn")
	c.program, c.figures = filepath.Join(target, "release", "kvindex-crate"), make(map[string][]float64)
	return c, nil
}

// measure takes the other side's figures of a part, right before this side's.
func (c *crate) measure(part ...string) error {
	if c.program == "" {
		return nil
	}
	run := exec.CommandContext(c.ctx, c.program, part...)
	run.Stderr = os.Stderr
	out, err := run.Output()
	if err != nil {
		return fmt.Errorf("crate %s: %w", strings.Join(part, " "), err)
	}
	for row, values := range parseFigures(out) {
		c.figures[row] = append(c.figures[row], values...)
	}
	return nil
}

// parseFigures returns figures by row and measure.
func parseFigures(table []byte) map[string][]float64 {
	out := make(map[string][]float64)
	lines := bufio.NewScanner(bytes.NewReader(table))
	for lines.Scan() {
		f := strings.Split(lines.Text(), "\t")
		if len(f) != 3 {
			continue
		}
		if v, err := strconv.ParseFloat(f[2], 64); err == nil {
			out[f[0]+" "+f[1]] = []float64{v}
		}
	}
	return out
}
