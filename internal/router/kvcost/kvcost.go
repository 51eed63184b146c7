// Package kvcost chooses a worker by what its cache saves and by what it already has to do. The cost of a candidate is
// counted in blocks, lower is better:
//
//	prefill that isn't cached + blocks in decoding + a weight for each running request
//
// Everything here is a pure function of its arguments: the caller gathers overlaps and loads of those that may be chosen,
// chooses, and notes the choice. The arithmetic is that of Dynamo's default policy, bit for bit on every architecture:
// each product is rounded by itself, because a fused multiply-add would differ. One thing is meant to differ: overrides
// that come with a request are honoured (see Override).
package kvcost

import "math"

// Config weighs the parts of the cost. Default gives the usual weights.
type Config struct {
	OverlapCredit    float64 // what a block cached on the device is worth
	CreditDecay      float64 // how much the backlog of a worker devalues what it has cached; 0: not at all
	HostWeight       float64 // what a block cached in host memory is worth
	DiskWeight       float64 // what a block cached on disk is worth
	SharedMultiplier float64 // what a block in a cache that all workers share is worth
	PrefillScale     float64 // weight of prefill against decoding
	RequestWeight    float64 // cost of each running request
	Temperature      float64 // 0: the cheapest; larger: the more even
}

// Default returns the weights that hold when nothing is configured.
func Default() Config {
	return Config{OverlapCredit: 1, HostWeight: 0.75, DiskWeight: 0.25, PrefillScale: 1}
}

// Override is what one request may change. Nil leaves a value alone.
type Override struct {
	OverlapCredit, PrefillScale, Temperature, SharedMultiplier *float64
}

// With returns the configuration under an override, which may be nil.
func (c Config) With(o *Override) Config {
	if o == nil {
		return c
	}
	set := func(to *float64, from *float64) {
		if from != nil {
			*to = *from
		}
	}
	set(&c.OverlapCredit, o.OverlapCredit)
	set(&c.PrefillScale, o.PrefillScale)
	set(&c.Temperature, o.Temperature)
	set(&c.SharedMultiplier, o.SharedMultiplier)
	return c
}

// Role is what the workers of a pool do.
type Role uint8

// The roles of pools. Aggregated workers do both prefill and decoding.
const (
	Aggregated Role = iota
	Prefill
	Decode
	Encode
)

// Load is what a worker has to do, as far as the router knows.
type Load struct {
	PrefillTokens    int64 // of requests that haven't begun to answer
	DecodeBlocks     int64 // of running requests
	AdditionalBlocks int64 // that this request would add
	Requests         int64
}

// Candidate is one rank of one worker.
type Candidate struct {
	Worker uint64
	Rank   uint32
	Load   *Load // nil: unknown

	// Blocks of the prompt that the worker has: on the device from the prompt's start, in host memory behind those, and
	// on disk behind those.
	Device, Host, Disk uint32

	Taints []string
}

// Taint is a taint that a request prefers (a positive weight) or avoids (a negative one).
type Taint struct {
	Name   string
	Weight float64
}

// Query is what the choice must know of a request and its pool.
type Query struct {
	Tokens    int // of the prompt
	BlockSize int
	Role      Role

	// TrackPrefill counts the prefill that workers have before them.
	TrackPrefill bool

	// Combined says that only the weighed sum of the tiers is known, not what lies in which. It is given as Device, Host
	// and Disk all the same.
	Combined bool

	Shared [][2]int // ranges [from, to) of blocks in the cache that all workers share; ascending

	Preferred []Taint
}

// model is a query and its weights, with everything worked out that is the same for all candidates.
type model struct {
	c         Config
	block     float64
	tokens    int64
	blocks    float64 // of the prompt, at least 1
	credit    float64 // what a block on the device counts
	cache     bool    // caches count at all
	track     bool
	combined  bool
	bare      bool // decoding alone is charged, less the credit
	decay     bool
	shared    [][2]int
	preferred []Taint
	least     int64 // smallest prefill backlog of a candidate
}

