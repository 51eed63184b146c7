package loadgen

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// clockTick is the unit of CPU times in /proc: the kernel shows user programs 100 ticks a second on every platform.
const clockTick = 10 * time.Millisecond

// usage is what a process and its descendants hold or have spent.
type usage struct {
	cpu     time.Duration // user and system time since their start
	rss     int64         // bytes
	threads int
}

// readUsage adds up a process and everything descended from it; shared pages count once for each process that maps
// them. Descendants that have ended count through their parent's record of them.
func readUsage(pid int) (usage, error) {
	parents, err := processTree()
	if err != nil {
		return usage{}, err
	}
	if _, ok := parents[pid]; !ok {
		return usage{}, fmt.Errorf("loadgen: no process %d", pid)
	}
	var u usage
	for p, s := range parents {
		if descends(parents, p, pid) {
			u.cpu += s.cpu
			u.rss += s.rss
			u.threads += s.threads
		}
	}
	return u, nil
}

// procStat is what one line of /proc/PID/stat says.
type procStat struct {
	parent  int           // process id
	cpu     time.Duration // its own and that of children it has waited for
	rss     int64
	threads int
}

// descends reports whether p is root or descended from it.
func descends(tree map[int]procStat, p, root int) bool {
	for range len(tree) { // bounded: a pid reused during the scan could close a circle
		if p == root {
			return true
		}
		s, ok := tree[p]
		if !ok || s.parent <= 1 {
			return false
		}
		p = s.parent
	}
	return false
}

// processTree reads all processes of the machine. One that ends during the scan is left out.
func processTree() (map[int]procStat, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, fmt.Errorf("loadgen: list processes: %w", err)
	}
	tree := make(map[int]procStat, len(dirs))
	for _, d := range dirs {
		b, err := os.ReadFile(d + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		pid, _ := strconv.Atoi(filepath.Base(d))
		if s, ok := parseStat(b); ok {
			tree[pid] = s
		}
	}
	return tree, nil
}

// parseStat reads a line of /proc/PID/stat. The command name in parentheses may hold anything, so fields count from
// the last parenthesis.
func parseStat(b []byte) (procStat, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procStat{}, false
	}
	f := bytes.Fields(b[i+1:])
	// Positions after the command name; see proc_pid_stat(5), where they count from 3.
	const state, ppid, utime, cstime, threads, rss = 0, 1, 11, 14, 17, 21
	if len(f) <= rss {
		return procStat{}, false
	}
	// The kernel writes numbers only; should that change, zero shows in the report.
	num := func(k int) int64 {
		v, _ := strconv.ParseInt(string(f[k]), 10, 64)
		return v
	}
	var ticks int64
	for k := utime; k <= cstime; k++ { // utime, stime, and those of waited-for children
		ticks += num(k)
	}
	return procStat{
		parent: int(num(ppid)), cpu: time.Duration(ticks) * clockTick,
		rss: num(rss) * int64(os.Getpagesize()), threads: int(num(threads)),
	}, true
}

// watch samples the process until ctx ends and keeps the largest resident size. A sample that fails is left out:
// whether the process is still there is asked at the end. The interval keeps the cost of reading /proc out of the
// measurement.
func (m *meter) watch(ctx context.Context) error {
	t := time.NewTicker(200 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			if u, err := readUsage(m.pid); err == nil {
				m.note(u)
			}
		}
	}
}

// meter follows one server process. The first and last readings are taken by the caller, the samples by watch. Nothing
// here is locked: the caller touches it before watch starts and after it has ended.
type meter struct {
	pid         int
	first, last usage
	peak        usage // largest of each
}

// note takes a reading into the peaks.
func (m *meter) note(u usage) {
	m.peak.rss = max(m.peak.rss, u.rss)
	m.peak.threads = max(m.peak.threads, u.threads)
}

// Resident returns the resident size of a process and its descendants now, in bytes. It needs Linux's /proc.
func Resident(pid int) (int64, error) {
	u, err := readUsage(pid)
	return u.rss, err
}
