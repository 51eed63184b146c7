package openai_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
)

// TestForwardTask: what a worker gets is what the client wrote, without nulls and, but for media, without what nobody
// knows.
func TestForwardTask(t *testing.T) {
	for _, c := range []struct {
		name string
		task openai.Task
		body string
		want string
	}{
		{"embeddings", openai.TaskEmbed,
			`{"model":"m","input":["a"],"dimensions":2,"user":null,"foo":1}`, `{"model":"m","input":["a"],"dimensions":2}`},
		{"number as written", openai.TaskSpeech, `{"input":"a","speed":1.50,"model":"m","data_source":"url"}`,
			`{"input":"a","speed":1.50,"model":"m","data_source":"url"}`},
		{"rerank", openai.TaskRerank, `{"model":"m","query":"q","documents":["d"],"foo":1}`,
			`{"model":"m","query":"q","documents":["d"],"return_documents":true}`},
		{"rerank without documents", openai.TaskRerank, `{"model":"m","query":"q","documents":["d"],"return_documents":false}`,
			`{"model":"m","query":"q","documents":["d"],"return_documents":false}`},
		{"score", openai.TaskScore, `{"model":"m","text_1":"a\"","text_2":["b","c"],"user":"u"}`,
			`{"model":"m","query":"a\"","documents":["b","c"],"return_documents":false}`},
		{"score of one", openai.TaskScore, `{"model":"m","text_1":["a"],"text_2":"b"}`,
			`{"model":"m","query":"a","documents":["b"],"return_documents":false}`},
		{"classify drops the format", openai.TaskClassify, `{"model":"m","input":"a","encoding_format":"float"}`,
			`{"model":"m","input":"a","priority":0}`},
		{"pooling has a format", openai.TaskPool, `{"model":"m","input":"a","priority":3}`,
			`{"model":"m","input":"a","priority":3,"encoding_format":"float"}`},
		{"null is absent", openai.TaskPool, `{"model":"m","input":"a","priority":null,"encoding_format":null}`,
			`{"model":"m","input":"a","encoding_format":"float","priority":0}`},
		{"image", openai.TaskImage, `{"model":"m","prompt":"a","steps":4,"n":1,"steps":5,"nvext":{"seed":1}}`,
			`{"model":"m","prompt":"a","n":1,"nvext":{"seed":1},"extra_args":{"media_passthrough":{"steps":4}}}`},
		{"video", openai.TaskVideo, `{"model":"m","prompt":"a","seconds":"4"}`, `{"model":"m","prompt":"a","seconds":"4"}`},
		{"frames", openai.TaskFrames, `{"model":"m","prompt":"a","stream":true,"output_format":"mjpeg","x":1}`,
			`{"model":"m","prompt":"a","stream":true,"output_format":"mjpeg","extra_args":{"media_passthrough":{"x":1}}}`},
		{"speech", openai.TaskSpeech, `{"model":"m","input":"a"}`,
			`{"model":"m","input":"a","nvext":{"frontend_accepts_audio_chunks":true}}`},
		{"speech with extensions", openai.TaskSpeech, `{"model":"m","input":"a","nvext": { "cfg_scale": 2 } }`,
			`{"model":"m","input":"a","nvext":{ "cfg_scale": 2 ,"frontend_accepts_audio_chunks":true}}`},
		{"speech with empty extensions", openai.TaskSpeech, `{"model":"m","input":"a","nvext":{ }}`,
			`{"model":"m","input":"a","nvext":{"frontend_accepts_audio_chunks":true}}`},
		{"speech that says so itself", openai.TaskSpeech, `{"model":"m","input":"a","nvext":{"frontend_accepts_audio_chunks":false}}`,
			`{"model":"m","input":"a","nvext":{"frontend_accepts_audio_chunks":false}}`},
		{"speech in JSON", openai.TaskSpeech, `{"model":"m","input":"a","data_source":"url"}`,
			`{"model":"m","input":"a","data_source":"url"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := openai.DecodeTask(c.task, []byte(c.body), openai.DecodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(req.Forward())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDecodeTaskRefusals(t *testing.T) {
	for _, c := range []struct {
		task              openai.Task
		body, param, says string
	}{
		{openai.TaskEmbed, `{"input":"a"}`, "model", "missing"},
		{openai.TaskEmbed, `{"model":"m"}`, "input", "missing"},
		{openai.TaskEmbed, `{"model":"m","input":null}`, "input", "missing"},
		{openai.TaskEmbed, `{"model":"m","input":{}}`, "input", "not an object"},
		{openai.TaskEmbed, `{"model":"m","input":["a",1]}`, "input[1]", "a string"},
		{openai.TaskEmbed, `{"model":"m","input":[1,-1]}`, "input[1]", ""},
		{openai.TaskEmbed, `{"model":"m","input":[1,"a"]}`, "input[1]", ""},
		{openai.TaskEmbed, `{"model":"m","input":"a","input":"b"}`, "input", "given only once"},
		{openai.TaskRerank, `{"model":"m","documents":["a"]}`, "query", "missing"},
		{openai.TaskRerank, `{"model":"m","query":"q"}`, "documents", "missing"},
		{openai.TaskRerank, `{"model":"m","query":"q","documents":[{"text":"a"}]}`, "documents[0]", "a string"},
		{openai.TaskScore, `{"model":"m","text_1":"a"}`, "text_2", "missing"},
		{openai.TaskScore, `{"model":"m","text_2":"a"}`, "text_1", "missing"},
		{openai.TaskClassify, `{"model":"m","messages":[]}`, "input", "missing"},
		{openai.TaskImage, `{"model":"m"}`, "prompt", "missing"},
		{openai.TaskEdit, `{"model":"m","prompt":"a"}`, "input_reference", "missing"},
		{openai.TaskScore, `{"model":"m","queries":"a","data_1":"b","items":"c"}`, "data_1", "given only once"},
		{openai.TaskVideo, `{"model":"m","prompt":"a","seconds":[]}`, "seconds", "a number or a string"},
		{openai.TaskSpeech, `{"model":"m"}`, "input", "missing"},
		{openai.TaskSpeech, `[]`, "", "a JSON object"},
	} {
		t.Run(c.body, func(t *testing.T) {
			_, err := openai.DecodeTask(c.task, []byte(c.body), openai.DecodeOptions{})
			f := asFault(t, err)
			if f.Param != c.param {
				t.Errorf("param %q, want %q (%v)", f.Param, c.param, f)
			}
			if !strings.Contains(f.Message, c.says) {
				t.Errorf("%q doesn't say %q", f.Message, c.says)
			}
		})
	}
}

// FuzzDecodeTask: whatever is accepted is forwarded as JSON that decodes to the same.
func FuzzDecodeTask(f *testing.F) {
	for task, body := range []string{
		`{"model":"m","input":["a",""],"dimensions":3,"nvext":{"annotations":["x"]}}`,
		`{"model":"m","query":"q","documents":["d"],"top_n":1}`, `{"model":"m","text_1":"a","text_2":["b"]}`,
		`{"model":"m","input":[[1],[2,3]]}`, `{"model":"m","input":"a","encoding_format":"bytes"}`,
		`{"model":"m","prompt":"p","x":{"y":[1]},"n":2}`, `{"model":"m","prompt":"p","input_reference":"data:,"}`,
		`{"model":"m","prompt":"p","seconds":"4"}`, `{"model":"m","prompt":"p","stream":true,"output_format":"mjpeg"}`,
		`{"model":"m","input":"p","nvext":{"a":1}}`,
	} {
		f.Add(uint8(task), []byte(body))
	}
	f.Fuzz(func(t *testing.T, task uint8, body []byte) {
		kind := openai.Task(task % (uint8(openai.TaskSpeech) + 1))
		req, err := openai.DecodeTask(kind, body, openai.DecodeOptions{})
		if err != nil {
			return
		}
		out := req.Forward()
		if !json.Valid(out) {
			t.Fatalf("%s was forwarded as %s", body, out)
		}
		if kind == openai.TaskScore {
			kind = openai.TaskRerank
		}
		again, err := openai.DecodeTask(kind, out, openai.DecodeOptions{})
		if err != nil || again.Model != req.Model {
			t.Fatalf("%s was forwarded as %s: %v", body, out, err)
		}
	})
}
