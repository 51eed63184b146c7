package msgparse

import (
	"strings"

	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/reasonparse"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// Plan decides how the answer to a request is taken apart; nil: it isn't, its text is the client's as it is. The
// function is the one that pipelines are given. Names of tool parsers that nobody knows count as none: they are refused
// where they are configured.
func Plan(q *prepost.AnswerRequest) *prepost.AnswerPlan {
	p := &prepost.AnswerPlan{}
	tools := planTools(q, p)
	// Kimi K3 writes its thought as a part of the message: the tag of a named function begins behind it.
	p.WithoutThought = tools != nil && tools.tagged && isKimiK3(tools.name) && q.Choice == prepost.MustCallFunction
	if q.JSON && (isMiniMaxM3(q.ToolParser) || isMiniMaxM3(q.ReasoningParser)) {
		p.WithoutThought, p.ModeSwitch = true, true
	}
	thoughts := planReasoning(q, p, tools)
	if tools == nil && thoughts == nil {
		// What the worker is told doesn't depend on what this request needs.
		if !p.WorkerKeepsSpecial && !p.WithoutThought {
			return nil
		}
		return p
	}
	if tools != nil && tools.tagged {
		p.StructuralTag = callTag(tools.name, q, thoughts.before(q, p, tools))
	}
	p.New = func() prepost.AnswerParser { return newParser(tools, thoughts) }
	return p
}

// isMiniMaxM3 reports whether a parser is one of the family whose engines hold an answer to its form from the first token
// on, so that there is no room for a thought in front of it.
func isMiniMaxM3(parser string) bool {
	switch strings.ReplaceAll(parser, "-", "_") {
	case "minimax_m3", "minimax_m3_nom":
		return true
	}
	return false
}

// toolStage is a tool parser to be made.
type toolStage struct {
	name    string
	options toolparse.Options
	active  bool // calls are passed on
	tagged  bool // calls are held to the dialect's own form
}

// forced reports whether a call has to be made, so that the answer may be guided JSON.
func (s *toolStage) forced() bool {
	return s.options.Choice == toolparse.Required || s.options.Choice == toolparse.Named
}

// planTools decides on the tool parser; nil: none runs.
func planTools(q *prepost.AnswerRequest, p *prepost.AnswerPlan) *toolStage {
	d, known := toolparse.Lookup(q.ToolParser)
	s := &toolStage{options: toolparse.Options{
		Function: q.Function, Single: q.OneCall, Marked: q.JSON && q.Choice == prepost.MayCall,
	}}
	if known {
		s.name = q.ToolParser
	}
	p.WorkerKeepsSpecial = d.SkipSpecialFalse
	markup := specialOnes(q, d.Markers, d.Tokens)
	switch {
	case len(q.Tools) == 0:
		if s.options.Choice = toolparse.None; !d.Always && len(markup) == 0 {
			return nil
		}
	case q.Choice == prepost.MustNotCall:
		s.options.Choice = toolparse.None
	case q.Choice == prepost.MustCall:
		s.options.Choice = toolparse.Required
	case q.Choice == prepost.MustCallFunction:
		s.options.Choice = toolparse.Named
	}
	s.active = s.options.Choice != toolparse.None
	// Without a parser only forced calls can be read: their form is the engine's.
	if !known && !s.forced() {
		return nil
	}
	if s.active {
		p.VisibleStops = d.VisibleStops
	}
	if s.active {
		s.tagged = wantsTag(q, &d)
	}
	p.Markup = markup
	for _, f := range q.Tools {
		s.options.Tools = append(s.options.Tools,
			toolparse.Tool{Name: f.Name, Parameters: f.Parameters, Strict: f.Strict})
	}
	return s
}

// specialOnes returns those of the texts that are special tokens.
func specialOnes(q *prepost.AnswerRequest, texts ...[]string) (special []string) {
	for _, list := range texts {
		for _, text := range list {
			if q.Special(text) {
				special = append(special, text)
			}
		}
	}
	return special
}

// thoughtStage is a reasoning parser to be made.
type thoughtStage struct {
	name    string
	options reasonparse.Options
}

// thought is one that the answer begins with.
type thought struct{ end string }

// before returns the thought that the tag has to let pass, nil when there is none or the engine does that. Where the
// worker says whose business it is, the plan tells its engine accordingly.
func (s *thoughtStage) before(q *prepost.AnswerRequest, p *prepost.AnswerPlan, tools *toolStage) *thought {
	if s == nil {
		return nil
	}
	open := reasonparse.BeginsInside(s.name, s.options)
	switch q.Tags.Boundary {
	case prepost.BoundaryEngine:
		return nil
	case prepost.BoundaryTold:
		p.RequireReasoning = s.options.Enabled
		return nil
	case prepost.BoundaryAuto:
		if q.Tags.Gate && p.RequireReasoning {
			return nil
		}
	}
	if !open || isKimiK3(tools.name) {
		return nil
	}
	if q.Tags.Boundary == prepost.BoundaryTag {
		p.RequireReasoning = false
	}
	return &thought{reasonparse.End(s.name)}
}

// planReasoning decides on the reasoning parser; nil: none runs.
func planReasoning(q *prepost.AnswerRequest, p *prepost.AnswerPlan, tools *toolStage) *thoughtStage {
	if q.ReasoningParser == "" {
		return nil
	}
	name := q.ReasoningParser
	forced := len(q.Tools) > 0 && (q.Choice == prepost.MustCall || q.Choice == prepost.MustCallFunction)
	if forced && name == appendThink {
		name = "minimax_m2" // the answer is a call: there is no content that the thought could stay in
	}
	s := &thoughtStage{name: name}
	if q.Continues {
		s.options.Prompt = reasonparse.ReadTurn(name, q.Prompt)
	} else {
		s.options.Prompt = reasonparse.ReadPrompt(name, q.Prompt)
	}
	s.options.Enabled = !p.WithoutThought && reasonparse.Enabled(name, reasonparse.Switches{
		EnableThinking: q.EnableThinking, Thinking: q.Thinking, ReasoningEffort: q.ReasoningEffort})
	s.options.Guided, s.options.Forced = q.JSON, forced
	if tools != nil && tools.active {
		s.options.ToolParser = tools.name
	}
	p.Reasoning = true
	p.Markup = append(p.Markup, specialOnes(q, reasonparse.Markers(name), reasonparse.Tokens(name))...)
	w := workerNeeds(name)
	p.WorkerKeepsSpecial = p.WorkerKeepsSpecial || w.keepSpecial
	switch w.constraint {
	case afterThought:
		p.RequireReasoning = q.JSON && s.options.Enabled
	case forcedAfterThought:
		p.RequireReasoning = forced
	}
	p.ThoughtIsOpen = w.tellOpen && s.options.Prompt == reasonparse.Opens
	p.DefaultThinking = w.defaultOn
	return s
}

// appendThink is the reasoning parser that leaves thoughts in the content.
const appendThink = "minimax_append_think"

// needs is what a worker is told for the sake of a reasoning parser.
type needs struct {
	keepSpecial bool // the markers are special tokens in every model of the family
	constraint  constraint
	tellOpen    bool // whether the prompt has opened the thought
	defaultOn   bool // templates of the family think unless told otherwise
}

// constraint says when the constraint of an answer waits for the end of the thought.
type constraint uint8

const (
	afterThought       constraint = iota // whenever there is one
	forcedAfterThought                   // only for calls that must be made: other formats are the engine's business
	neverAfterThought
)

// workerNeeds returns what the named family needs. The table follows what Dynamo 1.6.1 sends.
func workerNeeds(name string) needs {
	switch strings.ReplaceAll(name, "-", "_") {
	case "gpt_oss":
		return needs{keepSpecial: true, constraint: forcedAfterThought}
	case "muse_glimmer", "muse":
		return needs{keepSpecial: true, constraint: neverAfterThought}
	case "deepseek_v41":
		return needs{tellOpen: true}
	case "kimi_k25":
		return needs{defaultOn: true}
	case "kimi_k3":
		return needs{keepSpecial: true, tellOpen: true, defaultOn: true}
	case "inkling":
		return needs{keepSpecial: true, constraint: neverAfterThought}
	case "mistral", "gemma4", "minimax_m3":
		return needs{keepSpecial: true}
	}
	return needs{}
}
