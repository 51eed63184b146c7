package worker

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// RouterConfig is how a worker wants its model's requests routed, in place of the frontend's own settings. What is
// absent is left to the frontend.
type RouterConfig struct {
	// Mode is spelt with underscores in cards and with hyphens on command lines; ModeName gives the latter.
	Mode string `json:"router_mode,omitempty"`
	// KV holds the settings of KV-aware routing.
	KV json.RawMessage `json:"kv_router_config,omitempty"`
	// Thresholds say when a worker counts as overloaded.
	Thresholds LoadThresholds `json:"load_threshold_config,omitzero"`
	// AffinityTTL is how long a session stays bound to a worker without a request, in seconds.
	AffinityTTL *float64 `json:"session_affinity_ttl_secs,omitempty"`
}

// LoadThresholds say when a worker counts as overloaded; it is when it is beyond any of them. Nil ones don't count.
type LoadThresholds struct {
	// DecodeBlocks is a share of the worker's KV blocks, 0 to 1.
	DecodeBlocks *float64 `json:"active_decode_blocks_threshold"`
	// PrefillTokens is a number of prompt tokens that wait for or are in prefill.
	PrefillTokens *uint64 `json:"active_prefill_tokens_threshold"`
	// PrefillFraction is the same as a multiple of the tokens of a batch.
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac"`
}

// IsZero reports whether no threshold is set.
func (t LoadThresholds) IsZero() bool {
	return t.DecodeBlocks == nil && t.PrefillTokens == nil && t.PrefillFraction == nil
}

// String returns the thresholds as JSON, for logs.
func (t LoadThresholds) String() string {
	b, err := json.Marshal(t)
	if err != nil { // a number that JSON doesn't have
		return err.Error()
	}
	return string(b)
}

// Over returns t with those of other that are set in place of its own.
func (t LoadThresholds) Over(other LoadThresholds) LoadThresholds {
	if other.DecodeBlocks != nil {
		t.DecodeBlocks = other.DecodeBlocks
	}
	if other.PrefillTokens != nil {
		t.PrefillTokens = other.PrefillTokens
	}
	if other.PrefillFraction != nil {
		t.PrefillFraction = other.PrefillFraction
	}
	return t
}

// ModeName is the mode as --router-mode spells it; empty: none is asked for.
func (c *RouterConfig) ModeName() string {
	mode := strings.ReplaceAll(c.Mode, "_", "-")
	if mode == "power-of-two-choices" {
		return "power-of-two"
	}
	return mode
}

// Router returns the card's router configuration; the zero one when it has none. Fields not known here are ignored.
func (c *Card) Router() (RouterConfig, error) {
	var out RouterConfig
	if len(c.RouterConfig) == 0 || bytes.Equal(bytes.TrimSpace(c.RouterConfig), []byte("null")) {
		return out, nil
	}
	if err := json.Unmarshal(c.RouterConfig, &out); err != nil {
		return RouterConfig{}, fmt.Errorf("router_config of the card: %w", err)
	}
	return out, nil
}
