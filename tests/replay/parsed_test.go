package replay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// parsedCase is one recorded answer of a model with parsers, and the message a client got.
type parsedCase struct {
	Name            string         `json:"name"`
	ToolParser      string         `json:"tool_parser"`
	ReasoningParser string         `json:"reasoning_parser"`
	Version         string         `json:"parser_version"`
	Request         map[string]any `json:"request"`
	Text            string         `json:"text"`
	Finish          string         `json:"finish"`
	Pieces          []*string      `json:"pieces"` // text of each token; nil: no whole characters
	foreign         *rand.Rand     // puts special tokens that are no markup into the answer; nil: there are none
	View            struct {
		Content   string       `json:"content"`
		Reasoning string       `json:"reasoning_content"`
		Calls     []parsedCall `json:"tool_calls"`
		Finish    *string      `json:"finish_reason"`
	} `json:"view"`
}

// parsedCall is one call of a message.
type parsedCall struct {
	ID        string `json:"-"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// parsedMessage is an answer as a client puts it together.
type parsedMessage struct {
	Content, Reasoning string
	Calls              []parsedCall
	Finish             string
}

func readParsed(t *testing.T, file string) []parsedCase {
	t.Helper()
	var out []parsedCase
	pieces := map[string][]*string{} // answers are recorded once for all versions of the parsers
	for _, line := range readGzip(t, file) {
		var c parsedCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		if c.Pieces == nil {
			c.Pieces = pieces[c.Name+c.Text]
		}
		pieces[c.Name+c.Text] = c.Pieces
		out = append(out, c)
	}
	return out
}

// tokens returns the text of each token. Tokens that are no whole characters give theirs to the last of them.
func (c *parsedCase) tokens() []string {
	var out []string
	rest := c.Text
	for i, p := range c.Pieces {
		switch {
		case p != nil && strings.HasPrefix(rest, *p):
			out, rest = append(out, *p), rest[len(*p):]
		case p != nil:
			out, rest = append(out, rest), ""
		case i+1 < len(c.Pieces) && c.Pieces[i+1] != nil:
			before, _, _ := strings.Cut(rest, *c.Pieces[i+1])
			out, rest = append(out, before), rest[len(before):]
		default:
			out = append(out, "")
		}
	}
	if rest != "" {
		for _, r := range rest {
			out = append(out, string(r))
		}
	}
	return out
}

// textModel is a tokenizer and template made for one case: its tokens are the answer's, its prompt is the case's.
type textModel struct {
	prompt  string
	tokens  []string // of the answer, by id
	special []string // ids above tokens; skipped unless asked for
}

// endOfText is the id of the end token.
const endOfText = 1 << 20

func (m *textModel) Render(context.Context, *prepost.ChatInput) (string, error) { return m.prompt, nil }

func (m *textModel) Encode(context.Context, string, bool) ([]uint32, error) { return []uint32{1}, nil }

func (m *textModel) Decode(ids []uint32, skip bool) (string, error) {
	var b []byte
	d := m.NewDecoder(nil, skip)
	for _, id := range ids {
		b, _ = d.Push(b, id)
	}
	return string(b), nil
}

func (m *textModel) NewDecoder(_ []uint32, skip bool) prepost.Decoder {
	return textDecoder{m, skip, nil}
}

func (m *textModel) NewMarkupDecoder(_, markup []uint32) prepost.Decoder {
	return textDecoder{m, true, markup}
}

func (m *textModel) TokenID(token string) (uint32, bool) {
	i := slices.Index(m.special, token)
	return uint32(endOfText + 1 + i), i >= 0
}

func (m *textModel) VocabSize() int { return 2 * endOfText }
func (m *textModel) Close() error   { return nil }

// textDecoder decodes for one choice.
type textDecoder struct {
	m      *textModel
	skip   bool
	markup []uint32 // not skipped
}

func (d textDecoder) Push(dst []byte, id uint32) ([]byte, error) {
	switch {
	case int(id) < len(d.m.tokens):
		return append(dst, d.m.tokens[id]...), nil
	case id > endOfText && (!d.skip || slices.Contains(d.markup, id)):
		return append(dst, d.m.special[id-endOfText-1]...), nil
	}
	return dst, nil
}

func (d textDecoder) Flush(dst []byte) ([]byte, error) { return dst, nil }

// harmonyTokens are special tokens of the models that write Harmony.
var harmonyTokens = []string{
	"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>",
}

// model makes the set that serves the case, and the ids of its answer.
func (c *parsedCase) model(prompt string) (*catalog.Set, []uint32) {
	m := &textModel{prompt: prompt, tokens: c.tokens()}
	set := &catalog.Set{
		Endpoint: worker.EndpointID{Namespace: "dynamo", Component: "backend", Name: "generate"},
		Card:     &worker.Card{DisplayName: "m", ModelType: "Chat", ModelInput: "Tokens"},
		Renderer: m, Tokenizer: m, EOS: []uint32{endOfText},
		ToolParser: c.ToolParser, ReasoningParser: c.ReasoningParser,
	}
	if c.ToolParser == "harmony" || c.ReasoningParser == "gpt_oss" {
		m.special = harmonyTokens
		call, _ := m.TokenID("<|call|>")
		set.EOS = append(set.EOS, call)
	}
	if strings.HasPrefix(c.Name, "sr.") {
		m.special = slices.Clone(thoughtMarkers)
		for _, token := range markerTokens() {
			m.special = append(m.special, token.Content)
		}
	}
	var ids []uint32
	for i, text := range m.tokens {
		id := uint32(i)
		if s, ok := m.TokenID(text); ok {
			id = s
		}
		ids = append(ids, id)
	}
	if c.foreign != nil {
		m.special = append(slices.Clone(m.special), foreign)
		id, _ := m.TokenID(foreign)
		for i := len(ids); i >= 0; i-- {
			if c.foreign.IntN(4) == 0 || i == len(ids)/2 {
				ids = slices.Insert(ids, i, id)
			}
		}
	}
	return set, ids
}

// script is what the worker sends: the answer token by token or whole, and its end.
func (c *parsedCase) script(ids []uint32, single bool) testkit.Script {
	var s testkit.Script
	add := func(v any) {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		s = append(s, b)
	}
	for _, part := range slices.Collect(slices.Chunk(ids, max(1, map[bool]int{true: 1, false: len(ids)}[single]))) {
		add(map[string]any{"token_ids": part})
	}
	end := []uint32{}
	if c.Finish != "length" {
		end = append(end, endOfText)
	}
	add(map[string]any{"token_ids": end, "finish_reason": c.Finish})
	return s
}

// body is the request, with the tools put in.
func (c *parsedCase) body(t *testing.T, tools json.RawMessage, stream bool) []byte {
	t.Helper()
	q := map[string]any{}
	for k, v := range c.Request {
		q[k] = v
	}
	q["model"] = "m"
	if s, ok := q["tools"].(string); ok {
		var list []json.RawMessage
		if err := json.Unmarshal(tools, &list); err != nil {
			t.Fatal(err)
		}
		if n := strings.Index(s, "[:"); n >= 0 {
			list = list[:s[n+2]-'0']
		}
		q["tools"] = list
	}
	if stream {
		q["stream"] = true
	}
	body, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// play asks our server for the answer, streamed token by token or in one body of an answer that came in one item.
func (c *parsedCase) play(t *testing.T, tools json.RawMessage, prompt string, stream bool) parsedMessage {
	t.Helper()
	set, ids := c.model(prompt)
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) { return c.script(ids, stream), nil }}
	log := slog.New(slog.DiscardHandler)
	srv, err := server.New(server.Options{
		Pipeline: pipeline.New(pipeline.Options{Dispatcher: d, Log: log, Answers: msgparse.Plan}),
		Catalog:  testkit.Models{"m": set}, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions",
		bytes.NewReader(c.body(t, tools, stream)))
	req.Header.Set("Content-Type", "application/json")
	res := httptest.NewRecorder()
	testkit.LintHandler(t, srv.Handler()).ServeHTTP(res, req)
	if res.Code != http.StatusOK {
		t.Fatalf("%d %s", res.Code, res.Body)
	}
	if stream {
		return streamedMessage(t, res.Body.Bytes())
	}
	return wholeMessage(t, res.Body.Bytes())
}

// wholeMessage reads a unary answer.
func wholeMessage(t *testing.T, body []byte) parsedMessage {
	t.Helper()
	var r struct {
		Choices []struct {
			Message struct {
				Content   *string `json:"content"`
				Reasoning string  `json:"reasoning_content"`
				Calls     []struct {
					ID, Type string
					Function parsedCall
				} `json:"tool_calls"`
			}
			Finish string `json:"finish_reason"`
		}
	}
	if err := json.Unmarshal(body, &r); err != nil || len(r.Choices) != 1 {
		t.Fatalf("%v in %s", err, body)
	}
	m := r.Choices[0].Message
	out := parsedMessage{Reasoning: m.Reasoning, Finish: r.Choices[0].Finish}
	if m.Content != nil {
		if out.Content = *m.Content; *m.Content == "" {
			t.Error("a content that is empty and not null")
		}
	}
	for _, c := range m.Calls {
		if c.ID == "" || c.Type != "function" {
			t.Errorf("a call without its id or type: %+v", c)
		}
		out.Calls = append(out.Calls, parsedCall{c.ID, c.Function.Name, c.Function.Arguments})
	}
	return out
}

// streamedMessage puts a stream together, and checks what clients that do so rely on.
func streamedMessage(t *testing.T, body []byte) parsedMessage {
	t.Helper()
	if err := testkit.Lint(body, testkit.LintOptions{Chat: true}); err != nil {
		t.Errorf("the stream breaks a rule: %v", err)
	}
	events, err := testkit.Events(body)
	if err != nil {
		t.Fatal(err)
	}
	var out parsedMessage
	for _, e := range events {
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content   *string `json:"content"`
					Reasoning *string `json:"reasoning_content"`
					Calls     []struct {
						Index    int
						ID, Type *string
						Function struct{ Name, Arguments *string }
					} `json:"tool_calls"`
				}
				Finish *string `json:"finish_reason"`
			}
		}
		if e.Data == "[DONE]" || e.Data == "" {
			continue
		}
		if err := json.Unmarshal([]byte(e.Data), &chunk); err != nil {
			t.Fatal(err)
		}
		for _, ch := range chunk.Choices {
			if ch.Delta.Content != nil {
				out.Content += *ch.Delta.Content
			}
			if ch.Delta.Reasoning != nil {
				out.Reasoning += *ch.Delta.Reasoning
			}
			for _, f := range ch.Delta.Calls {
				first := f.Index == len(out.Calls)
				switch {
				case first && (f.ID == nil || f.Type == nil || *f.Type != "function" || f.Function.Name == nil):
					t.Fatalf("a call begins without its id, type or name: %s", e.Data)
				case first:
					out.Calls = append(out.Calls, parsedCall{ID: *f.ID, Name: *f.Function.Name})
				case f.Index != len(out.Calls)-1:
					t.Fatalf("a fragment of call %d after %d calls: %s", f.Index, len(out.Calls), e.Data)
				case f.ID != nil || f.Type != nil || f.Function.Name != nil:
					t.Errorf("a later fragment repeats what its call began with: %s", e.Data)
				}
				if f.Function.Arguments == nil {
					t.Fatalf("a fragment without arguments: %s", e.Data)
				}
				out.Calls[f.Index].Arguments += *f.Function.Arguments
			}
			if ch.Finish != nil {
				out.Finish = *ch.Finish
			}
		}
	}
	return out
}

// same compares two messages: ids differ from run to run, and arguments are compared as JSON where they are.
func (m *parsedMessage) same(o *parsedMessage) bool {
	return m.Content == o.Content && m.Reasoning == o.Reasoning && m.Finish == o.Finish && sameCalls(m.Calls, o.Calls)
}

func sameCalls(a, b []parsedCall) bool {
	return slices.EqualFunc(a, b, func(x, y parsedCall) bool {
		var v, w any
		if x.Name != y.Name {
			return false
		}
		if json.Unmarshal([]byte(x.Arguments), &v) != nil || json.Unmarshal([]byte(y.Arguments), &w) != nil {
			return x.Arguments == y.Arguments
		}
		return reflect.DeepEqual(v, w)
	})
}

// both plays a case in both modes, which have to agree.
func (c *parsedCase) both(t *testing.T, tools json.RawMessage, prompt string) parsedMessage {
	t.Helper()
	streamed, whole := c.play(t, tools, prompt, true), c.play(t, tools, prompt, false)
	if !streamed.same(&whole) {
		t.Errorf("of the text %q\n streamed %+v\n whole    %+v", c.Text, streamed, whole)
	}
	for _, m := range []parsedMessage{streamed, whole} {
		seen := map[string]bool{}
		for _, call := range m.Calls {
			if seen[call.ID] {
				t.Errorf("two calls with the id %s", call.ID)
			}
			seen[call.ID] = true
		}
	}
	return streamed
}

// recorded is the message of the recording.
func (c *parsedCase) recorded() parsedMessage {
	m := parsedMessage{Content: c.View.Content, Reasoning: c.View.Reasoning, Calls: c.View.Calls}
	if c.View.Finish != nil {
		m.Finish = *c.View.Finish
	}
	return m
}

// parserFile is a file of one of the parsers' own tests.
func parserFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../internal/prepost/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parserDifferences reads a table of the parsers' own differences: fields by the first one.
func parserDifferences(t *testing.T, name string) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for line := range strings.Lines(string(parserFile(t, name))) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); !strings.HasPrefix(line, "#") && len(f) > 2 {
			out[f[0]] = f
		}
	}
	return out
}

// judge compares a message with the recorded one, or with what the differences of this suite allow: those are pinned.
func judge(t *testing.T, listed *allowed, ours *bytes.Buffer, key string, c *parsedCase, got, want parsedMessage) {
	t.Helper()
	if got.same(&want) {
		return
	}
	if !listed.match(key) {
		t.Errorf("%s: of the text %q\n recorded %+v\n got      %+v", key, c.Text, want, got)
		return
	}
	for i := range got.Calls {
		got.Calls[i].ID = ""
	}
	fmt.Fprintf(ours, "%s\n\t%+v\n", key, got)
}