func newModel(q *Query, c *Config) model {
	m := model{
		c: *c, block: float64(q.BlockSize), tokens: int64(q.Tokens), blocks: max(1, float64(blocksOf(q.Tokens, q.BlockSize))),
		credit: c.OverlapCredit, track: q.TrackPrefill, combined: q.Combined, shared: q.Shared, preferred: q.Preferred,
	}
	decode := q.Role == Decode
	m.cache = !decode && c.OverlapCredit != 0
	if decode && !q.TrackPrefill {
		m.credit = 0
	}
	m.bare = q.Role != Prefill && !q.TrackPrefill && m.credit > 0
	m.decay = q.TrackPrefill && c.CreditDecay > 0
	return m
}

// blocksOf returns how many blocks a number of tokens takes.
func blocksOf(tokens, blockSize int) int {
	if blockSize <= 0 {
		return 0
	}
	return (tokens + blockSize - 1) / blockSize
}

// effective returns what a candidate has cached over all tiers, in blocks and in tokens.
func (m *model) effective(c *Candidate) (blocks float64, tokens int64) {
	blocks = float64(c.Device) + float64(m.c.HostWeight*float64(c.Host)) + float64(m.c.DiskWeight*float64(c.Disk))
	if c.Host|c.Disk == 0 {
		return blocks, int64(c.Device) * int64(m.block) // whole blocks need no rounding
	}
	return blocks, int64(math.Round(blocks * m.block))
}

// tiers returns what counts as cached in each tier.
func (m *model) tiers(c *Candidate) (device, host, disk float64) {
	switch {
	case !m.cache:
		return 0, 0, 0
	case m.combined:
		effective, _ := m.effective(c)
		return effective, 0, 0
	}
	return float64(c.Device), float64(c.Host), float64(c.Disk)
}

// prompt returns the tokens of the prompt, or those cached where more of them are said to be.
func (m *model) prompt(c *Candidate) int64 {
	if !m.cache {
		return m.tokens
	}
	_, cached := m.effective(c)
	return max(m.tokens, cached)
}

// cost returns the cost of a candidate, without what taints make of it.
func (m *model) cost(c *Candidate) float64 {
	var load Load
	if c.Load != nil {
		load = *c.Load
	}
	device, host, disk := m.tiers(c)
	decay := 1.0
	if m.decay {
		decay = 1 / (1 + float64(m.c.CreditDecay*(float64(load.PrefillTokens-m.least)/m.block))/m.blocks)
	}
	credit := float64(float64(m.credit*decay)*device) + float64(m.c.HostWeight*host) + float64(m.c.DiskWeight*disk)
	if m.cache && m.c.SharedMultiplier != 0 {
		credit += float64(m.c.SharedMultiplier * float64(m.beyond(int(math.Round(device)))))
	}
	blocks := float64(load.DecodeBlocks + load.AdditionalBlocks)
	requests := float64(m.c.RequestWeight * float64(load.Requests))
	if m.bare {
		return max(0, blocks-credit) + requests
	}
	var prefill int64
	switch {
	case !m.track:
	case c.Load == nil:
		prefill = m.tokens
	default:
		prefill = load.PrefillTokens + m.prompt(c)
	}
	return float64(m.c.PrefillScale*max(0, float64(prefill)/m.block-credit)) + blocks + requests
}

// plain reports whether the usual settings hold, under which plainCost is the cost.
func (m *model) plain() bool {
	return m.track && !m.decay && !m.combined && !m.bare && m.c.SharedMultiplier == 0 && len(m.preferred) == 0
}

// plainCost is cost under the usual settings, to the last bit: what is left out there adds zero or multiplies by one. A
// choice among a thousand candidates spends its time here.
func (m *model) plainCost(c *Candidate) float64 {
	load := c.Load
	if load == nil || c.Host|c.Disk != 0 {
		return m.cost(c)
	}
	prompt, credit := m.tokens, 0.0
	if m.cache {
		prompt = max(prompt, int64(c.Device)*int64(m.block))
		credit = float64(m.credit * float64(c.Device))
	}
	prefill := float64(load.PrefillTokens + prompt)
	return float64(m.c.PrefillScale*max(0, prefill/m.block-credit)) + float64(load.DecodeBlocks+load.AdditionalBlocks) +
		float64(m.c.RequestWeight*float64(load.Requests))
}

// beyond counts the shared blocks at or behind a position.
func (m *model) beyond(position int) int {
	n := 0
	for _, r := range m.shared {
		n += max(0, r[1]-max(r[0], position))
	}
	return n
}
