package clients_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/portico-llm/portico/api"
)

// asked are the models that generated requests name, by schema: those that answer at once, and one that isn't there.
var asked = map[string][]string{
	"ChatRequest": {"chat", "json", "tools", "none"}, "CompletionRequest": {"chat", "none"},
	"ResponsesRequest": {"chat", "tools", "none"}, "EmbeddingRequest": {"embed", "none"}, "TokenizeRequest": {"chat", "none"},
}

// exclusive are members that exclude others or are always refused: with one of them in nearly every request that is
// generated, nearly every one would be refused for the same reason.
var exclusive = []string{
	"guided_regex", "guided_grammar",
	"guided_choice", "guided_json", "response_format", "continue_final_message", "prompt_embeds", "stream_options",
	"tool_choice", "best_of", "n", "nvext", "min_tokens", "ignore_eos", "logit_bias",
}

// document is the served OpenAPI document in which models have the names they have here: requests for others would only
// ever be told that there is no such model. What is always refused, or with a 501 as Dynamo does, is left out.
func document(t *testing.T) []byte {
	t.Helper()
	raw, err := api.OpenAPI()
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for name, models := range asked {
		properties := schemas[name].(map[string]any)["properties"].(map[string]any)
		properties["model"].(map[string]any)["enum"] = models
		for _, refused := range []string{
			"chat_template", "chat_template_kwargs", "functions", "function_call", "background", "max_tool_calls", "conversation",
		} {
			delete(properties, refused)
		}
		if name == "ResponsesRequest" { // a stored prompt, of which there are none
			delete(properties, "prompt")
		}
	}
	// Models whose workers have the tokenizer are a 501 there, and the schema of the request stands with the path.
	for _, path := range []string{"/detokenize", "/v1/detokenize"} {
		var at any = doc["paths"]
		for _, name := range []string{path, "post", "requestBody", "content", "application/json", "schema", "properties", "model"} {
			at, _ = at.(map[string]any)[name]
		}
		at.(map[string]any)["enum"] = []string{"chat", "none"}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// simplified is the same without the members that exclude others.
func simplified(t *testing.T) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(document(t), &doc); err != nil {
		t.Fatal(err)
	}
	schemas := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for name := range asked {
		properties := schemas[name].(map[string]any)["properties"].(map[string]any)
		for _, member := range exclusive {
			delete(properties, member)
		}
		// One of several fields has to be there; which, the schema can't say simply.
		for _, member := range []string{"prompt", "input"} {
			if _, ok := properties[member]; ok {
				schemas[name].(map[string]any)["required"] = []string{"model", member}
				properties[member] = map[string]any{"type": "string", "minLength": 1}
			}
		}
	}
	out, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSchemathesis: whatever is sent by the OpenAPI document, or beside it, is answered, and nothing with a failure of
// the server's own.
func TestSchemathesis(t *testing.T) {
	if testing.Short() {
		t.Skip("short: half a minute of generated requests")
	}
	program, err := filepath.Abs("../../.build/clients/sdks/bin/schemathesis")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("schemathesis isn't installed: tests/clients/setup.sh (%v)", err)
	}
	for name, doc := range map[string][]byte{"all": nil, "simple": simplified(t)} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			from := "http://" + s.address + "/openapi.json"
			if doc != nil {
				from = filepath.Join(t.TempDir(), "openapi.json")
				if err := os.WriteFile(from, doc, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s.generate(t, program, from, doc != nil)
		})
	}
}

// generate sends generated requests. With mode positive most are to be right, and so to reach a worker.
func (s *stage) generate(t *testing.T, program, from string, positive bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args := []string{"run", from, "--url", "http://" + s.address, "--checks", "not_a_server_error", "--seed", "1",
		"--request-timeout", "10", "--generation-database", "none", "--no-color", "--no-shrink", "--workers", "2"}
	if positive {
		args = append(args, "--mode", "positive", "--phases", "fuzzing", "--max-examples", "40", "--include-method", "POST")
	} else {
		args = append(args, "--phases", "examples,coverage,fuzzing", "--max-examples", "15")
	}
	// By its folder's interpreter, wherever the folder was when the program was installed.
	cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(program), "python"), append([]string{program}, args...)...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v:\n%s", err, out[max(0, len(out)-8000):])
	}
	n := len(s.dispatcher.Calls())
	t.Logf("%d requests reached a worker", n)
	if positive && n < 20 {
		t.Errorf("only %d requests reached a worker:\n%s", n, out)
	}
}
