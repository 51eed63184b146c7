package worker_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

func TestRouterConfig(t *testing.T) {
	share, tokens, ttl := 0.5, uint64(7), 60.0
	for _, tc := range []struct {
		name, json string
		mode       string
		want       worker.RouterConfig
		fails      bool
	}{
		{name: "none"},
		{name: "null", json: ` null `},
		{name: "empty", json: `{}`},
		{
			name: "all",
			json: `{"router_mode":"device_aware_weighted","kv_router_config":{"x":1},"load_threshold_config":` +
				`{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":7,` +
				`"active_prefill_tokens_threshold_frac":null},"enforce_disagg":false,"session_affinity_ttl_secs":60,"new":[]}`,
			mode: "device-aware-weighted",
			want: worker.RouterConfig{
				Mode: "device_aware_weighted", KV: json.RawMessage(`{"x":1}`),
				Thresholds: worker.LoadThresholds{DecodeBlocks: &share, PrefillTokens: &tokens}, AffinityTTL: &ttl,
			},
		},
		{
			name: "another name", json: `{"router_mode":"power_of_two_choices","session_affinity_ttl_secs":null}`,
			mode: "power-of-two", want: worker.RouterConfig{Mode: "power_of_two_choices"},
		},
		{name: "wrong type", json: `{"router_mode":1}`, fails: true},
		{name: "no object", json: `[]`, fails: true},
	} {
		card := worker.Card{RouterConfig: json.RawMessage(tc.json)}
		got, err := card.Router()
		if (err != nil) != tc.fails {
			t.Errorf("%s: error %v", tc.name, err)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
		if got.ModeName() != tc.mode {
			t.Errorf("%s: mode %q, want %q", tc.name, got.ModeName(), tc.mode)
		}
	}
}

func TestThresholdsOver(t *testing.T) {
	a, b, n := 0.1, 0.2, uint64(3)
	base := worker.LoadThresholds{DecodeBlocks: &a, PrefillFraction: &a}
	got := base.Over(worker.LoadThresholds{DecodeBlocks: &b, PrefillTokens: &n})
	want := worker.LoadThresholds{DecodeBlocks: &b, PrefillTokens: &n, PrefillFraction: &a}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(base, base.Over(worker.LoadThresholds{})); d != "" || base.IsZero() || !(worker.LoadThresholds{}).IsZero() {
		t.Errorf("nothing over something:\n%s", d)
	}
}
