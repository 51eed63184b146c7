package kvcost

import (
	"math"
	"math/rand/v2"
)

// Choice is the candidate chosen, and what it means for the request.
type Choice struct {
	Index  int // among the candidates
	Cost   float64
	Cached int // tokens that needn't be computed

	Overlap  float64 // cached blocks, weighed by tier
	Blocks   int     // of the prompt
	Decoding int     // blocks in decoding there, with the prompt's
}

// Scratch is room that choices reuse. The zero value is ready; it is used by one goroutine at a time.
type Scratch struct {
	costs  []float64
	shares []float64 // of probability, up to a factor
}

// Choose picks a candidate, and reports false where there are none. Equal ones are equally likely. It allocates nothing
// once s has grown.
func Choose(q *Query, c *Config, candidates []Candidate, random *rand.Rand, s *Scratch) (Choice, bool) {
	if len(candidates) == 0 {
		return Choice{}, false
	}
	Costs(q, c, candidates, s)
	i := s.sample(c.Temperature, random)
	m := newModel(q, c)
	return m.choice(i, &candidates[i], s.costs[i]), true
}

// Costs works out the cost of each candidate. What it returns is valid until s is used again.
func Costs(q *Query, c *Config, candidates []Candidate, s *Scratch) []float64 {
	m := newModel(q, c)
	s.costs = s.costs[:0]
	if m.plain() {
		for i := range candidates {
			s.costs = append(s.costs, m.plainCost(&candidates[i]))
		}
		return s.costs
	}
	m.least = math.MaxInt64
	for i := range candidates {
		backlog := int64(0)
		if load := candidates[i].Load; load != nil {
			backlog = load.PrefillTokens
		}
		m.least = min(m.least, backlog)
	}
	var factors factors
	for i := range candidates {
		cost := m.cost(&candidates[i])
		if len(m.preferred) > 0 {
			cost *= factors.of(weight(m.preferred, candidates[i].Taints))
		}
		s.costs = append(s.costs, cost)
	}
	return s.costs
}

// choice tells what a candidate has cached even where the cost doesn't count it.
func (m *model) choice(i int, c *Candidate, cost float64) Choice {
	effective, cached := m.effective(c)
	blocks := blocksOf(int(m.tokens), int(m.block))
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
