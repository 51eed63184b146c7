package server

import (
	"bytes"
	"encoding/json"

	"github.com/go-chi/chi/v5"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/validate"
)

// tokenizeRoutes adds the routes that turn text into tokens and back, where vLLM has them and where the others stand.
func (s *Server) tokenizeRoutes(r chi.Router) {
	for _, prefix := range []string{"", "/v1"} {
		r.Post(prefix+"/tokenize", s.inference(endpointTokenize, (*exchange).tokenize))
		r.Post(prefix+"/detokenize", s.inference(endpointDetokenize, (*exchange).detokenize))
	}
}

// onlyModel is the name of the one model that is served; empty: there are none, or several.
func (s *Server) onlyModel() (name string) {
	for _, m := range s.opts.Catalog.Models() {
		if m.Ready && name != "" {
			return ""
		}
		if m.Ready {
			name = m.ID
		}
	}
	return name
}

// findAny looks a model up, whatever it can be asked for: all of them read tokens.
func (x *exchange) findAny(model string) (*catalog.Set, error) {
	set, err := x.s.opts.Catalog.Lookup(model)
	if err != nil && fault.KindOf(err) != fault.Unavailable {
		x.known(unknownModel, false)
		return nil, err
	}
	x.known(model, false)
	return set, err
}

// tokenized is the answer to POST /tokenize.
type tokenized struct {
	Count  int      `json:"count"`
	MaxLen uint32   `json:"max_model_len"` // tokens of prompt and answer together; 0: unknown
	Tokens []uint32 `json:"tokens"`
	Texts  []string `json:"token_strs"` // null unless asked for
}

// tokenize answers POST /tokenize.
func (x *exchange) tokenize() error {
	body, err := x.s.readBody(x.w, x.r)
	if err != nil {
		return err
	}
	req, err := openai.DecodeTokenize(body, x.s.onlyModel(), x.s.opts.Decode)
	if err != nil {
		return err
	}
	set, unknown := x.findAny(req.Model)
	if fault.KindOf(unknown) == fault.Unavailable {
		return unknown
	}
	if req.Chat != nil { // the order of failures is that of chats
		if err := validate.Chat(req.Chat, x.s.opts.Validate); err != nil {
			return err
		}
	}
	if unknown != nil {
		return unknown
	}
	var ids []uint32
	if req.Chat != nil {
		ids, err = x.s.opts.Pipeline.TokenizeChat(x.r.Context(), set, req.Chat, on(req.AddSpecial))
	} else {
		special := req.AddSpecial == nil || *req.AddSpecial
		ids, err = x.s.opts.Pipeline.Tokenize(x.r.Context(), set, req.Model, *req.Prompt, special)
	}
	if err != nil {
		return err
	}
	out := tokenized{Count: len(ids), Tokens: ids}
	if ids == nil {
		out.Tokens = []uint32{}
	}
	if m, ok := x.s.model(req.Model); ok {
		out.MaxLen = m.ContextWindow
	}
	if on(req.Texts) {
		if out.Texts, err = textsOf(set, ids); err != nil {
			return err
		}
	}
	return x.whole(out)
}

// textsOf is the text of each token. Of one that is a part of a character it is U+FFFD.
func textsOf(set *catalog.Set, ids []uint32) ([]string, error) {
	out := make([]string, len(ids))
	for i := range ids {
		text, err := set.Tokenizer.Decode(ids[i:i+1], false)
		if err != nil {
			return nil, err
		}
		out[i] = text
	}
	return out, nil
}

// detokenize answers POST /detokenize.
func (x *exchange) detokenize() error {
	body, err := x.s.readBody(x.w, x.r)
	if err != nil {
		return err
	}
	req, err := openai.DecodeDetokenize(body, x.s.onlyModel(), x.s.opts.Decode)
	if err != nil {
		return err
	}
	set, err := x.findAny(req.Model)
	if err != nil {
		return err
	}
	text, err := x.s.opts.Pipeline.Detokenize(set, req.Model, req.Tokens)
	if err != nil {
		return err
	}
	return x.whole(struct {
		Prompt string `json:"prompt"`
	}{text})
}

// whole answers with v.
func (x *exchange) whole(v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // special tokens are to be read
	if err := enc.Encode(v); err != nil {
		return err
	}
	return x.write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
