package worker_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// fullRequest has every field set, numbers at the ends of their ranges, and values that differ from each other.
func fullRequest() *worker.Request {
	return &worker.Request{
		Model: "m/é", TokenIDs: []uint32{1, 300, 70000},
		Stop: worker.StopConditions{
			MaxTokens: new(uint32(5)), Stop: []string{"a", ""}, StopTokenIDs: []uint32{}, StopTokenIDsVisible: []uint32{3},
			StopTokenIDsHidden: []uint32{4}, MinTokens: new(uint32(0)), IgnoreEOS: new(false), MaxThinkingTokens: new(uint32(9)),
		},
		Sampling: worker.SamplingOptions{
			N: new(uint8(2)), BestOf: new(uint8(255)), PresencePenalty: new(-0.1), FrequencyPenalty: new(0.5),
			RepetitionPenalty: new(1.1), Temperature: new(0.0), TopP: new(1.0), TopK: new(int32(-1)), MinP: new(0.25),
			UseBeamSearch: new(true), LengthPenalty: new(2.0), Seed: new(int64(-1 << 63)), IncludeStopStr: new(true),
			GuidedDecoding: []byte(`{"regex":"a+"}`),
		},
		Output: worker.OutputOptions{
			NoStopTrim: new(true), Logprobs: new(uint32(3)), PromptLogprobs: new(uint32(0)), SkipSpecialTokens: new(false),
			FormattedPrompt: new(true), ReturnTokensAsTokenIDs: new(false),
		},
		EOSTokenIDs: []uint32{2}, MDCSum: "sum", Annotations: []string{"token_ids"},
		Routing: worker.Routing{
			BackendInstanceID: new(uint64(1<<64 - 1)), PrefillWorkerID: new(uint64(2)), DecodeWorkerID: new(uint64(3)),
			DPRank: new(uint32(4)), PrefillDPRank: new(uint32(5)), ExpectedOutputTokens: new(uint32(6)), LoRAName: "l",
			CacheSalt: "s", PriorityJump: new(0.1), StrictPriority: new(uint32(7)), Priority: new(int32(-8)),
			AllowedWorkerIDs: []uint64{1 << 63}, Constraints: []byte(`{"required_taints":["x"]}`),
		},
		MultiModalData: []byte(`{"image_url":[{"Url":"u"}]}`), MultiModalUUIDs: []byte(`{"image_url":[null]}`),
		PromptEmbeds: "AAAA", RouterOverride: []byte(`{"a":1}`), PrefillResult: []byte(`{"p":1}`),
		BootstrapInfo: &worker.Bootstrap{Host: "h", Port: 65535, Room: 1<<64 - 1, Handoff: [16]byte{1, 15: 2}}, ExtraArgs: []byte(`{"e":1}`), Router: []byte(`{"r":1}`),
		AgentContext: []byte(`{"session_id":"s"}`), MMProcessorKwargs: []byte(`{"a":1.5}`), MediaIOKwargs: []byte(`{"b":[]}`),
		MMRoutingInfo: []byte(`{"c":1}`), EncoderResult: []byte(`{"d":1}`), MigrationLink: []byte(`{"trace_id":"t"}`),
		KVHint: []byte(`{"k":1}`), ImageCacheScope: "scope", RequireReasoning: true, TimestampMS: new(1700000000000.5), HealthCheck: true,
	}
}

// TestRequestRoundTrip appends behind what is there already, and reads the same request back in both codecs.
func TestRequestRoundTrip(t *testing.T) {
	for name, q := range map[string]*worker.Request{"full": fullRequest(), "empty": {}} {
		for _, codec := range []worker.Codec{worker.JSON, worker.Msgpack} {
			body, err := q.Append([]byte("kept"), codec)
			if err != nil {
				t.Fatal(err)
			}
			got, err := worker.DecodeRequest(codec, body[4:])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(q, got, ignoreNaN); diff != "" {
				t.Errorf("%s in %v (-sent +received):\n%s", name, codec, diff)
			}
		}
	}
}

// Workers always get these keys, and no other without a value.
func TestRequestEmpty(t *testing.T) {
	const want = `{"model":"","token_ids":[],"stop_conditions":{"max_tokens":null,"stop":null,"stop_token_ids":null,` +
		`"stop_token_ids_visible":null,"stop_token_ids_hidden":null,"min_tokens":null,"ignore_eos":null,` +
		`"max_thinking_tokens":null},"sampling_options":{"n":null,"best_of":null,"presence_penalty":null,` +
		`"frequency_penalty":null,"repetition_penalty":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,` +
		`"use_beam_search":null,"length_penalty":null,"seed":null,"include_stop_str_in_output":null,` +
		`"guided_decoding":null},"output_options":{"logprobs":null,"prompt_logprobs":null,"skip_special_tokens":null,` +
		`"formatted_prompt":null,"return_tokens_as_token_ids":null},"eos_token_ids":[],"mdc_sum":null,"annotations":[],` +
		`"routing":{},"router_config_override":null}`
	got, err := (&worker.Request{}).Append(nil, worker.JSON)
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestRequestRefuses(t *testing.T) {
	q := &worker.Request{ExtraArgs: []byte(`{"broken":`)}
	if b, err := q.Append([]byte("kept"), worker.Msgpack); err == nil || string(b) != "kept" {
		t.Errorf("broken JSON encodes to %x", b)
	}
	for _, bad := range []string{
		``, `null`, `{}`, `{"model":"m"}`, `{"token_ids":"abc"}`, `{"token_ids":[-1]}`, `{"token_ids":[1],"sampling_options":{"n":256}}`,
		`{"token_ids":[],"sampling_options":{"top_k":2147483648}}`, `{"token_ids":[],"sampling_options":{"seed":9223372036854775808}}`,
		`{"token_ids":[]} ` + `x`,
	} {
		if q, err := worker.DecodeRequest(worker.JSON, []byte(bad)); err == nil {
			t.Errorf("%s decodes to %+v", bad, q)
		}
	}
	q, err := worker.DecodeRequest(worker.JSON, []byte(`{"token_ids":[1],"routing":null,"stop_conditions":null,"new_field":{"x":[1]}}`))
	if err != nil || len(q.TokenIDs) != 1 {
		t.Errorf("tolerable request: %v", err)
	}
	// A map of one entry whose value is eight packed bytes: two ids, little-endian.
	packed := append([]byte("\x81\xa9token_ids\xc4\x08"), 1, 0, 0, 0, 0, 0, 1, 0)
	if q, err := worker.DecodeRequest(worker.Msgpack, packed); err != nil || !cmp.Equal(q.TokenIDs, []uint32{1, 65536}) {
		t.Errorf("packed ids: %v, %v", q, err)
	}
}

func BenchmarkRequestAppend(b *testing.B) {
	q := &worker.Request{Model: "qwen3", TokenIDs: make([]uint32, 4000), EOSTokenIDs: []uint32{151645, 151643}}
	for i := range q.TokenIDs {
		q.TokenIDs[i] = uint32(i * 37)
	}
	for _, codec := range []worker.Codec{worker.JSON, worker.Msgpack} {
		b.Run(codec.String(), func(b *testing.B) {
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if buf, err = q.Append(buf[:0], codec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
