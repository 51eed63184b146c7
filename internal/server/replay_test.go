package server_test

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

var responseID = regexp.MustCompile(`resp_[0-9a-f]{32}`)

// replayed asks for a stream once more: it is the same, from every event on.
func replayed(t *testing.T, s *stack, stream string) {
	t.Helper()
	path := "/v1/responses/" + responseID.FindString(stream) + "?stream=true"
	res, again := s.do(t, http.MethodGet, path, "")
	if diff := cmp.Diff(stream, again); diff != "" || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("%d (-stream +replay):\n%s", res.StatusCode, diff)
	}
	rest := stream
	for n := range strings.Count(stream, `,"sequence_number":`) {
		_, rest, _ = strings.Cut(rest, "\n\n")
		if _, got := s.do(t, http.MethodGet, fmt.Sprintf("%s&starting_after=%d", path, n), ""); got != rest {
			t.Errorf("after %d (-rest +replay):\n%s", n, cmp.Diff(rest, got))
		}
	}
	if rest != "data: [DONE]\n\n" {
		t.Errorf("%q is left", rest)
	}
	if _, got := s.do(t, http.MethodGet, path+"&starting_after=99999", ""); got != rest {
		t.Errorf("after the last: %q", got)
	}
}

// TestReplay: a stream that was kept is told again event by event, and an answer that was never streamed in one piece
// for each item.
func TestReplay(t *testing.T) {
	const shell = `"tools":[{"type":"local_shell"},{"type":"shell","environment":{"type":"local"}},{"type":"apply_patch"}]`
	for name, tt := range map[string]struct{ text, finish, request string }{
		"text":                {"Hello", "stop", ``},
		"nothing":             {"", "stop", ``},
		"white space":         {" \n", "stop", ``},
		"cut":                 {"<think>Hm.</think>Hel", "length", ``},
		"summary, sealed":     {"<think>Hm.</think>Hello", "stop", `"reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content"]`},
		"a thought and calls": {"<think>Hm.</think>\n\nFirst. " + called("look", `{"a": "ö\n\n"}`) + called("web__open", `{}`) + "\nThen.", "stop", tools},
		"custom input":        {called("patch", `{"input": "a\nb \"c\""}`), "stop", tools},
		"shell":               {called("local_shell", `{"command": ["ls", "-l"]}`), "stop", shell},
		"lines":               {called("shell", `{"commands": ["", "a\n\nb"]}`), "stop", shell},
		"patches": {called("apply_patch", `{"diff": "+a\n\n+b", "path": "x", "type": "create_file"}`) +
			called("apply_patch", `{"type": "delete_file", "path": "y", "diff": "-"}`) + called("apply_patch", `{"type": "update_file"}`), "stop", shell},
		"what was asked for": {"Hi", "stop", `"metadata":{"a":"b"},"instructions":"Be\n\nbrief.","temperature":0.5,"nvext":{"extra_fields":["timing"]}`},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := parsing(t, tt.text, tt.finish)
			request := `{"model":"m","input":"hi"`
			if tt.request != "" {
				request += "," + tt.request
			}
			_, stream := s.do(t, http.MethodPost, "/v1/responses", request+`,"stream":true}`)
			replayed(t, s, stream)
			_, unary := s.do(t, http.MethodPost, "/v1/responses", request+"}")
			res, told := s.do(t, http.MethodGet, "/v1/responses/"+responseID.FindString(unary)+"?stream=true", "")
			if res.StatusCode != http.StatusOK || !strings.Contains(told, `"response":`+unary+"}\n\n") {
				t.Errorf("%d %s has no %s", res.StatusCode, told, unary)
			}
			if n := strings.Count(told, ".delta\n"); n > strings.Count(told, "output_item.done\n") {
				t.Errorf("%d pieces of what came in one", n)
			}
		})
	}
}

