package pipeline_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
)

// echoModel is a renderer and tokenizer whose work can be read off: the prompt is the template's input, and the tokens
// are its bytes.
type echoModel struct {
	prepost.Tokenizer
	in   prepost.ChatInput
	fail error
}

func (m *echoModel) Render(_ context.Context, in *prepost.ChatInput) (string, error) {
	m.in = *in
	return string(in.Messages), m.fail
}

func (m *echoModel) Encode(ctx context.Context, text string, special bool) ([]uint32, error) {
	if special {
		return nil, errors.New("special tokens asked for")
	}
	ids := make([]uint32, 0, len(text))
	for _, b := range []byte(text) {
		ids = append(ids, uint32(b))
	}
	return ids, ctx.Err()
}

func (m *echoModel) VocabSize() int { return 256 }

// prepareSet is a set served by model, with the runtime data of a card.
func prepareSet(model *echoModel, runtimeData string) *catalog.Set {
	card := &worker.Card{DisplayName: "m", ModelInput: "Tokens"}
	if runtimeData != "" {
		card.RuntimeConfig.RuntimeData = map[string]json.RawMessage{"token_budget": json.RawMessage(runtimeData)}
	}
	return &catalog.Set{Card: card, MDCSum: "sum", Renderer: model, Tokenizer: model, EOS: []uint32{7, 8}}
}

func prepareChat(t *testing.T, set *catalog.Set, meta pipeline.Meta, members string) (*pipeline.Prepared, error) {
	t.Helper()
	if members != "" {
		members = "," + members
	}
	body := `{"model":"m","messages":[{"role":"user","content":"hi"}]` + members + `}`
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pipeline.New(pipeline.Options{}).PrepareChat(t.Context(), set, meta, req)
}

func prepareCompletion(t *testing.T, set *catalog.Set, members string) (*pipeline.Prepared, error) {
	t.Helper()
	req, err := openai.DecodeCompletion([]byte(`{"model":"m",`+members+`}`), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pipeline.New(pipeline.Options{}).PrepareCompletion(t.Context(), set, pipeline.Meta{}, req)
}

// faultAt fails unless err is a bad request about param.
func faultAt(t *testing.T, err error, param, code string) *fault.Error {
	t.Helper()
	f, ok := errors.AsType[*fault.Error](err)
	if !ok || f.Kind != fault.BadRequest || f.Param != param || f.Code != code {
		t.Fatalf("err = %#v, want a bad request about %q with code %q", err, param, code)
	}
	return f
}

func TestPrepareTemplateInput(t *testing.T) {
	const tools = `[{"type":"function","function":{"name":"f"}}]`
	for _, c := range []struct {
		name, members, tools, kwargs string
		generate, continued          bool
	}{
		{"plain", ``, "", "", true, false},
		{"continued", `"continue_final_message":true,"add_generation_prompt":false`, "", "", false, true},
		{"tools", `"tools":` + tools, tools, "", true, false},
		{"no tools", `"tools":` + tools + `,"tool_choice":"none"`, "", "", true, false},
		{"kwargs as sent", `"chat_template_kwargs":{"z":1.0,"a":{"y":1e5}}`, "", `{"z":1.0,"a":{"y":1e5}}`, true, false},
		{"thinking off", `"thinking":{"type":"disabled"}`, "",
			`{"enable_thinking":false,"thinking":false,"thinking_mode":"disabled"}`, true, false},
		{"thinking off, in short", `"thinking":false`, "",
			`{"enable_thinking":false,"thinking":false,"thinking_mode":"disabled"}`, true, false},
		{"thinking on, in short", `"thinking":true`, "",
			`{"enable_thinking":true,"thinking":true,"thinking_mode":"enabled"}`, true, false},
		{"effort", `"reasoning_effort":"low"`, "",
			`{"reasoning_effort":"low","enable_thinking":true,"thinking":true,"thinking_mode":"enabled"}`, true, false},
		{"no effort", `"reasoning_effort":"none"`, "",
			`{"reasoning_effort":"none","enable_thinking":false,"thinking":false,"thinking_mode":"disabled"}`, true, false},
		{"kwargs win", `"chat_template_args":{"enable_thinking":false,"reasoning_effort":"x"},"reasoning_effort":"high"`, "",
			`{"enable_thinking":false,"reasoning_effort":"x","thinking":false,"thinking_mode":"disabled"}`, true, false},
		{"thinking before effort", `"thinking":{"type":"enabled"},"reasoning_effort":"none"`, "",
			`{"reasoning_effort":"none","enable_thinking":true,"thinking":true,"thinking_mode":"enabled"}`, true, false},
		{"adaptive says nothing", `"thinking":{"type":"adaptive"}`, "", "", true, false},
		{"odd switch", `"chat_template_kwargs":{"thinking":"maybe"}`, "", `{"thinking":"maybe"}`, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := &echoModel{}
			if _, err := prepareChat(t, prepareSet(model, ""), pipeline.Meta{}, c.members); err != nil {
				t.Fatal(err)
			}
			want := []any{c.tools, c.kwargs, c.generate, c.continued}
			got := []any{string(model.in.Tools), string(model.in.Kwargs), model.in.AddGenerationPrompt, model.in.ContinueFinalMessage}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if model.in.Now.IsZero() {
				t.Error("no clock")
			}
		})
	}
	keep := false
	model := &echoModel{}
	set := prepareSet(model, "")
	set.Card.RuntimeConfig.ExcludeToolsWhenNone = &keep
	if _, err := prepareChat(t, set, pipeline.Meta{}, `"tools":`+tools+`,"tool_choice":"none"`); err != nil || string(model.in.Tools) != tools {
		t.Errorf("tools %s, err %v", model.in.Tools, err)
	}
}

