package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router/discovery/etcd"
	"github.com/portico-llm/portico/internal/simworker"
)

// settings are everything the command line and the environment say. They are complete and checked once parse has
// returned, and not changed afterwards.
type settings struct {
	// What is served.
	modelPath, modelName string // folder, and the name that clients use
	endpoint             worker.EndpointID
	workers              int // of this process; each registers by itself

	// Where workers register.
	backend, fileKV string // etcd or file; the folder of the second
	etcd            etcd.Options

	// How requests come in.
	plane, nats     string       // tcp or nats; the address of the second
	host, advertise string       // TCP plane: to listen on, and what frontends are told
	port            int          // TCP plane; 0: any free one
	codec           worker.Codec // advertised

	// What answers them, and how fast.
	images             string           // what is done with images, as simworker.ParseImageMode takes it; empty: nothing
	decoded            bool             // the card asks for decoded images
	nixl, python       string           // NIXL's library, and the Python environment it is looked for in; may be empty
	kind, text, script string           // engine and its material; a script stands above both
	role               string           // agg, prefill or decode: which part of a request is done here
	bootstrap          []int            // prefill: ports where decode workers come, one for each worker; empty: they don't
	timing             simworker.Timing // of the engines, not of scripts
	seed               uint64
	maxTokens          int
	faults             string // plan, as simworker.ParseFaults takes it; empty: none

	maxActive, maxQueued int // 0: the package's defaults
	logLevel             slog.Level
}