// TestReplayLogprobs: each piece has its own probabilities again.
func TestReplayLogprobs(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"token_ids":[72],"log_probs":[-0.5],"top_logprobs":[[{"token_id":72,"logprob":-0.5},{"token_id":73,"logprob":-1}]]},
		{"token_ids":[195],"log_probs":[-0.25]},{"token_ids":[182],"log_probs":[-0.125]},{"token_ids":[33],"log_probs":[-0.0625],"finish_reason":"stop"}]`))
	s := start(t, d, func(o *server.Options) { o.Responses.MaxCount = 1 })
	_, stream := s.do(t, http.MethodPost, "/v1/responses",
		`{"model":"m","input":"a","stream":true,"top_logprobs":2,"include":["message.output_text.logprobs"]}`)
	if n := strings.Count(stream, ".delta\n"); n != 3 {
		t.Fatalf("%d pieces: %s", n, stream)
	}
	replayed(t, s, stream)
}

// TestReplayLong: a replay is sent in parts, and what was in it costs next to nothing to keep.
func TestReplayLong(t *testing.T) {
	s, _ := parsing(t, strings.Repeat("All work and no play. ", 500), "stop")
	_, stream := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","input":"hi","stream":true}`)
	path := "/v1/responses/" + responseID.FindString(stream) + "?stream=true"
	if _, again := s.do(t, http.MethodGet, path, ""); again != stream {
		t.Errorf("%d bytes of %d", len(again), len(stream))
	}
	kept, err := strconv.ParseFloat(s.metric(t, "dynamo_frontend_stored_responses_bytes"), 64)
	if err != nil || kept > float64(len(stream))/20 {
		t.Errorf("%v, %g bytes are kept of a stream of %d", err, kept, len(stream))
	}
}

// TestReplayRefused: what can't be replayed is said, and nobody else's is.
func TestReplayRefused(t *testing.T) {
	s, _ := parsing(t, "Hello", "stop")
	_, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","input":"hi"}`)
	path := "/v1/responses/" + responseID.FindString(body)
	for query, want := range map[string]string{
		"?stream=maybe": "400 stream", "?stream=true&starting_after=x": "400 starting_after",
		"?stream=true&starting_after=-1": "400 starting_after", "?starting_after=2": "200 ", "?stream=false": "200 ",
	} {
		res, body := s.do(t, http.MethodGet, path+query, "")
		param := regexp.MustCompile(`"param":"(\w+)"`).FindStringSubmatch(body)
		if got := fmt.Sprint(res.StatusCode, " ", strings.Join(param[min(1, len(param)):], "")); got != want {
			t.Errorf("%s: %s, want %s: %s", query, got, want, body)
		}
	}
	if res, _ := s.do(t, http.MethodGet, path+"?stream=true", "", "X-Tenant-Id", "other"); res.StatusCode != http.StatusNotFound {
		t.Errorf("another tenant reads: %d", res.StatusCode)
	}
	if res, body := s.do(t, http.MethodHead, path+"?stream=true", ""); res.StatusCode != http.StatusOK || body != "" {
		t.Errorf("HEAD: %d %q", res.StatusCode, body)
	}
}

