package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/chattmpl"
	"github.com/portico-llm/portico/internal/prepost/executor"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
	"github.com/portico-llm/portico/internal/prepost/tokenizer"
	"github.com/portico-llm/portico/internal/server/validate"
)

// renderUsage is the text of render --help, above the flags.
const renderUsage = `Usage:
  frontend render --model-path DIR --request FILE     the prompt and token ids of a chat request
  frontend render --template FILE --arguments FILE    a template with raw variables; token ids too with --model-path

The result goes to standard output as {"prompt":…,"token_ids":[…]}, a failure as {"error":…} with exit code 1.
FILE may be - for standard input.

Flags:
`

// renderTimeout bounds a render: a template that takes longer doesn't work.
const renderTimeout = 30 * time.Second

// renderFlags are the sub-command's flags; files may be - for standard input.
type renderFlags struct {
	modelPath, request, template, arguments string    // paths; empty: not given
	now                                     time.Time // what a template takes as now
}

// rendered is what the sub-command prints.
type rendered struct {
	Prompt   string            `json:"prompt"`              // as the template wrote it
	TokenIDs []prepost.TokenID `json:"token_ids,omitempty"` // none without a tokenizer
}

// runRender prints what a model's chat template and tokenizer make of a request, along the server's own path. It
// returns the exit code: 0, 1 for a request that can't be rendered, 2 for wrong flags.
func runRender(args []string, stdout, stderr io.Writer) int {
	flags, err := parseRender(args, stdout)
	if err != nil {
		return flagsExit("render", err, stderr)
	}
	// Loading the model takes its time, too.
	ctx, cancel := context.WithTimeout(context.Background(), 2*renderTimeout)
	defer cancel()
	render := renderRequest
	if flags.template != "" {
		render = renderTemplate
	}
	result, err := render(ctx, flags)
	out := jsonOutput(stdout)
	if err != nil {
		// Failures are output as well: scripts compare them.
		if err := out.Encode(map[string]string{"error": renderError(err)}); err != nil {
			fmt.Fprintf(stderr, "frontend render: %v\n", err)
		}
		return 1
	}
	if err := out.Encode(result); err != nil {
		fmt.Fprintf(stderr, "frontend render: %v\n", err)
		return 1
	}
	return 0
}

// renderError is the public message of a failed request, as the server answers with it; a template's own message when
// it raised one. Anything else is a failure of files or of the command itself, and is shown whole.
func renderError(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Message
	}
	if failed, ok := errors.AsType[*native.TemplateError](err); ok && failed.Failure == native.TemplateRaised {
		return failed.Message
	}
	return err.Error()
}

// parseRender reads the flags and refuses combinations without a meaning. Help was asked for when the error is
// flag.ErrHelp, and has been printed.
func parseRender(args []string, stdout io.Writer) (*renderFlags, error) {
	var f renderFlags
	set := newFlagSet("render")
	set.StringVar(&f.modelPath, "model-path", "", "folder with the model's files")
	set.StringVar(&f.request, "request", "", "file with the JSON body of a chat request")
	set.StringVar(&f.template, "template", "", "file with a chat template")
	set.StringVar(&f.arguments, "arguments", "", "file with a JSON object of all the template's variables, special tokens included")
	now := set.String("now", "", "what strftime_now sees, such as 2025-07-26T12:00:00; default: the clock")
	if err := parseFlagSet(set, args, false, renderUsage, stdout); err != nil {
		return nil, err
	}
	var err error
	if f.now, err = parseNow(*now); err != nil {
		return nil, err
	}
	switch {
	// Exactly one of the two ways.
	case (f.request == "") == (f.template == ""):
		return nil, errors.New("give --request with --model-path, or --template with --arguments")
	case f.request != "" && (f.modelPath == "" || f.arguments != ""):
		return nil, errors.New("--request needs --model-path and takes no --arguments")
	case f.template != "" && f.arguments == "":
		return nil, errors.New("--template needs --arguments")
	case f.template == "-" && f.arguments == "-":
		return nil, errors.New("only one file can be standard input")
	}
	return &f, nil
}

// parseNow reads a time in one of a few common forms, without a zone as UTC; empty is the clock's.
func parseNow(s string) (time.Time, error) {
	if s == "" {
		return time.Now(), nil
	}
	// The layouts exclude each other, so their order decides nothing.
	for _, layout := range []string{"2006-01-02T15:04:05", time.RFC3339, "2006-01-02 15:04:05", "2006-01-02"} {
		if now, err := time.Parse(layout, s); err == nil {
			return now, nil
		}
	}
	return time.Time{}, fmt.Errorf("--now %s: not a time such as 2025-07-26T12:00:00", s)
}

// renderTemplate gives a template exactly the variables in the file. Nothing of the project's own adaptation to
// templates takes part.
func renderTemplate(ctx context.Context, f *renderFlags) (*rendered, error) {
	src, err := readInput(f.template)
	if err != nil {
		return nil, err
	}
	arguments, err := readInput(f.arguments)
	if err != nil {
		return nil, err
	}
	template, err := native.NewTemplate(string(src))
	if err != nil {
		return nil, fmt.Errorf("template: %w", err)
	}
	defer template.Close()
	// Nothing is added or rewritten: for comparing the engine with another one.
	prompt, err := template.Render(arguments, f.now, renderTimeout)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	out := &rendered{Prompt: prompt}
	// A template alone has no tokenizer to go with it.
	if f.modelPath == "" {
		return out, nil
	}
	m, err := openModel(ctx, f.modelPath)
	if err != nil {
		return nil, err
	}
	defer m.close()
	// Without special tokens: the template has put them where they belong.
	out.TokenIDs, err = m.tokenizer.Encode(ctx, prompt, false)
	return out, err
}

