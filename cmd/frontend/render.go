package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
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

const renderUsage = `Usage:
  frontend render --model-path DIR --request FILE     the prompt and token ids of a chat request
  frontend render --template FILE --arguments FILE    a template with raw variables; token ids too with --model-path

The result goes to standard output as {"prompt":…,"token_ids":[…]}, a failure as {"error":…} with exit code 1.
FILE may be - for standard input.

Flags:
`

// renderTimeout bounds a render: a template that takes longer doesn't work.
const renderTimeout = 30 * time.Second

type renderFlags struct {
	modelPath, request, template, arguments string
	now                                     time.Time
}

// rendered is what the sub-command prints.
type rendered struct {
	Prompt   string            `json:"prompt"`
	TokenIDs []prepost.TokenID `json:"token_ids,omitempty"`
}

// runRender prints what a model's chat template and tokenizer make of a request, along the server's own path.
func runRender(args []string, stdout, stderr io.Writer) int {
	flags, err := parseRender(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "frontend render: %v\n", err)
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*renderTimeout)
	defer cancel()
	render := renderRequest
	if flags.template != "" {
		render = renderTemplate
	}
	result, err := render(ctx, flags)
	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	if err != nil {
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
// it raised one.
func renderError(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Message
	}
	if failed, ok := errors.AsType[*native.TemplateError](err); ok && failed.Failure == native.TemplateRaised {
		return failed.Message
	}
	return err.Error()
}

func parseRender(args []string, stderr io.Writer) (*renderFlags, error) {
	var f renderFlags
	set := flag.NewFlagSet("render", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.StringVar(&f.modelPath, "model-path", "", "folder with the model's files")
	set.StringVar(&f.request, "request", "", "file with the JSON body of a chat request")
	set.StringVar(&f.template, "template", "", "file with a chat template")
	set.StringVar(&f.arguments, "arguments", "", "file with a JSON object of all the template's variables, special tokens included")
	now := set.String("now", "", "what strftime_now sees, such as 2025-07-26T12:00:00; default: the clock")
	set.Usage = func() {}
	if err := set.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stderr, renderUsage)
			set.SetOutput(stderr)
			set.PrintDefaults()
		}
		return nil, fmt.Errorf("%w", err)
	}
	var err error
	if f.now, err = parseNow(*now); err != nil {
		return nil, err
	}
	switch {
	case set.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", set.Arg(0))
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

func parseNow(s string) (time.Time, error) {
	if s == "" {
		return time.Now(), nil
	}
	for _, layout := range []string{"2006-01-02T15:04:05", time.RFC3339, "2006-01-02 15:04:05", "2006-01-02"} {
		if now, err := time.Parse(layout, s); err == nil {
			return now, nil
		}
	}
	return time.Time{}, fmt.Errorf("--now %s: not a time such as 2025-07-26T12:00:00", s)
}

func readInput(name string) ([]byte, error) {
	if name == "-" {
		data, err := io.ReadAll(os.Stdin)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("input: %w", err)
	}
	return data, nil
}

// renderTemplate gives a template exactly the variables in the file.
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
	prompt, err := template.Render(arguments, f.now, renderTimeout)
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	out := &rendered{Prompt: prompt}
	if f.modelPath == "" {
		return out, nil
	}
	m, err := openModel(ctx, f.modelPath)
	if err != nil {
		return nil, err
	}
	defer m.close()
	out.TokenIDs, err = m.tokenizer.Encode(ctx, prompt, false)
	return out, err
}

// renderRequest prepares a chat request as the server does.
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
	req, err := openai.DecodeChat(withModel(body, m.card.DisplayName), openai.DecodeOptions{})
	if err != nil {
		return nil, err
	}
	if err := validate.Chat(req, validate.Options{}); err != nil {
		return nil, err
	}
	renderer, err := chattmpl.New(chattmpl.Options{
		Default: m.files.TemplateDefault, ToolUse: m.files.TemplateToolUse, SpecialTokens: m.files.SpecialTokens,
		Timeout: renderTimeout, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	defer renderer.Close()
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

// withModel names the model in a request that doesn't: here there is only one.
func withModel(body []byte, name string) []byte {
	var req map[string]json.RawMessage
	if json.Unmarshal(body, &req) != nil || req == nil || req["model"] != nil {
		return body
	}
	model, err := json.Marshal(name)
	if err != nil {
		return body
	}
	rest := strings.TrimSpace(string(bytes.TrimSpace(body)[1:]))
	comma := ","
	if len(req) == 0 {
		comma = ""
	}
	return []byte(`{"model":` + string(model) + comma + rest)
}

// recorder renders at a fixed time and keeps the prompt.
type recorder struct {
	prepost.Renderer
	now    time.Time
	prompt string
}

// Render implements prepost.Renderer.
func (r *recorder) Render(ctx context.Context, in *prepost.ChatInput) (string, error) {
	fixed := *in
	fixed.Now = r.now
	prompt, err := r.Renderer.Render(ctx, &fixed)
	r.prompt = prompt
	return prompt, err
}

// localModel is a model folder with its tokenizer loaded.
type localModel struct {
	card      *worker.Card
	files     *modelcard.Files
	tokenizer *tokenizer.Tokenizer
	pools     *executor.Registry
}

func openModel(ctx context.Context, dir string) (*localModel, error) {
	card, err := modelcard.FromFolder(dir, "")
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.DiscardHandler)
	files, err := modelcard.Open(ctx, card, modelcard.Options{Log: log})
	if err != nil {
		return nil, err
	}
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
