package config

import (
	"math"
	"strings"
	"time"
)

// Setting is one row of the table: what an operator can set, and where it goes.
type Setting struct {
	Key     string   // name of the flag, without dashes, and of the key in the file
	Aliases []string // other names of the flag
	Env     []string // variables, the first that is set wins
	Group   string   // heading of the help text
	Doc     string   // what it does, in sentences
	Default string   // as text
	Secret  bool     // never printed
	URL     bool     // printed without the name and password it may have
	Ignored string   // why the setting has no effect; empty for one that has

	value  value  // bound to a field of the Config
	source Source // of the present value
}

// Source is where a value came from.
type Source struct {
	Kind string // "flag", "env", "file", or empty for the default
	Name string // --flag, variable, or file:line
}

// Allowed says what the setting takes.
func (s *Setting) Allowed() string { return s.value.allowed() }

// Switch reports whether the setting is on or off, so that its flag needs no argument and has a twin --no-….
func (s *Setting) Switch() bool { _, ok := s.value.(boolValue); return ok }

// Value is the setting's value as text, with a secret hidden.
func (s *Setting) Value() string { return s.printable(s.value.String()) }

// table collects settings; add returns the row for the rare further attribute.
type table struct {
	group string     // of the settings that are added next
	rows  []*Setting // in the order of the help text
}

// add appends a setting to the current group; env holds its variables, separated by blanks. Keys, variables and order
// are what operators see: a test compares them with configs/frontend.yaml.
func (t *table) add(key, env string, v value, doc string) *Setting {
	s := &Setting{Key: key, Env: strings.Fields(env), Group: t.group, Doc: doc, Default: v.String(), value: v}
	t.rows = append(t.rows, s)
	return s
}

// secret keeps the value out of all output.
func (s *Setting) secret() { s.Secret = true }

// url keeps a name and password before the host out of all output.
func (s *Setting) url() { s.URL = true }

// alias gives the flag further names.
func (s *Setting) alias(names ...string) { s.Aliases = append(s.Aliases, names...) }

// settings binds the table to c and gives every variable its default.
func settings(c *Config) []*Setting {
	t := &table{}
	t.addGeneral(c)
	t.addHTTP(&c.HTTP)
	t.addPaths(&c.HTTP.Paths)
	t.addModels(&c.Models)
	t.addDiscovery(&c.Discovery)
	t.addPlane(c)
	t.addAdmission(&c.Admission)
	t.addLoad(&c.Loads)
	t.addKVRouter(&c.Router.KV)
	t.addNATS(&c.NATS)
	t.addTCP(c)
	t.addText(c)
	t.addImages(&c.Images)
	t.addObserve(c)
	t.addTrace(&c.Trace)
	t.addIgnored()
	return t.rows
}

// addGeneral lists what belongs to no area.
func (t *table) addGeneral(c *Config) {
	t.group = "General"
	t.add("config", "PORTICO_CONFIG", path(&c.File), "YAML file with any of these settings.")
	t.add("embedded", "PORTICO_EMBEDDED", boolean(&c.Embedded, false),
		"Run a NATS server and a simulated worker inside the process, with discovery in memory: for trying out.")
	t.add("dump-config-to", "DYN_DUMP_CONFIG_TO", path(&c.DumpTo),
		"Write the resulting configuration, secrets hidden, to this file at start.")
	t.add("frontend-fd-limit-target", "DYN_FRONTEND_FD_LIMIT_TARGET", integer(&c.OpenFiles, 0, 0, math.MaxInt32),
		"Limit of open files to ask the system for at start; 0 asks for all it grants. A stream needs two.")
}