// TestOwnTools: lines for a shell and changes of files are told as OpenAI's own calls, those that can't be read never as
// completed, and what came of them goes back.
func TestOwnTools(t *testing.T) {
	const tools = `"tools":[{"type":"shell"},{"type":"apply_patch"}]`
	for _, c := range []struct{ tool, arguments, status, action, result, told string }{
		{"shell", `{"commands": ["ls", "wc a"], "timeout_ms": 5}`, "completed",
			`{"commands":["ls","wc a"],"timeout_ms":5,"max_output_length":null}`,
			`[{"stdout":"a\nb\n","stderr":"","outcome":{"type":"exit","exit_code":0}},{"stdout":"","stderr":"no a\n","outcome":{"type":"exit","exit_code":1}}]`,
			"a\nb\nno a\n[exit code 1]"},
		{"shell", `{"commands": "ls | wc", "max_output_length": 9}`, "completed",
			`{"commands":["ls | wc"],"timeout_ms":null,"max_output_length":9}`,
			`[{"stdout":"","stderr":"","outcome":{"type":"timeout"}}]`, "[timed out]"},
		{"shell", `{"commands": []}`, "incomplete", `{"commands":[],"timeout_ms":null,"max_output_length":null}`,
			`[{"stdout":"","stderr":"","outcome":{"type":"exit","exit_code":0}}]`, "[exit code 0]"},
		{"shell", `{"commands": [["rm"]]}`, "incomplete", `{"commands":[],"timeout_ms":null,"max_output_length":null}`, `"as text"`, "as text"},
		{"apply_patch", `{"diff": "@@\n-a\n+b", "type": "update_file", "path": "x/y"}`, "completed",
			`{"type":"update_file","path":"x/y","diff":"@@\n-a\n+b"}`, `"Updated x/y"`, "Updated x/y"},
		{"apply_patch", `{"type": "create_file", "path": "x", "diff": ""}`, "completed", `{"type":"create_file","path":"x","diff":""}`, ``, "completed"},
		{"apply_patch", `{"type": "delete_file", "path": "x", "diff": "-a"}`, "completed", `{"type":"delete_file","path":"x"}`, `null`, "completed"},
		{"apply_patch", `{"type": "update_file", "path": "x"}`, "in_progress", `{"type":"update_file","path":"","diff":""}`, ``, "completed"},
		{"apply_patch", `{"type": "move_file", "path": "x", "diff": ""}`, "in_progress", `{"type":"update_file","path":"","diff":""}`, ``, "completed"},
		{"apply_patch", `{"type": "delete_file", "path": ""}`, "in_progress", `{"type":"update_file","path":"","diff":""}`, ``, "completed"},
	} {
		t.Run(c.tool+c.arguments, func(t *testing.T) {
			s, d := parsing(t, called(c.tool, c.arguments), "stop")
			const ask = `{"model":"m","input":"Go.",` + tools
			_, stream := s.do(t, http.MethodPost, "/v1/responses", ask+`,"stream":true}`)
			_, body := s.do(t, http.MethodPost, "/v1/responses", ask+"}")
			id := regexp.MustCompile(`"call_id":"(call_\w+)"`).FindStringSubmatch(body)
			if id == nil || !strings.Contains(body, c.action+`,`) || !strings.Contains(body, `"type":"`+c.tool+`_call"`) ||
				!strings.Contains(body, `"status":"`+c.status+`"}]`) || !strings.Contains(body, `"tools":[{"type":"shell"},{"type":"apply_patch"}]`) {
				t.Fatalf("want %s %s in %s", c.status, c.action, body)
			}
			if !strings.Contains(stream, c.action) {
				t.Errorf("streamed as %s", stream)
			}
			result := `{"type":"` + c.tool + `_call_output","status":"completed","call_id":"` + id[1] + `"`
			if c.result != "" {
				result += `,"output":` + c.result
			}
			res, answer := s.do(t, http.MethodPost, "/v1/responses",
				`{"model":"m","previous_response_id":"`+responseID.FindString(body)+`","input":[`+result+`}],`+tools+`}`)
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", res.StatusCode, answer)
			}
			if got := prompt(t, d, 2); got != "user: Go.\nassistant: \ntool: "+c.told+"\n" {
				t.Errorf("the model got %q", got)
			}
		})
	}
}

