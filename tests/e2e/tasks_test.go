package e2e_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// deployTasks starts a worker that serves a model for every task, or one model alone, and a frontend.
func deployTasks(t *testing.T, plane, backend string, only string) *client {
	t.Helper()
	s := newStack(t, plane, backend)
	args := []string{s.Python(), filepath.Join(tools.Root, "tests", "peers", "task_worker.py"), "--model-path", tools.Model()}
	models := []string{"embed-text", "embed-tokens", "rerank", "classify", "image", "speech", "video"}
	if only != "" {
		args, models = append(args, "--only", only), []string{only}
	}
	if _, err := s.Run("tasks", s.Env(), args...); err != nil {
		t.Fatal(err)
	}
	d := &deployment{Stack: s, frontend: startFrontend(t, s)}
	for _, name := range models {
		d.waitModel(t, name, true, time.Minute)
	}
	return newClient(t, d.frontend.URL)
}

// TestTasks asks a real Dynamo worker for everything that isn't text.
func TestTasks(t *testing.T) {
	c := deployTasks(t, stack.PlaneTCP, stack.BackendFile, "")
	t.Run("answers", func(t *testing.T) { testTaskAnswers(t, c) })
	t.Run("refusals", func(t *testing.T) { testTaskRefusals(t, c) })
}

// TestTasksOverNATS: the other request plane carries them, too.
func TestTasksOverNATS(t *testing.T) {
	c := deployTasks(t, stack.PlaneNATS, stack.BackendEtcd, "embed-tokens")
	status, body := c.post(t, "/v1/embeddings", object{"model": "embed-tokens", "input": [][]int{{1, 2, 3}, {4}}})
	got, _ := decoded(t, body).(map[string]any)
	if data, _ := got["data"].([]any); status != http.StatusOK || len(data) != 2 {
		t.Errorf("%d %s", status, body)
	}
}