// parse reads flags, which stand above the environment. The environment has the names that real workers read, so that
// one deployment file starts either. A variable that is set to nothing counts as not set. Usage goes to stderr.
func parse(args []string, env func(string) (string, bool), stderr io.Writer) (*settings, error) {
	// Variables are defaults of their flags, which makes the order of precedence the flag set's own.
	get := func(key, otherwise string) string {
		v, _ := env(key)
		return cmp.Or(v, otherwise)
	}
	s := &settings{}
	f := flag.NewFlagSet("simworker", flag.ContinueOnError)
	f.SetOutput(stderr)
	// What is served, and how it is reached.
	f.StringVar(&s.modelPath, "model-path", "", "model folder: config.json, tokenizer.json and so on (needed)")
	f.StringVar(&s.modelName, "model-name", "", "served name; empty is the folder's name")
	endpoint := f.String("endpoint", "", "endpoint to serve; empty is dyn://dynamo.backend.generate, for prefill dyn://dynamo.prefill.generate")
	f.IntVar(&s.workers, "num-workers", 1, "workers in this process")
	f.StringVar(&s.backend, "discovery-backend", get("DYN_DISCOVERY_BACKEND", "etcd"), "etcd or file (DYN_DISCOVERY_BACKEND)")
	f.StringVar(&s.plane, "request-plane", get("DYN_REQUEST_PLANE", "tcp"), "tcp or nats (DYN_REQUEST_PLANE)")
	codec := f.String("codec", "msgpack", "codec to advertise: msgpack or json")
	// What answers, and at which pace.
	f.StringVar(&s.kind, "engine", "text", "text: prepared sentences; echo: the prompt; random: random words; walk: words that follow from all before them")
	f.StringVar(&s.text, "text", "", "text of the text engine; empty is a greeting")
	f.StringVar(&s.script, "script", "", "JSON file of steps to play for every request, in place of an engine")
	f.StringVar(&s.images, "images", "", "answer with what is seen of images: read, never, half, die, or late=DURATION")
	f.BoolVar(&s.decoded, "media-decoder", false, "ask for decoded images in place of URLs")
	f.StringVar(&s.nixl, "nixl-library", get("PORTICO_NIXL_LIBRARY", ""), "NIXL's libnixl_capi.so (PORTICO_NIXL_LIBRARY)")
	f.DurationVar(&s.timing.TTFT, "ttft", 0, "time to the first token")
	f.DurationVar(&s.timing.PerPromptToken, "ttft-per-token", 0, "added for every prompt token")
	f.DurationVar(&s.timing.ITL, "itl", 20*time.Millisecond, "time between tokens")
	f.DurationVar(&s.timing.PerContext, "itl-per-1k", 0, "added for every thousand tokens of context")
	f.Float64Var(&s.timing.Jitter, "jitter", 0, "standard deviation of the times, as a share")
	f.Float64Var(&s.timing.Speed, "speed", 1, "divides all times")
	f.Float64Var(&s.timing.Speed, "speedup-ratio", 1, "the same, by the name other simulators have for it")
	f.Uint64Var(&s.seed, "seed", 0, "of everything drawn at random")
	f.IntVar(&s.maxTokens, "default-max-tokens", 256, "answer length when a request sets no limit")
	// A request may be shared between two workers.
	f.StringVar(&s.role, "disaggregation-mode", "agg", "agg: answer; prefill: read prompts for decode workers; decode: answer with their help")
	ports := f.String("bootstrap-ports", "", "prefill: ports where decode workers fetch prompts, separated by commas, one for each worker (0: any); empty: they get them through the frontend")
	// What goes wrong, and how much is taken on.
	f.StringVar(&s.faults, "faults", "", "fault plan, such as die-after=3/10,slow=50ms")
	f.IntVar(&s.maxActive, "max-num-seqs", 0, "requests at a time; 0 is 10000")
	f.IntVar(&s.maxQueued, "max-queued", 0, "waiting requests; 0 is 40000")
	f.TextVar(&s.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	s.fromEnv(get)
	return s, s.finish(*endpoint, *codec, *ports, get)
}

// fromEnv reads what only the environment says: addresses and credentials, which belong to a deployment and are the
// same for all its processes.
func (s *settings) fromEnv(get func(key, otherwise string) string) {
	s.fileKV = get("DYN_FILE_KV", filepath.Join(os.TempDir(), "dynamo_store_kv"))
	s.python = get("VIRTUAL_ENV", "")
	s.nats = get("NATS_SERVER", "nats://localhost:4222")
	s.host = get("DYN_TCP_RPC_HOST", "127.0.0.1")
	s.advertise = s.host // real workers advertise the address they listen on
	s.etcd = etcd.Options{
		Endpoints: strings.Split(get("ETCD_ENDPOINTS", "http://localhost:2379"), ","),
		Username:  get("ETCD_AUTH_USERNAME", ""), Password: get("ETCD_AUTH_PASSWORD", ""),
		CAFile: get("ETCD_AUTH_CA", ""), CertFile: get("ETCD_AUTH_CLIENT_CERT", ""), KeyFile: get("ETCD_AUTH_CLIENT_KEY", ""),
	}
}

// finish checks and completes the settings. Its errors name the flag or variable that is wrong. Files are not opened: a
// model that isn't there is found out when the worker starts.
func (s *settings) finish(endpoint, codec, ports string, get func(key, otherwise string) string) (err error) {
	if s.modelPath == "" {
		return errors.New("--model-path is needed")
	}
	if s.modelPath, err = filepath.Abs(s.modelPath); err != nil {
		return fmt.Errorf("--model-path: %w", err)
	}
	// The path is absolute by now, so that "." has a name, too.
	s.modelName = cmp.Or(s.modelName, filepath.Base(s.modelPath))
	if s.endpoint, err = worker.ParseEndpointID(cmp.Or(endpoint, map[string]string{
		"prefill": "dyn://dynamo.prefill.generate",
	}[s.role], "dyn://dynamo.backend.generate")); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	// Words, all of which are the values of flags.
	for _, choice := range []struct{ flag, value, allowed string }{
		{"--discovery-backend", s.backend, "etcd file"},
		{"--request-plane", s.plane, "tcp nats"},
		{"--codec", codec, "msgpack json"},
		{"--engine", s.kind, "text echo random walk"},
		{"--disaggregation-mode", s.role, "agg prefill decode"},
	} {
		if !strings.Contains(" "+choice.allowed+" ", " "+choice.value+" ") {
			return fmt.Errorf("%s %q: want one of: %s", choice.flag, choice.value, choice.allowed)
		}
	}
	// The zero codec is JSON.
	if codec == worker.Msgpack.String() {
		s.codec = worker.Msgpack
	}
	if s.images != "" {
		if _, _, err := simworker.ParseImageMode(s.images); err != nil {
			return fmt.Errorf("--images: %w", err)
		}
	}
	if s.workers < 1 {
		return fmt.Errorf("--num-workers %d: want 1 or more", s.workers)
	}
	if err := s.parsePorts(ports); err != nil {
		return err
	}
	// The plan is parsed again for each worker; here its mistakes are found before anything starts.
	if s.faults != "" {
		if _, err := simworker.ParseFaults(s.faults); err != nil {
			return fmt.Errorf("--faults: %w", err)
		}
	}
	return s.numbers(get)
}

// parsePorts reads the list of bootstrap ports, one for each worker.
func (s *settings) parsePorts(list string) error {
	if list == "" {
		return nil
	}
	for part := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(part), 10, 16)
		if err != nil {
			return fmt.Errorf("--bootstrap-ports: %w", err)
		}
		s.bootstrap = append(s.bootstrap, int(n))
	}
	if s.role != "prefill" {
		return fmt.Errorf("--bootstrap-ports: only for --disaggregation-mode prefill")
	}
	if len(s.bootstrap) != s.workers {
		return fmt.Errorf("--bootstrap-ports: %d ports for %d workers", len(s.bootstrap), s.workers)
	}
	return nil
}

// numbers reads the variables that are numbers: a port, and the life of a lease in seconds.
func (s *settings) numbers(get func(key, otherwise string) string) (err error) {
	if s.port, err = strconv.Atoi(get("DYN_TCP_RPC_PORT", "0")); err != nil {
		return fmt.Errorf("DYN_TCP_RPC_PORT: %w", err)
	}
	// A port for all would let the first worker listen and the others fail.
	if s.workers > 1 && s.port != 0 {
		return fmt.Errorf("DYN_TCP_RPC_PORT %d: several workers need a port each", s.port)
	}
	ttl, err := strconv.Atoi(get("ETCD_LEASE_TTL", "30"))
	if err != nil || ttl < 1 {
		return fmt.Errorf("ETCD_LEASE_TTL: want seconds, 1 or more")
	}
	s.etcd.LeaseTTL = time.Duration(ttl) * time.Second
	return nil
}