// addHTTP lists what clients see.
func (t *table) addHTTP(h *HTTP) {
	t.group = "HTTP"
	t.add("http-host", "DYN_HTTP_HOST", text(&h.Host, "0.0.0.0"), "Address to listen on.")
	t.add("http-port", "DYN_HTTP_PORT", integer(&h.Port, 8000, 0, 65535), "Port to listen on; 0 for any free one.")
	t.add("tls-cert-path", "DYN_TLS_CERT_PATH", path(&h.TLS.CertPath),
		"Certificate in PEM: serve HTTPS. Needs --tls-key-path.")
	t.add("tls-key-path", "DYN_TLS_KEY_PATH", path(&h.TLS.KeyPath), "Private key of the certificate, in PEM.")
	t.add("tls-client-ca-cert-path", "DYN_TLS_CLIENT_CA_CERT_PATH", path(&h.TLS.ClientCAPath),
		"Authorities in PEM that clients must show a certificate of.")
	t.add("http-body-limit-mb", "DYN_HTTP_BODY_LIMIT_MB", scaled(&h.BodyLimit, 45, 1, 4096, 1<<20),
		"Largest request body in MiB.")
	t.add("http-graceful-shutdown-timeout-secs", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
		seconds(&h.GracePeriod, 5*time.Second, 0), "How long running streams may go on after SIGTERM.")
	t.add("http-overload-status-code", "DYN_HTTP_OVERLOAD_STATUS_CODE", integer(&h.OverloadCode, 529, 400, 599),
		"Status of requests refused because all workers are full.")
	t.add("http-sse-keep-alive-interval-ms", "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS", milliseconds(&h.KeepAlive, 0, 0),
		"Pause of a stream after which a comment is sent to keep proxies from closing it; 0 for none.")
	t.add("http-backend-stream-timeout-secs", "DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS", seconds(&h.StreamTimeout, 0, 0),
		"Longest silence of a worker within an answer; 0 for no limit.")
	t.add("stream-write-timeout-secs", "PORTICO_STREAM_WRITE_TIMEOUT_SECS", seconds(&h.WriteTimeout, time.Minute, 0),
		"How long a client may take nothing of its stream before it is given up; 0 for no limit.")
	t.add("stream-hold-back-ms", "PORTICO_STREAM_HOLD_BACK_MS", milliseconds(&h.HoldBack, time.Millisecond, 0),
		"How long tokens that come in a burst are gathered into one write; 0 writes each at once.")
	t.add("error-format", "PORTICO_ERROR_FORMAT", choice(&h.ErrorFormat, "openai", "openai", "dynamo"),
		"Shape of error bodies: OpenAI's nested object or Dynamo's flat one.")
	t.add("reasoning-field-name", "DYN_REASONING_FIELD_NAME",
		choice(&h.ReasoningField, "reasoning_content", "reasoning_content", "reasoning"),
		"Field of chat messages that reasoning is in.")
	t.add("strict", "PORTICO_STRICT", boolean(&h.Strict, false),
		"Refuse requests with unknown fields, as Dynamo does, in place of ignoring the fields.")
	t.add("disable-frontend-admin-api", "DYN_DISABLE_FRONTEND_ADMIN_API", boolean(&h.NoAdmin, false),
		"Serve no /busy_threshold, which reads and sets the thresholds of overload.")
	t.add("disable-frontend-nvext", "DYN_DISABLE_FRONTEND_NVEXT", boolean(&h.IgnoreNvExt, false),
		"Read nothing of a request's nvext but its cache_salt.")
	t.add("enable-force-include-usage", "DYN_ENABLE_FORCE_INCLUDE_USAGE", boolean(&h.ForceIncludeUsage, false),
		"End every stream with its usage, whether the client asked for it or not.")
	r := &h.Responses
	t.add("responses-kept", "PORTICO_RESPONSES_KEPT", integer(&r.Count, 4096, 0, 1<<24),
		"Responses of /v1/responses kept in memory, for previous_response_id and GET; 0 for none. Another frontend doesn't "+
			"have them.")
	t.add("responses-kept-mb", "PORTICO_RESPONSES_KEPT_MB", scaled(&r.Bytes, 64, 1, 1<<20, 1<<20),
		"Memory for them in MiB; the least recently used go first.")
	t.add("responses-kept-secs", "PORTICO_RESPONSES_KEPT_SECS", seconds(&r.TTL, time.Hour, time.Second),
		"How long one is kept after its last use.")
	t.add("enable-anthropic-api", "DYN_ENABLE_ANTHROPIC_API", boolean(&h.Anthropic, true),
		"Serve Anthropic's Messages API at /v1/messages.")
	t.add("strip-anthropic-preamble", "DYN_STRIP_ANTHROPIC_PREAMBLE", boolean(&h.StripPreamble, true),
		"Take the line out that Claude Code puts ahead of its system prompts for billing: it differs from request to request.")
}

