// Command images measures how much it costs to turn an image file into the tensor of a Qwen2-VL model, beside what vLLM
// does (reference.py) and a Rust gateway's crate (crate/): images per core-second, by CPU time, in turns within one run.
// The tensors are compared, too. Where this project isn't as far ahead as it wants to be, the table says so.
//
//	go run ./tests/bench/images -crate "$(tests/bench/images/crate.sh)"    # half a minute
//	go run ./tests/bench/images -rounds 5                                  # sooner, and without the crate
//
// The reference's Python environment must be there: setup.sh makes it, and `make bench-mm` sees to both.
package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/item"
	"github.com/portico-llm/portico/internal/multimodal/process"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

// settings are the command line.
type settings struct {
	root, venv, crate string
	rounds            int
}

func run(args []string) (err error) {
	var s settings
	f := flag.NewFlagSet("images", flag.ContinueOnError)
	f.StringVar(&s.root, "root", ".", "folder of the repository")
	f.StringVar(&s.venv, "venv", os.Getenv("PORTICO_MM_VENV"), "Python environment; empty: .build/venv-images")
	f.StringVar(&s.crate, "crate", "", "the program of crate.sh; empty: without that side")
	f.IntVar(&s.rounds, "rounds", 15, "how often each image is processed by each side")
	if err := f.Parse(args); err != nil {
		return err
	}
	if s.venv == "" {
		s.venv = filepath.Join(s.root, ".build", "venv-images")
	}
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	python, script := filepath.Join(s.venv, "bin", "python"), filepath.Join(s.root, "tests", "bench", "images", "reference.py")
	if out, err := exec.Command(python, script, "make", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("reference.py make: %w: %s", err, out)
	}
	reference, err := start(python, script, "serve")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, reference.stop()) }()
	ours, stop, err := newSubject(s.model())
	if err != nil {
		return err
	}
	defer stop()
	sides := []side{{name: "portico", process: ours}, {name: "vLLM", process: reference.process, exact: true, goals: map[string]float64{
		".jpg": 2, ".png": 2, ".webp": 1.5}}}
	if s.crate != "" {
		if err := s.about(); err != nil {
			return err
		}
		crate, err := start(s.crate, "serve", s.config())
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, crate.stop()) }()
		sides = append(sides, side{name: "crate", process: crate.process, goals: map[string]float64{".jpg": 1, ".png": 1, ".webp": 1}})
	}
	return s.compare(dir, sides)
}

func (s *settings) model() string {
	return filepath.Join(s.root, "tests", "golden", "vllm-images", "qwen2vl")
}

func (s *settings) config() string { return filepath.Join(s.model(), "preprocessor_config.json") }

// about prints which libraries the crate uses: without them it is another program than its gateway's.
func (s *settings) about() error {
	// Libraries that crate.sh got are beside the program.
	if err := os.Setenv("LD_LIBRARY_PATH", filepath.Dir(s.crate)+":"+os.Getenv("LD_LIBRARY_PATH")); err != nil {
		return err
	}
	out, err := exec.Command(s.crate, "about", s.config()).Output()
	if err != nil {
		return fmt.Errorf("%s about: %w", s.crate, err)
	}
	fmt.Printf("the crate: %s", out)
	return nil
}

// side is one of those compared.
type side struct {
	name    string
	process func(file string) (result, error)
	exact   bool               // its tensor has to be this project's to the byte
	goals   map[string]float64 // how many times as fast this project has to be, by file name extension
}

// result is what became of a file.
type result struct {
	ms    float64 // of CPU time
	sum   string  // SHA-256 of the tensor
	shape string
}

