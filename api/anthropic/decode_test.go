package anthropic_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/anthropic"
	"github.com/portico-llm/portico/internal/fault"
)

// body is a request with further members.
func body(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]` + members + `}`
}

// turn is a request of one turn.
func turn(role, content string) string {
	return `{"model":"m","max_tokens":5,"messages":[{"role":"` + role + `","content":` + content + `}]}`
}

func TestDecodeRefuses(t *testing.T) {
	deep := strings.Repeat("[", 600)
	for name, tt := range map[string]struct{ body, param, message string }{
		"nothing":        {"", "", "The body is empty; a JSON object is expected"},
		"array":          {"[]", "", "The body must be a JSON object"},
		"broken":         {`{"model":"m"`, "", "The body is not valid JSON: it ends at byte 12, in the middle of a value"},
		"deep":           {`{"model":` + deep, "", "The body nests deeper than 500 levels"},
		"no model":       {`{"messages":[]}`, "model", "`model` is missing; it must be the name of a model"},
		"no messages":    {`{"model":"m","max_tokens":1}`, "messages", "`messages` is missing; it must be an array with at least one message"},
		"no max_tokens":  {`{"model":"m","messages":[{"role":"user","content":""}]}`, "max_tokens", "`max_tokens` is missing; it must be an integer greater than 0"},
		"max_tokens":     {body(`"max_tokens":"5"`), "max_tokens", "`max_tokens` must be an integer"},
		"half a token":   {body(`"max_tokens":1.5`), "max_tokens", "`max_tokens` must be an integer"},
		"temperature":    {body(`"temperature":"x"`), "temperature", "`temperature` must be a number"},
		"stream":         {body(`"stream":1`), "stream", "`stream` must be true or false"},
		"stop_sequences": {body(`"stop_sequences":"x"`), "stop_sequences", "`stop_sequences` must be an array"},
		"a stop":         {body(`"stop_sequences":["a",1]`), "stop_sequences[1]", "`stop_sequences[1]` must be a string"},
		"system":         {body(`"system":5`), "system", "`system` must be a string or an array of content blocks"},
		"system block":   {body(`"system":[{"type":"image"}]`), "system[0]", "`system[0]` must be a text block: {\"type\":\"text\",\"text\":…}"},
		"metadata":       {body(`"metadata":{"user_id":5}`), "metadata.user_id", "`metadata.user_id` must be a string"},
		"thinking":       {body(`"thinking":{"type":"on"}`), "thinking.type", "`thinking.type` must be enabled, disabled or adaptive, not \"on\""},
		"budget":         {body(`"thinking":{"type":"enabled","budget_tokens":"many"}`), "thinking.budget_tokens", "`thinking.budget_tokens` must be an integer"},
		"tool type":      {body(`"tools":[{"type":"bash_20250124","name":"bash"}]`), "tools[0].type", "`tools[0].type` must be custom: Anthropic's tool \"bash_20250124\" is not supported"},
		"tool name":      {body(`"tools":[{"input_schema":{}}]`), "tools[0].name", "`tools[0].name` is missing; it must be the name of the tool"},
		"tool schema":    {body(`"tools":[{"name":"f","input_schema":[]}]`), "tools[0].input_schema", "`tools[0].input_schema` must be an object"},
		"tool_choice":    {body(`"tool_choice":{"type":"required"}`), "tool_choice.type", "`tool_choice.type` must be auto, any, tool or none, not \"required\""},
		"choice's name":  {body(`"tool_choice":{"type":"tool"}`), "tool_choice.name", "`tool_choice.name` is missing; it must be the name of a tool"},
		"nvext":          {body(`"nvext":[]`), "nvext", "`nvext` must be an object"},
		"mcp":            {body(`"mcp_servers":[{}]`), "mcp_servers", "`mcp_servers` is not supported; run the servers in the client and pass their `tools`"},
		"format":         {body(`"output_config":{"format":{"type":"xml"}}`), "output_config.format.type", "`output_config.format.type` must be json_schema, not \"xml\""},
		"schema":         {body(`"output_format":{"type":"json_schema"}`), "output_format.schema", "`output_format.schema` is missing; it must be a JSON schema object"},

		"role":           {turn("tool", `"x"`), "messages[0].role", "`messages[0].role` must be user or assistant, not \"tool\""},
		"no role":        {`{"model":"m","max_tokens":5,"messages":[{"content":"x"}]}`, "messages[0].role", "`messages[0].role` is missing; it must be user or assistant"},
		"no content":     {turn("user", `null`), "messages[0].content", "`messages[0].content` is missing; it must be a string or an array of content blocks"},
		"content":        {turn("user", `5`), "messages[0].content", "`messages[0].content` must be a string or an array of content blocks"},
		"block":          {turn("user", `["x"]`), "messages[0].content[0]", "`messages[0].content[0]` must be an object"},
		"block type":     {turn("user", `[{"type":"zzz"}]`), "messages[0].content[0].type", "`messages[0].content[0].type` must be text, image, document, search_result, tool_result here, not \"zzz\""},
		"block's place":  {turn("assistant", `[{"type":"image"}]`), "messages[0].content[0].type", "`messages[0].content[0].type` must be text, thinking, redacted_thinking, tool_use here, not \"image\""},
		"text":           {turn("user", `[{"type":"text"}]`), "messages[0].content[0].text", "`messages[0].content[0].text` is missing; it must be a string"},
		"thought":        {turn("assistant", `[{"type":"thinking"}]`), "messages[0].content[0].thinking", "`messages[0].content[0].thinking` is missing; it must be a string"},
		"source":         {turn("user", `[{"type":"image"}]`), "messages[0].content[0].source", "`messages[0].content[0].source` is missing; it must be an object"},
		"image file":     {turn("user", `[{"type":"image","source":{"type":"file"}}]`), "messages[0].content[0].source.type", "`messages[0].content[0].source.type` must be base64 or url for a block of type image, not \"file\""},
		"image url":      {turn("user", `[{"type":"image","source":{"type":"url"}}]`), "messages[0].content[0].source.url", "`messages[0].content[0].source.url` is missing; it must be a URL"},
		"media type":     {turn("user", `[{"type":"image","source":{"type":"base64","data":"AA=="}}]`), "messages[0].content[0].source.media_type", "`messages[0].content[0].source.media_type` is missing; it must be a media type such as image/png"},
		"image data":     {turn("user", `[{"type":"image","source":{"type":"base64","media_type":"image/png"}}]`), "messages[0].content[0].source.data", "`messages[0].content[0].source.data` is missing; it must be the image in base64"},
		"pdf":            {turn("user", `[{"type":"document","source":{"type":"base64"}}]`), "messages[0].content[0].source.type", "`messages[0].content[0].source.type` must be text or content for a block of type document, not \"base64\""},
		"use id":         {turn("assistant", `[{"type":"tool_use","name":"f","input":{}}]`), "messages[0].content[0].id", "`messages[0].content[0].id` is missing; it must be the id of the use"},
		"use name":       {turn("assistant", `[{"type":"tool_use","id":"t"}]`), "messages[0].content[0].name", "`messages[0].content[0].name` is missing; it must be the name of a tool"},
		"use input":      {turn("assistant", `[{"type":"tool_use","id":"t","name":"f","input":"{}"}]`), "messages[0].content[0].input", "`messages[0].content[0].input` must be an object"},
		"result id":      {turn("user", `[{"type":"tool_result"}]`), "messages[0].content[0].tool_use_id", "`messages[0].content[0].tool_use_id` is missing; it must be the id of a tool_use block"},
		"reference":      {turn("user", `[{"type":"tool_result","tool_use_id":"t","content":[{"type":"tool_reference"}]}]`), "messages[0].content[0].content[0].tool_name", "`messages[0].content[0].content[0].tool_name` is missing; it must be the name of a tool"},
		"result's block": {turn("user", `[{"type":"tool_result","tool_use_id":"t","content":[{"type":"thinking"}]}]`), "messages[0].content[0].content[0].type", "`messages[0].content[0].content[0].type` must be text, image, document, search_result, tool_reference here, not \"thinking\""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := anthropic.Decode([]byte(tt.body), anthropic.Options{})
			f, ok := errors.AsType[*fault.Error](err)
			if !ok || f.Kind != fault.BadRequest {
				t.Fatalf("%v", err)
			}
			if diff := cmp.Diff([]string{tt.param, tt.message}, []string{f.Param, f.Message}); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"nulls": body(`"system":null,"stop_sequences":null,"stream":null,"temperature":null,"top_k":null,"tools":null,
			"tool_choice":null,"thinking":null,"metadata":null,"output_config":null,"output_format":null,"nvext":null,
			"chat_template_kwargs":null,"mcp_servers":null`),
		"unknown fields": body(`"container":"x","context_management":{"edits":[]},"service_tier":"auto","betas":["a"],"zzz":1`),
		"cache control":  turn("user", `[{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}]`),
		"twice":          body(`"temperature":1,"temperature":0.5`),
		"line break":     turn("user", "\"a\nb\""),
		"bad utf-8":      turn("user", "\"a\xffb\""),
		"byte order":     "\uFEFF" + body(""),
		"empty blocks":   turn("user", `[]`),
		"empty result":   turn("user", `[{"type":"tool_result","tool_use_id":"t"}]`),
		"a tool's extras": body(`"tools":[{"name":"f","type":null,"input_schema":{"type":"object"},"defer_loading":true,
			"input_examples":[{}],"cache_control":null,"eager_input_streaming":true}]`),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := anthropic.Decode([]byte(text), anthropic.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := anthropic.DecodeCount([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`), anthropic.Options{}); err != nil {
		t.Errorf("counting: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		body(""), body(`"system":[{"type":"text","text":"s"}],"tools":[{"name":"f"}],"tool_choice":{"type":"any"}`),
		turn("user", `[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"x"}],"is_error":true}]`),
		turn("assistant", `[{"type":"tool_use","id":"t","name":"f","input":{"a":[1]}},{"type":"thinking","thinking":""}]`),
		turn("user", "\"\xff\\ud800\n\""), `{`, `null`, `[[[[`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := anthropic.Decode(data, anthropic.Options{})
		if err == nil {
			if req.Model == "" || req.MaxTokens == nil || len(req.Messages) == 0 {
				t.Fatalf("accepted without what it needs: %q", data)
			}
			return
		}
		if e, ok := errors.AsType[*fault.Error](err); !ok || e.Kind != fault.BadRequest {
			t.Fatalf("%q: not a bad request: %v", data, err)
		}
	})
}

func TestAnswers(t *testing.T) {
	got := string(anthropic.AppendError(nil, &anthropic.Error{Type: "not_found_error", Message: "no <m>", RequestID: "r"}))
	if want := `{"type":"error","error":{"type":"not_found_error","message":"no \u003cm\u003e"},"request_id":"r"}`; got != want {
		t.Errorf("got %s", got)
	}
	empty := anthropic.NewModelList(nil)
	if empty.Data == nil || empty.FirstID != nil {
		t.Errorf("%+v", empty)
	}
	list := anthropic.NewModelList([]anthropic.Model{anthropic.NewModel("a", 0), anthropic.NewModel("b", 1700000000)})
	if *list.FirstID != "a" || *list.LastID != "b" || list.Data[1].CreatedAt != "2023-11-14T22:13:20Z" {
		t.Errorf("%+v", list)
	}
}