// addPaths lists where the endpoints are.
func (t *table) addPaths(p *Paths) {
	t.group = "Paths"
	add := func(name string, path *string, def, what string) {
		key := "http-svc-" + name + "-path"
		t.add(key, envName("DYN_", key, ""), text(path, def), "Path of "+what+".")
	}
	add("chat", &p.Chat, "/v1/chat/completions", "chat completions")
	add("cmp", &p.Completions, "/v1/completions", "completions")
	add("responses", &p.Responses, "/v1/responses", "responses")
	add("emb", &p.Embeddings, "/v1/embeddings", "embeddings")
	add("rerank", &p.Rerank, "/v1/rerank", "rerank")
	add("classify", &p.Classify, "/v1/classify", "classify")
	add("pooling", &p.Pooling, "/v1/pooling", "pooling")
	add("anthropic", &p.Messages, "/v1/messages", "Anthropic's messages")
	add("models", &p.Models, "/v1/models", "the list of models")
	add("health", &p.Health, "/health", "the health report")
	add("live", &p.Live, "/live", "the sign of life")
	add("metrics", &p.Metrics, "/metrics", "the metrics")
}

// addModels lists which models are served and how they are shown.
func (t *table) addModels(m *Models) {
	t.group = "Models"
	t.add("model-path", "DYN_MODEL_PATH", path(&m.Path),
		"Folder with a model's files, used in place of where the workers' cards say they are. With --embedded the "+
			"model to serve; default there: "+EmbeddedModel+".")
	t.add("model-name", "DYN_MODEL_NAME", text(&m.Name, ""),
		"Name of the model that --embedded serves; default: the folder's name.")
	t.add("namespace", "DYN_NAMESPACE", text(&m.Namespace, ""),
		"Serve only models of this namespace; empty, or Dynamo's word for all, \"dynamo\": every one.")
	t.add("namespace-prefix", "DYN_NAMESPACE_PREFIX", text(&m.NamespacePrefix, ""),
		"Serve only models of namespaces that begin so; wins over --namespace.")
	t.add("namespace-prefix-strict", "DYN_NAMESPACE_PREFIX_STRICT", boolean(&m.PrefixStrict, false),
		"Take only the prefix itself, and the prefix with -legacy or with eight hexadecimal digits.")
	t.add("context-window", "DYN_CONTEXT_WINDOW", integer(&m.ContextWindow, 0, 0, math.MaxInt32),
		"Context length shown by /v1/models; 0 for what the model's card says.")
	t.add("max-output-tokens", "DYN_MAX_OUTPUT_TOKENS", integer(&m.MaxOutputTokens, 0, 0, math.MaxInt32),
		"Output limit shown by /v1/models; 0 for what the model's card says.")
	t.add("tool-call-parser", "PORTICO_TOOL_CALL_PARSER", text(&m.ToolParser, ""),
		"How all models write tool calls, in place of what their cards say; default there: what the chat template tells.")
	t.add("reasoning-parser", "PORTICO_REASONING_PARSER", text(&m.ReasoningParser, ""),
		"How all models mark their reasoning, in place of what their cards say; default there: what the chat template tells.")
	t.add("hf-hub-cache", "HF_HUB_CACHE", path(&m.HubCache),
		"Hugging Face cache with the files of models that a card names by repository; default: hub in $HF_HOME. Nothing is "+
			"downloaded.")
}

