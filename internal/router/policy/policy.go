// Package policy chooses one worker for one request: round-robin, random, least-loaded, power-of-two-choices, and direct
// (the client chooses). Each policy is a pure function of the query and the candidates: what it needs to know of the
// past (the ordinal of the choice, requests in flight) and of chance stands in its arguments.
//
// Policies hold no state and are safe for concurrent use. None of them follows a pin except direct: whoever lets clients
// pin requests under another policy narrows the candidates before asking.
package policy

import (
	"fmt"
	"slices"
	"strings"

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
)

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
func Modes() []string { return []string{RoundRobin, Random, PowerOfTwo, LeastLoad, Direct} }

// New returns the policy of the given name; the empty name is round-robin. Names that Dynamo has and this package
// doesn't get an error that says so; any other name an error that lists what there is.
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
	case Direct:
		return pick(direct), nil
	}
	allowed := strings.Join(Modes(), ", ")
	if slices.Contains([]string{"kv", "device-aware-weighted"}, mode) {
		return nil, fmt.Errorf("router mode %q is not supported yet; supported: %s", mode, allowed)
	}
	return nil, fmt.Errorf("unknown router mode %q; supported: %s", mode, allowed)
}

// roundRobin takes the candidates in turn. Candidates come ordered by instance id, so that a worker that comes or goes
// shifts the turn but favours nobody.
func roundRobin(q *router.Query, candidates []router.Candidate) (int, error) {
	return int(q.Ordinal % uint64(len(candidates))), nil
}

// random draws one candidate, each as likely as the next.
func random(q *router.Query, candidates []router.Candidate) (int, error) {
	return q.Random(len(candidates)), nil
}

// leastLoaded takes the candidate with the fewest requests in flight. Equals take turns by ordinal: an idle fleet
// would otherwise send every request to the first worker.
func leastLoaded(q *router.Query, candidates []router.Candidate) (int, error) {
	n := len(candidates)
	start := int(q.Ordinal % uint64(n))
	best := start
	for i := 1; i < n; i++ {
		at := (start + i) % n
		if candidates[at].InFlight < candidates[best].InFlight {
			best = at
		}
	}
	return best, nil
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
	if candidates[second].InFlight < candidates[first].InFlight {
		return second, nil
	}
	return first, nil
}

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
