package server

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/portico-llm/portico/api/anthropic"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
)

// model is one model in OpenAI's form. OwnedBy is what clients of Dynamo are used to.
type model struct {
	ID              string `json:"id"` // what requests name in model
	Object          string `json:"object"`
	Created         int64  `json:"created"` // Unix seconds
	OwnedBy         string `json:"owned_by"`
	ContextWindow   uint32 `json:"context_window"`              // tokens of prompt and answer together
	MaxOutputTokens uint32 `json:"max_output_tokens,omitempty"` // 0: as many as the context holds
	Root            string `json:"root,omitempty"`              // what an alias or an adapter stands for; empty: itself
	Parent          string `json:"parent,omitempty"`            // base model of an adapter
}

// modelOf writes a catalog entry in OpenAI's form, with the fields clients of Dynamo read besides.
func modelOf(m catalog.ModelInfo) model {
	o := model{
		ID: m.ID, Object: "model", Created: m.Created, OwnedBy: "nvidia",
		ContextWindow: m.ContextWindow, MaxOutputTokens: m.MaxOutput, Parent: m.Parent,
	}
	if m.Root != m.ID {
		o.Root = m.Root
	}
	return o
}

// listModels lists the models that can be served now.
func (s *Server) listModels(w http.ResponseWriter, r *http.Request) {
	if s.asksAnthropic(r) {
		var models []anthropic.Model
		for _, m := range s.opts.Catalog.Models() {
			if m.Ready {
				models = append(models, anthropic.NewModel(m.ID, m.Created))
			}
		}
		s.json(w, anthropic.NewModelList(models))
		return
	}
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
		// No models are an empty array, never null.
	}{"list", []model{}}
	for _, m := range s.opts.Catalog.Models() {
		if m.Ready {
			list.Data = append(list.Data, modelOf(m))
		}
	}
	s.json(w, list)
}

// oneModel describes one model, or tells whether it is ready. An id may hold slashes, and may itself end with /ready.
func (s *Server) oneModel(w http.ResponseWriter, r *http.Request) {
	// The escaped path tells a slash of the id, %2F, from the route's own; then both mean the same.
	path := r.URL.EscapedPath()[len(s.opts.Paths.Models)+1:]
	id, err := url.PathUnescape(path)
	if err != nil {
		s.errors.write(w, fault.Bad("", "The model's id is not a valid path"))
		return
	}
	// The whole name comes first: a model may itself be called …/ready.
	m, ok := s.model(id)
	switch {
	case ok && m.Ready && s.asksAnthropic(r):
		s.json(w, anthropic.NewModel(m.ID, m.Created))
		return
	case ok && m.Ready:
		s.json(w, modelOf(m))
		return
	}
	if name, ok := strings.CutSuffix(id, "/ready"); ok {
		s.modelReady(w, name)
		return
	}
	if s.asksAnthropic(r) {
		s.anthropicErrors.write(w, modelNotFound(id))
		return
	}
	s.errors.write(w, modelNotFound(id))
}

// modelReady tells whether requests for a model would be taken.
func (s *Server) modelReady(w http.ResponseWriter, id string) {
	m, ok := s.model(id)
	switch {
	case !ok:
		s.errors.write(w, modelNotFound(id))
	case !m.Ready || s.life.draining.Load():
		// The catalog knows why it isn't ready, and when to ask again.
		_, err := s.opts.Catalog.Lookup(id)
		f := fault.From(err)
		if f == nil || f.Kind != fault.Unavailable {
			f = errNotReady
		}
		s.errors.write(w, f)
	default:
		s.json(w, struct {
			ID     string `json:"id"`
			Object string `json:"object"`
			Ready  bool   `json:"ready"`
		}{id, "model.ready", true})
	}
}

// modelNotFound is OpenAI's failure for a model nobody serves, with its code.
func modelNotFound(id string) *fault.Error {
	return fault.New(fault.NotFound, "The model `%s` does not exist", clip(id, 256)).WithCode("model_not_found")
}

// model finds a catalog entry by its id. Lists are short, and so is the search.
func (s *Server) model(id string) (catalog.ModelInfo, bool) {
	for _, m := range s.opts.Catalog.Models() {
		if m.ID == id {
			return m, true
		}
	}
	return catalog.ModelInfo{}, false
}

// json answers with v.
func (s *Server) json(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		s.errors.write(w, fault.From(err))
		return
	}
	_ = writeJSON(w, body) // a client that has left doesn't read it
}