// addDiscovery lists how workers are found.
func (t *table) addDiscovery(d *Discovery) {
	t.group = "Discovery"
	t.add("discovery-backend", "DYN_DISCOVERY_BACKEND", choice(&d.Backend, "etcd", "etcd", "file", "mem"),
		"Where workers register: etcd, a shared folder, or this process's memory (--embedded).")
	t.add("file-kv", "DYN_FILE_KV", path(&d.FileKV),
		"Root folder of the file backend; default: dynamo_store_kv in the system's folder for temporary files.")
	t.add("etcd-endpoints", "ETCD_ENDPOINTS", list(&d.Etcd.Endpoints, "http://localhost:2379"),
		"The etcd servers, with commas.").url()
	t.add("etcd-lease-ttl", "ETCD_LEASE_TTL", seconds(&d.Etcd.LeaseTTL, 30*time.Second, time.Second),
		"Time to live of this process's lease.")
	t.add("etcd-auth-username", "ETCD_AUTH_USERNAME", text(&d.Etcd.Username, ""), "User name for etcd.")
	t.add("etcd-auth-password", "ETCD_AUTH_PASSWORD", text(&d.Etcd.Password, ""), "Password for etcd.").secret()
	t.add("etcd-auth-ca", "ETCD_AUTH_CA", path(&d.Etcd.TLS.CAPath),
		"Authorities in PEM that etcd's certificate must be of.")
	t.add("etcd-auth-client-cert", "ETCD_AUTH_CLIENT_CERT", path(&d.Etcd.TLS.CertPath),
		"Certificate in PEM to show to etcd.")
	t.add("etcd-auth-client-key", "ETCD_AUTH_CLIENT_KEY", path(&d.Etcd.TLS.KeyPath), "Private key of it, in PEM.")
	t.add("etcd-keepalive-interval-seconds", "ETCD_KEEPALIVE_INTERVAL_SECONDS",
		seconds(&d.Etcd.KeepAliveInterval, 15*time.Second, 0), "Time between pings of the connection; 0 for none.")
	t.add("etcd-startup-connect-timeout-seconds", "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS",
		seconds(&d.Etcd.ConnectTimeout, 120*time.Second, time.Second), "How long the first connection is tried at start.")
}

// addPlane lists how workers are chosen and reached, whatever the transport.
func (t *table) addPlane(c *Config) {
	t.group = "Workers"
	t.add("router-mode", "DYN_ROUTER_MODE",
		choice(&c.Router.Mode, "round-robin", "round-robin", "random", "least-loaded", "power-of-two",
			"device-aware-weighted", "kv", "direct"),
		"How a worker is chosen: kv, where most of the prompt is cached; direct leaves it to the request. What a model's card says wins.")
	t.add("encoder-cuda-to-cpu-ratio", "DYN_ENCODER_CUDA_TO_CPU_RATIO",
		number(&c.Router.CUDAToCPU, 8, 0.001, 1e6),
		"With device-aware-weighted: how many times the load of a processor an accelerator is given.")
	t.add("request-plane", "DYN_REQUEST_PLANE", choice(&c.Plane.Default, "tcp", "tcp", "nats"),
		"Transport of requests. What a worker's record says wins.")
	t.add("handshake-timeout", "PORTICO_HANDSHAKE_TIMEOUT",
		seconds(&c.Plane.HandshakeTimeout, 30*time.Second, 10*time.Millisecond),
		"How long a worker that took a request may need to begin before another is tried. Workers that queue what they took (a request limit of "+
			"the engine, say) need more.")
	t.add("runtime-inhibited-duration-secs", "DYN_RUNTIME_INHIBITED_DURATION_SECS",
		seconds(&c.Plane.Quarantine, 5*time.Second, 0), "How long a worker that failed is left out; 0 for not at all.")
	t.add("max-attempts", "PORTICO_MAX_ATTEMPTS", integer(&c.Plane.MaxAttempts, 3, 1, 100),
		"How many workers a request is offered to before its answer begins.")
	t.add("start-timeout", "PORTICO_START_TIMEOUT", seconds(&c.Plane.StartTimeout, time.Minute, 0),
		"How long a request may wait for a worker to begin, over all workers that it is offered to; 0 for no bound. Never less "+
			"than --handshake-timeout.")
	t.add("max-lost-workers", "PORTICO_MAX_LOST_WORKERS", integer(&c.Plane.MaxStruck, 2, 0, 100),
		"How many workers in a row may be lost, or never begin, with one request before it has any output. Then it is given up "+
			"rather than tried on a further one, since it may be what takes them down; 0 for any number.")
	t.add("migration-limit", "DYN_MIGRATION_LIMIT", integer(&c.Plane.MigrationLimit, 3, 0, math.MaxInt32),
		"How often one request may go on at another worker after its own was lost during the answer; 0 for never.")
	t.add("migration-max-seq-len", "DYN_MIGRATION_MAX_SEQ_LEN",
		integer(&c.Plane.MigrationMaxSeqLen, 0, 0, math.MaxInt32),
		"Tokens of prompt and answer together beyond which a request no longer goes on elsewhere, since they have to be "+
			"kept; 0 for no bound.")
	t.add("migration-repetition-penalty", "PORTICO_MIGRATION_REPETITION_PENALTY", boolean(&c.Plane.MigrationRepetition, false),
		"Whether requests with a repetition penalty may go on at another worker: right with engines whose penalty counts the "+
			"tokens of prompts (vLLM, TensorRT-LLM), and wrong with those that count what they have generated alone (SGLang).")
	t.add("tcp-response-stream-host", "DYN_TCP_RESPONSE_STREAM_HOST", text(&c.CallHome.Host, ""),
		"Address or interface that workers send answers to; default: the first that isn't loopback.")
	t.add("tcp-response-stream-port", "DYN_TCP_RESPONSE_STREAM_PORT", integer(&c.CallHome.Port, 0, 0, 65535),
		"Port that workers send answers to; 0 for any free one.")
	t.add("tcp-response-stream-advertise-host", "PORTICO_TCP_RESPONSE_STREAM_ADVERTISE_HOST",
		text(&c.CallHome.AdvertiseHost, ""),
		"Host that workers are told to send answers to, where it isn't the address listened on.")
}

