package config

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// EmbeddedModel is the model folder that --embedded serves unless told otherwise.
const EmbeddedModel = "configs/models/smollm2-135m-instruct"

// errNotAllowed is completed by the setting with what is allowed.
var errNotAllowed = errors.New("not allowed")

// ErrHelp and ErrVersion are returned by Load when the command line asks for the one or the other.
var (
	ErrHelp    = errors.New("help requested")
	ErrVersion = errors.New("version requested")
)

// Warning is something an operator should know that doesn't keep the program from starting.
type Warning struct {
	Key     string // flag, variable or file position
	Message string
}

// Problem is one wrong value.
type Problem struct {
	Key     string // flag, variable or file position; empty for a stray argument
	Value   string
	Message string // what is allowed, or what is missing
}

// String says what is wrong with what, in one line.
func (p Problem) String() string {
	switch {
	case p.Key == "":
		return fmt.Sprintf("%s %q", p.Message, p.Value)
	case p.Value == "":
		return p.Key + ": " + p.Message
	default:
		return fmt.Sprintf("%s: %q: %s", p.Key, p.Value, p.Message)
	}
}

// Error holds all that is wrong with a configuration.
type Error struct {
	Problems []Problem // at least one: flags first, then the file, then values and their combinations
}

// Error lists the problems, one a line.
func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// Default returns the configuration without any flag, variable or file.
func Default() *Config {
	c := newConfig()
	c.derive()
	return c
}

// newConfig returns a Config with the table's defaults, before anything is derived from them.
func newConfig() *Config {
	// Every setting is bound to a field of this Config, so each Config has a table of its own.
	c := &Config{tempDir: "/tmp"}
	c.settings = settings(c)
	c.byKey = make(map[string]*Setting, len(c.settings))
	for _, s := range c.settings {
		c.byKey[s.Key] = s
	}
	return c
}

// Load makes a Config of a command line without the program's name, an environment as from os.Environ, and the YAML
// file they name, which is read with readFile (os.ReadFile, outside tests). The error is ErrHelp, ErrVersion or an
// *Error with everything that is wrong. It never stops at the first mistake: an operator mends a configuration in one
// go. Help and version are looked for first, so that they work beside mistakes, too.
func Load(args, environ []string, readFile func(string) ([]byte, error)) (*Config, []Warning, error) {
	if slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		return nil, nil, ErrHelp
	}
	if slices.Contains(args, "--version") {
		return nil, nil, ErrVersion
	}
	c := newConfig()
	// Each layer is read whole before any is applied: the file is named by the others, and it is the weakest.
	flags, problems := newFlagSet(c.settings).parse(args)
	variables := c.environment(environ)
	var file []assignment
	// The path of the file is needed before anything has been applied.
	if name := lastOf(c.byKey["config"], variables, flags); name != "" {
		fromFile, more := c.readYAML(name, readFile)
		file, problems = fromFile, append(problems, more...)
	}
	for _, layer := range [][]assignment{file, variables, flags} { // the stronger one last
		problems = append(problems, c.apply(layer)...)
	}
	problems = append(problems, c.check()...)
	// Nothing is derived from values that are wrong.
	if len(problems) > 0 {
		return nil, nil, &Error{Problems: problems}
	}
	c.derive()
	return c, c.warnings(), nil
}

// environment picks the settings' variables. An empty one counts as not set. Of a setting's variables the first in the
// table that is set counts, whatever their order in environ.
func (c *Config) environment(environ []string) []assignment {
	env := make(map[string]string, len(environ))
	for _, entry := range environ {
		if name, text, ok := strings.Cut(entry, "="); ok && text != "" {
			env[name] = text
		}
	}
	var assignments []assignment
	for _, s := range c.settings {
		for _, name := range s.Env {
			if text, ok := env[name]; ok {
				assignments = append(assignments, assignment{s, text, Source{Kind: "env", Name: name}})
				break
			}
		}
	}
	// As os.TempDir does, but from the environment that was given.
	if folder := env["TMPDIR"]; folder != "" {
		c.tempDir = folder
	}
	// $HF_HOME only says where the cache is when $HF_HUB_CACHE doesn't.
	if home := env["HF_HOME"]; home != "" && env["HF_HUB_CACHE"] == "" {
		assignments = append(assignments,
			assignment{c.byKey["hf-hub-cache"], filepath.Join(home, "hub"), Source{Kind: "env", Name: "HF_HOME"}})
	}
	return assignments
}

