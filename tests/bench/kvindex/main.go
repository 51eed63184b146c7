// Command kvindex measures the KV index, the hashing of blocks and the choice of a worker, and prints them beside the
// figures of Dynamo's crates (see README.md).
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/router/kvhash"
	"github.com/portico-llm/portico/internal/router/kvindex"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvindex:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	pattern := flag.String("rows", "", "only rows whose name matches")
	pop := flag.String("memory-of", "", "measure the memory of one population and print it: a process of its own does")
	recorded := flag.Bool("recorded", false, "compare with recorded figures of the crates instead of building them")
	within := flag.Duration("within", 7*time.Minute, "end by then, whatever is missing; building the crates may take half of it")
	flag.Parse()
	if *pop != "" {
		measureMemory(rune((*pop)[0]))
		return nil
	}
	rows, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("-rows: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, *within)
	defer stop()
	other, err := newCrate(ctx, *recorded, *within/2)
	if err != nil {
		return err
	}
	b := &bench{ctx: ctx, rows: rows, crate: other, values: make(map[figure][]float64)}
	fmt.Println(load())
	fmt.Printf("%-45s %-12s %12s %12s %8s  %s\n", "row", "", "portico", "crate", "ratio", "goal")
	for _, f := range []func() error{b.hashing, b.events, b.lookups, b.memory} {
		if err = f(); err == nil {
			err = ctx.Err()
		}
		if err != nil {
			break
		}
	}
	fmt.Printf("%d of %d goals met; %s\n", b.goals-len(b.missed), b.goals, load())
	for _, row := range b.missed {
		fmt.Println("missed:", row)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("rows are missing: %v were too short (-within)", *within)
	}
	return err
}

// load tells how busy the machine has been within the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load unknown"
	}
	one, _, _ := strings.Cut(string(text), " ")
	return fmt.Sprintf("load %s on %d cores", one, runtime.NumCPU())
}

type bench struct {
	ctx    context.Context
	rows   *regexp.Regexp
	crate  *crate
	order  []figure             // that have been noted and not yet printed
	values map[figure][]float64 // one of each round
	goals  int                  // that there were figures for
	missed []string
}

type figure struct{ row, measure string }

// What this project wants to be: ahead of the crate, but for the hashes, which may take somewhat longer; and quick beside
// a writer, whatever the crate is.
const (
	aheadGoal   = 1.0
	hashGoal    = 1 / 1.3
	besideLimit = 20 // microseconds, p99.9
)

// rounds is how often either side runs the events and the lookups, in turns.
const rounds = 9

// note keeps a figure of one round.
func (b *bench) note(row, measure string, value float64) {
	f := figure{row, measure}
	if _, ok := b.values[f]; !ok {
		b.order = append(b.order, f)
	}
	b.values[f] = append(b.values[f], value)
}

// report prints what has been noted since the last report.
func (b *bench) report() {
	for _, f := range b.order {
		b.print(f.row, f.measure, best(f.measure, b.values[f]))
	}
	b.order = nil
}

// best makes one figure of those of all rounds, on either side.
func best(measure string, values []float64) float64 {
	if moreIsBetter(measure) {
		return slices.Max(values)
	}
	return slices.Min(values)
}

func moreIsBetter(measure string) bool { return strings.HasSuffix(measure, "/s") }

// print writes a row. The ratio is above 1 where this project is ahead: more is better of rates, less of the rest.
func (b *bench) print(row, measure string, value float64) {
	goal, met := "-", true
	judge := func(text string, ok bool) { goal, met = text, ok }
	theirs, quotient := "-", "-"
	if others, ok := b.crate.figures[row+" "+measure]; ok {
		other := best(measure, others)
		ratio := other / value
		if moreIsBetter(measure) {
			ratio = value / other
		}
		theirs, quotient = fmt.Sprintf("%.4g", other), fmt.Sprintf("%.2f", ratio)
		switch {
		case !strings.HasPrefix(row, "hash"):
			judge("ratio >= 1", ratio >= aheadGoal)
		case strings.HasPrefix(measure, "both"): // its two parts are there to tell where time goes
			judge("ratio >= 0.77", ratio >= hashGoal)
		}
	}
	if strings.Contains(row, "+writer") && measure == "p99.9 us" {
		judge(fmt.Sprintf("<= %d us", besideLimit), value <= besideLimit)
	}
	if goal != "-" {
		b.goals++
		verdict := "met"
		if !met {
			verdict = "MISSED"
			b.missed = append(b.missed, fmt.Sprintf("%s, %s: %.4g beside %s", row, measure, value, theirs))
		}
		goal += ": " + verdict
	}
	fmt.Printf("%-45s %-12s %12.4g %12s %8s  %s\n", row, measure, value, theirs, quotient, goal)
}

func percentile(sorted []int64, p float64) float64 {
	return float64(sorted[int(float64(len(sorted)-1)*p)]) / 1000
}

