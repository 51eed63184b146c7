package worker_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// frame wraps the JSON of an output in the two envelopes of a data frame.
func frame(output string) string { return `{"data":{"data":` + output + `},"complete_final":false}` }

func TestDecodeItem(t *testing.T) {
	type item = worker.Item
	output := func(o worker.Output) item { return item{HasData: true, Output: o} }
	ids := []uint32{7}
	deep := strings.Repeat(`[`, 300) + strings.Repeat(`]`, 300)
	for name, tc := range map[string]struct {
		json string
		want item
	}{
		"one token":   {frame(`{"token_ids":[7]}`), output(worker.Output{TokenIDs: ids})},
		"nulls":       {frame(`{"token_ids":[7],"text":null,"index":null,"finish_reason":null,"stop_reason":null,"completion_usage":null,"engine_data":null,"log_probs":null,"top_logprobs":null,"cum_log_probs":null,"content_parts":null}`), output(worker.Output{TokenIDs: ids})},
		"no tokens":   {frame(`{"token_ids":[]}`), output(worker.Output{})},
		"unknown":     {frame(`{"zzz":{"a":[1,{"b":null}],"c":"\u00e9"},"yyy":` + deep + `,"token_ids":[7]}`), output(worker.Output{TokenIDs: ids})},
		"large id":    {frame(`{"token_ids":[4294967295,128,65536]}`), output(worker.Output{TokenIDs: []uint32{math.MaxUint32, 128, 65536}})},
		"index, text": {frame(`{"token_ids":[7],"index":3,"text":"a\n\ud83d\ude00\u0000"}`), output(worker.Output{TokenIDs: ids, Index: 3, HasText: true, Text: "a\n😀\x00"})},
		"empty text":  {frame(`{"token_ids":[7],"text":""}`), output(worker.Output{TokenIDs: ids, HasText: true})},
		"eos":         {frame(`{"token_ids":[7],"finish_reason":"eos"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishEOS})},
		"length":      {frame(`{"token_ids":[7],"finish_reason":"length"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishLength})},
		"filter":      {frame(`{"token_ids":[7],"finish_reason":"content_filter"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishContentFilter})},
		"abort":       {frame(`{"token_ids":[7],"finish_reason":"abort"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishCancelled})},
		"error map":   {frame(`{"token_ids":[7],"finish_reason":{"error":"boom"}}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishError, FinishError: "boom"})},
		"error text":  {frame(`{"token_ids":[7],"finish_reason":"error: boom"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishError, FinishError: "boom"})},
		"error alone": {frame(`{"token_ids":[7],"finish_reason":"error"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishError, FinishError: "the engine ended with an error and gave no message"})},
		"stop token":  {frame(`{"token_ids":[7],"finish_reason":"stop","stop_reason":42}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishStop, StopReason: worker.StopReason{Kind: worker.StopToken, ID: 42}})},
		"stop string": {frame(`{"token_ids":[7],"finish_reason":"stop","stop_reason":"END"}`), output(worker.Output{TokenIDs: ids, FinishReason: worker.FinishStop, StopReason: worker.StopReason{Kind: worker.StopString, Text: "END"}})},
		"logprobs": {
			frame(`{"token_ids":[7],"log_probs":[-0.5,null,1],"cum_log_probs":-1.25,"top_logprobs":[[{"rank":1,"token_id":7,"token":"a","logprob":-0.5,"bytes":[97]},{"token_id":8,"token":null,"logprob":null,"extra":[]}],[]]}`),
			output(worker.Output{
				TokenIDs: ids, LogProbs: []float64{-0.5, math.NaN(), 1}, CumLogProb: new(-1.25),
				TopLogProbs: [][]worker.TopLogProb{{
					{Rank: 1, TokenID: 7, HasToken: true, Token: "a", LogProb: -0.5, Bytes: []byte("a")},
					{TokenID: 8, LogProb: math.NaN()},
				}, {}},
			}),
		},
		"usage": {
			frame(`{"token_ids":[7],"completion_usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":{"audio_tokens":null,"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":5}}}`),
			output(worker.Output{TokenIDs: ids, Usage: &worker.Usage{PromptTokens: 1, CompletionTokens: 2, TotalTokens: 3, CachedTokens: new(4), ReasoningTokens: new(5)}}),
		},
		"usage of predictions": {
			frame(`{"token_ids":[7],"completion_usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":{"audio_tokens":6,"cached_tokens":4},"completion_tokens_details":{"accepted_prediction_tokens":8,"audio_tokens":7,"reasoning_tokens":5,"rejected_prediction_tokens":9}}}`),
			output(worker.Output{TokenIDs: ids, Usage: &worker.Usage{PromptTokens: 1, CompletionTokens: 2, TotalTokens: 3, CachedTokens: new(4), ReasoningTokens: new(5),
				PromptAudio: new(6), CompletionAudio: new(7), AcceptedPredictions: new(8), RejectedPredictions: new(9)}}),
		},
		"raw values": {
			frame(`{"token_ids":[7],"disaggregated_params":{"a":18446744073709551615},"worker_trace_link":{"trace_id":"t"},"engine_data":[1.5,"x"],"content_parts":[{"type":"text"}]}`),
			output(worker.Output{TokenIDs: ids, DisaggregatedParams: []byte(`{"a":18446744073709551615}`), TraceLink: []byte(`{"trace_id":"t"}`), EngineData: []byte(`[1.5,"x"]`), ContentParts: []byte(`[{"type":"text"}]`)}),
		},
		"annotation": {
			`{"data":{"event":"token_ids","comment":["[1,2]","\"x\""],"id":"i"},"complete_final":false}`,
			item{Event: "token_ids", Comment: []string{"[1,2]", `"x"`}, ID: "i"},
		},
		"error by comment": {
			`{"data":{"event":"error","comment":["a","b"]}}`,
			item{Event: "error", Comment: []string{"a", "b"}, Err: &worker.Error{Class: "Internal", Reason: "runtime.unclassified", Message: "a, b"}},
		},
		"error object without event": {
			`{"data":{"error":{"error_type":{"Backend":"EngineShutdown"},"message":"m"}}}`,
			item{Err: &worker.Error{Class: "Unavailable", Reason: "backend.engine_shutdown", Message: "m"}},
		},
		"end":       {`{"complete_final":true}`, item{Final: true}},
		"null data": {`{"data":null,"complete_final":true}`, item{Final: true}},
		"spaces":    {" {\n\t\"complete_final\" : true\r} ", item{Final: true}},
	} {
		t.Run(name, func(t *testing.T) {
			var got worker.Item
			if err := worker.DecodeItem(worker.JSON, []byte(tc.json), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, ignoreNaN); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
			packed, err := worker.AppendJSONAsMsgpack(nil, []byte(tc.json))
			if err != nil {
				t.Fatal(err)
			}
			if err := worker.DecodeItem(worker.Msgpack, packed, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, ignoreNaN); diff != "" {
				t.Errorf("msgpack (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeItemRefuses(t *testing.T) {
	for name, body := range map[string]string{
		"nothing said":      `{}`,
		"not final":         `{"complete_final":false}`,
		"not a map":         `[]`,
		"empty":             ``,
		"cut":               `{"data":{"data":{"token_ids":[1`,
		"trailing":          `{"complete_final":true} x`,
		"no token_ids":      frame(`{"finish_reason":"stop"}`),
		"negative id":       frame(`{"token_ids":[-1]}`),
		"float id":          frame(`{"token_ids":[1.0]}`),
		"id beyond 32 bits": frame(`{"token_ids":[4294967296]}`),
		"ids as string":     frame(`{"token_ids":"abc"}`),
		"unknown finish":    frame(`{"token_ids":[],"finish_reason":"weird"}`),
		"finish map":        frame(`{"token_ids":[],"finish_reason":{"oops":"x"}}`),
		"data is a string":  frame(`"x"`),
		"nesting":           frame(`{"token_ids":[],"x":` + strings.Repeat(`[`, 2000) + strings.Repeat(`]`, 2000) + `}`),
		"trailing comma":    frame(`{"token_ids":[1,]}`),
		"leading zero":      frame(`{"token_ids":[01]}`),
		"control character": frame("{\"token_ids\":[],\"text\":\"a\nb\"}"),
		"bad escape":        frame(`{"token_ids":[],"text":"\x"}`),
		"bad literal":       frame(`{"token_ids":[],"text":nul}`),
	} {
		t.Run(name, func(t *testing.T) {
			var it worker.Item
			if err := worker.DecodeItem(worker.JSON, []byte(body), &it); err == nil {
				t.Errorf("%s decodes to %+v", body, it)
			}
		})
	}
}

// Msgpack has forms that JSON can't express.
func TestDecodeMsgpackForms(t *testing.T) {
	wrap := func(fields ...[]byte) []byte {
		b := []byte("\x81\xa4data\x81\xa4data")
		b = append(b, 0x80|byte(len(fields)))
		for _, f := range fields {
			b = append(b, f...)
		}
		return b
	}
	field := func(name, value string) []byte {
		return append(append([]byte{0xa0 | byte(len(name))}, name...), value...)
	}
	none := field("token_ids", "\x90")
	for name, tc := range map[string]struct {
		body []byte
		want worker.Output
	}{
		"packed ids":         {wrap(field("token_ids", "\xc4\x08\x07\x00\x00\x00\x00\x00\x01\x00")), worker.Output{TokenIDs: []uint32{7, 65536}}},
		"wide forms":         {wrap(field("token_ids", "\xdd\x00\x00\x00\x02\xcf\x00\x00\x00\x00\x00\x00\x00\x07\xd3\x00\x00\x00\x00\x00\x00\x00\x08")), worker.Output{TokenIDs: []uint32{7, 8}}},
		"non-finite":         {wrap(none, field("log_probs", "\x93\xca\x7f\xc0\x00\x00\xca\xff\x80\x00\x00\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00")), worker.Output{LogProbs: []float64{math.NaN(), math.Inf(-1), math.Inf(1)}}},
		"integers as floats": {wrap(none, field("log_probs", "\x92\xff\xd1\xff\x00")), worker.Output{LogProbs: []float64{-1, -256}}},
		"packed bytes":       {wrap(none, field("top_logprobs", "\x91\x91\x82\xa8token_id\x07\xa5bytes\xc4\x01a")), worker.Output{TopLogProbs: [][]worker.TopLogProb{{{TokenID: 7, Bytes: []byte("a")}}}}},
		"extension":          {wrap(none, field("engine_data", "\x92\xd4\x01\x00\xc7\x02\x05ab")), worker.Output{EngineData: []byte(`[null,null]`)}},
		"bytes, int keys":    {wrap(none, field("engine_data", "\x82\x01\xc4\x02ab\xff\xc0")), worker.Output{EngineData: []byte(`{"1":[97,98],"-1":null}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			var it worker.Item
			if err := worker.DecodeItem(worker.Msgpack, tc.body, &it); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, it.Output, ignoreNaN); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
	for name, body := range map[string][]byte{
		"length beyond the body": wrap(field("token_ids", "\xdd\xff\xff\xff\xff")),
		"string beyond the body": wrap(none, field("text", "\xdb\xff\xff\xff\xff")),
		"map beyond the body":    []byte("\xdf\xff\xff\xff\xff"),
		"packed ids cut":         wrap(field("token_ids", "\xc4\x03abc")),
		"reserved byte":          wrap(none, field("text", "\xc1")),
		"key is a map":           []byte("\x81\x80\x80"),
		"trailing":               []byte("\x81\xaecomplete_final\xc3\x00"),
	} {
		t.Run(name, func(t *testing.T) {
			var it worker.Item
			if err := worker.DecodeItem(worker.Msgpack, body, &it); err == nil {
				t.Errorf("decodes to %+v", it)
			}
		})
	}
}

func TestDecodeRawItem(t *testing.T) {
	const chunk = `{"id":"x","choices":[{"delta":{"content":"é\n"},"index":0}],"created":18446744073709551615,"p":1.5}`
	body := []byte(frame(chunk))
	packed, err := worker.AppendJSONAsMsgpack(nil, body)
	if err != nil {
		t.Fatal(err)
	}
	for codec, b := range map[worker.Codec][]byte{worker.JSON: body, worker.Msgpack: packed} {
		var it worker.Item
		if err := worker.DecodeRawItem(codec, b, &it); err != nil {
			t.Fatal(err)
		}
		if string(it.Raw) != chunk || !it.HasData {
			t.Errorf("%v: raw data is %s", codec, it.Raw)
		}
	}
}

// An item must not show anything of the one decoded before it.
func TestDecodeItemForgets(t *testing.T) {
	var it worker.Item
	full := frame(`{"token_ids":[1,2],"text":"t","index":2,"finish_reason":{"error":"e"},"stop_reason":"s","log_probs":[1],"top_logprobs":[[{"token_id":1,"logprob":0}]],"cum_log_probs":1,"completion_usage":{},"engine_data":1,"disaggregated_params":1,"content_parts":1}`)
	for _, body := range []string{full, `{"data":{"event":"error","comment":["c"],"id":"i"}}`} {
		if err := worker.DecodeItem(worker.JSON, []byte(body), &it); err != nil {
			t.Fatal(err)
		}
		if err := worker.DecodeItem(worker.JSON, []byte(frame(`{"token_ids":[]}`)), &it); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(worker.Item{HasData: true}, it, ignoreNaN); diff != "" {
			t.Errorf("left over:\n%s", diff)
		}
	}
}

func BenchmarkDecodeItem(b *testing.B) {
	body := parts(b, capture(b, "callhome_tcp.bin"))[3].body
	for codec, body := range map[worker.Codec][]byte{worker.Msgpack: body, worker.JSON: asJSON(b, body)} {
		b.Run(codec.String(), func(b *testing.B) {
			var it worker.Item
			b.ReportAllocs()
			for b.Loop() {
				if err := worker.DecodeItem(codec, body, &it); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestDecodeItemAllocates(t *testing.T) {
	body := parts(t, capture(t, "callhome_tcp.bin"))[3].body
	for codec, body := range map[worker.Codec][]byte{worker.Msgpack: body, worker.JSON: asJSON(t, body)} {
		var it worker.Item
		n := testing.AllocsPerRun(100, func() {
			if err := worker.DecodeItem(codec, body, &it); err != nil {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%v: %v allocations for an item of a token", codec, n)
		}
	}
}
