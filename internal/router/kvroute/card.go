package kvroute

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/portico-llm/portico/api/worker"
)

// cardConfig is a card's kv_router_config, as far as it is used here. What is absent stays as it is.
type cardConfig struct {
	OverlapCredit *float64 `json:"overlap_score_credit"`
	OverlapWeight *float64 `json:"overlap_score_weight"` // the credit's older name
	CreditDecay   *float64 `json:"overlap_score_credit_decay"`
	PrefillScale  *float64 `json:"prefill_load_scale"`
	RequestWeight *float64 `json:"decode_active_request_weight"`
	HostWeight    *float64 `json:"host_cache_hit_weight"`
	DiskWeight    *float64 `json:"disk_cache_hit_weight"`
	Shared        *float64 `json:"shared_cache_multiplier"`
	Temperature   *float64 `json:"router_temperature"`
	TTL           *float64 `json:"router_ttl_secs"`
	Events        *bool    `json:"use_kv_events"`
	ReplicaSync   *bool    `json:"router_replica_sync"`
	TrackBlocks   *bool    `json:"router_track_active_blocks"`
	TrackOutput   *bool    `json:"router_track_output_blocks"`
	AssumeReuse   *bool    `json:"router_assume_kv_reuse"`
	TrackPrefill  *bool    `json:"router_track_prefill_tokens"`

	Conditional *bool    `json:"conditional_disagg_enabled"`
	Policy      *string  `json:"conditional_disagg_policy"`
	ISL         *int     `json:"conditional_disagg_eff_isl_threshold"`
	ISLShare    *float64 `json:"conditional_disagg_eff_isl_ratio_threshold"`
	PrefillBusy *float64 `json:"conditional_disagg_prefill_busy_threshold"`
	DecodeBusy  *float64 `json:"conditional_disagg_decode_busy_threshold"`
}

// put sets what a pointer points to, if there is one.
func put[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// over returns a configuration with the card's say on top.
func (c *cardConfig) over(base Config) Config {
	k := c
	put(&base.Cost.OverlapCredit, k.OverlapWeight)
	put(&base.Cost.OverlapCredit, k.OverlapCredit)
	put(&base.Cost.CreditDecay, k.CreditDecay)
	put(&base.Cost.PrefillScale, k.PrefillScale)
	put(&base.Cost.RequestWeight, k.RequestWeight)
	put(&base.Cost.HostWeight, k.HostWeight)
	put(&base.Cost.DiskWeight, k.DiskWeight)
	put(&base.Cost.SharedMultiplier, k.Shared)
	put(&base.Cost.Temperature, k.Temperature)
	if k.TTL != nil && *k.TTL > 0 {
		base.TTL = time.Duration(*k.TTL * float64(time.Second))
	}
	put(&base.Events, k.Events)
	put(&base.ReplicaSync, k.ReplicaSync)
	put(&base.TrackBlocks, k.TrackBlocks)
	put(&base.TrackOutput, k.TrackOutput)
	put(&base.AssumeReuse, k.AssumeReuse)
	put(&base.TrackPrefill, k.TrackPrefill)
	k.condition(&base.Conditional)
	return base
}

// condition puts the card's say on top of when decode workers read prompts. What can't be is left out.
func (c *cardConfig) condition(base *Conditional) {
	to := *base
	put(&to.On, c.Conditional)
	put(&to.Policy, c.Policy)
	put(&to.Tokens, c.ISL)
	put(&to.Share, c.ISLShare)
	if c.PrefillBusy != nil {
		to.PrefillBusy = c.PrefillBusy
	}
	if c.DecodeBusy != nil {
		to.DecodeBusy = c.DecodeBusy
	}
	if to.Check() == nil {
		*base = to
	}
}

// parseCard reads a card's router_config: the mode that it asks for, empty for none, and its say in mode kv.
func parseCard(card *worker.Card) (mode string, c cardConfig, err error) {
	all, err := card.Router()
	if err != nil || len(all.KV) == 0 {
		return all.ModeName(), c, err
	}
	if err := json.Unmarshal(all.KV, &c); err != nil {
		return all.ModeName(), cardConfig{}, fmt.Errorf("kv_router_config of the card: %w", err)
	}
	return all.ModeName(), c, nil
}
