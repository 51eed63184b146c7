package kvcost

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// ErrNoEndpoints is returned when no candidate may take the request.
var ErrNoEndpoints = errors.New("no endpoints available to route work")

// NotAllowedError is returned when a request insists on a worker that it isn't allowed to use.
type NotAllowedError struct{ Worker uint64 }

// Error says which worker it is.
func (e *NotAllowedError) Error() string {
	return fmt.Sprintf("pinned worker %d is not in allowed worker set", e.Worker)
}

// Choice is the candidate chosen, and what it means for the request.
type Choice struct {
	Index  int     // among the candidates
	Cost   float64 // 0 for a pinned rank
	Cached int     // tokens that needn't be computed

	Overlap  float64 // cached blocks, weighed by tier
	Blocks   int     // of the prompt
	Decoding int     // blocks in decoding there, with the prompt's
}

// Scratch is room that choices reuse. The zero value is ready; it is used by one goroutine at a time.
type Scratch struct {
	eligible []int32
	costs    []float64
	shares   []float64 // of probability, up to a factor
}

// Choose picks a candidate. Equal ones are equally likely. It allocates nothing once s has grown.
func Choose(q *Query, c *Config, candidates []Candidate, random *rand.Rand, s *Scratch) (Choice, error) {
	if q.Pinned != nil {
		return pinned(q, c, candidates)
	}
	Costs(q, c, candidates, s)
	if len(s.eligible) == 0 {
		return Choice{}, ErrNoEndpoints
	}
	i := s.sample(c.Temperature, random)
	m := newModel(q, c)
	return m.choice(int(s.eligible[i]), &candidates[s.eligible[i]], s.costs[i]), nil
}

// Costs works out the cost of each candidate that may take the request. What it returns, the indices of those
// candidates and their costs, is valid until s is used again.
func Costs(q *Query, c *Config, candidates []Candidate, s *Scratch) (eligible []int32, costs []float64) {
	m := newModel(q, c)
	s.eligible, s.costs = s.eligible[:0], s.costs[:0]
	m.least = math.MaxInt64
	everybody := q.Allowed == nil && len(q.Required) == 0
	for i := range candidates {
		if everybody || q.admits(&candidates[i]) {
			s.eligible = append(s.eligible, int32(i))
		}
	}
	if m.plain() {
		for _, i := range s.eligible {
			s.costs = append(s.costs, m.plainCost(&candidates[i]))
		}
		return s.eligible, s.costs
	}
	for _, i := range s.eligible {
		backlog := int64(0)
		if load := candidates[i].Load; load != nil {
			backlog = load.PrefillTokens
		}
		m.least = min(m.least, backlog)
	}
	var factors factors
	for _, i := range s.eligible {
		cost := m.cost(&candidates[i])
		if len(m.preferred) > 0 {
			cost *= factors.of(weight(m.preferred, candidates[i].Taints))
		}
		s.costs = append(s.costs, cost)
	}
	return s.eligible, s.costs
}

// pinned takes the rank that the request insists on, if it may.
func pinned(q *Query, c *Config, candidates []Candidate) (Choice, error) {
	if q.Allowed != nil && !q.Allowed(q.Pinned.Worker) {
		return Choice{}, &NotAllowedError{Worker: q.Pinned.Worker}
	}
	for i := range candidates {
		candidate := &candidates[i]
		if candidate.Worker == q.Pinned.Worker && candidate.Rank == q.Pinned.Rank && q.admits(candidate) {
			m := newModel(q, c)
			return m.choice(i, candidate, 0), nil
		}
	}
	return Choice{}, ErrNoEndpoints
}

// admits reports whether a candidate may take the request.
func (q *Query) admits(c *Candidate) bool {
	if q.Allowed != nil && !q.Allowed(c.Worker) {
		return false
	}
	for _, t := range q.Required {
		if !slices.Contains(c.Taints, t) {
			return false
		}
	}
	return true
}

// choice tells what a candidate has cached even where the cost doesn't count it.
func (m *model) choice(i int, c *Candidate, cost float64) Choice {
	effective, cached := m.effective(c)
	blocks := Blocks(int(m.tokens), int(m.block))
	ch := Choice{Index: i, Cost: cost, Cached: int(cached), Overlap: effective, Blocks: blocks, Decoding: blocks}
	if c.Load != nil {
		ch.Decoding += int(c.Load.DecodeBlocks + c.Load.AdditionalBlocks)
	}
	return ch
}

// sample returns the index of one of the costs (there is at least one): the lowest at temperature 0, and otherwise one
// drawn with a probability that falls exponentially with its distance from the lowest, in units of the spread.
func (s *Scratch) sample(temperature float64, random *rand.Rand) int {
	if temperature == 0 {
		return lowestOf(s.costs, random)
	}
	lowest, highest := s.costs[0], s.costs[0]
	for _, c := range s.costs[1:] {
		lowest, highest = min(lowest, c), max(highest, c)
	}
	spread := (highest - lowest) * temperature
	if !(spread > 0) || math.IsInf(spread, 0) {
		// All are equal, or some cost or the temperature isn't a number worth comparing.
		return lowestOf(s.costs, random)
	}
	sum := 0.0
	s.shares = s.shares[:0]
	for _, c := range s.costs {
		share := math.Exp((lowest - c) / spread)
		s.shares = append(s.shares, share)
		sum += share
	}
	at := random.Float64() * sum
	for i, share := range s.shares {
		if at -= share; at < 0 {
			return i
		}
	}
	return lowestOf(s.costs, random) // rounding has eaten the last share
}

// lowestOf draws evenly among the lowest costs. It draws once, however many there are: an idle fleet costs all the same.
func lowestOf(costs []float64, random *rand.Rand) int {
	lowest, first, n := costs[0], 0, 0
	for i, c := range costs {
		switch {
		case c > lowest:
		case c < lowest:
			lowest, first, n = c, i, 1
		case c == lowest: // not so when either isn't a number
			n++
		}
	}
	if n < 2 {
		return first
	}
	for at := random.IntN(n); ; first++ {
		if costs[first] == lowest {
			if at == 0 {
				return first
			}
			at--
		}
	}
}
