package admin_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/busy"
	"github.com/portico-llm/portico/internal/server/admin"
)

// thresholds join the handlers to a real monitor.
type thresholds struct{ m *busy.Monitor }

func (t thresholds) List() any { return t.m.Thresholds() }
func (t thresholds) Of(model string) (worker.LoadThresholds, bool) {
	return t.m.ThresholdsOf(model)
}
func (t thresholds) Set(model string, set worker.LoadThresholds) (worker.LoadThresholds, bool, error) {
	return t.m.SetThresholds(model, set)
}

// TestThresholds has the conversation that was had with Dynamo's frontend, and a few turns more.
func TestThresholds(t *testing.T) {
	m := busy.New(busy.Options{})
	id := worker.EndpointID{Namespace: "n", Component: "c", Name: "e"}
	m.Follow(&router.Snapshot{
		Instances: map[worker.EndpointID][]*worker.Instance{id: {{Namespace: "n", Component: "c", Endpoint: "e", InstanceID: 1}}},
		Models: []*worker.ModelRecord{
			{Namespace: "n", Component: "c", Endpoint: "e", InstanceID: 1, Card: worker.Card{DisplayName: "qwen3"}},
		},
	})
	h, err := admin.New(admin.Options{Thresholds: thresholds{m}})
	if err != nil {
		t.Fatal(err)
	}
	all := func(model, decode, tokens, frac string) string {
		return `{"model":"` + model + `","active_decode_blocks_threshold":` + decode + `,"active_prefill_tokens_threshold":` +
			tokens + `,"active_prefill_tokens_threshold_frac":` + frac + `}`
	}
	wrong := func(text string) string {
		return `{"error":"Failed to deserialize the JSON body into the target type: ` + text + `"}`
	}
	for _, tc := range []struct {
		body   string // empty: GET
		status int
		want   string
	}{
		{"", 200, `{"thresholds":[` + all("qwen3", "null", "null", "null") + `]}`},
		{`{"model":"qwen3","input":"hi","prompt":"hi"}`, 200, all("qwen3", "null", "null", "null")},
		{`{"model":"qwen3","active_decode_blocks_threshold":0.5}`, 200, all("qwen3", "0.5", "null", "null")},
		{`{"model":"qwen3"}`, 200, all("qwen3", "0.5", "null", "null")},
		{`{"model":"qwen3","active_decode_blocks_threshold":null}`, 200, all("qwen3", "0.5", "null", "null")},
		{`{"model":"qwen3","active_decode_blocks_threshold":1.5}`, 400, `{"error":"active_decode_blocks_threshold must be between 0.0 and 1.0, got 1.5"}`},
		{`{"model":"nope"}`, 200, all("nope", "null", "null", "null")},
		{`{"model":"nope","active_prefill_tokens_threshold":5}`, 404, `{"error":"Model 'nope' not found. Thresholds can only be set for discovered models."}`},
		{
			`{"model":"qwen3","active_prefill_tokens_threshold":7,"active_prefill_tokens_threshold_frac":-2}`, 400,
			`{"error":"active_prefill_tokens_threshold_frac must be a finite value greater than or equal to 0.0, got -2"}`,
		},
		{`{"model":"qwen3","active_prefill_tokens_threshold":7,"active_prefill_tokens_threshold_frac":0.25,"zz":1}`, 200, all("qwen3", "0.5", "7", "0.25")},
		{`{}`, 422, wrong("missing field `model`")},
		{`{"model":"qwen3","active_prefill_tokens_threshold":-1}`, 422, wrong("active_prefill_tokens_threshold: a JSON number -1 where an integer of at least 0 is expected")},
		{`{"model":"qwen3","active_decode_blocks_threshold":"a"}`, 422, wrong("active_decode_blocks_threshold: a JSON string where a number is expected")},
		{`{"model":1}`, 422, wrong("model: a JSON number where a string is expected")},
		{`x`, 400, wrong("invalid character 'x' looking for beginning of value")},
		{`{"model":"` + strings.Repeat("x", 1<<17) + `"}`, 413, `{"error":"The body may have at most 65536 bytes"}`},
		{"", 200, `{"thresholds":[` + all("qwen3", "0.5", "7", "0.25") + `]}`},
	} {
		res := httptest.NewRecorder()
		if tc.body == "" {
			h.BusyThresholds(res, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		} else {
			h.SetBusyThreshold(res, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(tc.body)))
		}
		if res.Code != tc.status {
			t.Errorf("%.80s: status %d, want %d", tc.body, res.Code, tc.status)
		}
		if d := cmp.Diff(tc.want, res.Body.String()); d != "" {
			t.Errorf("%.80s (-want +got):\n%s", tc.body, d)
		}
	}
}

// TestSetBusyThresholdCut: a body that ends early isn't called too large.
func TestSetBusyThresholdCut(t *testing.T) {
	h, err := admin.New(admin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	res := httptest.NewRecorder()
	h.SetBusyThreshold(res, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", iotest.ErrReader(io.ErrUnexpectedEOF)))
	if res.Code != http.StatusBadRequest || !strings.Contains(res.Body.String(), "did not arrive whole") {
		t.Errorf("%d %s", res.Code, res.Body)
	}
}