// addAdmission lists how many requests there may be, and what becomes of the others.
func (t *table) addAdmission(a *Admission) {
	t.group = "Overload"
	t.add("max-concurrent-requests", "PORTICO_MAX_CONCURRENT_REQUESTS", integer(&a.MaxRequests, 0, 0, math.MaxInt32),
		"Requests of one model that are tokenized, sent and answered at a time; 0 for no limit. More than that wait.")
	t.add("max-concurrent-requests-of", "PORTICO_MAX_CONCURRENT_REQUESTS_OF", limits(&a.MaxRequestsOf),
		"The same for certain models, by name; 0 lifts the limit. Adapters have names of their own.").
		alias("model-concurrency")
	t.add("max-queued-requests", "PORTICO_MAX_QUEUED_REQUESTS", integer(&a.MaxQueued, 1024, 0, math.MaxInt32),
		"Requests of one model that may wait for their turn; the others are refused with --http-overload-status-code and "+
			"Retry-After. 0 lets none wait.")
	t.add("queue-timeout", "PORTICO_QUEUE_TIMEOUT", seconds(&a.MaxWait, 30*time.Second, time.Millisecond),
		"How long a request may wait for its turn.")
	t.add("router-queue-policy", "DYN_ROUTER_QUEUE_POLICY", choice(&a.Order, "fcfs", "fcfs", "wspt"),
		"Order of requests that wait: first come, first served, with priorities as seconds of head start; or (wspt) the "+
			"shortest prompt first, weighed by priority. A higher strict priority always goes first.")
}

