package stack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
)

// Process is a program that was started. Safe for concurrent use.
type Process struct {
	Name string
	Log  string // file with its output

	pid   int              // set before Start returns
	done  chan struct{}    // closed after the program's end
	state *os.ProcessState // to be read after done
	group *lifecycle.Group // its one goroutine waits for the program
}

// Spec is a program to start.
type Spec struct {
	Name string
	Args []string // program and arguments
	Env  []string // the whole environment
	Dir  string   // working directory; empty: the folder of the log
	Log  string   // file for its output; appended to
}

// Start starts a program. When this process dies, however it dies, the kernel kills the program. It returns once the
// program runs, which says nothing of its being ready; whoever calls Start has to Stop or Kill it.
func Start(spec Spec) (*Process, error) {
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	// The program has a descriptor of its own by then.
	defer log.Close()
	cmd := exec.Command(spec.Args[0], spec.Args[1:]...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = spec.Env, spec.Dir, log, log
	if cmd.Dir == "" {
		cmd.Dir = filepath.Dir(spec.Log)
	}
	// A test that panics or is killed leaves nothing behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &Process{Name: spec.Name, Log: spec.Log, done: make(chan struct{}), group: lifecycle.New(context.Background())}
	// One place: the goroutine goes on to wait for the program without being heard.
	started := make(chan error, 1)
	p.group.Go(spec.Name, func(context.Context) error {
		// The death signal comes when the starting thread ends, so this thread stays until the program has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err != nil {
			return nil
		}
		cmd.Wait() // its error is in the state
		p.state = cmd.ProcessState
		return nil
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.pid }

// Done is closed after the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode waits for the end and returns the exit code; -1 when a signal ended it or it didn't end in time.
func (p *Process) ExitCode(within time.Duration) int {
	select {
	case <-p.done:
		return p.state.ExitCode()
	case <-time.After(within):
		return -1
	}
}

// Signal sends a signal, unless the program has ended: its id may be another's by then.
func (p *Process) Signal(s syscall.Signal) {
	select {
	case <-p.done:
	default:
		syscall.Kill(p.pid, s)
	}
}

// Stop ends the program: politely, and after the grace period by force. It returns when the program has ended, and may
// be called again.
func (p *Process) Stop(grace time.Duration) {
	p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Kill()
	}
}

// Kill ends the program at once and waits for it. The kernel kills what can't be asked, so the wait is short.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Tail returns the last lines of the program's output, for error messages. A log that can't be read says so itself.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// WaitFor polls until ready returns nil. It gives up after the given time, or as soon as the program has ended.
func (p *Process) WaitFor(within time.Duration, ready func() error) error {
	return poll(within, p.done, ready, func() string { return p.Name + ":\n" + p.Tail(20) })
}

// poll asks ready every 50 ms until it returns nil. The error after the time, or once done is closed, has ready's last
// one and what context says, which is asked then only.
func poll(within time.Duration, done <-chan struct{}, ready func() error, context func() string) error {
	deadline := time.After(within)
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-done:
			return errors.Join(errors.New("ended before it was ready"), err, errors.New(context()))
		case <-deadline:
			return errors.Join(fmt.Errorf("not ready after %s", within), err, errors.New(context()))
		}
	}
}

// FreePort returns a loopback port that nobody listens on now. It is below those that the kernel gives to outgoing
// connections, so that a server which is away for a while finds it free when it comes back, and small enough for Dynamo,
// which reads DYN_SYSTEM_PORT as a signed 16-bit number.
func FreePort() (int, error) {
	// Above what other programs like to use. Drawn at random, since packages are tested side by side.
	const low, high, tries = 20000, 32767, 50
	for range tries {
		port := low + rand.IntN(high-low)
		if l, err := net.Listen("tcp", loopback(port)); err == nil {
			l.Close()
			return port, nil
		}
	}
	return 0, errors.New("no free port below 32768 found")
}

// loopback returns the address of a port of this machine.
func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