func (b *bench) hashing() error {
	if !b.rows.MatchString("hash") {
		return nil
	}
	if err := b.crate.measure("hash"); err != nil {
		return err
	}
	tokens := make([]uint32, 32768)
	for i := range tokens {
		tokens[i] = uint32(mix(uint64(i)) % 151936)
	}
	h := kvhash.New(kvhash.BaseSeed)
	local, chain := make([]uint64, 0, len(tokens)), make([]uint64, 0, len(tokens))
	for _, size := range []int{4, 16, 32, 64} {
		var first, second, both []int64
		for range 2000 {
			from := time.Now()
			var err error
			if local, err = h.Local(local[:0], tokens, kvhash.Layout{BlockSize: size}); err != nil {
				return err
			}
			middle := time.Now()
			chain = kvhash.Sequence(chain[:0], local)
			end := time.Now()
			first, second = append(first, middle.Sub(from).Nanoseconds()), append(second, end.Sub(middle).Nanoseconds())
			both = append(both, end.Sub(from).Nanoseconds())
		}
		slices.Sort(first)
		slices.Sort(second)
		slices.Sort(both)
		row := fmt.Sprintf("hash 32768 tokens bs=%d", size)
		b.note(row, "local p50 us", percentile(first, .5))
		b.note(row, "chain p50 us", percentile(second, .5))
		b.note(row, "both p50 us", percentile(both, .5))
	}
	b.report()
	return nil
}

// apply applies an event; none of the scenario's may be refused.
func apply(x *kvindex.Index, e *event) error {
	if e.remove == nil {
		parent := &e.parent
		if e.begins {
			parent = nil
		}
		return x.Stored(kvindex.Device, e.worker, parent, e.blocks)
	}
	if n := x.Removed(kvindex.Device, e.worker, e.remove); n != 0 {
		return fmt.Errorf("%d blocks weren't known", n)
	}
	return nil
}

// events applies the phases with one thread and with two, each of which has half of the workers.
func (b *bench) events() error {
	for _, threads := range []int{1, 2} {
		if !b.rows.MatchString(fmt.Sprintf("events threads=%d", threads)) {
			continue
		}
		for range rounds {
			if err := b.eventRound(threads); err != nil {
				return err
			}
		}
		b.report()
	}
	return nil
}

func (b *bench) eventRound(threads int) error {
	if err := b.crate.measure("events", strconv.Itoa(threads)); err != nil {
		return err
	}
	x, err := kvindex.New(kvindex.Options{})
	if err != nil {
		return err
	}
	for _, p := range phases() {
		wall, cpu, err := b.phase(x, p, threads)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		row := fmt.Sprintf("events threads=%d %s", threads, p.name)
		b.note(row, "events/s", wall)
		b.note(row, "CPU events/s", cpu)
	}
	if n := x.Entries(); n != 0 {
		return fmt.Errorf("%d entries are left", n)
	}
	return nil
}

// phase applies one phase and returns two rates: the sum of the threads' by the clock, and what each of them would do with a
// CPU of its own, by the time that the process has had one. The goroutines aren't tied to threads: one that waits for a
// lock would have its thread put to sleep and woken, which no goroutine of a frontend does.
func (b *bench) phase(x *kvindex.Index, p phase, threads int) (wall, cpu float64, err error) {
	parts, n := make([][]event, threads), 0
	p.generate(func(e event) {
		t := int(e.worker.ID-1) % threads
		parts[t] = append(parts[t], e)
		n++
	})
	runtime.GC()
	rates := make([]float64, threads)
	busy := processTime()
	g := lifecycle.New(b.ctx)
	for t, part := range parts {
		g.Go("events", func(context.Context) error {
			from := time.Now()
			for i := range part {
				if err := apply(x, &part[i]); err != nil {
					return err
				}
			}
			rates[t] = float64(len(part)) / time.Since(from).Seconds()
			return nil
		})
	}
	err = g.Wait()
	cpu = float64(n*threads) / (processTime() - busy).Seconds()
	for _, r := range rates {
		wall += r
	}
	return wall, cpu, err
}

// processTime is how long the process has had a CPU.
func processTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

func (b *bench) lookups() error {
	for _, pop := range []rune{popU, popR, popT} {
		if !b.rows.MatchString(fmt.Sprintf("lookup pop=%c", pop)) {
			continue
		}
		for range rounds {
			if err := b.lookupRound(pop); err != nil {
				return err
			}
		}
		b.report()
	}
	return nil
}

func (b *bench) lookupRound(pop rune) error {
	if err := b.crate.measure("lookup", string(pop)); err != nil {
		return err
	}
	x, err := kvindex.New(kvindex.Options{})
	if err != nil {
		return err
	}
	populate(pop, func(e event) {
		if err == nil {
			err = apply(x, &e)
		}
	})
	if err != nil {
		return err
	}
	for _, threads := range []int{1, 2} {
		if err := b.lookup(x, pop, threads, ""); err != nil {
			return err
		}
	}
	if pop == popU {
		return b.besideWriter(x)
	}
	return nil
}

