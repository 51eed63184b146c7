// Package config turns flags, environment variables and a YAML file into one Config. It is the only package that reads
// any of the three, and it knows no other package of the project.
//
// Everything derives from one table of settings (settings.go, compat.go): the flags, the variables, the file's keys,
// the help text, configs/frontend.yaml and the checks. A setting's flag and its key in the file have the same name. A
// flag wins over the environment, the environment over the file, the file over the default.
//
// The names are Dynamo's wherever Dynamo has one, so that its frontend's command line and environment work here as
// they are. What Dynamo has and this frontend has no use for is accepted with one warning.
//
// The table is read by a small parser of its own. The libraries at hand fit it badly: a parser driven by struct tags
// would need the table a second time as tags and stops at the first wrong value, and a merger of maps forgets which
// file and line, variable or flag a value came from, which is the half of an error message that operators need.
//
// Load is a pure function of its arguments. A Config isn't changed after Load and may be read by many goroutines.
package config

import (
	"net"
	"strconv"
	"time"
)

// Config is everything that can be set. Its zero value is of no use: Load fills in the defaults.
type Config struct {
	// Embedded runs a NATS server and a simulated worker inside the process, with discovery in memory.
	Embedded bool
	// File is the YAML file that was read, empty for none.
	File string
	// DumpTo is where the resulting configuration is to be written (Redacted), empty for nowhere.
	DumpTo string
	// OpenFiles is the wanted limit of open files; 0 asks for all that the system grants.
	OpenFiles uint64

	HTTP      HTTP
	Models    Models
	Discovery Discovery
	Plane     Plane
	NATS      NATS
	TCP       TCP
	CallHome  CallHome
	Router    Router
	Admission Admission
	Loads     Loads
	Text      Text
	Images    Images
	Log       Log
	Trace     Trace
	Metrics   Metrics

	settings []*Setting          // in the order of the help text, bound to the fields above
	byKey    map[string]*Setting // the same, by key

	// What other settings' fields are derived from.
	tokenizer         string // Dynamo's word for Text.TokenizerBackend
	tokenizerFallback bool   // Dynamo's, likewise
	jsonl             bool   // Dynamo's word for Log.Format
	tempDir           string // $TMPDIR
}

// HTTP is what clients see.
type HTTP struct {
	Host string    // address to listen on
	Port int       // 0 for any free one
	TLS  ServerTLS // HTTPS when it has a certificate

	Paths         Paths         // of the endpoints
	BodyLimit     int64         // bytes of a request's body
	GracePeriod   time.Duration // for running streams after the signal to stop
	OverloadCode  int           // status for requests refused because the workers are full
	KeepAlive     time.Duration // between SSE comments on an idle stream; 0 for none
	StreamTimeout time.Duration // longest silence of a worker within a stream; 0 for no limit
	WriteTimeout  time.Duration // longest a client may take nothing of its stream; 0 for no limit
	HoldBack      time.Duration // how long a burst of chunks is gathered before it is written

	Responses Responses // how many are kept

	ErrorFormat       string // "openai" or "dynamo"
	ReasoningField    string // of chat messages: "reasoning_content" or "reasoning"
	Strict            bool   // refuse unknown request fields
	NoAdmin           bool   // no /busy_threshold
	IgnoreNvExt       bool   // read nothing of a request's nvext but its cache_salt
	Anthropic         bool   // serve Anthropic's Messages API
	StripPreamble     bool   // take Claude Code's billing line out of system prompts
	ForceIncludeUsage bool   // every stream ends with usage, asked for or not
}

// Responses bound what is kept for previous_response_id.
type Responses struct {
	Count int           // responses; 0 for none
	Bytes int64         // of all of them
	TTL   time.Duration // since the last use
}

// Paths are where the endpoints are.
type Paths struct {
	Chat, Completions, Responses, Models, Health, Live, Metrics string // each begins with a slash
	Embeddings, Rerank, Classify, Pooling, Messages             string
}

// Address is the host and port to listen on.
func (h HTTP) Address() string { return net.JoinHostPort(h.Host, strconv.Itoa(h.Port)) }

// Models says which models are served.
type Models struct {
	Path            string // folder to take a model's files from, before what its card says
	Name            string // name the embedded worker serves its model under; empty for the folder's
	Namespace       string // empty for all; empty too when there is a prefix, which wins
	NamespacePrefix string // empty for all
	PrefixStrict    bool   // only the prefix itself, and with what Dynamo's operator adds to it

	ContextWindow   uint32 // reported by /v1/models in place of the card's; 0 for the card's
	MaxOutputTokens uint32 // reported by /v1/models; 0 for the card's

	ToolParser, ReasoningParser string // in place of those the cards name; empty for the cards'

	HubCache string // Hugging Face cache with the files of models that a card names by repository; empty for none
}

