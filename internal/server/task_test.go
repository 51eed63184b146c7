package server_test

import (
	"context"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/server"
	"github.com/portico-llm/portico/internal/testkit"
)

// taskModels serve one task each.
func taskModels(o *server.Options) {
	o.Catalog = testkit.Models{
		"embed": testkit.TaskModel("embed", "Embedding", "Text"), "tokens": testkit.TaskModel("tokens", "Embedding", "Tokens"),
		"rank": testkit.TaskModel("rank", "Rerank", "Text"), "class": testkit.TaskModel("class", "Classify | Pooling", "Text"),
		"image": testkit.TaskModel("image", "Images", "Text"), "video": testkit.TaskModel("video", "Videos", "Text"),
		"speech": testkit.TaskModel("speech", "Audios", "Text"), "m": testkit.ByteModel("m"), "cold": nil,
	}
}

// TestTasks: each endpoint sends its worker what the task's workers take, and answers in the client's form.
func TestTasks(t *testing.T) {
	for _, c := range []struct{ name, path, body, worker, sent, want string }{
		{"embeddings", "/v1/embeddings", `{"model":"embed","input":["a"]}`,
			`[{"data":[{"embedding":"AACAPw==","index":0}],"usage":{"prompt_tokens":1,"total_tokens":1}}]`,
			`{"model":"embed","input":["a"]}`,
			`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1.0]}],"model":"embed","usage":{"prompt_tokens":1,"total_tokens":1}}`},
		{"embeddings of tokens", "/v1/embeddings", `{"model":"tokens","input":"ab","encoding_format":"base64"}`,
			`[{"embeddings":["AACAPw=="],"prompt_tokens":2,"total_tokens":2}]`,
			`{"token_ids":[[97,98]],"model":"tokens","encoding_format":"base64","dimensions":null,"mdc_sum":"","annotations":[]}`,
			`{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AACAPw=="}],"model":"tokens","usage":{"prompt_tokens":2,"total_tokens":2}}`},
		{"rerank", "/v1/rerank", `{"model":"rank","query":"q","documents":["d"]}`, `[[{"score":1.50,"index":0,"document":"d"}]]`,
			`{"model":"rank","query":"q","documents":["d"],"return_documents":true}`, `[{"score":1.50,"index":0,"document":"d"}]`},
		{"classify", "/v1/classify", `{"model":"class","input":"a"}`, `[{"id":"classify-1","data":[]}]`,
			`{"model":"class","input":"a","priority":0}`, `{"id":"classify-1","data":[]}`},
		{"pooling", "/v1/pooling", `{"model":"class","input":"a"}`, `[{"id":"pool-1","data":[[0.1]]}]`,
			`{"model":"class","input":"a","encoding_format":"float","priority":0}`, `{"id":"pool-1","data":[[0.1]]}`},
		{"images", "/v1/images/generations", `{"model":"image","prompt":"p","steps":2}`, `[{"created":1,"data":[]}]`,
			`{"model":"image","prompt":"p","extra_args":{"media_passthrough":{"steps":2}}}`, `{"created":1,"data":[]}`},
		{"edits", "/v1/images/edits", `{"model":"image","prompt":"p","input_reference":"u"}`, `[{"created":1,"data":[]}]`,
			`{"model":"image","prompt":"p","input_reference":"u"}`, `{"created":1,"data":[]}`},
		{"video, of which progress is told first", "/v1/videos", `{"model":"video","prompt":"p"}`,
			`[{"progress":50},{"progress":100,"data":[]}]`, `{"model":"video","prompt":"p"}`, `{"progress":100,"data":[]}`},
		{"place of speech", "/v1/audio/speech", `{"model":"speech","input":"i","data_source":"url"}`, `[{"data":[{"url":"u"}]}]`,
			`{"model":"speech","input":"i","data_source":"url"}`, `{"data":[{"url":"u"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := testkit.Play(testkit.Items(c.worker))
			s := start(t, d, taskModels)
			res, body := s.do(t, http.MethodPost, c.path, c.body)
			if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "application/json" {
				t.Fatalf("%s %s: %s", res.Status, res.Header.Get("Content-Type"), body)
			}
			if diff := cmp.Diff(c.want, body); diff != "" {
				t.Errorf("answer:\n%s", diff)
			}
			if diff := cmp.Diff(c.sent, string(d.Calls()[0].Body)); diff != "" {
				t.Errorf("request:\n%s", diff)
			}
		})
	}
}

// TestScorePairs: as many first texts as second ones are compared one by one, in one request for each run of the same.
func TestScorePairs(t *testing.T) {
	answers := []string{`[[{"score":0.5,"index":1,"meta_info":{"prompt_tokens":3}},{"score":0.25,"index":0}]]`, `[[{"score":1,"index":0}]]`}
	var sent []string
	d := &testkit.Dispatcher{Script: func(_ *router.Call, body []byte) (testkit.Script, error) {
		sent = append(sent, string(body))
		return testkit.Items(answers[len(sent)-1]), nil
	}}
	s := start(t, d, taskModels)
	_, body := s.do(t, http.MethodPost, "/v1/score", `{"model":"rank","text_1":["a","a","b"],"text_2":["x","y","z"]}`)
	if !strings.Contains(body, `"data":[{"index":0,"object":"score","score":0.25},{"index":1,"object":"score","score":0.5},`+
		`{"index":2,"object":"score","score":1}],"usage":{"prompt_tokens":3,"total_tokens":3}`) {
		t.Error(body)
	}
	want := []string{`{"model":"rank","query":"a","documents":["x","y"],"return_documents":false}`,
		`{"model":"rank","query":"b","documents":["z"],"return_documents":false}`}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Error(diff)
	}
}

// TestEditsByReference: an image to change is named or inline, and a client that sends it as a file is told so.
func TestEditsByReference(t *testing.T) {
	d := testkit.Play(testkit.Script{})
	s := start(t, d, taskModels)
	form := "--x\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\r\nPNG\r\n--x--\r\n"
	for _, c := range []struct {
		name, media, body string
		status            int
		want              string
	}{
		{"a form", "multipart/form-data; boundary=x", form, http.StatusUnsupportedMediaType, "`input_reference`"},
		{"no image", "application/json", `{"model":"image","prompt":"p"}`, http.StatusBadRequest, `"param":"input_reference"`},
		{"null", "application/json", `{"model":"image","prompt":"p","input_reference":null}`, http.StatusBadRequest, `"param":"input_reference"`},
		{"an empty one", "application/json", `{"model":"image","prompt":"p","input_reference":""}`, http.StatusBadRequest, `"param":"input_reference"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, body := s.do(t, http.MethodPost, "/v1/images/edits", c.body, "Content-Type", c.media)
			if res.StatusCode != c.status || !strings.Contains(body, c.want) {
				t.Errorf("%s %s", res.Status, body)
			}
		})
	}
	if n := len(d.Calls()); n != 0 {
		t.Errorf("%d requests reached the worker", n)
	}
}

