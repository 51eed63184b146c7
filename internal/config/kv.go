package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// KVRouter is how --router-mode kv chooses, and how it hears of the workers' caches.
type KVRouter struct {
	OverlapCredit float64 // what a block cached on the device is worth, in blocks
	CreditDecay   float64 // how much a worker's backlog devalues its cache
	HostWeight    float64 // what a block in host memory is worth
	DiskWeight    float64 // what a block on disk is worth
	PrefillScale  float64 // weight of prefill against decoding
	RequestWeight float64 // cost of each running request
	Temperature   float64 // 0 for the cheapest worker, larger for more chance

	Events       bool          // workers publish what they cache; otherwise it is guessed
	TTL          time.Duration // how long a guess holds
	Predicted    time.Duration // how long a prompt counts as cached where it was sent; 0 for not at all
	ReplicaSync  bool          // frontends tell each other of their requests
	TrackBlocks  bool          // count the blocks of running requests
	TrackOutput  bool          // and those of what they generate
	AssumeReuse  bool          // requests that begin alike share blocks
	TrackPrefill bool          // count prompt tokens still to be computed

	Conditional ConditionalDisagg // when decode workers read prompts themselves

	BlockSize   int   // in tokens, in place of the cards'; 0 for theirs
	MemoryLimit int64 // bytes of one endpoint's index; 0 for no limit

	EventPlane string // what this process publishes on: "zmq" or "nats"
	EventHost  string // address of its event sockets
}

// ConditionalDisagg says when a decode worker reads a prompt itself although there are prefill workers.
type ConditionalDisagg struct {
	On          bool
	Policy      string   // "isl_bounding", "prefill_load" or "isl_or_load"
	Tokens      int      // fewer than these are to be computed
	Share       float64  // and less of the prompt than this
	PrefillBusy *float64 // multiple of a batch's tokens in prefill beyond which a prefill worker is busy; nil for never
	DecodeBusy  *float64 // share of its blocks beyond which a decode worker is spared; nil for never

	object string // all of them but On, as a JSON object, which goes before the single settings
}

// addConditional lists when decode workers read prompts.
func (t *table) addConditional(c *ConditionalDisagg) {
	const key, env = "router-conditional-disagg", "DYN_ROUTER_CONDITIONAL_DISAGG"
	t.add(key, env, boolean(&c.On, false),
		"Whether a decode worker may read a prompt itself although there are prefill workers, as the next settings have it. "+
			"Needs --router-mode kv and KV events.")
	t.add(key+"-policy", env+"_POLICY", choice(&c.Policy, "isl_bounding", "isl_bounding", "prefill_load", "isl_or_load"),
		"When: little of the prompt is left to be computed there (isl_bounding), the prefill worker is busy (prefill_load), or "+
			"either (isl_or_load).")
	t.add(key+"-eff-isl-threshold", env+"_EFF_ISL_THRESHOLD", integer(&c.Tokens, 2048, 0, math.MaxInt32),
		"Little are fewer tokens than these that the decode worker hasn't cached,")
	t.add(key+"-eff-isl-ratio-threshold", env+"_EFF_ISL_RATIO_THRESHOLD", number(&c.Share, 0.7, 0, 1),
		"and less than this share of the prompt.")
	t.add(key+"-prefill-busy-threshold", env+"_PREFILL_BUSY_THRESHOLD", optional(&c.PrefillBusy, math.MaxInt32, false),
		"Multiple of max_num_batched_tokens in prefill beyond which a prefill worker is busy; default: --router-queue-threshold.")
	t.add(key+"-decode-busy-threshold", env+"_DECODE_BUSY_THRESHOLD", optional(&c.DecodeBusy, math.MaxInt32, false),
		"Share of its KV blocks, those of the prompt included, beyond which a decode worker reads none; None for no such bound.")
	t.add(key+"-config", env+"_CONFIG", text(&c.object, ""),
		"The same as a JSON object, whose fields go before the single settings: policy, eff_isl_threshold, "+
			"eff_isl_ratio_threshold, prefill_busy_threshold, decode_busy_threshold.")
}

// merge takes over the fields of the JSON object, each under the rules of its setting.
func (c *ConditionalDisagg) merge(byKey map[string]*Setting) error {
	if c.object == "" {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(c.object), &fields); err != nil || fields == nil {
		return errors.New("allowed is a JSON object")
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		s := byKey["router-conditional-disagg-"+strings.ReplaceAll(name, "_", "-")]
		if s == nil || name == "config" {
			return fmt.Errorf("unknown field %q; known: policy, eff_isl_threshold, eff_isl_ratio_threshold, "+
				"prefill_busy_threshold, decode_busy_threshold", name)
		}
		value := string(fields[name])
		if text := ""; json.Unmarshal(fields[name], &text) == nil && value != "null" {
			value = text
		} else if value == "null" {
			value = "none"
		}
		if err := s.value.set(value); err != nil {
			return fmt.Errorf("%s: allowed is %s", name, s.value.allowed())
		}
	}
	return nil
}

