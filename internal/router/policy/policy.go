// Package policy chooses one worker for one request: round-robin, random, least-loaded, power-of-two-choices,
// device-aware-weighted, and direct (the client chooses). Each policy is a pure function of the query and the
// candidates: what it needs to know of the past (the ordinal of the choice, requests in flight) and of chance stands in
// its arguments.
//
// A request may prefer some workers (Candidate.Factor). Policies that look at loads weigh them by it; those that don't
// choose among the preferred ones, as long as any of them is a candidate.
//
// Policies hold no state and are safe for concurrent use. None of them follows a pin except direct: whoever lets clients
// pin requests under another policy narrows the candidates before asking.
package policy

import (
	"fmt"
	"strings"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// Names of the policies, as given by --router-mode.
const (
	RoundRobin = "round-robin"  // in turn
	Random     = "random"       // by chance
	LeastLoad  = "least-loaded" // fewest requests in flight
	PowerOfTwo = "power-of-two" // the less loaded of two drawn by chance
	Direct     = "direct"       // the one the client names

	DeviceAware = "device-aware-weighted" // accelerators first, processors when those are loaded enough
)

// CUDAToCPU is how many times the load of a processor an accelerator is given, unless told otherwise.
const CUDAToCPU = 8

// pick is a Policy as a plain function; it is never called without candidates.
type pick func(q *router.Query, candidates []router.Candidate) (int, error)

var _ router.Policy = pick(nil)

// Pick implements router.Policy. No candidates are an Unavailable fault.
func (p pick) Pick(q *router.Query, candidates []router.Candidate) (int, error) {
	if len(candidates) == 0 {
		return 0, fault.New(fault.Unavailable, "No workers available")
	}
	return p(q, candidates)
}

// Modes returns the names New knows, in the order they are documented.
func Modes() []string {
	return []string{RoundRobin, Random, PowerOfTwo, LeastLoad, DeviceAware, Direct}
}

// New returns the policy of the given name; the empty name is round-robin. Any other name gets an error that lists what
// there is. The mode kv remembers what it has chosen, so it is no policy, and not here.
func New(mode string) (router.Policy, error) {
	switch mode {
	case "", RoundRobin:
		return pick(roundRobin), nil
	case Random:
		return pick(random), nil
	case LeastLoad:
		return pick(leastLoaded), nil
	case PowerOfTwo:
		return pick(powerOfTwo), nil
	case DeviceAware:
		return NewDeviceAware(CUDAToCPU), nil
	case Direct:
		return pick(direct), nil
	}
	allowed := strings.Join(Modes(), ", ")
	return nil, fmt.Errorf("unknown router mode %q; supported: %s", mode, allowed)
}

// roundRobin takes the candidates in turn. Candidates come ordered by instance id, so that a worker that comes or goes
// shifts the turn but favours nobody.
func roundRobin(q *router.Query, candidates []router.Candidate) (int, error) {
	n, nth := preferred(candidates)
	return nth(int(q.Ordinal % uint64(n))), nil
}

// random draws one candidate, each as likely as the next.
func random(q *router.Query, candidates []router.Candidate) (int, error) {
	n, nth := preferred(candidates)
	return nth(q.Random(n)), nil
}

// preferred tells how many candidates have the lowest factor, and where the n-th of them is. Nearly always that is all.
func preferred(candidates []router.Candidate) (count int, nth func(n int) int) {
	lowest, all := factor(&candidates[0]), true
	for i := range candidates[1:] {
		f := factor(&candidates[i+1])
		all = all && f == lowest
		lowest = min(lowest, f)
	}
	if all {
		return len(candidates), func(n int) int { return n }
	}
	for i := range candidates {
		if factor(&candidates[i]) == lowest {
			count++
		}
	}
	return count, func(n int) int {
		at := 0
		for i := range candidates {
			if factor(&candidates[i]) != lowest {
				continue
			}
			if at = i; n == 0 {
				break
			}
			n--
		}
		return at
	}
}

// factor is what a candidate's load is multiplied by.
func factor(c *router.Candidate) float64 {
	if c.Factor == 0 {
		return 1
	}
	return c.Factor
}

// cost is a candidate's load once it has this request as well, weighed by the request's preference. Of idle candidates
// the preferred one is cheaper.
func cost(c *router.Candidate) float64 { return float64(c.InFlight+1) * factor(c) }

// leastLoaded takes the candidate with the fewest requests in flight. Equals take turns by ordinal: an idle fleet
// would otherwise send every request to the first worker.
func leastLoaded(q *router.Query, candidates []router.Candidate) (int, error) {
	return lightest(q, candidates, func(*router.Candidate) bool { return true }), nil
}

// lightest returns the candidate of the lowest cost among those that are admitted; equals take turns by ordinal. One of
// them has to be admitted.
func lightest(q *router.Query, candidates []router.Candidate, admit func(*router.Candidate) bool) int {
	n, best := len(candidates), -1
	start := int(q.Ordinal % uint64(n))
	for i := range n {
		at := (start + i) % n
		if c := &candidates[at]; admit(c) && (best < 0 || cost(c) < cost(&candidates[best])) {
			best = at
		}
	}
	return best
}

// powerOfTwo draws two different candidates and takes the less loaded one; of equals the first drawn.
func powerOfTwo(q *router.Query, candidates []router.Candidate) (int, error) {
	n := len(candidates)
	if n == 1 {
		return 0, nil
	}
	first := q.Random(n)
	// Drawn from the others: numbers from first on stand for the candidate after them.
	second := q.Random(n - 1)
	if second >= first {
		second++
	}
	if cost(&candidates[second]) < cost(&candidates[first]) {
		return second, nil
	}
	return first, nil
}

// NewDeviceAware returns the policy that sends requests to accelerators, and to processors once each accelerator has
// more than ratio times as many requests in flight as each processor. Within either group the least loaded instance is
// taken. A ratio that isn't positive counts as CUDAToCPU.
func NewDeviceAware(ratio float64) router.Policy {
	if !(ratio > 0) { // written so that NaN doesn't pass
		ratio = CUDAToCPU
	}
	return pick(func(q *router.Query, candidates []router.Candidate) (int, error) {
		return deviceAware(q, candidates, ratio), nil
	})
}

// deviceAware is the policy of NewDeviceAware. Instances that say nothing of their device count as accelerators.
func deviceAware(q *router.Query, candidates []router.Candidate, ratio float64) int {
	var fast, slow, onFast, onSlow float64 // instances, then their requests
	for i := range candidates {
		if c := &candidates[i]; onCPU(c) {
			slow, onSlow = slow+1, onSlow+float64(c.InFlight)
		} else {
			fast, onFast = fast+1, onFast+float64(c.InFlight)
		}
	}
	// Loads of one instance of each group, compared without a division.
	useSlow := fast == 0 || slow > 0 && onSlow*ratio*fast < onFast*slow
	return lightest(q, candidates, func(c *router.Candidate) bool { return onCPU(c) == useSlow })
}

// onCPU reports whether an instance has no accelerator.
func onCPU(c *router.Candidate) bool { return c.Instance.DeviceType == worker.DeviceCPU }

// direct takes the instance the client named. A request that names none is the client's mistake; an instance that is
// not there may come back.
func direct(q *router.Query, candidates []router.Candidate) (int, error) {
	if q.Pin == nil {
		return 0, fault.Bad("nvext.backend_instance_id",
			"The router runs in direct mode: the request must name its worker with nvext.backend_instance_id")
	}
	for i := range candidates {
		if candidates[i].Instance.InstanceID == *q.Pin {
			return i, nil
		}
	}
	return 0, fault.New(fault.Unavailable, "Worker %d is not available", *q.Pin)
}