// Discovery says how workers are found.
type Discovery struct {
	Backend string // "etcd", "file" or "mem"
	FileKV  string // root folder of the file backend
	Etcd    Etcd   // of the etcd backend
}

// Etcd is how the etcd servers are reached.
type Etcd struct {
	Endpoints         []string      // URLs or host:port
	LeaseTTL          time.Duration // of this process's own lease
	Username          string
	Password          string
	TLS               ClientTLS     // zero for none
	KeepAliveInterval time.Duration // between HTTP/2 pings; 0 for none
	ConnectTimeout    time.Duration // how long the first connection is tried at start
}

// Plane is how requests reach workers, whatever the transport.
type Plane struct {
	Default          string        // "tcp" or "nats", where a worker's record leaves it open
	HandshakeTimeout time.Duration // from delivery until the worker has called back
	Quarantine       time.Duration // how long a worker that failed is left out; 0 for not at all
	StartTimeout     time.Duration // for a worker to begin, over all that are tried; 0 for no bound
	MaxAttempts      int           // workers tried before the first item of an answer
	MaxStruck        int           // workers in a row that a request may be lost with before any output; 0 for any number

	MigrationLimit      int  // how often a request may go on at another worker; 0 for never
	MigrationRepetition bool // repetition penalties count prompts, so that requests with one may move
	MigrationMaxSeqLen  int  // tokens of prompt and answer beyond which it stays where it is; 0 for no bound
}

// NATS is how the NATS server is reached.
type NATS struct {
	URL             string // one server, or several with commas
	Username        string
	Password        string
	Token           string
	NKey            string        // the seed itself, not a file
	CredentialsFile string        // with a JWT and its seed
	TLS             ClientTLS     // zero for none
	RequestTimeout  time.Duration // until a worker has taken a request
	ConnectTimeout  time.Duration // how long the first connection is tried at start
}

// TCP is the TCP request plane.
type TCP struct {
	ConnectTimeout time.Duration
	RequestTimeout time.Duration // until a worker has acknowledged a request
	PoolSize       int           // connections per worker, at most
	MaxMessageSize int           // bytes, either way
}

// CallHome is the listener that workers connect to with their answers.
type CallHome struct {
	Host          string // address or interface name; empty for the first that isn't loopback
	Port          int    // 0 for any free one
	AdvertiseHost string // what workers are told to connect to; empty for the address listened on
}

// Router is how a worker is chosen.
type Router struct {
	// Mode is "round-robin", "random", "least-loaded", "power-of-two", "device-aware-weighted", "kv" or "direct".
	Mode      string
	CUDAToCPU float64 // load of an accelerator for each of a processor's, with device-aware-weighted
	KV        KVRouter
}

// Admission is how requests are let in before they are tokenised.
type Admission struct {
	MaxRequests   int            // of one model at a time; 0 for no limit
	MaxRequestsOf map[string]int // the same by model, for those that differ
	MaxQueued     int            // of one model that wait; 0 refuses at once what can't go on
	MaxWait       time.Duration  // of one request
	Order         string         // of those that wait: "fcfs" or "wspt"
}

// Text is the way from a conversation to tokens.
type Text struct {
	TokenizerBackend string        // "auto", "tokenizers" or "fast"
	Cache            bool          // long prompts are remembered, block by block
	CacheBytes       int64         // memory for that, for each tokenizer
	Workers          int           // encodes at a time per tokenizer; 0 for one per core
	Queue            int           // encodes waiting per tokenizer; 0 for the executor's default
	NativeCalls      int           // native calls at a time in all; 0 for one per core
	MaxPrompt        int64         // bytes of a prompt's text; 0 for no limit
	TemplateTimeout  time.Duration // longest render of one prompt
}

// Log is the log on standard error.
type Log struct {
	Levels LogLevels // what is logged
	Format string    // "text" or "json"
}

// Trace is the export of traces; off without an endpoint.
type Trace struct {
	Endpoint    string            // URL, complete with its path; empty when nothing is exported
	Protocol    string            // "http/protobuf" or "grpc"
	Headers     map[string]string // such as a collector's key; never printed
	Timeout     time.Duration     // of one export
	Compression string            // "none" or "gzip"
	Service     string            // service.name of the resource
	Attributes  map[string]string // of the resource
	Sampler     string            // OpenTelemetry's name
	SamplerArg  float64           // share of the requests, for samplers named …ratio

	// What Endpoint is derived from.
	general, specific, exporter string // for all signals, for traces, and the kind of export
	export, disabled            bool   // Dynamo's switch, and OpenTelemetry's
}

// Metrics is what /metrics shows.
type Metrics struct {
	Prefix string // in place of "dynamo_frontend"
}