// lastOf returns the text that the last assignment to a setting gives it.
func lastOf(s *Setting, layers ...[]assignment) (text string) {
	for _, a := range slices.Concat(layers...) {
		if a.setting == s {
			text = a.text
		}
	}
	return text
}

// apply sets values, over those that are there already. A wrong value leaves the one before it.
func (c *Config) apply(assignments []assignment) (problems []Problem) {
	for _, a := range assignments {
		if err := a.setting.value.set(a.text); err != nil {
			problems = append(problems, Problem{Key: a.source.Name, Value: a.setting.printable(a.text),
				Message: "allowed is " + a.setting.Allowed()})
			continue
		}
		a.setting.source = a.source
	}
	return problems
}

// check finds what is wrong in the combination of settings. It runs on values that are right by themselves, or have
// been reported.
func (c *Config) check() (problems []Problem) {
	// wrong names the setting as its user did: by its flag, variable or line.
	wrong := func(key, message string) {
		s := c.byKey[key]
		problems = append(problems, Problem{Key: s.where(), Value: s.Value(), Message: message})
	}
	if c.Embedded && c.Discovery.Backend != "mem" && c.Given("discovery-backend") {
		wrong("discovery-backend", "--embedded finds its worker in memory: leave it out or say mem")
	}
	// Half a certificate or half a log-in is a slip that would show up much later.
	for _, pair := range [][2]string{{"tls-cert-path", "tls-key-path"}, {"etcd-auth-client-cert", "etcd-auth-client-key"},
		{"nats-tls-client-cert-path", "nats-tls-client-key-path"}, {"etcd-auth-username", "etcd-auth-password"},
		{"nats-auth-username", "nats-auth-password"}} {
		for i, key := range pair {
			if other := pair[1-i]; c.byKey[key].value.String() != "" && c.byKey[other].value.String() == "" {
				wrong(key, "needs --"+other+" too")
			}
		}
	}
	if c.HTTP.TLS.ClientCAPath != "" && c.HTTP.TLS.CertPath == "" {
		wrong("tls-client-ca-cert-path", "needs --tls-cert-path too")
	}
	problems = append(problems, c.checkURLs()...)
	c.checkConditional(wrong)
	c.checkPaths(wrong)
	if !metricName.MatchString(c.Metrics.Prefix) {
		wrong("metrics-prefix", "allowed are letters, digits and _, not a digit first")
	}
	return problems
}

// checkPaths finds paths that no request could have, those that mean something to the router, and those given twice.
func (c *Config) checkPaths(wrong func(key, message string)) {
	at := map[string]string{}
	for _, s := range c.settings {
		if s.Group != "Paths" {
			continue
		}
		path := s.value.String()
		if !urlPath.MatchString(path) {
			wrong(s.Key, "allowed is a path that begins with /, of letters, digits and -._~!$&'()+,;=:@/")
			continue
		}
		path = strings.Trim(path, "/")
		if other, taken := at[path]; taken {
			wrong(s.Key, "is the path of --"+other+" too")
		}
		at[path] = s.Key
	}
}

// checkURLs finds addresses that can't be meant.
func (c *Config) checkURLs() (problems []Problem) {
	// check wants a host, so that "localhost:4222" is told apart from a scheme named localhost.
	check := func(key, text string, schemes ...string) {
		u, err := url.Parse(text)
		if err == nil && u.Host != "" && slices.Contains(schemes, u.Scheme) {
			return
		}
		problems = append(problems, Problem{Key: c.byKey[key].where(), Value: c.byKey[key].printable(text),
			Message: "allowed is a URL " + strings.Join(schemes, "://… or ") + "://…"})
	}
	for server := range strings.SplitSeq(c.NATS.URL, ",") {
		check("nats-server", strings.TrimSpace(server), "nats", "tls")
	}
	for _, endpoint := range c.Discovery.Etcd.Endpoints {
		if _, _, err := net.SplitHostPort(endpoint); err != nil { // etcd takes host:port too
			check("etcd-endpoints", endpoint, "http", "https")
		}
	}
	if c.Trace.general != "" {
		check("otel-exporter-otlp-endpoint", c.Trace.general, "http", "https")
	}
	if c.Trace.specific != "" {
		check("otel-exporter-otlp-traces-endpoint", c.Trace.specific, "http", "https")
	}
	return problems
}