func testTaskAnswers(t *testing.T, c *client) {
	list := func(of string, tokens int, vectors ...any) object {
		data := []any{}
		for i, v := range vectors {
			data = append(data, object{"object": "embedding", "index": i, "embedding": v})
		}
		return object{"object": "list", "data": data, "model": of,
			"usage": object{"prompt_tokens": tokens, "total_tokens": tokens}}
	}
	for _, q := range []struct {
		name, path string
		body, want object
	}{
		{"text", "/v1/embeddings", object{"model": "embed-text", "input": "hello"},
			list("embed-text", 5, []float64{532, 266, 177.33333, 133})},
		{"texts, packed and shorter", "/v1/embeddings",
			object{"model": "embed-text", "input": []string{"a", "b"}, "encoding_format": "base64", "dimensions": 2},
			list("embed-text", 2, "AADCQgAAQkI=", "AADEQgAAREI=")},
		{"token ids for a text worker", "/v1/embeddings", object{"model": "embed-text", "input": [][]int{{1, 2}, {3}}},
			list("embed-text", 3, []float64{3, 1.5, 1, 0.75}, []float64{3, 1.5, 1, 0.75})},
		{"text for a token worker", "/v1/embeddings", object{"model": "embed-tokens", "input": "hello world"},
			list("embed-tokens", 2, []float64{29025, 14512.5, 9675, 7256.25})},
		{"cut texts for a token worker", "/v1/embeddings",
			object{"model": "embed-tokens", "input": []string{"hello world", "a b c d e f g"}, "truncate_prompt_tokens": 2,
				"encoding_format": "base64", "dimensions": 2},
			list("embed-tokens", 4, "AMLiRgDCYkY=", "AICzQwCAM0M=")},
		{"token ids for a token worker", "/v1/embeddings", object{"model": "embed-tokens", "input": []int{1, 2, 3}},
			list("embed-tokens", 3, []float64{6, 3, 2, 1.5})},
		{"classify", "/v1/classify", object{"model": "classify", "input": []string{"odd", "even"}},
			object{"id": "classify-1", "object": "list", "created": 1, "model": "classify", "data": []any{
				object{"index": 0, "label": "odd", "probs": []int{1, 0}, "num_classes": 2},
				object{"index": 1, "label": "even", "probs": []int{1, 0}, "num_classes": 2},
			}, "usage": object{"prompt_tokens": 7, "total_tokens": 7, "completion_tokens": 0}}},
		{"pooling", "/v1/pooling", object{"model": "classify", "input": "hello"},
			object{"id": "pooling-1", "object": "list", "created": 1, "model": "classify",
				"data":  []any{object{"index": 0, "object": "pooling", "data": []int{532, 266}}},
				"usage": object{"prompt_tokens": 5, "total_tokens": 5, "completion_tokens": 0}}},
	} {
		t.Run(q.name, func(t *testing.T) {
			status, body := c.post(t, q.path, q.body)
			if status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			if diff := cmp.Diff(plain(t, q.want), decoded(t, body)); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("rerank", func(t *testing.T) {
		_, body := c.post(t, "/v1/rerank", object{"model": "rerank", "query": "abc", "documents": []string{"cde", "abc"}})
		want := []any{object{"score": 3, "index": 1, "document": "abc"}, object{"score": 1, "index": 0, "document": "cde"}}
		if diff := cmp.Diff(plain(t, want), decoded(t, body)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("score", func(t *testing.T) {
		dynamoDiffers(t, "it has no such endpoint")
		_, body := c.post(t, "/v1/score", object{"model": "rerank", "text_1": "abc", "text_2": []string{"cde", "abc"}})
		got, _ := decoded(t, body).(map[string]any)
		want := []any{object{"index": 0, "object": "score", "score": 1}, object{"index": 1, "object": "score", "score": 3}}
		if diff := cmp.Diff(plain(t, want), got["data"]); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	})
	t.Run("media", func(t *testing.T) { testTaskMedia(t, c) })
}

// testTaskMedia: images and videos come in JSON, frames of videos as parts, speech as sound.
func testTaskMedia(t *testing.T, c *client) {
	for path, body := range map[string]object{
		"/v1/images/generations": {"model": "image", "prompt": "a cat", "steps": 3},
		"/v1/images/edits":       {"model": "image", "prompt": "a cat", "input_reference": "x"},
		"/v1/videos":             {"model": "video", "prompt": "a cat"},
	} {
		status, answer := c.post(t, path, body)
		got, _ := decoded(t, answer).(map[string]any)
		if data, _ := got["data"].([]any); status != http.StatusOK || len(data) != 1 {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	video := object{"model": "video", "prompt": "a cat", "nvext": object{"num_frames": 2}}
	status, body := c.post(t, "/v1/videos/stream", video)
	want := "--frame\r\nContent-Type: image/jpeg\r\nContent-Length: 7\r\n\r\na cat 0\r\n" +
		"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: 7\r\n\r\na cat 1\r\n"
	// Dynamo's frontend ends without a last boundary.
	if status != http.StatusOK || strings.TrimSuffix(string(body), "--frame--\r\n") != want {
		t.Errorf("frames: %d %q", status, body)
	}
	for format, media := range map[string]string{"": "audio/wav", "mp3": "audio/mpeg", "pcm": "audio/pcm"} {
		body := object{"model": "speech", "input": "say it", "voice": "x"}
		if format != "" {
			body["response_format"] = format
		}
		res := c.start(t, t.Context(), "/v1/audio/speech", body)
		sound := make([]byte, 64)
		n, _ := res.Body.Read(sound)
		_ = res.Body.Close()
		if res.Header.Get("Content-Type") != media || string(sound[:n]) != "say it" {
			t.Errorf("%s: %s %q", format, res.Header.Get("Content-Type"), sound[:n])
		}
	}
}

func testTaskRefusals(t *testing.T, c *client) {
	for _, q := range []struct {
		name, path string
		body       object
		status     int
	}{
		{"no such model", "/v1/embeddings", object{"model": "none", "input": "a"}, http.StatusNotFound},
		{"another task's model", "/v1/embeddings", object{"model": "rerank", "input": "a"}, http.StatusNotFound},
		{"chat with it", chatPath, chat("embed-text", "Hi", 3), http.StatusNotFound},
		{"no input", "/v1/embeddings", object{"model": "embed-text"}, http.StatusBadRequest},
		{"no documents", "/v1/rerank", object{"model": "rerank", "query": "a", "documents": []string{}}, http.StatusBadRequest},
		{"bad format", "/v1/embeddings", object{"model": "embed-text", "input": "a", "encoding_format": "x"}, http.StatusBadRequest},
		{"edit without an image", "/v1/images/edits", object{"model": "image", "prompt": "a cat"}, http.StatusBadRequest},
		{"id out of range", "/v1/embeddings", object{"model": "embed-tokens", "input": []int{99999999}}, http.StatusBadRequest},
		{"frames of another task's model", "/v1/videos/stream", object{"model": "image", "prompt": "a cat"}, http.StatusNotFound},
		{"the engine refuses", "/v1/embeddings", object{"model": "embed-text", "input": "explode"}, http.StatusBadRequest},
	} {
		t.Run(q.name, func(t *testing.T) {
			if status, body := c.post(t, q.path, q.body); status != q.status {
				t.Errorf("%d, want %d: %s", status, q.status, body)
			}
		})
	}
}

// plain is v as it looks after a journey as JSON.
func plain(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, b)
}

func decoded(t *testing.T, b []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return v
}
