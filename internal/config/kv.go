package config

import (
	"math"
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

	BlockSize   int   // in tokens, in place of the cards'; 0 for theirs
	MemoryLimit int64 // bytes of one endpoint's index; 0 for no limit

	EventPlane string // what this process publishes on: "zmq" or "nats"
	EventHost  string // address of its event sockets
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
