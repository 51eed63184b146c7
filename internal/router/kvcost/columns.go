package kvcost

import (
	"math/rand/v2"
	"slices"
)

// Columns are candidates column by column, for a choice among many that has little to look at of each: what it reads then
// stays in the processor's first cache. Nothing is cached below their devices. Loads and Device are of the same length.
type Columns struct {
	Loads   []Load
	Device  []uint32 // blocks of the prompt on the device, from its start
	Without []int32  // places of those that may not be chosen, ascending
}

// ChooseColumns is Choose for the usual case, and chooses just as it would. It reports false, and hasn't chosen, where
// there is nobody to choose or the query or the weights ask for more than columns say. It allocates nothing once s has grown.
func ChooseColumns(q *Query, c *Config, cols *Columns, random *rand.Rand, s *Scratch) (Choice, bool) {
	m := newModel(q, c)
	if len(cols.Loads) <= len(cols.Without) || !m.plain() {
		return Choice{}, false
	}
	s.costs = slices.Grow(s.costs[:0], len(cols.Loads))[:len(cols.Loads)]
	m.columns(cols, s.costs)
	s.leave(cols.Without)
	i := s.sample(c.Temperature, random)
	cost := s.costs[i]
	for _, w := range cols.Without {
		if int(w) > i {
			break
		}
		i++
	}
	return m.choice(i, &Candidate{Load: &cols.Loads[i], Device: cols.Device[i]}, cost), true
}

// leave takes costs out and closes the gaps.
func (s *Scratch) leave(without []int32) {
	if len(without) == 0 {
		return
	}
	kept := int(without[0])
	for i, w := range without {
		to := len(s.costs)
		if i+1 < len(without) {
			to = int(without[i+1])
		}
		kept += copy(s.costs[kept:], s.costs[w+1:to])
	}
	s.costs = s.costs[:kept]
}

// columns writes what plainCost says of each candidate.
func (m *model) columns(cols *Columns, costs []float64) {
	credit, size := m.credit, int64(m.block)
	if !m.cache { // what is cached then counts as nothing
		credit, size = 0, 0
	}
	block, scale, request := m.block, m.c.PrefillScale, m.c.RequestWeight
	device := cols.Device[:len(cols.Loads)]
	costs = costs[:len(cols.Loads)]
	for i := range cols.Loads {
		l, cached := &cols.Loads[i], device[i]
		prefill := float64(l.PrefillTokens+max(m.tokens, int64(cached)*size))/block - float64(credit*float64(cached))
		if prefill < 0 {
			prefill = 0
		}
		costs[i] = float64(scale*prefill) + float64(l.DecodeBlocks+l.AdditionalBlocks) + float64(request*float64(l.Requests))
	}
}
