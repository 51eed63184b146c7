package server

import (
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/admin"
)

// Paths are where the endpoints stand. Empty ones are OpenAI's and Dynamo's usual places.
type Paths struct {
	Chat, Completions, Responses, Models  string // OpenAI's endpoints
	Embeddings, Rerank, Classify, Pooling string // of models that don't write text
	Messages                              string // Anthropic's; count_tokens stands under it
	Health, Live, Ready, Metrics, OpenAPI string // for operators
}

// busyThreshold is where operators read and set the thresholds of overload; Dynamo has no setting for it either.
const busyThreshold = "/busy_threshold"

// withDefaults fills in what was left open, and gives every path one slash in front and none behind.
func (p Paths) withDefaults() Paths {
	for _, d := range []struct {
		path *string
		def  string
	}{
		{&p.Chat, "/v1/chat/completions"}, {&p.Completions, "/v1/completions"},
		{&p.Responses, "/v1/responses"}, {&p.Models, "/v1/models"},
		{&p.Embeddings, "/v1/embeddings"}, {&p.Rerank, "/v1/rerank"},
		{&p.Classify, "/v1/classify"}, {&p.Pooling, "/v1/pooling"},
		{&p.Messages, "/v1/messages"},
		{&p.Health, "/health"}, {&p.Live, "/live"}, {&p.Ready, "/ready"}, {&p.Metrics, "/metrics"},
		{&p.OpenAPI, "/openapi.json"},
	} {
		if *d.path == "" {
			*d.path = d.def
		}
		*d.path = "/" + strings.Trim(*d.path, "/")
	}
	return p
}

// routes joins paths and handlers. It fails when the description of the surface can't be read.
func (s *Server) routes() (http.Handler, error) {
	r := chi.NewRouter()
	r.Use(s.around)
	p := s.opts.Paths
	// Only what is served has a route: clients probe for endpoints, and a 404 is the honest answer.
	r.Post(p.Chat, s.inference(endpointChat, (*exchange).chat))
	r.Post(p.Completions, s.inference(endpointCompletions, (*exchange).completions))
	s.responsesRoutes(r, p.Responses)
	for _, t := range []struct {
		path string
		e    endpoint
		task openai.Task
	}{
		{p.Embeddings, endpointEmbeddings, openai.TaskEmbed},
		{p.Rerank, endpointRerank, openai.TaskRerank},
		{"/v1/score", endpointScore, openai.TaskScore},
		{p.Classify, endpointClassify, openai.TaskClassify},
		{p.Pooling, endpointPooling, openai.TaskPool},
		{"/v1/images/generations", endpointImages, openai.TaskImage},
		{"/v1/images/edits", endpointImages, openai.TaskEdit},
		{"/v1/videos", endpointVideos, openai.TaskVideo},
		{"/v1/videos/stream", endpointVideos, openai.TaskFrames},
		{"/v1/audio/speech", endpointAudios, openai.TaskSpeech},
	} {
		r.Post(t.path, s.inference(t.e, func(x *exchange) error { return x.task(t.task) }))
	}
	s.tokenizeRoutes(r)
	if !s.opts.NoAnthropic {
		r.Post(p.Messages, s.inference(endpointMessages, (*exchange).messages))
		r.Post(p.Messages+"/count_tokens", s.inference(endpointCountTokens, (*exchange).countTokens))
	}

	// HEAD is answered wherever GET is (RFC 9110); net/http drops the body.
	get := func(path string, h http.HandlerFunc) {
		r.Get(path, s.identified(h))
		r.Head(path, s.identified(h))
	}
	get(p.Models, s.listModels)
	get(p.Models+"/*", s.oneModel) // ids may hold slashes

	a, err := admin.New(admin.Options{
		Ready:     s.opts.Catalog.Ready,
		Draining:  s.life.draining.Load,
		Instances: s.opts.Instances,
		Gatherer:  s.gatherer(s.opts.Gatherer),
		OpenAPI:   s.opts.OpenAPI,

		Thresholds: s.opts.Thresholds,
	})
	if err != nil {
		return nil, err
	}
	get(p.Health, a.Health)
	get(p.Live, a.Live)
	get(p.Ready, a.Ready)
	if s.opts.Gatherer != nil {
		get(p.Metrics, a.Metrics)
	}
	if s.opts.Thresholds != nil {
		get(busyThreshold, a.BusyThresholds)
		r.Post(busyThreshold, s.identified(s.takesJSON(a.SetBusyThreshold)))
	}
	if len(s.opts.OpenAPI) > 0 {
		get(p.OpenAPI, a.OpenAPI)
	}
	for _, path := range notServed {
		r.HandleFunc(path, s.identified(s.unserved))
		r.HandleFunc(path+"/*", s.identified(s.unserved))
	}
	r.NotFound(s.identified(s.notFound))
	r.MethodNotAllowed(s.identified(func(w http.ResponseWriter, req *http.Request) { s.methodNotAllowed(w, req, r) }))
	return r, nil
}

// takesJSON refuses bodies of another type, which a page in somebody's browser could send.
func (s *Server) takesJSON(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !isJSON(r.Header.Get("Content-Type")) {
			s.errors.write(w, errContentType)
			return
		}
		next(w, r)
	}
}

// notServed are paths of OpenAI's and Dynamo's that clients may ask for and that this server doesn't serve. The README
// lists them, too.
var notServed = []string{
	"/v1/realtime", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/variations",
	"/v1/files", "/v1/uploads", "/v1/batches", "/v1/moderations", "/v1/fine_tuning", "/v1/assistants", "/v1/threads",
	"/v1/vector_stores", "/v1/conversations", "/inference/v1/generate", "/generate",
}

// unserved says so, in place of letting a client look for a mistake in its base URL.
func (s *Server) unserved(w http.ResponseWriter, r *http.Request) {
	s.errors.write(w, fault.New(fault.NotFound, "%s is not served here", clip(r.URL.Path, 256)))
}

// notFound repeats what was asked for: most of the time it is a wrong base URL.
func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	s.errors.write(w, fault.New(fault.NotFound, "Route not found: %s %s", r.Method, clip(r.URL.Path, 256)))
}

// methodNotAllowed names the methods the path has. RFC 9110 wants them in the Allow header, too.
func (s *Server) methodNotAllowed(w http.ResponseWriter, r *http.Request, routes chi.Routes) {
	path := r.URL.RawPath // as the router matched it, an escaped slash being part of a name
	if path == "" {
		path = r.URL.Path
	}
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodDelete} {
		if routes.Match(chi.NewRouteContext(), m, path) {
			allowed = append(allowed, m)
		}
	}
	allow := strings.Join(allowed, ", ")
	w.Header().Set("Allow", allow)
	s.errors.writeStatus(w, http.StatusMethodNotAllowed, fault.New(fault.BadRequest,
		"Method %s is not allowed for %s; allowed: %s", r.Method, clip(r.URL.Path, 256), allow))
}

// clip bounds what a message repeats of a request, and cuts between characters.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
