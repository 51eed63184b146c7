package config

// Reasons that several ignored settings share.
const (
	noKVRouter   = "of routing by KV caches this part isn't offered"
	noDispatch   = "calls and thoughts stream as they come, without events of their own"
	noParserEdit = "there is one version of each parser"
	noGRPC       = "KServe's gRPC API isn't offered"
	noWorkerTLS  = "TLS between this process and workers on the TCP planes isn't offered yet"
	noPython     = "there is no Python in this process"
	noSimulator  = "prefill times aren't simulated"
	ofTheKernel  = "the kernel's own limit of waiting connections is used"
	byTheWorker  = "what each worker's record says is used"
	noBuckets    = "the default buckets are used"
	noReqTrace   = "requests aren't recorded to files"
)

// addIgnored lists what Dynamo has and this frontend has no use for. Each is accepted with one warning.
func (t *table) addIgnored() {
	// One group, the last of the help text and of the file.
	t.group = "Accepted for Dynamo's sake, without effect"
	t.addIgnoredFrontend()
	t.addIgnoredRouter()
	t.addIgnoredSimulator()
	t.addIgnoredVariables()
}

// ignore adds settings with an argument; each line is a key and its variables. Its value is taken as it is and never
// looked at: workers and launch scripts share these lines.
func (t *table) ignore(reason, key, env string) *Setting {
	s := t.add(key, env, ignoredText(), "")
	s.Ignored = reason
	return s
}

// ignoreSwitch adds a setting that is on or off. Such a flag takes no argument, which the parser has to know even of
// flags without effect.
func (t *table) ignoreSwitch(reason, key, env string) *Setting {
	s := t.add(key, env, ignoredSwitch(), "")
	s.Ignored = reason
	return s
}

// addIgnoredFrontend lists flags of Dynamo's frontend itself.
func (t *table) addIgnoredFrontend() {
	t.ignoreSwitch("there is no chat on the terminal", "interactive", "DYN_INTERACTIVE").alias("i")
	t.ignoreSwitch(noKVRouter, "serve-indexer", "DYN_SERVE_INDEXER")
	// Names that differ in one part are built from it, here and below.
	for _, name := range []string{"cert", "key", "ca-cert", "client-cert", "client-key", "client-ca-cert"} {
		t.ignore(noWorkerTLS, "tcp-tls-"+name+"-path", envName("DYN_TCP_TLS_", name, "_PATH"))
	}
	t.ignoreSwitch(noGRPC, "kserve-grpc-server", "DYN_KSERVE_GRPC_SERVER")
	t.ignore(noGRPC, "grpc-metrics-port", "DYN_GRPC_METRICS_PORT")
	t.ignore(noPython, "frontend-route-extension", "DYN_FRONTEND_ROUTE_EXTENSIONS")
	t.ignore("answers come over TCP", "response-plane", "DYN_RESPONSE_PLANE")
	t.ignoreSwitch(noDispatch, "enable-streaming-tool-dispatch", "DYN_ENABLE_STREAMING_TOOL_DISPATCH")
	t.ignoreSwitch(noDispatch, "enable-streaming-reasoning-dispatch", "DYN_ENABLE_STREAMING_REASONING_DISPATCH")
	t.ignore(noPython, "dyn-chat-processor", "DYN_CHAT_PROCESSOR")
	t.ignoreSwitch(noPython, "dyn-debug-perf", "DYN_DEBUG_PERF")
	t.ignore(noPython, "dyn-preprocess-workers", "DYN_PREPROCESS_WORKERS")
	t.ignoreSwitch(byTheWorker, "exclude-tools-when-tool-choice-none", "DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE")
	t.ignoreSwitch("a model's code is never run", "trust-remote-code", "DYN_TRUST_REMOTE_CODE")
}