// addNATS lists the connection to NATS.
func (t *table) addNATS(n *NATS) {
	t.group = "NATS"
	t.add("nats-server", "NATS_SERVER", text(&n.URL, "nats://localhost:4222"),
		"The NATS server. Connected to at start with --request-plane nats, else when a worker or its events are reached over it.").url()
	t.add("nats-auth-username", "NATS_AUTH_USERNAME", text(&n.Username, ""), "User name for NATS.")
	t.add("nats-auth-password", "NATS_AUTH_PASSWORD", text(&n.Password, ""), "Password for NATS.").secret()
	t.add("nats-auth-token", "NATS_AUTH_TOKEN", text(&n.Token, ""), "Token for NATS.").secret()
	t.add("nats-auth-nkey", "NATS_AUTH_NKEY", text(&n.NKey, ""), "Seed of an NKey for NATS.").secret()
	t.add("nats-auth-credentials-file", "NATS_AUTH_CREDENTIALS_FILE", path(&n.CredentialsFile),
		"File with credentials for NATS.")
	t.add("nats-tls-ca-cert-path", "NATS_TLS_CA_CERT_PATH", path(&n.TLS.CAPath),
		"Authorities in PEM that the NATS server's certificate must be of.")
	t.add("nats-tls-insecure", "NATS_TLS_INSECURE", boolean(&n.TLS.Insecure, false),
		"Take any certificate of the NATS server: for development only.")
	t.add("nats-tls-client-cert-path", "NATS_TLS_CLIENT_CERT_PATH", path(&n.TLS.CertPath),
		"Certificate in PEM to show to the NATS server.")
	t.add("nats-tls-client-key-path", "NATS_TLS_CLIENT_KEY_PATH", path(&n.TLS.KeyPath),
		"Private key of it, in PEM.")
	t.add("nats-request-timeout-secs", "DYN_NATS_REQUEST_TIMEOUT_SECS",
		seconds(&n.RequestTimeout, 10*time.Second, 10*time.Millisecond), "How long a worker may need to take a request.")
	t.add("nats-startup-connect-timeout-seconds", "NATS_STARTUP_CONNECT_TIMEOUT_SECONDS",
		seconds(&n.ConnectTimeout, 120*time.Second, time.Second),
		"With --request-plane nats: how long the first connection is tried at start, before the process gives up.")
}

// addTCP lists the TCP request plane.
func (t *table) addTCP(c *Config) {
	t.group = "TCP"
	t.add("tcp-connect-timeout", "DYN_TCP_CONNECT_TIMEOUT",
		seconds(&c.TCP.ConnectTimeout, 5*time.Second, 10*time.Millisecond), "How long connecting to a worker may take.")
	t.add("tcp-request-timeout", "DYN_TCP_REQUEST_TIMEOUT",
		seconds(&c.TCP.RequestTimeout, 5*time.Second, 10*time.Millisecond), "How long a worker may need to take a request.")
	t.add("tcp-pool-size", "DYN_TCP_POOL_SIZE", integer(&c.TCP.PoolSize, 100, 1, 100000),
		"Most connections to one worker.")
	t.add("tcp-max-message-size", "DYN_TCP_MAX_MESSAGE_SIZE", integer(&c.TCP.MaxMessageSize, 32<<20, 1024, math.MaxInt32),
		"Largest message to or from a worker in bytes.")
}

// addText lists templates and tokenizers.
func (t *table) addText(c *Config) {
	t.group = "Text"
	t.add("tokenizer-backend", "PORTICO_TOKENIZER_BACKEND",
		choice(&c.Text.TokenizerBackend, "auto", "auto", "tokenizers", "fast"),
		"Tokenizer: the reference, the fast one, or (auto) the fast one where it is proven equal at load.")
	t.add("tokenizer", "DYN_TOKENIZER", choice(&c.tokenizer, "default", "default", "fastokens", "basetenkenizer"),
		"Dynamo's word for --tokenizer-backend, which wins: default means auto; fastokens and basetenkenizer mean auto, "+
			"or fast with --no-tokenizer-fallback.")
	t.add("tokenizer-fallback", "DYN_TOKENIZER_FALLBACK", boolean(&c.tokenizerFallback, true),
		"Whether a model that --tokenizer can't serve may use the reference.")
	t.add("tokenizer-cache", "DYN_TOKENIZER_CACHE", boolean(&c.Text.Cache, true),
		"Remember what long prompts were made of, so that a conversation's next turn is tokenised from its new message on.")
	t.add("tokenizer-cache-bytes", "DYN_TOKENIZER_CACHE_BYTES", integer(&c.Text.CacheBytes, 8<<20, 1<<20, math.MaxInt64>>1),
		"Memory for that, for each tokenizer.")
	t.add("executor-workers", "PORTICO_EXECUTOR_WORKERS", integer(&c.Text.Workers, 0, 0, 1024),
		"Encodes at a time per tokenizer; 0 for one per core.")
	t.add("executor-queue", "PORTICO_EXECUTOR_QUEUE", integer(&c.Text.Queue, 0, 0, 1<<20),
		"Encodes that may wait per tokenizer before requests are refused; 0 for the built-in bound.")
	t.add("native-calls", "PORTICO_NATIVE_CALLS", integer(&c.Text.NativeCalls, 0, 0, 1024),
		"Native calls at a time over all tokenizers and templates; 0 for one per core.")
	t.add("max-prompt-kb", "PORTICO_MAX_PROMPT_KB", scaled(&c.Text.MaxPrompt, 8192, 0, 1<<22, 1<<10),
		"Largest text of one prompt in KiB that is tokenized, whatever the model's context; 0 for no limit.")
	t.add("template-timeout", "PORTICO_TEMPLATE_TIMEOUT",
		seconds(&c.Text.TemplateTimeout, 10*time.Second, time.Millisecond), "How long rendering one prompt may take.")
}

