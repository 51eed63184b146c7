package main

import (
	"time"

	"github.com/portico-llm/portico/internal/loadgen"
)

// The models of a bench stack: a worker as fast as it can be, one at a fixed pace, and one that keeps streams open.
const (
	fastModel  = "fast"
	pacedModel = "paced"
	openModel  = "open"
)

// row is one line of the comparison.
type row struct {
	name  string
	model string
	load  loadgen.Options
	// backend is the tokenizer backend the subject is started with.
	backend string
	// goal is the largest ratio of CPU per request that is good enough; 0: none is set.
	goal float64
	// fresh starts the frontends anew, one after the other, so that memory is what this row takes.
	fresh bool
	// perStream is the goal for the memory of one open stream, in KiB; 0: not an open-streams row.
	perStream float64
}

// allRows returns the comparison's lines, a new slice each time. Prompts are of 109 and 4,033 tokens, a short chat and
// a long document; 64 tokens come out, but for the open streams. The order is the table's within a model.
func (s *settings) allRows() []row {
	// As many requests as the server takes: what a request costs in CPU time shows best under full load.
	burst := func(tokens, connections int) loadgen.Options {
		return loadgen.Options{PromptTokens: tokens, Connections: connections, Duration: s.duration, Warmup: 4 * connections}
	}
	// The ramp spreads the streams over a whole answer, so that they don't tick together.
	paced := loadgen.Options{PromptTokens: 109, Connections: 256, Ramp: 1300 * time.Millisecond, Duration: s.duration, Warmup: 256}
	// Most loads open a connection for each request, as clients without a pool do.
	kept := burst(109, 64)
	kept.KeepAlive = true
	// Two descriptors a stream at the frontend, one here and one at the worker.
	streams := 5000
	if s.short {
		streams = 1000
	}
	// Every connection sends one request, and all are open before the first ends.
	open := loadgen.Options{
		PromptTokens: 109, MaxTokens: 20, Connections: streams, Requests: streams, Duration: 2 * time.Minute,
		Ramp: 8 * time.Second, Warmup: 0, Timeout: 2 * time.Minute,
	}
	// Goals are ratios of CPU time a request to the reference's.
	return []row{
		{name: "burst 109 tokens, 64 connections", model: fastModel, load: burst(109, 64), goal: 0.5},
		{name: "burst 109 tokens, 256 connections", model: fastModel, load: burst(109, 256), goal: 0.5},
		{name: "burst 109 tokens, 64 kept alive", model: fastModel, load: kept},
		{name: "long 4033 tokens, 16 connections", model: fastModel, load: burst(4033, 16), goal: 0.25},
		{name: "long 4033 tokens, 64 connections", model: fastModel, load: burst(4033, 64), goal: 0.25},
		{name: "reference backend, 4033 tokens, 16 connections", model: fastModel, load: burst(4033, 16), backend: "tokenizers", goal: 0.75},
		{name: "reference backend, 4033 tokens, 64 connections", model: fastModel, load: burst(4033, 64), backend: "tokenizers", goal: 0.75},
		{name: "paced 20 ms, 256 streams", model: pacedModel, load: paced, goal: 0.7},
		{name: "open streams", model: openModel, load: open, fresh: true, perStream: 48},
	}
}

// rssGoal is the largest resident size after all burst rows that is good enough, in MiB.
const rssGoal = 160