// derive fills in what depends on other settings. A setting that was given is never overruled by one that only implies
// it.
func (c *Config) derive() {
	// The embedded worker registers in memory, so that is where it has to be looked for.
	if c.Embedded {
		c.Discovery.Backend = "mem"
		if c.Models.Path == "" {
			c.Models.Path = EmbeddedModel
		}
	}
	if c.Discovery.FileKV == "" {
		c.Discovery.FileKV = filepath.Join(c.tempDir, "dynamo_store_kv")
	}
	// Dynamo's word for all namespaces becomes ours; of the two settings the prefix wins.
	if c.Models.Namespace == "dynamo" || c.Models.NamespacePrefix != "" {
		c.Models.Namespace = ""
	}
	// A fast tokenizer that may not fall back is what Dynamo means by these two together.
	if !c.Given("tokenizer-backend") && c.tokenizer != "default" && !c.tokenizerFallback {
		c.Text.TokenizerBackend = "fast"
	}
	// As with the tokenizer: the project's own setting is the more precise one.
	if c.jsonl && !c.Given("log-format") {
		c.Log.Format = "json"
	}
	// OpenTelemetry: OTEL_SERVICE_NAME goes before service.name among the resource's attributes.
	if name := c.Trace.Attributes["service.name"]; name != "" && !c.Given("otel-service-name") {
		c.Trace.Service = name
	}
	if k := &c.Router.KV.Conditional; k.PrefillBusy == nil {
		k.PrefillBusy = c.Loads.Queue // where requests would have to wait
	}
	c.Trace.derive()
}

// derive completes the endpoint as OpenTelemetry's specification of its variables has it. The endpoint for traces is
// taken as it is; the general one is a base, to which HTTP adds a path.
func (t *Trace) derive() {
	t.Endpoint = t.specific
	u, err := url.Parse(t.specific)
	if t.specific == "" {
		u, err = url.Parse(t.general)
		t.Endpoint = t.general
	}
	if err != nil || t.Endpoint == "" || t.disabled || !t.export || t.exporter == "none" {
		t.Endpoint = ""
		return
	}
	// Collectors listen for gRPC on 4317 and for HTTP on 4318; other ports speak HTTP, the protocol's default.
	if t.Protocol == "auto" {
		t.Protocol = "http/protobuf"
		if u.Port() == "4317" {
			t.Protocol = "grpc"
		}
	}
	if t.specific == "" && t.Protocol == "http/protobuf" {
		t.Endpoint = u.JoinPath("v1/traces").String()
	}
}

// Given reports whether a setting was set at all, rather than left at its default.
func (c *Config) Given(key string) bool { s := c.byKey[key]; return s != nil && s.source.Kind != "" }

// warnings says which given settings have no effect, and which are most likely a mistake. Each is told once, at the
// start.
func (c *Config) warnings() (warnings []Warning) {
	for _, s := range c.settings {
		if s.Ignored != "" && s.source.Kind != "" {
			warnings = append(warnings, Warning{Key: s.source.Name, Message: "has no effect: " + s.Ignored})
		}
	}
	if !c.Embedded && c.Discovery.Backend == "mem" {
		warnings = append(warnings, Warning{Key: c.byKey["discovery-backend"].where(),
			Message: "workers of other processes can't be found in this one's memory: there will be no models"})
	}
	if c.NATS.TLS.Insecure {
		warnings = append(warnings, Warning{Key: c.byKey["nats-tls-insecure"].source.Name,
			Message: "the NATS server's certificate isn't checked"})
	}
	return warnings
}

// where names the setting as its user did.
func (s *Setting) where() string {
	if s.source.Name != "" {
		return s.source.Name
	}
	return "--" + s.Key
}

// UnknownVariables lists the variables with Dynamo's prefix or ours that no setting knows: misspelt ones, and those
// that are for other programs. They are sorted; values are never part of it.
func (c *Config) UnknownVariables(environ []string) (names []string) {
	known := make(map[string]bool)
	for _, s := range c.settings {
		for _, name := range s.Env {
			known[name] = true
		}
	}
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !known[name] && (strings.HasPrefix(name, "DYN_") || strings.HasPrefix(name, "PORTICO_")) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