func TestPrepareRouting(t *testing.T) {
	id, rank, urgent, strict := uint64(1)<<63+1, uint32(3), int32(-2), uint32(5)
	meta := pipeline.Meta{BackendInstanceID: &id, DPRank: &rank, Priority: &urgent, StrictPriority: &strict, CacheSalt: "header"}
	set := prepareSet(&echoModel{}, "")
	set.LoRA = "adapter"
	got, err := prepareChat(t, set, meta, "")
	if err != nil {
		t.Fatal(err)
	}
	jump := -2.0
	want := worker.Routing{BackendInstanceID: &id, DPRank: &rank, Priority: &urgent, StrictPriority: &strict,
		PriorityJump: &jump, LoRAName: "adapter", CacheSalt: "header"}
	if diff := cmp.Diff(want, got.Requests[0].Routing); diff != "" {
		t.Error(diff)
	}
	if got.Pin == nil || *got.Pin != id {
		t.Errorf("pin %v", got.Pin)
	}

	got, err = prepareChat(t, set, meta, `"cache_salt":"root","nvext":{"backend_instance_id":9,"dp_rank":0,"decode_worker_id":4,`+
		`"agent_hints":{"priority":2,"osl":10}}`)
	if err != nil {
		t.Fatal(err)
	}
	r := got.Requests[0].Routing
	if *r.BackendInstanceID != 9 || *r.DPRank != 0 || *r.DecodeWorkerID != 4 || *r.Priority != 2 || *r.PriorityJump != 2 ||
		*r.ExpectedOutputTokens != 10 || *r.StrictPriority != 5 || r.CacheSalt != "root" || *got.Pin != 9 {
		t.Errorf("routing %+v, pin %v", r, *got.Pin)
	}
	if want := `{"nvext":{"cache_salt":"root"}}`; string(got.Requests[0].ExtraArgs) != want {
		t.Errorf("extra_args %s", got.Requests[0].ExtraArgs)
	}
	if got, err = prepareChat(t, set, pipeline.Meta{}, `"nvext":{"decode_worker_id":4}`); err != nil || *got.Pin != 4 {
		t.Errorf("pin %v, err %v", got, err)
	}
}

