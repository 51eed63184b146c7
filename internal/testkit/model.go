package testkit

import (
	"context"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/prepost"
)

// Models is a fixed set of models, by name. A nil set is a model that is known but not ready.
type Models map[string]*catalog.Set

// Lookup finds a model. Its failures are those of the real catalog.
func (m Models) Lookup(model string) (*catalog.Set, error) {
	set, ok := m[model]
	switch {
	case !ok:
		return nil, fault.New(fault.NotFound, "The model `%s` does not exist", model).WithCode("model_not_found")
	case set == nil:
		return nil, fault.New(fault.Unavailable, "Model `%s` is not ready", model)
	}
	return set, nil
}

// LookupFor finds a model that offers a surface.
func (m Models) LookupFor(model, surface string) (*catalog.Set, error) {
	set, err := m.Lookup(model)
	if err == nil && !set.Card.Has(surface) {
		return nil, fault.New(fault.NotFound, "The model `%s` does not offer %s", model, surface).
			WithCode("model_not_supported")
	}
	return set, err
}

// Models lists the models. Their order is that of the map: any.
func (m Models) Models() []catalog.ModelInfo {
	var out []catalog.ModelInfo
	for name, set := range m {
		out = append(out, catalog.ModelInfo{ID: name, Created: 1700000000, Root: name, Ready: set != nil})
	}
	return out
}

// Ready reports whether one of the models is ready.
func (m Models) Ready() bool {
	for _, set := range m {
		if set != nil {
			return true
		}
	}
	return false
}

// ByteModel is a set whose tokens are bytes and whose template puts each message on a line: for tests that are about
// something else than text.
func ByteModel(name string) *catalog.Set {
	return &catalog.Set{
		Endpoint:  worker.EndpointID{Namespace: "test", Component: "backend", Name: "generate"},
		Card:      &worker.Card{DisplayName: name, ModelType: "Chat | Completions", ModelInput: "Tokens"},
		Renderer:  lineRenderer{},
		Tokenizer: Bytes{},
		EOS:       []prepost.TokenID{EOS},
	}
}

// TextModel is a set whose workers take and give the client's own format. It has neither template nor tokenizer, as in
// the catalog.
func TextModel(name string) *catalog.Set {
	return &catalog.Set{
		Endpoint: worker.EndpointID{Namespace: "test", Component: "backend", Name: "generate"},
		Card:     &worker.Card{DisplayName: name, ModelType: "Chat | Completions", ModelInput: "Text"},
	}
}

// TaskModel is a set whose workers do what the model type says, such as "Embedding". With input Text they take the
// client's request; with Tokens, which are bytes, they have no template.
func TaskModel(name, modelType, input string) *catalog.Set {
	set := &catalog.Set{
		Endpoint: worker.EndpointID{Namespace: "test", Component: "backend", Name: "generate"},
		Card:     &worker.Card{DisplayName: name, ModelType: modelType, ModelInput: input},
	}
	if input == "Tokens" {
		set.Tokenizer = Bytes{}
	}
	return set
}

// lineRenderer is ByteModel's template.
type lineRenderer struct{}

// Render writes role: content for every message.
func (lineRenderer) Render(_ context.Context, in *prepost.ChatInput) (string, error) {
	var messages []struct{ Role, Content string }
	if err := json.Unmarshal(in.Messages, &messages); err != nil {
		return "", fault.Bad("messages", "this template takes text only")
	}
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.Role + ": " + m.Content + "\n")
	}
	return b.String(), nil
}

// EOS is the end token of Bytes. It is the only one that is no byte.
const EOS prepost.TokenID = 256

// Bytes is a tokenizer whose tokens are bytes, and one end token.
type Bytes struct{}

var _ prepost.Tokenizer = Bytes{}

// Encode returns the bytes of text. It fails when ctx has ended, as real tokenizers do.
func (Bytes) Encode(ctx context.Context, text string, _ bool) ([]prepost.TokenID, error) {
	out := make([]prepost.TokenID, len(text))
	// Ids are the bytes themselves, so a test can read a prompt in hexadecimal.
	for i := range len(text) {
		out[i] = prepost.TokenID(text[i])
	}
	return out, ctx.Err()
}

// Decode returns the text of ids.
func (Bytes) Decode(ids []prepost.TokenID, _ bool) (string, error) {
	var b []byte
	for _, id := range ids {
		if id < 256 {
			b = append(b, byte(id))
		}
	}
	return strings.ToValidUTF8(string(b), "\ufffd"), nil
}

// NewDecoder returns a decoder. The prompt has no influence, and the end token is always skipped.
func (Bytes) NewDecoder([]prepost.TokenID, bool) prepost.Decoder { return &byteDecoder{} }

// NewMarkupDecoder is NewDecoder.
func (Bytes) NewMarkupDecoder(_, _ []prepost.TokenID) prepost.Decoder { return &byteDecoder{} }

// TokenID finds the end token.
func (Bytes) TokenID(token string) (prepost.TokenID, bool) { return EOS, token == "<eos>" }

// VocabSize is the number of tokens.
func (Bytes) VocabSize() int { return int(EOS) + 1 }

// Close does nothing.
func (Bytes) Close() error { return nil }

// TokenBytes returns the byte a token is. It is false for the end token, whose byte means nothing.
func (Bytes) TokenBytes(id prepost.TokenID) ([]byte, bool) { return []byte{byte(id)}, id < 256 }

// byteDecoder holds back the bytes of an unfinished character.
type byteDecoder struct{ held []byte }

// Push appends the character that id completes.
func (d *byteDecoder) Push(dst []byte, id prepost.TokenID) ([]byte, error) {
	if id >= 256 {
		return dst, nil
	}
	d.held = append(d.held, byte(id))
	if !utf8.FullRune(d.held) {
		return dst, nil
	}
	return d.Flush(dst)
}

// Flush appends what is held.
func (d *byteDecoder) Flush(dst []byte) ([]byte, error) {
	if len(d.held) == 0 {
		return dst, nil
	}
	if utf8.Valid(d.held) {
		dst = append(dst, d.held...)
	} else {
		dst = append(dst, "\ufffd"...)
	}
	d.held = d.held[:0]
	return dst, nil
}
