package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
)

// parseUsage is the text of parse --help, above the flags.
const parseUsage = `Usage:
  frontend parse [flags] <raw.txt     the message that a model's raw text becomes

The raw text is read from standard input, and the message printed as JSON, along the server's own path. With --pieces the
input is a JSON array of strings, fed one by one as a stream would be. Without a parser's name, --model-path tells by
the model's chat template. Exit code 1 for input that can't be read, 2 for wrong flags.

Flags:
`

// parseTimeout bounds the loading of a model.
const parseTimeout = time.Minute

// parseFlags are the sub-command's flags.
type parseFlags struct {
	toolParser, reasoningParser string // names; empty: none, or what the model's template tells
	tools, modelPath, prompt    string // paths and the prompt's end; empty: not given
	choice, finish              string // tool_choice and the engine's finish reason
	pieces                      bool   // the input is an array
}

// parsedMessage is what the sub-command prints: a message in OpenAI's form, and why it ended.
type parsedMessage struct {
	Content         *string      `json:"content"`                     // null when there is none
	Reasoning       string       `json:"reasoning_content,omitempty"` // the thought
	ToolCalls       []parsedCall `json:"tool_calls,omitempty"`
	FinishReason    string       `json:"finish_reason"`
	ToolParser      string       `json:"tool_call_parser,omitempty"` // which ones ran
	ReasoningParser string       `json:"reasoning_parser,omitempty"`
}