func TestPrepareTokenData(t *testing.T) {
	model := &echoModel{fail: errors.New("rendered")}
	got, err := prepareChat(t, prepareSet(model, ""), pipeline.Meta{}, `"nvext":{"token_data":[1,255]}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint32{1, 255}, got.Requests[0].TokenIDs); diff != "" {
		t.Error(diff)
	}
	if want := `{"nvext":{"token_in":true}}`; string(got.Requests[0].ExtraArgs) != want {
		t.Errorf("extra_args %s", got.Requests[0].ExtraArgs)
	}
	_, err = prepareChat(t, prepareSet(model, ""), pipeline.Meta{}, `"nvext":{"token_data":[1,256]}`)
	faultAt(t, err, "nvext.token_data[1]", "invalid_value")
}

func TestPrepareMedia(t *testing.T) {
	set := prepareSet(&echoModel{}, "")
	body := `{"model":"m","media_io_kwargs":{"image":{"x":1}},"messages":[{"role":"user","content":[
		{"type":"video_url","video_url":{"url":"v"}},{"type":"image_url","image_url":{"url":"a\"b"}},
		{"type":"input_audio","input_audio":{"data":"AA","format":"wav"}},{"type":"image_url","image_url":{"url":"c"}}]}]}`
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewPedanticRegistry()
	p := pipeline.New(pipeline.Options{Registerer: reg})
	got, err := p.PrepareChat(t.Context(), set, pipeline.Meta{}, req)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"image_url":[{"Url":"a\"b"},{"Url":"c"}],"video_url":[{"Url":"v"}],"audio_url":[{"Url":"data:audio/wav;base64,AA"}]}`
	if diff := cmp.Diff(want, string(got.Requests[0].MultiModalData)); diff != "" {
		t.Error(diff)
	}
	if string(got.Requests[0].MediaIOKwargs) != `{"image":{"x":1}}` {
		t.Errorf("media_io_kwargs %s", got.Requests[0].MediaIOKwargs)
	}
	counts := sums(t, reg)
	for name, want := range map[string]float64{
		"images_per_request": 2, "videos_per_request": 1, "audio_per_request": 1,
		"input_sequence_tokens": float64(len(got.Requests[0].TokenIDs)),
	} {
		if counts["dynamo_frontend_"+name] != want {
			t.Errorf("%s = %g, want %g", name, counts["dynamo_frontend_"+name], want)
		}
	}
	for _, name := range []string{"template_seconds", "tokenize_seconds", "tokenizer_latency_ms"} {
		if counts["dynamo_frontend_"+name] <= 0 {
			t.Errorf("%s not observed", name)
		}
	}
}

func TestPrepareRefusesFiles(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"file","file":{"file_id":"f"}}]}]}`
	req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = pipeline.New(pipeline.Options{}).PrepareChat(t.Context(), prepareSet(&echoModel{}, ""), pipeline.Meta{}, req)
	faultAt(t, err, "messages[0].content[1]", "")
}

// sums returns the sum of each histogram.
func sums(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out[f.GetName()] += m.GetHistogram().GetSampleSum()
		}
	}
	return out
}

func TestPrepareBudget(t *testing.T) {
	prompt := len(`[{"role":"user","content":"hi"}]`)
	limit := func(n int, rest string) string { return fmt.Sprintf(`{"combined_limit":%d%s}`, n, rest) }
	for _, c := range []struct {
		name, budget, members string
		refused               bool
	}{
		{"no budget", ``, `"max_tokens":99999`, false},
		{"fits", limit(prompt+5, `,"reject_total_overflow":true`), `"max_tokens":5`, false},
		{"answer too long", limit(prompt+5, `,"reject_total_overflow":true`), `"max_tokens":6`, true},
		{"answer too long, newer field", limit(prompt+5, `,"reject_total_overflow":true`), `"max_completion_tokens":6`, true},
		{"answer too long, allowed", limit(prompt+5, ``), `"max_tokens":6`, false},
		{"prompt fits", limit(prompt+1, `,"reject_prompt_overflow":true`), ``, false},
		{"prompt too long", limit(prompt, `,"reject_prompt_overflow":true`), ``, true},
		{"prompt too long, allowed", limit(prompt, ``), ``, false},
		{"unreadable", `"soon"`, ``, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := prepareChat(t, prepareSet(&echoModel{}, c.budget), pipeline.Meta{}, c.members)
			if !c.refused {
				if err != nil {
					t.Fatal(err)
				}
				if c.members == "" && got.Requests[0].Stop.MaxTokens != nil {
					t.Errorf("max_tokens %d was made up", *got.Requests[0].Stop.MaxTokens)
				}
				return
			}
			f := faultAt(t, err, "messages", "context_length_exceeded")
			if f.Details["type"] != "context_length" {
				t.Errorf("details %v", f.Details)
			}
		})
	}
}

// TestPrepareRoom: of a context beyond what the number can hold a completion gets as much as it can.
func TestPrepareRoom(t *testing.T) {
	got, err := prepareCompletion(t, prepareSet(&echoModel{}, `{"combined_limit":4294967298}`), `"prompt":"ab"`)
	if err != nil || *got.Requests[0].Stop.MaxTokens != math.MaxUint32 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestPrepareCompletionBatch(t *testing.T) {
	set := prepareSet(&echoModel{}, `{"combined_limit":10}`)
	got, err := prepareCompletion(t, set, `"prompt":["ab","c"],"n":2,"best_of":3,"logprobs":4,"no_stop_trim":true`)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Requests) != 2 || got.Choices != 2 || got.Chat {
		t.Fatalf("%d requests of %d choices", len(got.Requests), got.Choices)
	}
	for i, want := range [][]uint32{{'a', 'b'}, {'c'}} {
		q := got.Requests[i]
		if diff := cmp.Diff(want, q.TokenIDs); diff != "" {
			t.Error(diff)
		}
		if int(*q.Stop.MaxTokens) != 10-len(want) || *q.Sampling.BestOf != 3 || *q.Output.Logprobs != 4 || !*q.Output.NoStopTrim {
			t.Errorf("request %d: %+v", i, q)
		}
	}
	if got, err = prepareCompletion(t, set, `"prompt":[[1,2],[3]],"max_tokens":4`); err != nil || *got.Requests[1].Stop.MaxTokens != 4 {
		t.Errorf("err %v", err)
	}
	for members, param := range map[string]string{
		`"prompt":[1,256]`: "prompt[1]", `"prompt":[[1],[2,999]]`: "prompt[1][1]", `"prompt":""`: "prompt", `"prompt":["a",""]`: "prompt[1]",
	} {
		_, err := prepareCompletion(t, set, members)
		faultAt(t, err, param, "invalid_value")
	}
	_, err = prepareCompletion(t, set, `"prompt":["a","0123456789"]`)
	faultAt(t, err, "prompt[1]", "context_length_exceeded")
	embeds, err := prepareCompletion(t, prepareSet(&echoModel{}, ""), `"prompt":"","prompt_embeds":"AAAA"`)
	if err != nil || embeds.Requests[0].PromptEmbeds != "AAAA" || len(embeds.Requests[0].TokenIDs) != 0 {
		t.Errorf("embeds: %v", err)
	}
}

func TestPrepareTextWorkers(t *testing.T) {
	set := &catalog.Set{Card: &worker.Card{ModelInput: "Text"}}
	got, err := prepareChat(t, set, pipeline.Meta{}, `"n":3,"nvext":{"backend_instance_id":5},"zzz":1`)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"stream":true,"stream_options":{"include_usage":true},"model":"m","messages":[{"role":"user","content":"hi"}],` +
		`"n":3,"nvext":{"backend_instance_id":5}}`
	if diff := cmp.Diff(want, string(got.Raw)); diff != "" {
		t.Error(diff)
	}
	if got.Requests != nil || got.Choices != 3 || *got.Pin != 5 || !got.Chat {
		t.Errorf("%+v", got)
	}
	if got, err = prepareCompletion(t, set, `"prompt":"a"`); err != nil || !strings.Contains(string(got.Raw), `"prompt":"a"`) {
		t.Errorf("err %v", err)
	}
}