// renderRequest prepares a chat request as the server does. Decoding, validation and preparation are the packages that
// the server uses, with their defaults.
func renderRequest(ctx context.Context, f *renderFlags) (*rendered, error) {
	body, err := readInput(f.request)
	if err != nil {
		return nil, err
	}
	m, err := openModel(ctx, f.modelPath)
	if err != nil {
		return nil, err
	}
	defer m.close()
	// From here on it is the server's own code, in the server's order.
	req, err := openai.DecodeChat(withModel(body, m.card.DisplayName), openai.DecodeOptions{})
	if err != nil {
		return nil, err
	}
	if err := validate.Chat(req, validate.Options{}); err != nil {
		return nil, err
	}
	renderer, err := newRenderer(m.files)
	if err != nil {
		return nil, err
	}
	defer renderer.Close()
	// The pipeline gives away tokens only; the recorder keeps the text on its way to the tokenizer.
	record := &recorder{Renderer: renderer, now: f.now}
	set := &catalog.Set{Card: m.card, Renderer: record, Tokenizer: m.tokenizer, EOS: m.files.EOS}
	prepared, err := pipeline.New(pipeline.Options{Log: slog.New(slog.DiscardHandler)}).
		PrepareChat(ctx, set, pipeline.Meta{}, req)
	if err != nil {
		return nil, err
	}
	out := &rendered{Prompt: record.prompt}
	for _, q := range prepared.Requests {
		out.TokenIDs = q.TokenIDs
	}
	return out, nil
}

// withModel names the model in a request that doesn't: here there is only one. It goes in front as text, so that the
// rest keeps its bytes.
func withModel(body []byte, name string) []byte {
	// A body that is no object is left to the decoder, whose failure is the one to show.
	var req map[string]json.RawMessage
	if json.Unmarshal(body, &req) != nil || req == nil || req["model"] != nil {
		return body
	}
	model, err := json.Marshal(name)
	if err != nil {
		return body
	}
	// Behind the opening brace, which is written anew.
	rest := strings.TrimSpace(string(bytes.TrimSpace(body)[1:]))
	comma := ","
	if len(req) == 0 {
		comma = ""
	}
	return []byte(`{"model":` + string(model) + comma + rest)
}

// recorder renders at a fixed time and keeps the prompt. One renders for one request, so it needs no lock.
type recorder struct {
	prepost.Renderer
	now    time.Time
	prompt string // of the last render
}

// Render implements prepost.Renderer.
func (r *recorder) Render(ctx context.Context, in *prepost.ChatInput) (string, error) {
	// A copy: the input belongs to the pipeline.
	fixed := *in
	fixed.Now = r.now
	prompt, err := r.Renderer.Render(ctx, &fixed)
	r.prompt = prompt
	return prompt, err
}

// localModel is a model folder with its tokenizer loaded.
type localModel struct {
	card      *worker.Card         // made from the folder
	files     *modelcard.Files     // what they say
	tokenizer *tokenizer.Tokenizer // closed before pools
	pools     *executor.Registry   // one worker is enough here
}

// openFiles reads a model folder, as the server does for a worker's card.
func openFiles(ctx context.Context, dir string) (*worker.Card, *modelcard.Files, error) {
	card, err := modelcard.FromFolder(dir, "")
	if err != nil {
		return nil, nil, err
	}
	// The card was made from these very files, so their sums fit.
	files, err := modelcard.Open(ctx, card, modelcard.Options{Log: slog.New(slog.DiscardHandler)})
	return card, files, err
}

// newRenderer compiles a model's chat templates.
func newRenderer(files *modelcard.Files) (*chattmpl.Renderer, error) {
	renderer, err := chattmpl.New(chattmpl.Options{
		Default: files.TemplateDefault, ToolUse: files.TemplateToolUse, SpecialTokens: files.SpecialTokens,
		Timeout: renderTimeout, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return renderer, nil
}

// openModel reads a model folder and loads its tokenizer.
func openModel(ctx context.Context, dir string) (*localModel, error) {
	card, files, err := openFiles(ctx, dir)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	// Encoding runs on a pool as in the server, so that nothing differs but the number of workers.
	pools := executor.NewRegistry(executor.Options{Workers: 1, Log: log})
	options := tokenizer.Options{JSON: files.Tokenizer, Name: card.DisplayName, Registry: pools, Log: log}
	if files.TokenizerKind == worker.KindTiktoken {
		options.JSON, options.Tiktoken = nil, files.TokenizerPath
	}
	tok, err := tokenizer.Load(ctx, options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tokenizer: %w", err), pools.Close())
	}
	return &localModel{card: card, files: files, tokenizer: tok, pools: pools}, nil
}

// close frees the tokenizer; the process ends soon after, so a failure matters to nobody.
func (m *localModel) close() {
	_ = m.tokenizer.Close()
	_ = m.pools.Close()
}