// lookup times lookups one by one.
func (b *bench) lookup(x *kvindex.Index, pop rune, threads int, with string) error {
	depths := []int{0, 100, 1024, 2048}
	if pop == popT {
		depths = []int{0, 100, 103}
	}
	for _, depth := range depths {
		qs := queries(pop, depth)
		debug.FreeOSMemory() // or what was needed to get here would be collected and given back beside the lookups
		times := make([][]int64, threads)
		rates := make([]float64, threads)
		g := lifecycle.New(b.ctx)
		for t := range threads {
			g.Go("lookups", func(context.Context) (err error) {
				times[t], rates[t], err = ask(x, qs, t*499, depth)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return err
		}
		took, sum := slices.Concat(times...), 0.0
		slices.Sort(took)
		for _, r := range rates {
			sum += r
		}
		row := fmt.Sprintf("lookup pop=%c threads=%d%s depth=%d", pop, threads, with, depth)
		b.note(row, "p50 us", percentile(took, .5))
		b.note(row, "p99 us", percentile(took, .99))
		b.note(row, "p99.9 us", percentile(took, .999))
		b.note(row, "lookups/s", sum)
	}
	return nil
}

// ask looks queries up, beginning with the one numbered first. It reads the clock as often as the crate's side, once
// before each lookup and once behind it: time.Now would read two clocks.
func ask(x *kvindex.Index, qs [][]uint64, first, depth int) (times []int64, rate float64, err error) {
	const warm, all = 2000, 22000
	out := make([]uint32, x.View().Slots())
	times = slices.Repeat([]int64{1}, all-warm)[:0] // written, so that the system has given all pages
	epoch := time.Now()
	for n := range all {
		q := qs[(n+first)%len(qs)]
		start := time.Since(epoch)
		found := x.Match(q, out)
		took := time.Since(epoch) - start
		if found < depth {
			return nil, 0, fmt.Errorf("depth %d, want %d", found, depth)
		}
		if n >= warm {
			times = append(times, took.Nanoseconds())
		}
	}
	return times, all / time.Since(epoch).Seconds(), nil
}

// besideWriter repeats the lookups while another thread appends a block to some sequence 20,000 times a second.
func (b *bench) besideWriter(x *kvindex.Index) error {
	const perSecond, most = 20000, 4000
	local, name := all(popU, length+most)
	var stop atomic.Bool
	written := 0
	g := lifecycle.New(b.ctx)
	g.Go("writer", func(context.Context) error {
		at := make([]int, len(local))
		from := time.Now()
		for n := uint64(0); !stop.Load(); n++ {
			s := int(mix(n) % sequences)
			if at[s] == most {
				continue
			}
			i := length + at[s]
			at[s]++
			written++
			e := stored(holder(s), local[s], name[s], i, i+1)
			if err := apply(x, &e); err != nil {
				return err
			}
			if ahead := time.Duration(float64(written)/perSecond*1e9) - time.Since(from); ahead > time.Millisecond {
				time.Sleep(ahead)
			}
		}
		return nil
	})
	from := time.Now()
	time.Sleep(time.Second)
	err := b.lookup(x, popU, 1, "+writer20k")
	stop.Store(true)
	took := time.Since(from).Seconds()
	if err := g.Wait(); err != nil {
		return err
	}
	b.note("lookup pop=U threads=1+writer20k", "stores/s", float64(written)/took)
	return err
}

// memory measures each population in a process of its own.
func (b *bench) memory() error {
	for _, pop := range []rune{popU, popR, popT} {
		if !b.rows.MatchString(fmt.Sprintf("mem pop=%c", pop)) {
			continue
		}
		if err := b.crate.measure("memory", string(pop)); err != nil {
			return err
		}
		self, err := os.Executable()
		if err != nil {
			return err
		}
		out, err := exec.CommandContext(b.ctx, self, "-memory-of", string(pop)).Output()
		if err != nil {
			return fmt.Errorf("measure the memory of %c: %w", pop, err)
		}
		var rss, heap, said float64
		if _, err := fmt.Sscan(string(bytes.TrimSpace(out)), &rss, &heap, &said); err != nil {
			return fmt.Errorf("read the memory of %c: %w", pop, err)
		}
		row := fmt.Sprintf("mem pop=%c", pop)
		b.note(row, "RSS B/entry", rss)
		b.note(row, "heap B/entry", heap)
		b.note(row, "as counted", said)
	}
	b.report()
	return nil
}

// measureMemory prints the bytes an entry takes of the process, of the heap, and by the index's own count.
func measureMemory(pop rune) {
	debug.SetGCPercent(10)
	x, err := kvindex.New(kvindex.Options{})
	if err != nil {
		panic(err)
	}
	debug.FreeOSMemory()
	rss, heap := residentBytes(), heapBytes()
	populate(pop, func(e event) {
		if err := apply(x, &e); err != nil {
			panic(err)
		}
	})
	debug.FreeOSMemory()
	n := float64(x.Entries())
	fmt.Println(float64(residentBytes()-rss)/n, float64(heapBytes()-heap)/n, float64(x.Bytes())/n)
	runtime.KeepAlive(x)
}

func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	n, err := strconv.ParseInt(f[1], 10, 64)
	if err != nil {
		return 0
	}
	return n * int64(os.Getpagesize())
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