func TestPrepareFailures(t *testing.T) {
	set := prepareSet(&echoModel{fail: fault.Bad("messages", "no")}, "")
	_, err := prepareChat(t, set, pipeline.Meta{}, "")
	faultAt(t, err, "messages", "")

	set.Renderer = nil
	_, err = prepareChat(t, set, pipeline.Meta{}, "")
	faultAt(t, err, "model", "")

	got, err := prepareChat(t, prepareSet(&echoModel{}, ""), pipeline.Meta{}, `"nvext":{"annotations":["formatted_prompt"]}`)
	if err != nil || got.Prompt != `[{"role":"user","content":"hi"}]` {
		t.Errorf("prompt %q, err %v", got.Prompt, err)
	}

	req, err := openai.DecodeCompletion([]byte(`{"model":"m","prompt":"a"}`), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pipeline.New(pipeline.Options{}).PrepareCompletion(ctx, prepareSet(&echoModel{}, ""), pipeline.Meta{}, req); !errors.Is(err, context.Canceled) {
		t.Errorf("err %v", err)
	}
}

func TestPrepareToolSchemas(t *testing.T) {
	tool := func(name, parameters string) string {
		return fmt.Sprintf(`{"type":"function","function":{"name":%q,"parameters":%s}}`, name, parameters)
	}
	for _, c := range []struct{ name, members, want string }{
		{"named wins over a format", `"tools":[` + tool("f", `{"type":"object","x":1}`) + `],"response_format":{"type":"json_object"},` +
			`"tool_choice":{"type":"function","function":{"name":"f"}},"guided_decoding_backend":"b"`,
			`{"json":{"type":"object","x":1},"backend":"b"}`},
		{"one call", `"tools":[` + tool("f", `{"$defs":{"A":{}},"a":1}`) + `],"tool_choice":"required","parallel_tool_calls":false`,
			`{"json":{"type":"array","minItems":1,"maxItems":1,"items":{"type":"object","anyOf":[{"properties":{"name":` +
				`{"type":"string","enum":["f"]},"parameters":{"a":1}},"required":["name","parameters"]}]},"$defs":{"A":{}}}}`},
		{"shared definitions", `"tools":[` + tool("f", `{"$defs":{"A":{}}}`) + `,` + tool("g", `{"$defs":{"A":{}}}`) + `],"tool_choice":"required"`,
			`{"json":{"type":"array","minItems":1,"items":{"type":"object","anyOf":[{"properties":{"name":` +
				`{"type":"string","enum":["f"]},"parameters":{}},"required":["name","parameters"]},{"properties":{"name":` +
				`{"type":"string","enum":["g"]},"parameters":{}},"required":["name","parameters"]}]},"$defs":{"A":{}}}}`},
		{"mentioned definitions", `"tools":[` + tool("f", `{"properties":{"$defs":{"type":"string"}}}`) + `],"tool_choice":"required"`,
			`{"json":{"type":"array","minItems":1,"items":{"type":"object","anyOf":[{"properties":{"name":{"type":"string","enum":["f"]},` +
				`"parameters":{"properties":{"$defs":{"type":"string"}}}},"required":["name","parameters"]}]}}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := prepareChat(t, prepareSet(&echoModel{}, ""), pipeline.Meta{}, c.members)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got.Requests[0].Sampling.GuidedDecoding)); diff != "" {
				t.Error(diff)
			}
		})
	}
	_, err := prepareChat(t, prepareSet(&echoModel{}, ""), pipeline.Meta{},
		`"tools":[`+tool("f", `{"$defs":{"A":{}}}`)+`,`+tool("g", `{"$defs":{"A":{"x":1}}}`)+`],"tool_choice":"required"`)
	faultAt(t, err, "tools", "")
}

// TestPrepareMapsEveryField sends all that has a place in the worker's request at once.
func TestPrepareMapsEveryField(t *testing.T) {
	const common = `"n":2,"temperature":0.7,"top_p":0.9,"top_k":0,"min_p":0.05,"frequency_penalty":0.5,"presence_penalty":-0.5,` +
		`"repetition_penalty":1.1,"seed":-1,"include_stop_str_in_output":true,"min_tokens":1,"stop":["x"],"stop_token_ids":[5],` +
		`"skip_special_tokens":false,"prompt_logprobs":0,"return_tokens_as_token_ids":true,"detokenize":false,"allowed_token_ids":[1],` +
		`"bad_words_token_ids":[[2]],"logprob_token_ids":[3],"guided_regex":"a+","guided_decoding_backend":"b",` +
		`"guided_whitespace_pattern":" ","nvext":{"annotations":["a"],"extra_fields":["e"],"metadata_upload":{"u":1},` +
		`"max_thinking_tokens":9,"request_timestamp_ms":1.5,"router":{"r":1},"routing_constraints":{"c":1}}`
	const sent = `"stop":["x"],"stop_token_ids":[5],"stop_token_ids_visible":null,"stop_token_ids_hidden":[7,8],"min_tokens":1,` +
		`"ignore_eos":null`
	const sampling = `"presence_penalty":-0.5,"frequency_penalty":0.5,"repetition_penalty":1.100000023841858,` +
		`"temperature":0.699999988079071,"top_p":0.8999999761581421,"top_k":-1,"min_p":0.05000000074505806,"use_beam_search":null,` +
		`"length_penalty":null,"seed":-1,"include_stop_str_in_output":true,` +
		`"guided_decoding":{"regex":"a+","backend":"b","whitespace_pattern":" "}`
	const rest = `"eos_token_ids":[7,8],"mdc_sum":"sum","annotations":["a"],"routing":{"routing_constraints":{"c":1}},` +
		`"router_config_override":null,"router":{"r":1},"request_timestamp_ms":1.5,"extra_args":{"nvext":{"extra_fields":["e"],` +
		`"metadata_upload":{"u":1}},"sampling_options":{"detokenize":false,"allowed_token_ids":[1],"bad_words_token_ids":[[2]],` +
		`"logprob_token_ids":[3]}}`
	output := func(logprobs int) string {
		return fmt.Sprintf(`"logprobs":%d,"prompt_logprobs":0,"skip_special_tokens":false,"formatted_prompt":null,`+
			`"return_tokens_as_token_ids":true`, logprobs)
	}
	set := prepareSet(&echoModel{}, "")
	chat, err := prepareChat(t, set, pipeline.Meta{}, common+`,"logprobs":true,"top_logprobs":3,"max_tokens":5,`+
		`"max_completion_tokens":4,"thinking_token_budget":8,"mm_processor_kwargs":{"p":1}`)
	if err != nil {
		t.Fatal(err)
	}
	chat.Requests[0].TokenIDs = []uint32{1}
	sameRequest(t, chat.Requests[0], `{"model":"m","token_ids":[1],"stop_conditions":{"max_tokens":4,"max_thinking_tokens":8,`+sent+`},`+
		`"sampling_options":{"n":2,"best_of":null,`+sampling+`},"output_options":{`+output(3)+`},"mm_processor_kwargs":{"p":1},`+rest+`}`)

	completion, err := prepareCompletion(t, set, `"prompt":[1],"max_tokens":5,"best_of":2,"logprobs":0,"no_stop_trim":false,`+common)
	if err != nil {
		t.Fatal(err)
	}
	sameRequest(t, completion.Requests[0], `{"model":"m","token_ids":[1],"stop_conditions":{"max_tokens":5,"max_thinking_tokens":9,`+sent+`},`+
		`"sampling_options":{"n":2,"best_of":2,`+sampling+`},"output_options":{"no_stop_trim":false,`+output(0)+`},`+rest+`}`)

	eos, err := prepareChat(t, set, pipeline.Meta{}, `"ignore_eos":true,"stop":"x","stop_token_ids":[5],"temperature":1,"top_p":1,`+
		`"nvext":{"greed_sampling":true},"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"z":1,"a":2}}}`)
	if err != nil {
		t.Fatal(err)
	}
	q := eos.Requests[0]
	if q.Stop.Stop != nil || q.Stop.StopTokenIDs != nil || q.Stop.StopTokenIDsHidden != nil || len(q.EOSTokenIDs) != 0 ||
		q.Sampling.Temperature != nil || q.Sampling.TopP != nil || string(q.Sampling.GuidedDecoding) != `{"json":{"z":1,"a":2}}` {
		t.Errorf("%+v", q)
	}
}

// sameRequest compares a request as JSON.
func sameRequest(t *testing.T, q *worker.Request, want string) {
	t.Helper()
	encoded, err := q.Append(nil, worker.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var got, wanted any
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatalf("%v in %s", err, encoded)
	}
	if err := json.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatalf("%v in %s", err, want)
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