// checkConditional takes over the JSON object and finds what can't be meant.
func (c *Config) checkConditional(wrong func(key, message string)) {
	const key = "router-conditional-disagg"
	k := &c.Router.KV.Conditional
	if err := k.merge(c.byKey); err != nil {
		wrong(key+"-config", err.Error())
	}
	switch {
	case !k.On:
		if k.object != "" {
			wrong(key+"-config", "needs --"+key+" too")
		}
	case c.Router.Mode != "kv":
		wrong(key, "needs --router-mode kv")
	case !c.Router.KV.Events:
		wrong(key, "needs --router-kv-events")
	case k.Policy != "isl_bounding" && k.PrefillBusy == nil && c.Loads.Queue == nil:
		wrong(key+"-policy", "needs --"+key+"-prefill-busy-threshold or --router-queue-threshold")
	}
}

// addKVRouter lists how workers are chosen by their KV caches.
func (t *table) addKVRouter(k *KVRouter) {
	t.group = "Routing by KV caches (--router-mode kv)"
	weight := func(p *float64, def float64) value { return number(p, def, 0, 1e9) }
	t.add("router-kv-overlap-score-credit", "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT",
		weight(&k.OverlapCredit, 1), "What a block that a worker has cached is worth, against one to be computed; 0 to choose by load alone.").
		alias("router-kv-overlap-score-weight", "kv-overlap-score-weight")
	t.add("router-kv-overlap-score-credit-decay", "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT_DECAY", weight(&k.CreditDecay, 0),
		"How much a worker's backlog devalues what it has cached.")
	t.add("router-host-cache-hit-weight", "DYN_ROUTER_HOST_CACHE_HIT_WEIGHT", weight(&k.HostWeight, 0.75),
		"What a block cached in host memory is worth.")
	t.add("router-disk-cache-hit-weight", "DYN_ROUTER_DISK_CACHE_HIT_WEIGHT", weight(&k.DiskWeight, 0.25),
		"What a block cached on disk is worth.")
	t.add("router-prefill-load-scale", "DYN_ROUTER_PREFILL_LOAD_SCALE", weight(&k.PrefillScale, 1),
		"Weight of prompts to be computed against running requests.")
	t.add("router-decode-active-request-weight", "DYN_ROUTER_DECODE_ACTIVE_REQUEST_WEIGHT", weight(&k.RequestWeight, 0),
		"Cost of each running request beside its blocks.")
	t.add("router-temperature", "DYN_ROUTER_TEMPERATURE", weight(&k.Temperature, 0),
		"0 takes the cheapest worker; the larger, the more even the choice.")
	t.add("router-kv-events", "DYN_ROUTER_USE_KV_EVENTS", boolean(&k.Events, true),
		"Whether workers publish what they cache; otherwise what was sent where is taken for it.").alias("kv-events")
	t.add("router-ttl-secs", "DYN_ROUTER_TTL_SECS", seconds(&k.TTL, 120*time.Second, time.Millisecond),
		"Without KV events: how long a worker is thought to keep a prompt.")
	t.add("router-predicted-ttl-secs", "DYN_ROUTER_PREDICTED_TTL_SECS", seconds(&k.Predicted, 0, 0),
		"With KV events: how long a prompt counts as cached where it was sent, whatever events say, so that requests that "+
			"begin alike and come at once find each other; 0 for not at all.")
	t.add("router-replica-sync", "DYN_ROUTER_REPLICA_SYNC", boolean(&k.ReplicaSync, false),
		"Whether frontends tell each other of the requests they have sent.")
	t.add("router-track-active-blocks", "DYN_ROUTER_TRACK_ACTIVE_BLOCKS", boolean(&k.TrackBlocks, true),
		"Whether the blocks of running requests count.").alias("track-active-blocks")
	t.add("router-track-output-blocks", "DYN_ROUTER_TRACK_OUTPUT_BLOCKS", boolean(&k.TrackOutput, false),
		"Whether the blocks of what they generate count, too.").alias("track-output-blocks")
	t.add("router-assume-kv-reuse", "DYN_ROUTER_ASSUME_KV_REUSE", boolean(&k.AssumeReuse, true),
		"Whether running requests that begin alike share blocks.").alias("assume-kv-reuse")
	t.add("router-track-prefill-tokens", "DYN_ROUTER_TRACK_PREFILL_TOKENS", boolean(&k.TrackPrefill, true),
		"Whether prompt tokens still to be computed count.")
	t.addConditional(&k.Conditional)
	t.add("kv-cache-block-size", "DYN_KV_CACHE_BLOCK_SIZE", integer(&k.BlockSize, 0, 0, 1<<20),
		"Tokens in a KV block, in place of what the cards say; 0 for theirs.")
	t.add("router-kv-index-memory-mb", "PORTICO_ROUTER_KV_INDEX_MEMORY_MB",
		scaled(&k.MemoryLimit, 1024, 0, math.MaxInt32, 1<<20),
		"Most memory of the index of one endpoint's caches, in MiB; what was used longest ago is dropped. 0 for no limit.")
	t.add("event-plane", "DYN_EVENT_PLANE", choice(&k.EventPlane, "zmq", "zmq", "nats"),
		"What this process publishes events on. Others are heard on whatever they advertise.")
	t.add("event-plane-host", "DYN_EVENT_PLANE_HOST", text(&k.EventHost, ""),
		"Address that others reach this process's event socket at; default: the one that workers send answers to.")
}
