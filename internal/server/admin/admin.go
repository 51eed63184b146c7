// Package admin answers what operators ask: is the process alive, may it get traffic, what does it measure, what does
// it offer. Nothing here touches a model. The handlers are safe for concurrent use.
package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.yaml.in/yaml/v3"

	"github.com/portico-llm/portico/api/worker"
)

// Options are what a Handlers is built from. Ready, Draining and Instances are required.
type Options struct {
	Ready     func() bool               // at least one model can be served
	Draining  func() bool               // Shutdown has begun
	Instances func() []*worker.Instance // a snapshot, not written to
	Gatherer  prometheus.Gatherer       // nil: Metrics must not be called
	OpenAPI   []byte                    // YAML or JSON

	Thresholds Thresholds // nil: BusyThresholds and SetBusyThreshold must not be called
}

// Handlers are the handlers.
type Handlers struct {
	opts    Options
	metrics http.Handler
	openapi []byte // JSON
}

// New returns the handlers. It fails when the description of the surface can't be read.
func New(opts Options) (*Handlers, error) {
	h := &Handlers{opts: opts}
	if opts.Gatherer != nil {
		h.metrics = promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{})
	}
	if len(opts.OpenAPI) > 0 {
		// Kept as YAML for people, served as JSON, which every client reads. Done once: the description doesn't change.
		var doc map[string]any
		if err := yaml.Unmarshal(opts.OpenAPI, &doc); err != nil {
			return nil, fmt.Errorf("read the OpenAPI description: %w", err)
		}
		var err error
		if h.openapi, err = json.Marshal(doc); err != nil {
			return nil, fmt.Errorf("convert the OpenAPI description: %w", err)
		}
	}
	return h, nil
}

// health is the body of Health, in the form operators of Dynamo know.
type health struct {
	Status    string             `json:"status"`
	Endpoints []string           `json:"endpoints"` // dyn://namespace.component.endpoint, sorted, each once
	Instances []*worker.Instance `json:"instances"` // as their records say
}

// Health lists what discovery knows. It is healthy without a worker: only draining makes it fail.
func (h *Handlers) Health(w http.ResponseWriter, _ *http.Request) {
	body := health{Status: "healthy", Endpoints: []string{}, Instances: []*worker.Instance{}}
	status := http.StatusOK
	if h.opts.Draining() {
		body.Status, status = "unhealthy", http.StatusServiceUnavailable
	}
	for _, in := range h.opts.Instances() {
		body.Instances = append(body.Instances, in)
		e := "dyn://" + in.Namespace + "." + in.Component + "." + in.Endpoint
		if !slices.Contains(body.Endpoints, e) {
			body.Endpoints = append(body.Endpoints, e)
		}
	}
	slices.Sort(body.Endpoints)
	write(w, status, body)
}

// state is the body of Live and Ready.
type state struct {
	Status  string `json:"status"`  // live, ready, not_ready or draining
	Message string `json:"message"` // for people
}

// Live says that the process runs.
func (h *Handlers) Live(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, state{"live", "Service is live"})
}

// Ready says whether requests should be sent here: a model can be served, and the server doesn't drain.
func (h *Handlers) Ready(w http.ResponseWriter, _ *http.Request) {
	switch {
	case h.opts.Draining():
		write(w, http.StatusServiceUnavailable, state{"draining", "Service is shutting down"})
	case !h.opts.Ready():
		write(w, http.StatusServiceUnavailable, state{"not_ready", "No model is ready to serve requests"})
	default:
		write(w, http.StatusOK, state{"ready", "Service is ready"})
	}
}

// Metrics writes the process's metrics.
func (h *Handlers) Metrics(w http.ResponseWriter, r *http.Request) { h.metrics.ServeHTTP(w, r) }

// OpenAPI writes the description of the surface.
func (h *Handlers) OpenAPI(w http.ResponseWriter, _ *http.Request) { send(w, http.StatusOK, h.openapi) }

// write answers with v as JSON.
func write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // a worker's record that is no JSON
		status, body = http.StatusInternalServerError, []byte(strconv.Quote(strings.ToValidUTF8(err.Error(), "?")))
	}
	send(w, status, body)
}

// send answers with JSON that is there already.
func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left doesn't read it
}