// TestScoreNames: all of vLLM's names for the two sides lead to the same request, and a failure uses the client's.
func TestScoreNames(t *testing.T) {
	for _, names := range [][2]string{{"text_1", "text_2"}, {"data_1", "data_2"}, {"queries", "documents"}, {"queries", "items"}} {
		t.Run(names[0]+" "+names[1], func(t *testing.T) {
			d := testkit.Play(testkit.Items(`[[{"score":0.5,"index":0}]]`))
			s := start(t, d, taskModels)
			send := func(first, second string) (int, string) {
				res, body := s.do(t, http.MethodPost, "/v1/score", `{"model":"rank","`+names[0]+`":`+first+`,"`+names[1]+`":`+second+`}`)
				return res.StatusCode, body
			}
			for value, param := range map[[2]string]string{
				{`["a","b"]`, `["x","y","z"]`}: names[0], {`""`, `["x"]`}: names[0], {`["a",""]`, `["x","y"]`}: names[0] + "[1]",
				{`"a"`, `[]`}: names[1], {`"a"`, `7`}: names[1],
			} {
				if status, body := send(value[0], value[1]); status != http.StatusBadRequest || !strings.Contains(body, `"param":"`+param+`"`) {
					t.Errorf("%v: %d %s", value, status, body)
				}
			}
			if status, body := send(`["a"]`, `"x"`); status != http.StatusOK || !strings.Contains(body, `"score":0.5`) {
				t.Errorf("%d %s", status, body)
			}
			want := `{"model":"rank","query":"a","documents":["x"],"return_documents":false}`
			if calls := d.Calls(); len(calls) != 1 || string(calls[0].Body) != want {
				t.Errorf("%d requests, the last of them not %s", len(calls), want)
			}
		})
	}
}

