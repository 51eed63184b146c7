package server_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

func TestTokenize(t *testing.T) {
	s := start(t, testkit.Play(hello), nil)
	for name, tt := range map[string]struct {
		path, body, want string
		status           int
	}{
		"prompt": {"/tokenize", `{"model":"m","prompt":"Hi"}`, `{"count":2,"max_model_len":0,"tokens":[72,105],"token_strs":null}`, 200},
		"v1":     {"/v1/tokenize", `{"model":"m","prompt":"","add_special_tokens":false}`, `{"count":0,"max_model_len":0,"tokens":[],"token_strs":null}`, 200},
		"texts":  {"/tokenize", `{"model":"m","prompt":"é!","return_token_strs":true}`, `{"count":3,"max_model_len":0,"tokens":[195,169,33],"token_strs":["` + "\ufffd\",\"\ufffd" + `","!"]}`, 200},
		"chat": {"/tokenize", `{"model":"m","messages":[{"role":"user","content":"a"}],"add_generation_prompt":true,"chat_template_kwargs":{"x":1},
			"tools":[{"type":"function","function":{"name":"f"}}],"add_special_tokens":false,"unknown":1}`,
			`{"count":8,"max_model_len":0,"tokens":[117,115,101,114,58,32,97,10],"token_strs":null}`, 200},
		"back":       {"/detokenize", `{"model":"m","tokens":[72,105]}`, `{"prompt":"Hi"}`, 200},
		"back at v1": {"/v1/detokenize", `{"model":"m","tokens":[]}`, `{"prompt":""}`, 200},
		"no model":   {"/tokenize", `{"prompt":"a"}`, "`model` is missing; it must be the name of a model", 400},
		"neither":    {"/tokenize", `{"model":"m"}`, "`prompt` is missing; it must be a string, or there must be `messages` in its place", 400},
		"both":       {"/tokenize", `{"model":"m","prompt":"a","messages":[]}`, "`prompt` is missing; it must be a string, or there must be `messages` in its place", 400},
		"type":       {"/tokenize", `{"model":"m","prompt":["a"]}`, "`prompt` must be a string, not an array", 400},
		"messages":   {"/tokenize", `{"model":"m","messages":[]}`, "`messages` must hold at least one message", 400},
		"message":    {"/tokenize", `{"model":"m","messages":[{"role":"x"}]}`, "`messages[0].role` must be one of \"developer\", \"system\", \"user\", \"assistant\", \"tool\" or \"function\", not \"x\"", 400},
		"open end":   {"/tokenize", `{"model":"m","messages":[{"role":"user","content":"a"}],"continue_final_message":true}`, "`add_generation_prompt` must be false when `continue_final_message` is true: an answer either continues the last message or begins a new one", 400},
		"unknown":    {"/tokenize", `{"model":"x","prompt":"a"}`, "The model `x` does not exist", 404},
		"not ready":  {"/detokenize", `{"model":"cold","tokens":[1]}`, "Model `cold` is not ready", 503},
		"elsewhere":  {"/tokenize", `{"model":"text","prompt":"a"}`, `The workers of model "text" tokenise for themselves; its prompts can't be counted`, 501},
		"no tokens":  {"/detokenize", `{"model":"m"}`, "`tokens` is missing; it must be an array of token ids", 400},
		"no token":   {"/detokenize", `{"model":"m","tokens":[72,300]}`, "`tokens[1]` must be a token id below 257, the size of the vocabulary, not 300", 400},
		"no number":  {"/detokenize", `{"model":"m","tokens":["a"]}`, "`tokens[0]` must be an integer, not a string", 400},
	} {
		t.Run(name, func(t *testing.T) {
			res, body := s.do(t, http.MethodPost, tt.path, tt.body)
			if res.StatusCode != tt.status {
				t.Errorf("status %d, want %d", res.StatusCode, tt.status)
			}
			got := body
			if tt.status != 200 {
				var e struct{ Error struct{ Message string } }
				if err := json.Unmarshal([]byte(body), &e); err != nil {
					t.Fatal(err)
				}
				got = e.Error.Message
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := s.metric(t, `dynamo_frontend_requests_total{endpoint="detokenize",error_type="",model="m",request_type="unary",status="success"}`); got != "2" {
		t.Errorf("counted: %q", got)
	}
}

// TestTokenizeIsWhatWorkersGet: the tokens told are those of the chat's prompt, and the only model needs no name.
func TestTokenizeIsWhatWorkersGet(t *testing.T) {
	d := testkit.Play(hello)
	s := start(t, d, func(o *server.Options) { o.Catalog = testkit.Models{"m": testkit.ByteModel("m"), "cold": nil} })
	const messages = `"messages":[{"role":"system","content":"s"},{"role":"user","content":"hi"}]`
	s.do(t, http.MethodPost, "/v1/chat/completions", `{"model":"m",`+messages+`}`)
	_, body := s.do(t, http.MethodPost, "/tokenize", `{`+messages+`}`)
	var got struct {
		Count  int
		Tokens []uint32
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	if diff := cmp.Diff(d.Calls()[0].Call.TokenIDs, got.Tokens); diff != "" || got.Count != len(got.Tokens) {
		t.Errorf("%d tokens:\n%s", got.Count, diff)
	}
	_, back := s.do(t, http.MethodPost, "/detokenize", strings.Replace(body, `"count"`, `"x"`, 1))
	if back != `{"prompt":"system: s\nuser: hi\n"}` {
		t.Errorf("%s", back)
	}
}

// TestTokenizeAsksNoWorker: whatever is sent, it stays here.
func TestTokenizeAsksNoWorker(t *testing.T) {
	d := &testkit.Dispatcher{Script: func(*router.Call, []byte) (testkit.Script, error) {
		t.Error("a worker was asked")
		return nil, fault.New(fault.Internal, "asked")
	}}
	s := start(t, d, nil)
	for _, body := range []string{`{"model":"m","prompt":"a"}`, `{"model":"m","messages":[{"role":"user","content":"a"}]}`} {
		s.do(t, http.MethodPost, "/tokenize", body)
	}
}
