package config_test

import (
	"errors"
	"flag"
	"io/fs"
	"log/slog"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/portico-llm/portico/internal/config"
)

var update = flag.Bool("update", false, "rewrite configs/frontend.yaml")

// load runs Load with one file in place of the file system.
func load(t *testing.T, args, environ []string, file string) (*config.Config, []config.Warning, error) {
	t.Helper()
	return config.Load(args, environ, func(name string) ([]byte, error) {
		if name != "test.yaml" {
			return nil, fs.ErrNotExist
		}
		return []byte(file), nil
	})
}

func mustLoad(t *testing.T, args, environ []string, file string) *config.Config {
	t.Helper()
	c, _, err := load(t, args, environ, file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestPrecedence(t *testing.T) {
	withFile := []string{"--config", "test.yaml"}
	env := []string{"DYN_HTTP_PORT=2"}
	file := "http-port: 1\n"
	tests := []struct {
		name          string
		args, environ []string
		file          string
		want          int
	}{
		{"default", nil, nil, "", 8000},
		{"file", withFile, nil, file, 1},
		{"environment over file", withFile, env, file, 2},
		{"flag over environment", append(withFile, "--http-port", "3"), env, file, 3},
		{"last flag", []string{"--http-port=3", "--http-port=4"}, env, "", 4},
		{"empty variable", nil, []string{"DYN_HTTP_PORT="}, "", 8000},
		{"file by variable", nil, []string{"PORTICO_CONFIG=test.yaml"}, file, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := mustLoad(t, tt.args, tt.environ, tt.file).HTTP.Port; got != tt.want {
				t.Errorf("port %d, want %d", got, tt.want)
			}
		})
	}
}

func TestValues(t *testing.T) {
	c := mustLoad(t, []string{"--config", "test.yaml", "--strict",
		"--http-graceful-shutdown-timeout-secs", "1.5", "--handshake-timeout=250ms", "--http-body-limit-mb", "2"},
		[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=b%20c, d=e", "DYN_LOG=warn,router=debug,dynamo_llm::http=off,[span]=info",
			"DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS=1500", "TMPDIR=/scratch", "HF_HOME=/cache"},
		"etcd-endpoints: [http://a:1, http://b:2]\nexecutor-queue: 16\n")
	type got struct {
		Strict                      bool
		Grace, Handshake, KeepAlive time.Duration
		Body                        int64
		Headers                     map[string]string
		Level                       slog.Level
		Targets                     map[string]slog.Level
		Endpoints                   []string
		FileKV, HubCache            string
	}
	want := got{Strict: true, Grace: 1500 * time.Millisecond, Handshake: 250 * time.Millisecond,
		KeepAlive: 1500 * time.Millisecond, Body: 2 << 20, Headers: map[string]string{"a": "b c", "d": "e"},
		Level: slog.LevelWarn, Targets: map[string]slog.Level{"router": slog.LevelDebug, "dynamo_llm::http": config.LevelOff},
		Endpoints: []string{"http://a:1", "http://b:2"}, FileKV: "/scratch/dynamo_store_kv", HubCache: "/cache/hub"}
	if diff := cmp.Diff(want, got{c.HTTP.Strict, c.HTTP.GracePeriod, c.Plane.HandshakeTimeout,
		c.HTTP.KeepAlive, c.HTTP.BodyLimit, c.Trace.Headers, c.Log.Levels.Default, c.Log.Levels.Targets,
		c.Discovery.Etcd.Endpoints, c.Discovery.FileKV, c.Models.HubCache}); diff != "" {
		t.Error(diff)
	}
}

// TestLimitsByName: one list for flags and variables, and a mapping for files.
func TestLimitsByName(t *testing.T) {
	want := map[string]int{"org/large": 8, "small": 0}
	for name, c := range map[string]*config.Config{
		"flag":     mustLoad(t, []string{"--max-concurrent-requests-of", "org/large=8, small=0"}, nil, ""),
		"alias":    mustLoad(t, []string{"--model-concurrency=small=0,org/large=8"}, nil, ""),
		"variable": mustLoad(t, nil, []string{"PORTICO_MAX_CONCURRENT_REQUESTS_OF=small=0,org/large=8"}, ""),
		"mapping": mustLoad(t, []string{"--config", "test.yaml"}, nil,
			"max-concurrent-requests-of:\n  org/large: 8\n  small: 0\n"),
	} {
		if d := cmp.Diff(want, c.Admission.MaxRequestsOf); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestConditionalDisagg: the object goes before the settings, and the queue's threshold stands in for one that is left out.
func TestConditionalDisagg(t *testing.T) {
	on := []string{"--router-mode", "kv", "--router-conditional-disagg"}
	half, two := 0.5, 2.0
	for name, tc := range map[string]struct {
		args, environ []string
		want          config.ConditionalDisagg
	}{
		"defaults": {on, nil, config.ConditionalDisagg{On: true, Policy: "isl_bounding", Tokens: 2048, Share: 0.7}},
		"settings": {on, []string{"DYN_ROUTER_CONDITIONAL_DISAGG_POLICY=isl_or_load",
			"DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD=100", "DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_RATIO_THRESHOLD=0.25",
			"DYN_ROUTER_CONDITIONAL_DISAGG_PREFILL_BUSY_THRESHOLD=0.5", "DYN_ROUTER_CONDITIONAL_DISAGG_DECODE_BUSY_THRESHOLD=2"},
			config.ConditionalDisagg{On: true, Policy: "isl_or_load", Tokens: 100, Share: 0.25, PrefillBusy: &half, DecodeBusy: &two}},
		"object": {append(on, "--router-queue-threshold", "2", "--router-conditional-disagg-config",
			`{"policy":"prefill_load","eff_isl_threshold":7,"decode_busy_threshold":0.5,"prefill_busy_threshold":null}`),
			[]string{"DYN_ROUTER_CONDITIONAL_DISAGG_EFF_ISL_THRESHOLD=100"},
			config.ConditionalDisagg{On: true, Policy: "prefill_load", Tokens: 7, Share: 0.7, PrefillBusy: &two, DecodeBusy: &half}},
	} {
		c := mustLoad(t, tc.args, tc.environ, "")
		if d := cmp.Diff(tc.want, c.Router.KV.Conditional, cmpopts.IgnoreUnexported(config.ConditionalDisagg{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	for want, args := range map[string][]string{
		"needs --router-mode kv":               {"--router-conditional-disagg"},
		"needs --router-kv-events":             append(on, "--no-router-kv-events"),
		"needs --router-conditional-disagg to": {"--router-conditional-disagg-config", "{}"},
		"-prefill-busy-threshold or":           append(on, "--router-conditional-disagg-policy", "isl_or_load"),
		`unknown field "isl"`:                  append(on, "--router-conditional-disagg-config", `{"isl":1}`),
		"allowed is a JSON object":             append(on, "--router-conditional-disagg-config", `[]`),
		"eff_isl_threshold: allowed is":        append(on, "--router-conditional-disagg-config", `{"eff_isl_threshold":1.5}`),
		"policy: allowed is":                   append(on, "--router-conditional-disagg-config", `{"policy":"never"}`),
	} {
		_, _, err := config.Load(args, nil, os.ReadFile)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}

func TestAllErrorsAtOnce(t *testing.T) {
	file := "htp-port: 1\nstrict: maybe\nstrict: true\nrouter-mode: {a: b}\nconfig: other.yaml\n" +
		"max-concurrent-requests-of: {a: -1}\notel-resource-attributes: {a: {b: c}}\n"
	tests := []struct {
		name          string
		args, environ []string
		want          []string
	}{
		{"flags", []string{"--http-prot", "80", "stray", "--http-port", "99999", "--router-mode=kw", "--strict=2",
			"--no-strict=true", "-x", "--namespace"}, nil, []string{
			`--http-prot: unknown flag; did you mean --http-port?`,
			`unexpected argument "stray"`,
			`--no-strict: takes no value`,
			`-x: unknown flag`,
			`--namespace: needs a value: any text`,
			`--http-port: "99999": allowed is a whole number from 0 to 65535`,
			`--router-mode: "kw": allowed is one of round-robin, random, least-loaded, power-of-two, device-aware-weighted, kv, direct`,
			`--strict: "2": allowed is true or false (also 1/0, yes/no, on/off)`,
		}},
		{"missing value", []string{"--http-host", "--http-port", "1"}, nil, []string{
			`--http-host: needs a value: any text`}},
		{"environment", nil, []string{"DYN_TCP_POOL_SIZE=0", "DYN_LOG=inof", "NATS_SERVER=user:pw@host",
			"DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS=1e300", "OTEL_EXPORTER_OTLP_HEADERS=secret"}, []string{
			`DYN_HTTP_BACKEND_STREAM_TIMEOUT_SECS: "1e300": allowed is seconds from 0 to 2592000, or with a unit as in 1500ms`,
			`DYN_TCP_POOL_SIZE: "0": allowed is a whole number from 1 to 100000`,
			`DYN_LOG: "inof": allowed is off, error, warn, info, debug or trace, and the same for parts as in info,router=debug`,
			`OTEL_EXPORTER_OTLP_HEADERS: "(hidden)": allowed is a list key=value,key=value`,
			`NATS_SERVER: "(hidden)@host": allowed is a URL nats://… or tls://…`,
		}},
		{"file", []string{"--config", "test.yaml"}, nil, []string{
			`test.yaml:1: "htp-port": unknown key; did you mean http-port?`,
			`test.yaml:3: "strict": given twice`,
			`test.yaml:4: "router-mode": a plain value is allowed`,
			`test.yaml:5: "config": a file can't name another`,
			`test.yaml:7: "otel-resource-attributes": a mapping of plain values is allowed`,
			`test.yaml:2: strict: "maybe": allowed is true or false (also 1/0, yes/no, on/off)`,
			`test.yaml:6: max-concurrent-requests-of: "a=-1": allowed is a list name=number,name=number of whole numbers, at least 0, or a mapping in the file`,
		}},
		{"no such file", []string{"--config", "none.yaml"}, nil, []string{
			`--config: "none.yaml": file does not exist`}},
		{"combinations", []string{"--embedded", "--discovery-backend", "etcd", "--tls-cert-path", "a",
			"--nats-auth-password", "p", "--metrics-prefix", "a-b", "--tls-client-ca-cert-path=c",
			"--http-svc-chat-path", "chat", "--http-svc-cmp-path=/v1/{x", "--http-svc-models-path=/v1/responses/", "--http-svc-live-path=/live*"},
			[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4317"}, []string{
				`--discovery-backend: "etcd": --embedded finds its worker in memory: leave it out or say mem`,
				`--tls-cert-path: "a": needs --tls-key-path too`,
				`--nats-auth-password: "(hidden)": needs --nats-auth-username too`,
				`OTEL_EXPORTER_OTLP_ENDPOINT: "localhost:4317": allowed is a URL http://… or https://…`,
				`--http-svc-chat-path: "chat": allowed is a path that begins with /, of letters, digits and -._~!$&'()+,;=:@/`,
				`--http-svc-cmp-path: "/v1/{x": allowed is a path that begins with /, of letters, digits and -._~!$&'()+,;=:@/`,
				`--http-svc-models-path: "/v1/responses/": is the path of --http-svc-responses-path too`,
				`--http-svc-live-path: "/live*": allowed is a path that begins with /, of letters, digits and -._~!$&'()+,;=:@/`,
				`--metrics-prefix: "a-b": allowed are letters, digits and _, not a digit first`,
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := load(t, tt.args, tt.environ, file)
			if _, ok := errors.AsType[*config.Error](err); !ok {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(tt.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHelpAndVersionAreAsked(t *testing.T) {
	for arg, want := range map[string]error{"--help": config.ErrHelp, "-h": config.ErrHelp, "--version": config.ErrVersion} {
		if _, _, err := load(t, []string{"--nonsense", arg}, nil, ""); !errors.Is(err, want) {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// dynamoFlag is a flag of Dynamo's frontend.
type dynamoFlag struct {
	names             []string
	switchable        bool
	choices           []string
	variable, initial string
}

func dynamoFlags(t *testing.T) (flags []dynamoFlag) {
	t.Helper()
	data, err := os.ReadFile("testdata/dynamo-flags.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		flags = append(flags, dynamoFlag{strings.Split(f[0], ","), f[1] == "switch",
			strings.FieldsFunc(f[2], func(r rune) bool { return r == ',' }), f[3], f[4]})
	}
	if len(flags) < 90 {
		t.Fatalf("only %d flags", len(flags))
	}
	return flags
}

// refused are the choices of Dynamo's that would change what is served, and so stop the start in place of a warning.
var refused = map[string]bool{"kubernetes": true}

// companions are flags that only make sense with another.
var companions = map[string][]string{
	"--tls-cert-path": {"--tls-key-path=k"}, "--tls-key-path": {"--tls-cert-path=c"},
	"--tls-client-ca-cert-path":   {"--tls-key-path=k", "--tls-cert-path=c"},
	"--nats-tls-client-cert-path": {"--nats-tls-client-key-path=k"},
	"--nats-tls-client-key-path":  {"--nats-tls-client-cert-path=c"},
	"--router-conditional-disagg": {"--router-mode=kv"},

	"--router-conditional-disagg-config": {"--router-mode=kv", "--router-conditional-disagg"},
}

func TestEveryFlagOfDynamoIsAccepted(t *testing.T) {
	settings := make(map[string]*config.Setting)
	for _, s := range config.Default().Settings() {
		settings["--"+s.Key] = s
		for _, alias := range s.Aliases {
			settings["--"+alias] = s
		}
	}
	for _, f := range dynamoFlags(t) {
		values := f.choices
		if len(values) == 0 {
			values = []string{"1"}
		}
		switch f.names[0] {
		case "--metrics-prefix":
			values = []string{"a"}
		case "--router-conditional-disagg-config":
			values = []string{"{}"}
		}
		if f.initial != "" && f.initial != "None" && f.initial != "[]" {
			values = append(values, f.initial)
		}
		for _, name := range f.names {
			s := settings["--"+strings.TrimPrefix(strings.TrimLeft(name, "-"), "no-")]
			if s == nil {
				t.Errorf("%s isn't in the table", name)
				continue
			}
			args := [][]string{{name}}
			if !f.switchable {
				args = nil
				for _, v := range values {
					if !refused[v] {
						args = append(args, []string{name, v}, []string{name + "=" + v})
					}
				}
			}
			for _, arg := range args {
				checkAccepted(t, append(arg, companions[name]...), nil, s)
			}
		}
		if f.variable != "" && !refused[values[0]] && settings[f.names[len(f.names)-1]] != nil {
			checkAccepted(t, companions[f.names[0]], []string{f.variable + "=" + values[0]},
				settings[f.names[len(f.names)-1]])
		}
	}
}

// checkAccepted fails unless the setting loads, with one warning exactly when it is ignored.
func checkAccepted(t *testing.T, args, environ []string, s *config.Setting) {
	t.Helper()
	_, warnings, err := load(t, args, environ, "")
	if err != nil {
		t.Errorf("%v %v: %v", args, environ, err)
		return
	}
	want := 0
	// Two settings that have an effect come with a warning of their own.
	insecure := s.Key == "nats-tls-insecure" && args[0] == "--nats-tls-insecure"
	if s.Ignored != "" || insecure || strings.HasSuffix(strings.Join(args, "="), "--discovery-backend=mem") {
		want = 1
	}
	if len(warnings) != want {
		t.Errorf("%v %v: %d warnings, want %d: %v", args, environ, len(warnings), want, warnings)
	}
}

func TestDefaultsAreDynamos(t *testing.T) {
	own := map[string]string{ // deliberately others
		"--migration-limit":           "3",    // Dynamo's frontend lets requests fail unless it is told otherwise
		"--migration-max-seq-len":     "0",    // a number where Dynamo has none
		"--enable-anthropic-api":      "true", // an experiment there
		"--kv-cache-block-size":       "0",    // likewise
		"--router-predicted-ttl-secs": "0",    // likewise
		"--event-plane":               "zmq",  // what Dynamo takes when nothing is given
	}
	ours := make(map[string]*config.Setting)
	for _, s := range config.Default().Settings() {
		ours["--"+s.Key] = s
	}
	for _, f := range dynamoFlags(t) {
		s := ours[f.names[0]]
		if s == nil || s.Ignored != "" || f.names[0] == "--metrics-prefix" { // whose help has the default in its prose
			continue
		}
		want := strings.ToLower(f.initial)
		if want == "none" {
			want = ""
		}
		if other, ok := own[f.names[0]]; ok {
			want = other
		}
		if n, err := strconv.ParseFloat(want, 64); err == nil {
			want = strconv.FormatFloat(n, 'f', -1, 64) // whole numbers need no fraction
		}
		if s.Default != want {
			t.Errorf("%s: default %q, Dynamo has %q", f.names[0], s.Default, want)
		}
		if len(s.Env) == 0 || s.Env[0] != f.variable {
			t.Errorf("%s: variable %v, Dynamo has %s", f.names[0], s.Env, f.variable)
		}
	}
}

func TestEverySettingHasAFlagAVariableAndADoc(t *testing.T) {
	flags, variables := make(map[string]bool), make(map[string]bool)
	for _, s := range config.Default().Settings() {
		if len(s.Env) == 0 || (s.Doc == "") == (s.Ignored == "") {
			t.Errorf("%s: variables %v, doc %q, ignored %q", s.Key, s.Env, s.Doc, s.Ignored)
		}
		for _, name := range append([]string{s.Key}, s.Aliases...) {
			if flags[name] {
				t.Errorf("two settings have the flag --%s", name)
			}
			flags[name] = true
		}
		for _, name := range s.Env {
			if variables[name] {
				t.Errorf("two settings have the variable %s", name)
			}
			variables[name] = true
		}
		if !strings.Contains(config.Help()+config.IgnoredHelp(), "--"+s.Key) {
			t.Errorf("--%s isn't in the help text", s.Key)
		}
	}
}

func TestTokenizerOfDynamo(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{nil, "auto"},
		{[]string{"--tokenizer", "default"}, "auto"},
		{[]string{"--tokenizer", "fastokens"}, "auto"},
		{[]string{"--tokenizer", "fastokens", "--no-tokenizer-fallback"}, "fast"},
		{[]string{"--tokenizer", "basetenkenizer", "--no-tokenizer-fallback"}, "fast"},
		{[]string{"--tokenizer", "default", "--no-tokenizer-fallback"}, "auto"},
		{[]string{"--tokenizer", "fastokens", "--no-tokenizer-fallback", "--tokenizer-backend", "tokenizers"}, "tokenizers"},
	}
	for _, tt := range tests {
		if got := mustLoad(t, tt.args, nil, "").Text.TokenizerBackend; got != tt.want {
			t.Errorf("%v: %s, want %s", tt.args, got, tt.want)
		}
	}
}

func TestTraceEndpoint(t *testing.T) {
	tests := []struct {
		name               string
		environ            []string
		endpoint, protocol string
	}{
		{"none", nil, "", "auto"},
		{"general, by its port", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/base"}, "http://c:4318/base/v1/traces",
			"http/protobuf"},
		{"grpc, by its port", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317"}, "http://c:4317", "grpc"},
		{"said", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"},
			"http://c:4317/v1/traces", "http/protobuf"},
		{"for traces", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317",
			"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://d:1/x"}, "http://d:1/x", "http/protobuf"},
		{"off for all", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_SDK_DISABLED=true"}, "", "auto"},
		{"off in Dynamo", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_EXPORT_ENABLED=false"}, "", "auto"},
		{"no exporter", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_TRACES_EXPORTER=none"}, "", "auto"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := mustLoad(t, nil, tt.environ, "")
			if c.Trace.Endpoint != tt.endpoint || c.Trace.Protocol != tt.protocol {
				t.Errorf("%q over %s, want %q over %s", c.Trace.Endpoint, c.Trace.Protocol, tt.endpoint, tt.protocol)
			}
		})
	}
	c := mustLoad(t, nil, []string{"OTEL_RESOURCE_ATTRIBUTES=service.name=x,host=y"}, "")
	if c.Trace.Service != "x" {
		t.Errorf("service %q", c.Trace.Service)
	}
}

func TestEmbedded(t *testing.T) {
	c := mustLoad(t, []string{"--embedded"}, nil, "")
	if c.Discovery.Backend != "mem" || c.Models.Path != config.EmbeddedModel {
		t.Errorf("backend %s, path %s", c.Discovery.Backend, c.Models.Path)
	}
}

func TestNamespaces(t *testing.T) {
	for _, tt := range []struct {
		args              []string
		namespace, prefix string
	}{
		{nil, "", ""},
		{[]string{"--namespace", "a"}, "a", ""},
		{[]string{"--namespace", "dynamo"}, "", ""},
		{[]string{"--namespace", "a", "--namespace-prefix", "b"}, "", "b"},
	} {
		if m := mustLoad(t, tt.args, nil, "").Models; m.Namespace != tt.namespace || m.NamespacePrefix != tt.prefix {
			t.Errorf("%v: namespace %q, prefix %q", tt.args, m.Namespace, m.NamespacePrefix)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	var args []string
	for _, s := range config.Default().Settings() {
		if s.Secret {
			args = append(args, "--"+s.Key, "k=hunter2")
		}
	}
	args = append(args, "--nats-server", "nats://me:hunter2@n:1,nats://me:hunter2@m:1", "--etcd-endpoints",
		"http://me:hunter2@e:1", "--nats-auth-username=u", "--etcd-auth-username=u")
	c := mustLoad(t, args, nil, "")
	dump := string(c.Redacted())
	if strings.Contains(dump, "hunter2") || !strings.Contains(dump, "nats://(hidden)@n:1") {
		t.Errorf("dump:\n%s", dump)
	}
	if len(args) < 10 {
		t.Errorf("too few secrets: %v", args)
	}
}

func TestDumpLoadsAgain(t *testing.T) {
	c := mustLoad(t, []string{"--http-port", "1", "--log", "warn,a=debug", "--etcd-endpoints", "http://a:1,http://b:1",
		"--template-timeout", "0.25", "--otel-resource-attributes", "a=b", "--namespace", "true"}, nil, "")
	again := mustLoad(t, []string{"--config", "test.yaml"}, nil, string(c.Redacted()))
	// What is left at its default and derived is explicit the second time; the values are the same.
	values := func(c *config.Config) map[string]string {
		m := make(map[string]string)
		for _, s := range c.Settings() {
			if s.Key != "config" {
				m[s.Key] = s.Value()
			}
		}
		return m
	}
	if diff := cmp.Diff(values(c), values(again)); diff != "" {
		t.Error(diff)
	}
}

func TestUnknownVariables(t *testing.T) {
	got := config.Default().UnknownVariables([]string{"DYN_HTTP_PORT=1", "DYN_OTHER=1", "PORTICO_TYPO=2", "PATH=/"})
	if diff := cmp.Diff([]string{"DYN_OTHER", "PORTICO_TYPO"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestExampleFile(t *testing.T) {
	const name = "../../configs/frontend.yaml"
	if *update {
		if err := os.WriteFile(name, config.Example(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(config.Example()), string(data)); diff != "" {
		t.Fatalf("configs/frontend.yaml isn't what the table says (make configs):\n%s", diff)
	}
	// Every key with its default, uncommented, changes nothing.
	active := regexp.MustCompile(`(?m)^# ([a-z0-9-]+:( |$))`).ReplaceAllString(string(data), "$1")
	c := mustLoad(t, []string{"--config", "test.yaml"}, nil, active)
	plain := config.Default()
	for i, s := range c.Settings() {
		if s.Key == "config" {
			continue
		}
		if got, want := s.Value(), plain.Settings()[i].Value(); got != want {
			t.Errorf("%s: %q, default %q", s.Key, got, want)
		}
		if s.Ignored == "" && s.Default != "" && !c.Given(s.Key) {
			t.Errorf("%s isn't in the file", s.Key)
		}
	}
}

// FuzzLoad: no command line, variable or file makes Load panic or return nothing at all.
func FuzzLoad(f *testing.F) {
	f.Add("--http-port\n1", "DYN_LOG=a=b", "http-port: 1")
	f.Add("--strict\n--no-strict\n-i", "OTEL_EXPORTER_OTLP_HEADERS=%", "a: [b, {c: d}]\n---\n")
	f.Fuzz(func(t *testing.T, args, environ, file string) {
		split := strings.Split(args, "\n")
		c, _, err := load(t, append(split, "--config", "test.yaml"), strings.Split(environ, "\n"), file)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
		if err != nil && err.Error() == "" {
			t.Fatal("an error without a text")
		}
	})
}