// parsedCall is one tool call. Ids that a server would make are left out.
type parsedCall struct {
	ID       string `json:"id,omitempty"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// runParse prints what the parsers make of a model's raw text. It returns the exit code.
func runParse(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags, err := parseParse(args, stdout)
	if err != nil {
		return flagsExit("parse", err, stderr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), parseTimeout)
	defer cancel()
	message, err := parseInput(ctx, flags, stdin)
	if err == nil {
		out := jsonOutput(stdout)
		out.SetIndent("", "  ")
		err = out.Encode(message)
	}
	if err != nil {
		fmt.Fprintf(stderr, "frontend parse: %v\n", err)
		return exitFailure
	}
	return exitOK
}

// parseParse reads the flags. Help was asked for when the error is flag.ErrHelp, and has been printed.
func parseParse(args []string, stdout io.Writer) (*parseFlags, error) {
	var f parseFlags
	set := newFlagSet("parse")
	set.StringVar(&f.toolParser, "tool-call-parser", "", "how the model writes tool calls")
	set.StringVar(&f.reasoningParser, "reasoning-parser", "", "how it marks its reasoning")
	set.StringVar(&f.tools, "tools", "", "file with the request's tools, a JSON array; default: calls of any function")
	set.StringVar(&f.choice, "tool-choice", "auto", "auto, none, required, or the name of a function")
	set.StringVar(&f.modelPath, "model-path", "", "folder with the model's files: its template tells what the flags don't")
	set.StringVar(&f.prompt, "prompt", "", "the end of the rendered prompt, where it opens or closes a thought")
	set.StringVar(&f.finish, "finish", "stop", "why the engine ended: stop or length")
	set.BoolVar(&f.pieces, "pieces", false, "the input is a JSON array of strings")
	if err := parseFlagSet(set, args, false, parseUsage, stdout); err != nil {
		return nil, err
	}
	switch {
	case !slices.Contains([]string{"stop", "length"}, f.finish):
		return nil, fmt.Errorf("--finish %s: neither stop nor length", f.finish)
	case f.toolParser == "" && f.reasoningParser == "" && f.modelPath == "":
		return nil, errors.New("give --tool-call-parser, --reasoning-parser or --model-path")
	}
	return &f, msgparse.Check(f.toolParser, f.reasoningParser)
}

// parseInput takes the input apart.
func parseInput(ctx context.Context, f *parseFlags, stdin io.Reader) (*parsedMessage, error) {
	input, err := io.ReadAll(stdin)
	if err != nil {
		return nil, fmt.Errorf("standard input: %w", err)
	}
	pieces := []string{string(input)}
	if f.pieces {
		if err := json.Unmarshal(input, &pieces); err != nil {
			return nil, fmt.Errorf("standard input is no JSON array of strings: %w", err)
		}
	}
	q, err := answerRequest(ctx, f)
	if err != nil {
		return nil, err
	}
	out := &parsedMessage{FinishReason: f.finish, ToolParser: q.ToolParser, ReasoningParser: q.ReasoningParser}
	// None runs when the model's template has told of none.
	plan := msgparse.Plan(q)
	if plan == nil || plan.New == nil {
		for _, text := range pieces {
			out.add(prepost.Piece{Text: text})
		}
		return out, nil
	}
	parser := plan.New()
	for _, text := range pieces {
		parser.Push([]byte(text), 1, out.add)
	}
	parser.Finish(f.finish == "length", out.add)
	switch {
	case parser.Cut():
		out.FinishReason = "length"
	case f.finish == "stop" && len(out.ToolCalls) > 0:
		out.FinishReason = "tool_calls"
	}
	return out, nil
}

// answerRequest makes of the flags what a server knows of a request.
func answerRequest(ctx context.Context, f *parseFlags) (*prepost.AnswerRequest, error) {
	q := &prepost.AnswerRequest{
		ToolParser: f.toolParser, ReasoningParser: f.reasoningParser, Prompt: f.prompt,
		Special: func(string) bool { return false },
		// A parser needs one to look for calls at all, and takes calls of functions it doesn't know.
		Tools: []prepost.Function{{}},
	}
	if err := parseChoice(q, f); err != nil {
		return nil, err
	}
	if f.modelPath == "" {
		return q, nil
	}
	return q, askModel(ctx, q, f.modelPath)
}

// askModel takes from a model's template what the flags leave open: the parsers, and how a prompt ends.
func askModel(ctx context.Context, q *prepost.AnswerRequest, dir string) error {
	_, files, err := openFiles(ctx, dir)
	if err != nil {
		return err
	}
	if q.ToolParser == "" && q.ReasoningParser == "" {
		q.ToolParser, q.ReasoningParser = msgparse.Detect(files.TemplateToolUse, files.TemplateDefault)
	}
	// A base model has no template to ask.
	if q.Prompt != "" || q.ReasoningParser == "" || files.TemplateDefault == "" {
		return nil
	}
	renderer, err := newRenderer(files)
	if err != nil {
		return err
	}
	defer renderer.Close()
	q.Prompt, err = renderer.Render(ctx, &prepost.ChatInput{
		Messages: json.RawMessage(`[{"role":"user","content":"hi"}]`), AddGenerationPrompt: true, Now: time.Now()})
	return err
}

// parseChoice reads the tools and the choice among them.
func parseChoice(q *prepost.AnswerRequest, f *parseFlags) error {
	if f.tools != "" {
		raw, err := readInput(f.tools)
		if err != nil {
			return err
		}
		// Read as a part of a request, so that they are understood as the server does.
		body := append(append([]byte(`{"model":"m","messages":[{"role":"user","content":""}],"tools":`), raw...), '}')
		req, err := openai.DecodeChat(body, openai.DecodeOptions{})
		if err != nil {
			return fmt.Errorf("tools: %w", err)
		}
		q.Tools = nil
		for _, t := range req.ToolList {
			q.Tools = append(q.Tools, prepost.Function{Name: t.Name, Parameters: t.Parameters})
		}
	}
	switch f.choice {
	case "auto":
	case "none":
		q.Choice = prepost.MustNotCall
	case "required":
		q.Choice, q.JSON = prepost.MustCall, true
	default:
		q.Choice, q.Function, q.JSON = prepost.MustCallFunction, f.choice, true
	}
	return nil
}

// add puts a piece in its place.
func (m *parsedMessage) add(p prepost.Piece) {
	switch p.Kind {
	case prepost.Content:
		if m.Content == nil {
			m.Content = new(string)
		}
		*m.Content += p.Text
	case prepost.Reasoning:
		m.Reasoning += p.Text
	case prepost.ToolCall:
		if p.Name != "" {
			c := parsedCall{ID: p.ID, Type: "function"}
			c.Function.Name = p.Name
			m.ToolCalls = append(m.ToolCalls, c)
		}
		if n := len(m.ToolCalls); n > 0 {
			m.ToolCalls[n-1].Function.Arguments += p.Text
		}
	}
}