// addObserve lists logs and metrics.
func (t *table) addObserve(c *Config) {
	t.group = "Logs and metrics"
	t.add("log", "DYN_LOG", logLevels(&c.Log.Levels),
		"Level, also by target: \"info,router=debug\". Levels: error, warn, info, debug, trace, off.")
	t.add("log-format", "PORTICO_LOG_FORMAT", choice(&c.Log.Format, "text", "text", "json"), "Shape of log lines.")
	t.add("logging-jsonl", "DYN_LOGGING_JSONL", boolean(&c.jsonl, false), "Dynamo's word for --log-format json.")
	t.add("metrics-prefix", "DYN_METRICS_PREFIX", text(&c.Metrics.Prefix, "dynamo_frontend"), "Prefix of metric names.")
}

// addTrace lists the export of traces, under the names of OpenTelemetry.
func (t *table) addTrace(o *Trace) {
	t.group = "Traces"
	t.add("otel-exporter-otlp-endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT", text(&o.general, ""),
		"Collector to export traces to; none, no traces. With http/protobuf, /v1/traces is added to its path.").url()
	t.add("otel-exporter-otlp-traces-endpoint", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", text(&o.specific, ""),
		"The same for traces alone, taken as it is.").url()
	t.add("otel-exporter-otlp-protocol", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL OTEL_EXPORTER_OTLP_PROTOCOL",
		choice(&o.Protocol, "auto", "auto", "grpc", "http/protobuf"),
		"Protocol of the export; auto: grpc for port 4317, http/protobuf otherwise.")
	t.add("otel-exporter-otlp-headers", "OTEL_EXPORTER_OTLP_TRACES_HEADERS OTEL_EXPORTER_OTLP_HEADERS",
		pairs(&o.Headers), "Headers of the export.").secret()
	t.add("otel-exporter-otlp-timeout", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT OTEL_EXPORTER_OTLP_TIMEOUT",
		milliseconds(&o.Timeout, 10*time.Second, time.Millisecond), "How long one export may take.")
	t.add("otel-exporter-otlp-compression", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION OTEL_EXPORTER_OTLP_COMPRESSION",
		choice(&o.Compression, "none", "none", "gzip"), "Compression of the export.")
	t.add("otel-service-name", "OTEL_SERVICE_NAME", text(&o.Service, "portico-frontend"), "Name in traces.")
	t.add("otel-resource-attributes", "OTEL_RESOURCE_ATTRIBUTES", pairs(&o.Attributes), "More about this process in traces.")
	t.add("otel-traces-sampler", "OTEL_TRACES_SAMPLER",
		choice(&o.Sampler, "parentbased_always_on", "always_on", "always_off", "traceidratio", "parentbased_always_on",
			"parentbased_always_off", "parentbased_traceidratio"), "Which requests are traced.")
	t.add("otel-traces-sampler-arg", "OTEL_TRACES_SAMPLER_ARG", number(&o.SamplerArg, 1, 0, 1),
		"Share of the requests for the samplers named …ratio.")
	t.add("otel-traces-exporter", "OTEL_TRACES_EXPORTER", choice(&o.exporter, "otlp", "otlp", "none"),
		"How traces are exported.")
	t.add("otel-export-enabled", "OTEL_EXPORT_ENABLED", boolean(&o.export, true),
		"Dynamo's switch for the export; off exports nothing.")
	t.add("otel-sdk-disabled", "OTEL_SDK_DISABLED", boolean(&o.disabled, false), "Export nothing, whatever else is set.")
}
