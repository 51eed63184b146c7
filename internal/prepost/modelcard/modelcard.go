// Package modelcard opens the files that a model's card names and reads what the frontend needs of them: the tokenizer,
// the chat templates, special and end tokens, and the model's limits.
//
// A file is looked for where the card says, then in the operator's folder, then in Hugging Face's cache, and at last
// downloaded when the card gives a URL. Whatever is found must have the BLAKE3 sum of the card: a worker and its
// frontend that read different files would disagree about every token.
//
// The package holds no state; its functions are safe for concurrent use.
package modelcard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"

	"github.com/portico-llm/portico/api/worker"
)

// Options say where files may be found. The zero value looks only where the card says.
type Options struct {
	ModelPath string       // a folder with the model's files
	HubCache  string       // Hugging Face's hub cache, such as ~/.cache/huggingface/hub
	Client    *http.Client // for files given by URL; nil is a client with a connect time-out
	Log       *slog.Logger // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Client == nil {
		o.Client = newClient()
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Files is what a model's files say.
type Files struct {
	Tokenizer     []byte // the tokenizer file's content; nil when the card names none
	TokenizerKind string // worker.KindTokenizer or worker.KindTiktoken
	TokenizerPath string // where it was read from; empty when it was downloaded

	TemplateDefault string            // the chat template; empty when the model has none
	TemplateToolUse string            // the one for requests with tools, when it differs
	SpecialTokens   map[string]string // by name, such as bos_token; variables of chat templates

	EOS           []uint32 // ids that end an answer
	MaxContext    uint32   // by the model's architecture; 0 is unknown
	VocabSize     int      // by config.json; 0 is unknown
	ModelType     string   // such as qwen3
	Architectures []string // class names of transformers

	// What a processor of images is made from: config.json, and the files of such processors that stand beside it. Nil:
	// not there, or the config was downloaded.
	Config, Preprocessor, Processor []byte
}

// Open finds, checks and reads the card's files. An error names the file it is about. It reads whole files into memory
// and may download, so it takes as long as these take; ctx ends a download. The card is only read.
func Open(ctx context.Context, card *worker.Card, opts Options) (*Files, error) {
	o := &opener{card: card, opts: opts.withDefaults()}
	f := &Files{SpecialTokens: map[string]string{}}
	// All small files come first: a wrong sum among them shows before the tokenizer, the largest, is read.
	var raw struct{ config, generation, tokenizerConfig, template *found }
	for _, want := range []struct {
		file *worker.CardFile
		to   **found
	}{
		{&card.ModelInfo, &raw.config}, {&card.GenConfig, &raw.generation},
		{&card.Formatter, &raw.tokenizerConfig}, {&card.ChatTemplate, &raw.template},
	} {
		var err error
		if *want.to, err = o.open(ctx, want.file); err != nil {
			return nil, err
		}
	}
	tokenizer, err := o.open(ctx, &card.Tokenizer)
	if err != nil {
		return nil, err
	}
	if tokenizer != nil {
		f.Tokenizer, f.TokenizerKind, f.TokenizerPath = tokenizer.data, tokenizer.kind, tokenizer.local
		if tokenizer.kind == worker.KindTiktoken && tokenizer.local == "" {
			// Its settings are in files beside it.
			return nil, fmt.Errorf("model file %s: a tiktoken model must be in a local folder", tokenizer.name)
		}
	}
	settings := &tokenizerConfig{}
	if err := raw.tokenizerConfig.decode(settings); err != nil {
		return nil, err
	}
	f.readBeside(raw.config)
	return f, f.read(raw.config, raw.generation, raw.template, settings)
}

// readBeside reads the files that cards don't name, from the folder of the config that the card vouches for. Not every
// model has them, and one that can't be read is as good as none.
func (f *Files) readBeside(config *found) {
	if config == nil || config.local == "" {
		return
	}
	f.Config = config.data
	dir := filepath.Dir(config.local)
	for name, to := range map[string]*[]byte{
		"preprocessor_config.json": &f.Preprocessor, "processor_config.json": &f.Processor,
	} {
		if data, err := readLocal(filepath.Join(dir, name)); err == nil {
			*to = data
		}
	}
}

// read takes what the frontend needs out of the files. Each may be nil. A file that can't be decoded is an error, even
// one whose content would not have been needed: the card vouches for it.
func (f *Files) read(config, generation, template *found, settings *tokenizerConfig) error {
	model, gen := &modelConfig{}, &modelConfig{}
	if err := errors.Join(config.decode(model), generation.decode(gen)); err != nil {
		return err
	}
	f.ModelType, f.Architectures = model.ModelType, model.Architectures
	f.MaxContext = model.maxContext(settings)
	f.VocabSize = model.vocabSize()
	f.SpecialTokens = settings.special
	// A template's own file goes before the one inside tokenizer_config.json, as in transformers.
	templates := settings.templates
	if template != nil {
		var err error
		if templates, err = template.templates(); err != nil {
			return err
		}
	}
	f.TemplateDefault, f.TemplateToolUse = templates.def, templates.toolUse
	// What generate would stop at goes first, then the model's config, and at last the token that is called eos.
	f.EOS = gen.eos()
	if f.EOS == nil {
		f.EOS = model.eos()
	}
	if f.EOS == nil && f.TokenizerKind == worker.KindTokenizer {
		if id, ok := tokenID(f.Tokenizer, f.SpecialTokens["eos_token"]); ok {
			f.EOS = []uint32{id}
		}
	}
	return nil
}

// tokenID looks a special token up in a tokenizer.json. Special tokens nearly always are added tokens; older files have
// them in the vocabulary alone.
func tokenID(tokenizerJSON []byte, token string) (uint32, bool) {
	if token == "" {
		return 0, false
	}
	var file struct {
		AddedTokens []struct {
			ID      uint32 `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
		Model struct {
			Vocab json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if json.Unmarshal(tokenizerJSON, &file) != nil {
		return 0, false
	}
	for _, added := range file.AddedTokens {
		if added.Content == token {
			return added.ID, true
		}
	}
	var vocab map[string]uint32
	if json.Unmarshal(file.Model.Vocab, &vocab) != nil { // some models have a list of pairs
		return 0, false
	}
	id, ok := vocab[token]
	return id, ok
}

// decode reads a JSON file into v; a nil file leaves v as it is.
func (f *found) decode(v any) error {
	if f == nil {
		return nil
	}
	if err := json.Unmarshal(f.data, v); err != nil {
		return fmt.Errorf("model file %s: %w", f.name, err)
	}
	return nil
}