func TestScoreNamesItsAnswer(t *testing.T) {
	d := testkit.Play(testkit.Items(`[[{"score":0.5,"index":1},{"score":0.25,"index":0}]]`))
	s := start(t, d, taskModels)
	_, body := s.do(t, http.MethodPost, "/v1/score", `{"model":"rank","text_1":"a","text_2":["b","c"]}`)
	var got struct {
		ID, Object, Model string
		Data              []struct{ Score float64 }
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got.ID, "score-") || got.Object != "list" || got.Model != "rank" || len(got.Data) != 2 ||
		got.Data[0].Score != 0.25 || got.Data[1].Score != 0.5 {
		t.Errorf("%s", body)
	}
}

// TestSpeech: sound comes as bytes of its own type, also in pieces.
func TestSpeech(t *testing.T) {
	d := testkit.Play(testkit.Items(`[
		{"status":"in_progress","data":[]},
		{"data":[{"output_format":"mp3","b64_json":"AAEC"}]},
		{"data":[{"output_format":"mp3","b64_json":"Aw=="},{"output_format":"mp3","b64_json":"BA=="}]}]`))
	s := start(t, d, taskModels)
	res, body := s.do(t, http.MethodPost, "/v1/audio/speech", `{"model":"speech","input":"i","response_format":"mp3"}`)
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "audio/mpeg" || body != "\x00\x01\x02\x03\x04" {
		t.Errorf("%s %s %q", res.Status, res.Header.Get("Content-Type"), body)
	}
	want := `{"model":"speech","input":"i","response_format":"mp3","nvext":{"frontend_accepts_audio_chunks":true}}`
	if diff := cmp.Diff(want, string(d.Calls()[0].Body)); diff != "" {
		t.Error(diff)
	}
}

// TestVideoFrames: frames come as parts, each of its own type, and readers of multipart bodies find the end.
func TestVideoFrames(t *testing.T) {
	d := testkit.Play(testkit.Items(`[
		{"status":"in_progress","progress":1,"data":[]},
		{"data":[{"output_format":"mjpeg","b64_json":"/9j/AA=="}]},
		{"data":[{"b64_json":"AAEC"},{"b64_json":""},{"b64_json":"iVBORw0KGgo="}]},
		{"status":"completed","data":[{"url":"file:///v.mp4"}]}]`))
	s := start(t, d, taskModels)
	res, body := s.do(t, http.MethodPost, "/v1/videos/stream", `{"model":"video","prompt":"p","stream":true}`)
	media, params, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if res.StatusCode != http.StatusOK || media != "multipart/x-mixed-replace" || err != nil {
		t.Fatalf("%s %s %v", res.Status, media, err)
	}
	parts := multipart.NewReader(strings.NewReader(body), params["boundary"])
	var got []string
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in %q", err, body)
		}
		picture, err := io.ReadAll(part)
		if err != nil || part.Header.Get("Content-Length") != strconv.Itoa(len(picture)) {
			t.Errorf("%q, %v: %v", picture, err, part.Header)
		}
		got = append(got, part.Header.Get("Content-Type")+" "+string(picture))
	}
	want := []string{"image/jpeg \xff\xd8\xff\x00", "image/jpeg \x00\x01\x02", "image/png \x89PNG\r\n\x1a\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got := s.metric(t, `dynamo_frontend_requests_total{endpoint="videos",error_type="",model="video",request_type="stream",`+
		`status="success"}`); got != "1" {
		t.Errorf("%s successes", got)
	}
}

