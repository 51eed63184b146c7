// Command images measures how much it costs to turn an image file into the tensor of a Qwen2-VL model, beside what vLLM
// does (reference.py): images per core-second, by CPU time, in turns within one run. The tensors are compared, too.
//
//	go run ./tests/bench/images              # half a minute
//	go run ./tests/bench/images -rounds 5    # sooner
//
// The reference's Python environment must be there: setup.sh makes it, and `make bench-mm` sees to that. -peer names a
// further program to compare with, which speaks as reference.py's serve does.
package main

import (
	"bufio"
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
	"strconv"
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
	root, venv, peer string
	rounds           int
}

func run(args []string) (err error) {
	var s settings
	f := flag.NewFlagSet("images", flag.ContinueOnError)
	f.StringVar(&s.root, "root", ".", "folder of the repository")
	f.StringVar(&s.venv, "venv", os.Getenv("PORTICO_MM_VENV"), "Python environment; empty: .build/venv-images")
	f.StringVar(&s.peer, "peer", "", "a further program to compare with")
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
	sides := []side{{"vLLM's processor", reference.process}}
	if s.peer != "" {
		peer, err := start(s.peer)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, peer.stop()) }()
		sides = append(sides, side{filepath.Base(s.peer), peer.process})
	}
	ours, stop, err := newSubject(s.root)
	if err != nil {
		return err
	}
	defer stop()
	return s.compare(dir, append([]side{{"portico", ours}}, sides...))
}

// side is one of those compared: it returns CPU milliseconds, and the tensor's SHA-256 or nothing.
type side struct {
	name    string
	process func(file string) (float64, string, error)
}

// compare has every side process every image, in turns, and prints a table.
func (s *settings) compare(dir string, sides []side) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return err
	}
	fmt.Println("image file to Qwen2-VL tensor, images per core-second (median CPU milliseconds):")
	for _, file := range files {
		times, sums := make([][]float64, len(sides)), make([]string, len(sides))
		for range s.rounds {
			for i, side := range sides {
				ms, sum, err := side.process(file)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", side.name, filepath.Base(file), err)
				}
				times[i], sums[i] = append(times[i], ms), sum
			}
		}
		var line strings.Builder
		fmt.Fprintf(&line, "  %-14s", filepath.Base(file))
		own := median(times[0])
		for i, side := range sides {
			m := median(times[i])
			fmt.Fprintf(&line, "  %s %.0f/s (%.2f ms)", side.name, 1000/m, m)
			if i > 0 {
				fmt.Fprintf(&line, ", ratio %.2f%s", m/own, same(sums[i], sums[0]))
			}
		}
		fmt.Println(line.String())
	}
	return nil
}

// same tells whether another side's tensor is ours, where it says.
func same(theirs, ours string) string {
	switch theirs {
	case "":
		return ""
	case ours:
		return ", equal"
	}
	return ", DIFFERENT"
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

func (p *peer) process(file string) (float64, string, error) {
	if _, err := fmt.Fprintln(p.in, file); err != nil {
		return 0, "", err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, "", err
	}
	words := strings.Fields(line + " -")
	ms, err := strconv.ParseFloat(words[0], 64)
	return ms, strings.Trim(words[1], "-"), err
}

func (p *peer) stop() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}

// newSubject returns this project's own way, into memory that is used again as transfer slots are.
func newSubject(root string) (func(file string) (float64, string, error), func(), error) {
	opts, err := process.ReadFolder(filepath.Join(root, "tests", "golden", "vllm-images", "qwen2vl"))
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
	one := func(name string) (float64, string, error) {
		data, err := os.ReadFile(name)
		if err != nil {
			return 0, "", err
		}
		file := multimodal.File{Path: name, Data: data}
		runtime.LockOSThread() // the clock is the thread's
		defer runtime.UnlockOSThread()
		h, err := p.Header(file)
		if err != nil {
			return 0, "", err
		}
		plan, err := p.Plan(h)
		if err != nil {
			return 0, "", err
		}
		if len(slot) < plan.Size {
			slot = make([]byte, plan.Size)
		}
		begin, err := cpu()
		if err != nil {
			return 0, "", err
		}
		it, err := p.Process(context.Background(), file, plan, slot)
		if err != nil {
			return 0, "", err
		}
		end, err := cpu()
		if err != nil {
			return 0, "", err
		}
		buffers, err := item.Buffers(it.Blob)
		if err != nil {
			return 0, "", err
		}
		sum := sha256.Sum256(buffers[len(buffers)-1])
		return end - begin, hex.EncodeToString(sum[:]), nil
	}
	return one, func() { pool.Close() }, nil
}

// cpu returns the milliseconds that this thread has run.
func cpu() (float64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0, fmt.Errorf("clock: %w", err)
	}
	return float64(t.Nano()) / 1e6, nil
}
