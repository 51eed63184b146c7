// Package constraint narrows a request to workers with certain taints, and has it prefer others. Workers publish their
// taints in their models' cards and may change them while they live; requests name them in nvext.routing_constraints.
//
// Constraints are plain values. An Index is safe for concurrent use, and looks take no lock.
package constraint

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
)

// Constraints are what a request wants of its worker. The zero value wants nothing.
type Constraints struct {
	Required  []string           // taints that the worker must have, all of them
	Preferred map[string]float64 // taints that it should have, or, with a negative weight, should not
}

// path is where constraints stand in a request.
const path = "nvext.routing_constraints"

// Parse reads the constraints of a request; nothing and null are none. Members that aren't known are ignored. Failures
// name the member.
func Parse(raw json.RawMessage) (Constraints, error) {
	var c Constraints
	var members struct {
		Required  json.RawMessage `json:"required_taints"`
		Preferred json.RawMessage `json:"preferred_taints"`
	}
	if len(raw) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(raw, &members); err != nil {
		return c, fault.Bad(path, "`%s` must be an object", path).WithCode("invalid_type")
	}
	if len(members.Required) > 0 && json.Unmarshal(members.Required, &c.Required) != nil {
		return Constraints{}, bad("required_taints", "an array of strings")
	}
	if len(members.Preferred) > 0 && json.Unmarshal(members.Preferred, &c.Preferred) != nil {
		return Constraints{}, bad("preferred_taints", "an object of numbers, the weights of taints")
	}
	for i, taint := range c.Required {
		if taint == "" {
			return Constraints{}, bad("required_taints["+strconv.Itoa(i)+"]", "the name of a taint, not an empty string")
		}
	}
	return c, nil
}

// bad is the failure of a member that isn't what it must be.
func bad(member, want string) error {
	at := path + "." + member
	return fault.Bad(at, "`%s` must be %s", at, want).WithCode("invalid_type")
}

// IsZero reports whether the request wants nothing.
func (c Constraints) IsZero() bool { return len(c.Required) == 0 && len(c.Preferred) == 0 }

// Admits reports whether a worker with these taints will do.
func (c Constraints) Admits(taints []string) bool {
	for _, taint := range c.Required {
		if !slices.Contains(taints, taint) {
			return false
		}
	}
	return true
}

// Factor is what the cost of a worker with these taints is multiplied by: 1 without any that are preferred, down to 1/e
// with many, up to e with many that are to be avoided.
func (c Constraints) Factor(taints []string) float64 {
	var sum float64
	for _, taint := range taints {
		sum += c.Preferred[taint]
	}
	return math.Exp(-math.Tanh(sum))
}

// Index knows the taints of all workers. Its zero value knows none.
type Index struct {
	taints atomic.Pointer[map[at][]string] // the map is never changed
}

// at is one worker at one endpoint.
type at struct {
	endpoint worker.EndpointID
	instance uint64
}

// Follow takes in a snapshot of discovery.
func (x *Index) Follow(snap *router.Snapshot) {
	next := map[at][]string{}
	for _, rec := range snap.Models {
		// A worker's adapters have cards of their own, but the taints are the worker's.
		if rec.Suffix == "" && len(rec.Card.RuntimeConfig.Taints) > 0 {
			next[at{rec.ID(), rec.InstanceID}] = rec.Card.RuntimeConfig.Taints
		}
	}
	x.taints.Store(&next)
}

// Of returns the taints of a worker, which the caller must not change.
func (x *Index) Of(endpoint worker.EndpointID, instanceID uint64) []string {
	if m := x.taints.Load(); m != nil {
		return (*m)[at{endpoint, instanceID}]
	}
	return nil
}

// AnyAdmitted reports whether some worker of an endpoint has what c requires, as far as serves lets it.
func (x *Index) AnyAdmitted(c Constraints, endpoint worker.EndpointID, serves func(instanceID uint64) bool) bool {
	m := x.taints.Load()
	if m == nil {
		return false
	}
	for k, taints := range *m {
		if k.endpoint == endpoint && c.Admits(taints) && serves(k.instance) {
			return true
		}
	}
	return false
}