// compare has every side process every image, in turns, and prints a table.
func (s *settings) compare(dir string, sides []side) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	fmt.Printf("image file to Qwen2-VL tensor, images per core-second (median CPU milliseconds of %d); %s\n", s.rounds, load())
	var wrong, behind []string
	for _, file := range files {
		times, last := make([][]float64, len(sides)), make([]result, len(sides))
		for range s.rounds {
			for i, side := range sides {
				if last[i], err = side.process(file); err != nil {
					return fmt.Errorf("%s, %s: %w", side.name, filepath.Base(file), err)
				}
				times[i] = append(times[i], last[i].ms)
			}
		}
		own, base := median(times[0]), filepath.Base(file)
		fmt.Printf("  %-13s portico %4.0f/s (%6.2f ms)", base, 1000/own, own)
		for i, side := range sides[1:] {
			m, got := median(times[i+1]), last[i+1]
			goal, verdict, pixels := side.goals[filepath.Ext(file)], "met", "equal"
			if m/own < goal || m <= own {
				verdict = "MISSED"
				behind = append(behind, base+" beside "+side.name)
			}
			if got.sum != last[0].sum {
				pixels = "other values"
			}
			if got.shape != last[0].shape || (side.exact && got.sum != last[0].sum) {
				wrong = append(wrong, fmt.Sprintf("%s, %s: %s, %s, not %s", base, side.name, got.shape, pixels, last[0].shape))
			}
			fmt.Printf(" | %s %4.0f/s (%6.2f ms), %s: ratio %.2f, goal %.1f %s", side.name, 1000/m, m, pixels, m/own, goal, verdict)
		}
		fmt.Println()
	}
	fmt.Printf("  short of the goal: %s; %s\n", cmp.Or(strings.Join(behind, ", "), "none"), load())
	if len(wrong) > 0 {
		return fmt.Errorf("the tensors differ: %s", strings.Join(wrong, "; "))
	}
	return nil
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

func median(times []float64) float64 {
	slices.Sort(times)
	return times[len(times)/2]
}

// peer is a program that processes a file for each line it is given.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(name string, args ...string) (*peer, error) {
	p := &peer{cmd: exec.Command(name, args...)}
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out, p.cmd.Stderr = bufio.NewReader(out), os.Stderr
	return p, p.cmd.Start()
}

func (p *peer) process(file string) (out result, err error) {
	if _, err := fmt.Fprintln(p.in, file); err != nil {
		return out, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return out, err
	}
	_, err = fmt.Sscan(line, &out.ms, &out.sum, &out.shape)
	return out, err
}

func (p *peer) stop() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}

// newSubject returns this project's own way, into memory that is used again as transfer slots are.
func newSubject(model string) (func(file string) (result, error), func(), error) {
	opts, err := process.ReadFolder(model)
	if err != nil {
		return nil, nil, err
	}
	pool := decode.New(decode.Options{})
	opts.Pool = pool
	p, err := process.New(opts)
	if err != nil {
		return nil, nil, err
	}
	var slot []byte
	one := func(name string) (out result, err error) {
		data, err := os.ReadFile(name)
		if err != nil {
			return out, err
		}
		file := multimodal.File{Path: name, Data: data}
		runtime.LockOSThread() // the clock is the thread's
		defer runtime.UnlockOSThread()
		h, err := p.Header(file)
		if err != nil {
			return out, err
		}
		plan, err := p.Plan(h)
		if err != nil {
			return out, err
		}
		if len(slot) < plan.Size {
			slot = make([]byte, plan.Size)
		}
		begin, err := cpu()
		if err != nil {
			return out, err
		}
		it, err := p.Process(context.Background(), file, plan, slot)
		if err != nil {
			return out, err
		}
		end, err := cpu()
		if err != nil {
			return out, err
		}
		out.ms = end - begin
		return out, describe(it.Blob, &out)
	}
	return one, func() { pool.Close() }, nil
}

// describe fills in what an item's pixels are.
func describe(blob []byte, out *result) error {
	tensors, err := item.Decode(blob)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if t.Name == "pixel_values" {
			sum := sha256.Sum256(t.Data)
			out.sum, out.shape = hex.EncodeToString(sum[:]), strings.Trim(strings.ReplaceAll(fmt.Sprint(t.Shape), " ", "x"), "[]")
			return nil
		}
	}
	return errors.New("the item has no pixels")
}

// cpu returns the milliseconds that this thread has run.
func cpu() (float64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return float64(t.Nano()) / 1e6, nil
}
