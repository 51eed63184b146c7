package pipeline

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
)

// PrepareTask makes what the set's workers take of a validated task request; see PrepareChat. The answer comes raw: what
// the workers send is the client's own format, or for embeddings of a set that takes tokens the workers'.
func (p *Pipeline) PrepareTask(
	ctx context.Context, set *catalog.Set, meta Meta, req *openai.TaskRequest,
) (out *Prepared, err error) {
	common := &openai.Common{Model: req.Model, NvExt: req.NvExt}
	out = newPrepared(set, meta, common)
	if err := p.enter(ctx, out, common, inputTokens(req)); err != nil {
		return nil, err
	}
	defer leaveAfter(out, &err)
	defer p.stages.leave(p.stages.enter())
	if set.TakesText() {
		out.Raw = req.Forward()
		return out, nil
	}
	ids, err := p.embedTokens(ctx, set, req)
	if err != nil {
		return nil, err
	}
	// The catalog admits no other task with tokens.
	out.Raw = embedRequest(set, req, ids)
	return out, nil
}

// embedTokens returns the tokens of every input, cut to the length the client wants.
func (p *Pipeline) embedTokens(
	ctx context.Context, set *catalog.Set, req *openai.TaskRequest,
) ([][]uint32, error) {
	in := &req.Input
	if len(in.Tokens) > 0 {
		for i, ids := range in.Tokens {
			at := inputPath(in, i)
			if err := checkTokens(set.Tokenizer, ids, at); err != nil {
				return nil, err
			}
			if err := p.fitsContext(set, req, at, len(ids)); err != nil {
				return nil, err
			}
		}
		return in.Tokens, nil
	}
	out := make([][]uint32, len(in.Texts))
	for i, text := range in.Texts {
		// Truncated texts may be of any length, within what is taken at all.
		fits := p.fitText(set, text, inputPath(in, i))
		if req.Truncate != nil {
			fits = p.capText(text, inputPath(in, i))
		}
		if fits != nil {
			return nil, fits
		}
		ids, err := p.embedText(ctx, set, req, text)
		if err != nil {
			return nil, err
		}
		if err := p.fitsContext(set, req, inputPath(in, i), len(ids)); err != nil {
			return nil, err
		}
		out[i] = ids
	}
	return out, nil
}

// embedText encodes one text. Unlike a chat's prompt it has nobody else to put the model's special tokens around it.
func (p *Pipeline) embedText(
	ctx context.Context, set *catalog.Set, req *openai.TaskRequest, text string,
) ([]uint32, error) {
	special := req.AddSpecial == nil || *req.AddSpecial
	ids, err := p.tokeniseAs(ctx, set.Tokenizer, text, special)
	if err != nil || req.Truncate == nil {
		return ids, err
	}
	limit := int(*req.Truncate)
	if limit < 0 { // as many as the model takes, where that is known
		limit = int(set.Card.EffectiveContextLength())
	}
	if limit == 0 || len(ids) <= limit {
		return ids, nil
	}
	if !special {
		return ids[:limit], nil
	}
	bare, err := p.tokeniseAs(ctx, set.Tokenizer, text, false)
	if err != nil {
		return nil, err
	}
	return truncate(ids, bare, limit), nil
}

// truncate cuts whole to limit tokens and keeps what the model puts around a text: its last token may be the one that
// the vector is taken from. bare is the text without them.
func truncate(whole, bare []prepost.TokenID, limit int) []prepost.TokenID {
	around := len(whole) - len(bare)
	// Found from the front: models add one token or two there.
	for head := 0; head <= around && around <= limit; head++ {
		if slices.Equal(whole[head:head+len(bare)], bare) {
			out := append(slices.Clone(whole[:head]), bare[:limit-around]...)
			return append(out, whole[head+len(bare):]...)
		}
	}
	return whole[:limit]
}

// fitsContext refuses an input that is longer than the model's context, where that is known: engines fail without a
// word about which of a batch it was.
func (p *Pipeline) fitsContext(set *catalog.Set, req *openai.TaskRequest, path string, n int) error {
	p.prepare.inputTokens(req.Model, n)
	limit := int(set.Card.EffectiveContextLength())
	if limit == 0 || n <= limit {
		return nil
	}
	return fault.Bad(path, "`%s` has %d tokens; the model takes %d at most", path, n, limit).
		WithCode("context_length_exceeded")
}

// inputPath is the JSON path of input i.
func inputPath(p *openai.Prompt, i int) string {
	if p.Batch {
		return "input[" + strconv.Itoa(i) + "]"
	}
	return "input"
}

// embedRequest writes what workers take that read tokens.
func embedRequest(set *catalog.Set, req *openai.TaskRequest, ids [][]uint32) json.RawMessage {
	var w objectWriter
	w.name("token_ids")
	w.buf = append(w.buf, '[')
	for i, one := range ids {
		if i > 0 {
			w.buf = append(w.buf, ',')
		}
		w.buf = worker.AppendJSONNumbers(w.buf, one)
	}
	w.buf = append(w.buf, ']')
	w.text("model", req.Model)
	if req.EncodingFormat != nil {
		w.text("encoding_format", *req.EncodingFormat)
	}
	if req.Truncate != nil {
		w.integer("truncate_prompt_tokens", *req.Truncate)
	}
	// These are always there; dimensions may be null.
	if req.Dimensions != nil {
		w.integer("dimensions", *req.Dimensions)
	} else {
		w.raw("dimensions", json.RawMessage("null"))
	}
	w.text("mdc_sum", set.MDCSum)
	if x := req.NvExt; x != nil && len(x.Annotations) > 0 {
		w.texts("annotations", x.Annotations)
	} else {
		w.raw("annotations", json.RawMessage("[]"))
	}
	return w.done()
}

// integer writes a number.
func (w *objectWriter) integer(name string, n int64) {
	w.name(name)
	w.buf = strconv.AppendInt(w.buf, n, 10)
}
