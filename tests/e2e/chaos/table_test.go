package chaos_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// tally is what came of one scene.
type tally struct {
	scene   string
	lasts   time.Duration
	seed    uint64
	acts    map[string]int // what was broken
	answers map[string]int // by kind
	longest time.Duration  // request
	moved   float64        // moves to another worker, refused ones too, but for those of frontends' last moments
	healed  time.Duration  // until every frontend answered every prompt
	blocks  float64        // in the index of every frontend; 0: there is none

	before, after [frontends]float64 // goroutines
}

// table is the tallies of all scenes.
type table []*tally

// String has one column for each scene, and a row for each figure that any has.
func (t table) String() string {
	acts, answers := map[string]bool{}, map[string]bool{}
	for _, s := range t {
		for kind := range s.acts {
			acts[kind] = true
		}
		for kind := range s.answers {
			answers[kind] = true
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name string, figure func(*tally) any) {
		fmt.Fprint(w, name)
		for _, s := range t {
			fmt.Fprint(w, "\t", figure(s))
		}
		fmt.Fprintln(w)
	}
	row("scene", func(s *tally) any { return s.scene })
	row("seed", func(s *tally) any { return s.seed })
	row("lasts", func(s *tally) any { return s.lasts })
	row("requests", func(s *tally) any {
		n := 0
		for _, count := range s.answers {
			n += count
		}
		return n
	})
	for _, kind := range slices.Sorted(maps.Keys(answers)) {
		row("  "+kind, func(s *tally) any { return s.answers[kind] })
	}
	row("moves", func(s *tally) any { return s.moved })
	row("longest request", func(s *tally) any { return s.longest.Round(time.Millisecond) })
	for _, kind := range slices.Sorted(maps.Keys(acts)) {
		row(kind, func(s *tally) any { return s.acts[kind] })
	}
	row("healed after", func(s *tally) any { return s.healed.Round(time.Millisecond) })
	row("blocks in the index", func(s *tally) any { return s.blocks })
	row("goroutines before", func(s *tally) any { return s.before })
	row("goroutines after", func(s *tally) any { return s.after })
	w.Flush() // into memory
	return b.String()
}
