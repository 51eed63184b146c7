package kvcost

import (
	"math/rand/v2"
	"slices"
)

// Columns are candidates column by column, for a choice among many that has little to look at of each: what it reads then
// stays in the processor's first cache. All of them may be chosen, and nothing is cached below their devices. The columns
// are of the same length.
type Columns struct {
	Loads  []Load
	Device []uint32 // blocks of the prompt on the device, from its start
}

// ChooseColumns is Choose for the usual case, and chooses just as it would. It reports false, and hasn't chosen, where
// there are no candidates or the query or the weights ask for more than columns say. It allocates nothing once s has grown.
func ChooseColumns(q *Query, c *Config, cols *Columns, random *rand.Rand, s *Scratch) (Choice, bool) {
	m := newModel(q, c)
	if len(cols.Loads) == 0 || !m.plain() || q.Pinned != nil || q.Allowed != nil || len(q.Required) > 0 {
		return Choice{}, false
	}
	s.costs = slices.Grow(s.costs[:0], len(cols.Loads))[:len(cols.Loads)]
	m.columns(cols, s.costs)
	i := s.sample(c.Temperature, random)
	return m.choice(i, &Candidate{Load: &cols.Loads[i], Device: cols.Device[i]}, s.costs[i]), true
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