// TestLocalShell: a command is told as a call of the client's shell, and never as completed when it can't be read.
func TestLocalShell(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"command": ["ls", "a b"], "working_directory": "/x", "timeout_ms": 5, "env": {"A": "b"}}`: `completed {"type":"exec","command":["ls","a b"],"env":{"A":"b"},"timeout_ms":5,"working_directory":"/x"}`,
		`{"command": "ls | wc"}`:           `completed {"type":"exec","command":["sh","-c","ls | wc"],"env":{}}`,
		`{"command": ["id"], "user": "u"}`: `completed {"type":"exec","command":["id"],"env":{},"user":"u"}`,
		`{"command": []}`:                  `incomplete {"type":"exec","command":[],"env":{}}`,
		`{"command": [1]}`:                 `incomplete {"type":"exec","command":[],"env":{}}`,
		`{"cmd": "rm"}`:                    `incomplete {"type":"exec","command":[],"env":{}}`,
	} {
		s, d := parsing(t, called("local_shell", arguments), "stop")
		const ask = `{"model":"m","input":"List it.","tools":[{"type":"local_shell"}]`
		_, stream := s.do(t, http.MethodPost, "/v1/responses", ask+`,"stream":true}`)
		_, body := s.do(t, http.MethodPost, "/v1/responses", ask+"}")
		item := regexp.MustCompile(`{"type":"local_shell_call","action":({.*}),"call_id":"(call_\w+)","id":"lsh_\w+","status":"(\w+)"}`)
		m := item.FindStringSubmatch(body)
		if m == nil || m[3]+" "+m[1] != want || !strings.Contains(body, `"tools":[{"type":"local_shell"}]`) {
			t.Fatalf("want %s in %s", want, body)
		}
		if !strings.Contains(stream, m[1]) {
			t.Errorf("streamed as %s", stream)
		}
		// What it printed goes back, with or without the name that OpenAI gives the id there.
		for _, id := range []string{"id", "call_id"} {
			res, body := s.do(t, http.MethodPost, "/v1/responses", fmt.Sprintf(`{"model":"m","previous_response_id":%q,"input":[{`+
				`"type":"local_shell_call_output",%q:%q,"output":"two files"}],"tools":[{"type":"local_shell"}]}`, responseID.FindString(body), id, m[2]))
			if res.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", res.StatusCode, body)
			}
		}
		if got := prompt(t, d, 3); got != "user: List it.\nassistant: \ntool: two files\n" {
			t.Errorf("the model got %q", got)
		}
	}
}

// TestOwnToolsCut: a command or a change that broke off is nobody's to run.
func TestOwnToolsCut(t *testing.T) {
	for tool, arguments := range map[string]string{
		"local_shell": `{"command": ["rm", "`, "shell": `{"commands": ["rm`, "apply_patch": `{"type": "delete_file", "path": "rm"`,
	} {
		for script, last := range map[string]string{
			`{"token_ids":[],"finish_reason":"length"}`: "response.incomplete", `{"_raise":"secret"}`: "error",
		} {
			text := "<tool_call>\n{\"name\": \"" + tool + "\", \"arguments\": " + arguments
			items := slices.Concat(spelled(text, "stop")[:len(text)], testkit.Items("["+script+"]"))
			s, d := parsing(t, "", "stop")
			d.Script = testkit.Play(items).Script
			_, body := s.do(t, http.MethodPost, "/v1/responses", `{"model":"m","input":"a","stream":true,"tools":[{"type":"`+tool+`"}]}`)
			if strings.Contains(body, `"completed"`) || strings.Contains(body, `"rm`) || !strings.Contains(body, "event: "+last+"\n") {
				t.Errorf("%s, %s: %s", tool, last, body)
			}
		}
	}
}

// TestReplayTextWorker: the pieces of a worker that speaks chat's format are told again as they came.
func TestReplayTextWorker(t *testing.T) {
	d := testkit.Play(testkit.Items(`[
		{"choices":[{"index":0,"delta":{"role":"assistant","reasoning_content":"Hm."}}]},
		{"choices":[{"index":0,"delta":{"content":"He"}}]},{"choices":[{"index":0,"delta":{"content":"y"}}]},
		{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":"{\"a\":"}}]}}]},
		{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]},"finish_reason":"tool_calls"}]}]`))
	s := start(t, d, func(o *server.Options) { o.Responses.MaxCount = 1 })
	_, stream := s.do(t, http.MethodPost, "/v1/responses", `{"model":"text","input":"hi","stream":true,`+tools+`}`)
	if n := strings.Count(stream, ".delta\n"); n != 5 {
		t.Fatalf("%d pieces: %s", n, stream)
	}
	replayed(t, s, stream)
}