// addIgnoredRouter lists flags of Dynamo's routers: most of them weigh the workers' KV caches.
func (t *table) addIgnoredRouter() {
	t.ignoreSwitch("Dynamo ignores it too", "enforce-disagg", "DYN_ENFORCE_DISAGG")
	t.ignore("the start doesn't wait for workers", "router-min-initial-workers", "DYN_ROUTER_MIN_INITIAL_WORKERS")
	t.ignoreSwitch(noKVRouter, "load-aware", "DYN_ROUTER_LOAD_AWARE")
	for _, name := range []string{
		"tracking-hash", "tracking-key-file", "tracking-key-id", "prefill-load-model", "approximate-cache-policy",
		"policy-config", "prefill-policy", "decode-policy", "event-threads",
	} {
		t.ignore(noKVRouter, "router-"+name, envName("DYN_ROUTER_", name, ""))
	}
	t.ignoreSwitch(noKVRouter, "use-remote-indexer", "DYN_USE_REMOTE_INDEXER")
	t.ignoreSwitch(noKVRouter, "enable-session-prefix-index", "DYN_ENABLE_SESSION_PREFIX_INDEX")
	t.ignore(noKVRouter, "shared-cache-multiplier", "DYN_SHARED_CACHE_MULTIPLIER")
	t.ignore(noKVRouter, "shared-cache-type", "DYN_SHARED_CACHE_TYPE")
}

// addIgnoredSimulator lists flags of the simulator that Dynamo's router may ask for prefill times.
func (t *table) addIgnoredSimulator() {
	t.ignore(noSimulator, "ais-perf-config", "DYN_AIS_PERF_CONFIG")
	for _, name := range []string{
		"backend", "system", "backend-version", "tp-size", "model-path", "moe-tp-size", "moe-ep-size",
		"attention-dp-size", "nextn", "nextn-accept-rates", "mtp-seed",
	} {
		// Two generations of names, of flags and of variables alike.
		t.ignore(noSimulator, "ais-"+name, envName("DYN_AIS_", name, "")+" "+envName("DYN_AIC_", name, "")).
			alias("aic-" + name)
	}
}

// addIgnoredVariables lists what Dynamo takes from the environment alone.
func (t *table) addIgnoredVariables() {
	// A flag of the same kind exists for each of them here, though Dynamo has none: one table, one rule.
	t.ignore(byTheWorker, "request-plane-codec", "DYN_REQUEST_PLANE_CODEC")
	t.ignoreSwitch(byTheWorker, "token-ids-as-bytes", "DYN_TOKEN_IDS_AS_BYTES")
	t.ignore(ofTheKernel, "http-listen-backlog", "DYN_HTTP_LISTEN_BACKLOG")
	t.ignore(ofTheKernel, "tcp-listen-backlog", "DYN_TCP_LISTEN_BACKLOG")
	t.ignore("a stream's status is sent with its first chunk", "http-pre-commit-error-peek-ms",
		"DYN_HTTP_PRE_COMMIT_ERROR_PEEK_MS")
	t.ignoreSwitch("unknown fields are ignored unless --strict is on", "ignore-openai-fe-unsupported-fields",
		"DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS")
	t.ignore(noParserEdit, "parser-version", "DYN_PARSER_VERSION")
	t.ignoreSwitch("forced calls always stream", "enable-guided-tool-streaming", "DYN_ENABLE_GUIDED_TOOL_STREAMING")
	t.ignore("10 s are used", "etcd-keepalive-timeout-seconds", "ETCD_KEEPALIVE_TIMEOUT_SECONDS")
	t.ignore("health and metrics are on the HTTP port", "system-port", "DYN_SYSTEM_PORT")
	t.ignoreSwitch(noReqTrace, "request-trace", "DYN_REQUEST_TRACE")
	// Bounds of histograms: five metrics with three settings each.
	for _, metric := range []string{"request-duration", "input-sequence", "output-sequence", "ttft", "itl"} {
		for _, bound := range []string{"min", "max", "count"} {
			key := "metrics-" + metric + "-" + bound
			t.ignore(noBuckets, key, envName("DYN_", key, ""))
		}
	}
}