// begun sends a request whose answer begins, and leaves the answer's body unread.
func (s *stack) begun(t *testing.T, ctx context.Context, path, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := s.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// TestMediaBreaksOff: what comes to an early end must not look whole.
func TestMediaBreaksOff(t *testing.T) {
	for _, c := range []struct{ name, path, body, last string }{
		{"sound", "/v1/audio/speech", `{"model":"speech","input":"i"}`, `{"_lost":true}`},
		{"frames, lost", "/v1/videos/stream", `{"model":"video","prompt":"p"}`, `{"_lost":true}`},
		{"frames, failed", "/v1/videos/stream", `{"model":"video","prompt":"p"}`, `{"status":"failed"}`},
		{"frames, no longer", "/v1/videos/stream", `{"model":"video","prompt":"p"}`, `{"data":[{"b64_json":"AAAAFGZ0eXBtcDQyAAAAAG1wNDI="}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := testkit.Play(testkit.Items(`[{"data":[{"output_format":"mp3","b64_json":"AAEC"}]},` + c.last + `]`))
			res := start(t, d, taskModels).begun(t, t.Context(), c.path, c.body)
			if whole, err := io.ReadAll(res.Body); err == nil {
				t.Errorf("the answer looks whole: %q", whole)
			}
		})
	}
}

// TestMediaClientGone: the worker is told once that nobody watches any more.
func TestMediaClientGone(t *testing.T) {
	d := testkit.Play(testkit.Items(`[{"data":[{"b64_json":"AAEC"}]},{"_wait":true}]`))
	s := start(t, d, taskModels)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	res := s.begun(t, ctx, "/v1/videos/stream", `{"model":"video","prompt":"p"}`)
	if res.StatusCode != http.StatusOK {
		t.Fatal(res.Status) // the frame is out before the worker has ended
	}
	leave()
	call := d.Calls()[0]
	eventually(t, "the worker is told", func() bool { return call.Closed.Load() })
	if n := call.Stops.Load(); n != 1 {
		t.Errorf("told %d times", n)
	}
	eventually(t, "the request is released", func() bool {
		return s.metric(t, `dynamo_frontend_inflight_requests{model="video"}`) == "0"
	})
}

// TestTaskFailures: statuses, and the model or field at fault. Nothing that is refused reaches a worker.
func TestTaskFailures(t *testing.T) {
	for _, c := range []struct {
		name, path, body, worker string
		status                   int
		says                     string
	}{
		{"unknown model", "/v1/embeddings", `{"model":"x","input":"a"}`, "", 404, "model_not_found"},
		{"cold model", "/v1/embeddings", `{"model":"cold","input":"a"}`, "", 503, ""},
		{"chat model", "/v1/embeddings", `{"model":"m","input":"a"}`, "", 404, "model_not_supported"},
		{"chat with an embedding model", "/v1/chat/completions", `{"model":"embed","messages":[{"role":"user","content":"a"}]}`,
			"", 404, "model_not_supported"},
		{"completion with an embedding model", "/v1/completions", `{"model":"tokens","prompt":"a"}`, "", 404, "model_not_supported"},
		{"no input", "/v1/embeddings", `{"model":"embed"}`, "", 400, `"param":"input"`},
		{"token out of range", "/v1/embeddings", `{"model":"tokens","input":[[1],[999]]}`, "", 400, `"param":"input[1][0]"`},
		{"wrong type", "/v1/rerank", `{"model":"rank","query":1,"documents":["a"]}`, "", 400, `"param":"query"`},
		{"wrong value", "/v1/images/generations", `{"model":"image","prompt":"a","n":0}`, "", 400, `"param":"n"`},
		{"worker's exception", "/v1/embeddings", `{"model":"embed","input":"a"}`, `[{"_raise":"secret"}]`, 500, ""},
		{"other form", "/v1/embeddings", `{"model":"embed","input":"a"}`, `[{"data":"secret"}]`, 502, "bad_gateway"},
		{"one vector less", "/v1/embeddings", `{"model":"embed","input":["a","b"]}`, `[{"data":[{"embedding":[1]}]}]`, 502, ""},
		{"empty answer", "/v1/rerank", `{"model":"rank","query":"q","documents":["a"]}`, `[]`, 502, ""},
		{"lost worker", "/v1/rerank", `{"model":"rank","query":"q","documents":["a"]}`, `[{"_lost":true}]`, 503, ""},
		{"no scores", "/v1/score", `{"model":"rank","text_1":"q","text_2":["a"]}`, `[{"error":"secret"}]`, 502, ""},
		{"no sound", "/v1/audio/speech", `{"model":"speech","input":"a"}`, `[{"status":"completed","data":[]}]`, 502, "no sound"},
		{"failed sound", "/v1/audio/speech", `{"model":"speech","input":"a"}`, `[{"status":"failed","error":"secret"}]`, 502, "no sound"},
		{"sound that is none", "/v1/audio/speech", `{"model":"speech","input":"a"}`,
			`[{"data":[{"output_format":"wav","b64_json":"secret!"}]}]`, 502, "no sound"},
		{"frames of an image model", "/v1/videos/stream", `{"model":"image","prompt":"a"}`, "", 404, "model_not_supported"},
		{"frames of nothing", "/v1/videos/stream", `{"model":"video"}`, "", 400, `"param":"prompt"`},
		{"no frames", "/v1/videos/stream", `{"model":"video","prompt":"a"}`, `[{"status":"completed","data":[]}]`, 502, "no frames"},
		{"failed frames", "/v1/videos/stream", `{"model":"video","prompt":"a"}`, `[{"status":"failed","error":"secret"}]`, 502, "no frames"},
		{"a frame that is none", "/v1/videos/stream", `{"model":"video","prompt":"a"}`, `[{"data":[{"b64_json":"secret!"}]}]`, 502, "no frames"},
		{"the place of a video", "/v1/videos/stream", `{"model":"video","prompt":"a"}`, `[{"data":[{"url":"secret"}]}]`, 502, "a whole video"},
		{"a whole video", "/v1/videos/stream", `{"model":"video","prompt":"a"}`,
			`[{"data":[{"output_format":"mp4","b64_json":"AAAAFGZ0eXBtcDQyAAAAAG1wNDI="}]}]`, 502, "a whole video"},
		{"worker's exception before a frame", "/v1/videos/stream", `{"model":"video","prompt":"a"}`, `[{"_raise":"secret"}]`, 500, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := testkit.Play(testkit.Items("[]"))
			if c.worker != "" {
				d = testkit.Play(testkit.Items(c.worker))
			}
			s := start(t, d, taskModels)
			res, body := s.do(t, http.MethodPost, c.path, c.body)
			if res.StatusCode != c.status || !strings.Contains(body, c.says) || strings.Contains(body, "secret") {
				t.Errorf("%s: %s", res.Status, body)
			}
			if c.worker == "" && len(d.Calls()) != 0 {
				t.Error("a worker was asked")
			}
		})
	}
}

// TestTaskMetrics: tasks are counted under their own endpoint, and a name that can't be asked there is no label.
func TestTaskMetrics(t *testing.T) {
	s := start(t, testkit.Play(testkit.Items(`[{"data":[{"embedding":[1]}]}]`)), taskModels)
	s.do(t, http.MethodPost, "/v1/embeddings", `{"model":"embed","input":"a","foo":1}`)
	s.do(t, http.MethodPost, "/v1/embeddings", `{"model":"m","input":"a"}`)
	for series, want := range map[string]string{
		`dynamo_frontend_requests_total{endpoint="embeddings",error_type="",model="embed",request_type="unary",status="success"}`:                "1",
		`dynamo_frontend_requests_total{endpoint="embeddings",error_type="not_found",model="unknown_model",request_type="unary",status="error"}`: "1",
		`dynamo_frontend_unknown_request_fields_total{endpoint="embeddings"}`:                                                                    "1",
		`dynamo_frontend_queued_requests{model="embed"}`:                                                                                         "0",
	} {
		if got := s.metric(t, series); got != want {
			t.Errorf("%s = %q, want %s", series, got, want)
		}
	}
}
