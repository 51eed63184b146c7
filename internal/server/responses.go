package server

import (
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-chi/chi/v5"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/responses"
	"github.com/portico-llm/portico/internal/server/sse"
	"github.com/portico-llm/portico/internal/server/validate"
)

// responsesRoutes adds the routes of the Responses interface.
func (s *Server) responsesRoutes(r chi.Router, path string) {
	r.Post(path, s.inference(endpointResponses, (*exchange).responses))
	r.Post(path+"/input_tokens", s.inference(endpointInputTokens, (*exchange).inputTokens))
	for _, m := range [...]string{http.MethodGet, http.MethodHead} {
		r.Method(m, path+"/{id}", s.identified(s.keptResponse))
		r.Method(m, path+"/{id}/input_items", s.identified(s.keptInput))
	}
	r.Delete(path+"/{id}", s.identified(s.forgetResponse))
	r.Post(path+"/{id}/cancel", s.identified(s.cancelResponse))
}

// asked is a responses request, ready to be prepared.
type asked struct {
	req  *openai.ResponsesRequest
	set  *catalog.Set
	talk *responses.Conversation
	turn *responses.Turn
}

// readResponses reads and checks a request, and makes a chat of it. The order of failures is that of chat.
func (x *exchange) readResponses() (*asked, error) {
	body, err := x.s.readBody(x.w, x.r)
	if err != nil {
		return nil, err
	}
	req, err := openai.DecodeResponses(body, x.s.opts.Decode)
	if err != nil {
		return nil, err
	}
	set, unknown := x.lookup(&req.Common)
	if fault.KindOf(unknown) == fault.Unavailable {
		return nil, unknown
	}
	if err := validate.Responses(req, x.s.opts.Validate); err != nil {
		return nil, err
	}
	talk, err := x.s.kept.Join(req, x.owner(), x.s.opts.Decode)
	if err != nil {
		return nil, err
	}
	turn, err := responses.Convert(req, talk.Items, x.s.opts.Decode)
	if err != nil {
		return nil, err
	}
	x.s.metrics.untold.WithLabelValues("tool").Add(float64(turn.Left.Tools))
	x.s.metrics.untold.WithLabelValues("item").Add(float64(turn.Left.Items))
	if err := validate.Chat(turn.Chat, x.s.opts.Validate); err != nil {
		return nil, responses.InTerms(err)
	}
	if unknown != nil {
		return nil, unknown
	}
	return &asked{req, set, talk, turn}, nil
}

// owner is whose responses a request sees: those of its tenant.
func (x *exchange) owner() string { return owner(x.r) }

func owner(r *http.Request) string { return r.Header.Get("X-Tenant-Id") }

// responses answers POST /v1/responses.
func (x *exchange) responses() error {
	a, err := x.readResponses()
	if err != nil {
		return err
	}
	x.describe(&a.req.Common, "chat", a.turn.Chat.TokenLimit())
	prepared, err := x.s.opts.Pipeline.PrepareChat(x.r.Context(), a.set, x.meta, a.turn.Chat)
	if err != nil {
		return responses.InTerms(err)
	}
	o := x.responsesOptions(a)
	return x.answer(prepared, form{
		fold: func() folder { return reply.NewResponses(nil, o) },
		stream: func(out *sse.Writer) streamer {
			return itemised{reply.NewResponses(out, o), x.s.errors}
		},
	})
}

// responsesOptions are how the answer to a request is written, and whether it is kept.
func (x *exchange) responsesOptions(a *asked) reply.ResponsesOptions {
	keeps := x.s.kept.Keeps() && (a.req.Store == nil || *a.req.Store)
	o := reply.ResponsesOptions{
		Options: x.options("", &a.req.Common),
		Echo:    a.turn.Echo(keeps),
		Tools:   a.turn.Tools,
		Seal:    a.req.Wants("reasoning.encrypted_content"),
		Summary: a.req.Reasoning.WantsSummary(),
	}
	// Not the request's own id, which its client may choose: whoever knows this one can read the response.
	o.ID = "resp_" + secretID()
	x.answerID = o.ID
	o.Now = x.s.opts.Now
	o.LogProbs = responses.LogProbs(a.req)
	if a.req.TopLogprobs != nil {
		o.TopLogProbs = int(*a.req.TopLogprobs)
	}
	if keeps {
		o.Keep = a.talk.Keeper(o.ID)
	}
	return o
}

// secretID returns 32 hexadecimal digits that nobody can guess.
func secretID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// itemised is a stream of items, whose failure is one of its events.
type itemised struct {
	*reply.Responses
	errors *errorTable
}

// Fail ends the stream with f.
func (i itemised) Fail(f *fault.Error) error {
	a := i.errors.of(f)
	e := nested(a, f)
	// OpenAI has few codes for responses; those that name a cause are told as they are.
	code := "server_error"
	switch {
	case f.Kind == fault.RateLimited, f.Kind == fault.Overloaded:
		code = "rate_limit_exceeded"
	case f.Code != "":
		code = f.Code
	case a.status < http.StatusInternalServerError:
		code = "invalid_prompt"
	}
	return i.Responses.Fail(reply.ResponseFailure{Code: code, Message: e.Message, Kind: e.Type, Param: e.Param, Cause: e.Code})
}

// inputTokens answers POST /v1/responses/input_tokens: how long the prompt would be.
func (x *exchange) inputTokens() error {
	a, err := x.readResponses()
	if err != nil {
		return err
	}
	n, err := x.s.opts.Pipeline.CountChat(x.r.Context(), a.set, a.turn.Chat)
	if err != nil {
		return responses.InTerms(err)
	}
	return x.write(append(strconv.AppendInt([]byte(`{"object":"response.input_tokens","input_tokens":`), int64(n), 10), '}'))
}

// noResponse is the failure of an id that leads nowhere.
func noResponse(id string) *fault.Error {
	return fault.New(fault.NotFound, "Response with id '%s' not found", clip(id, 80))
}

// keptResponse answers GET /v1/responses/{id}.
func (s *Server) keptResponse(w http.ResponseWriter, r *http.Request) {
	id := chi.URLParam(r, "id")
	stream, after, err := replayOf(r.URL.Query())
	if err != nil {
		s.errors.write(w, err)
		return
	}
	kept, ok := s.kept.Get(id, owner(r))
	switch {
	case !ok:
		s.errors.write(w, noResponse(id))
	case stream && r.Method == http.MethodGet:
		s.replay(w, r, kept, after)
	default:
		_ = writeJSON(w, kept.Body) // a client that has left doesn't read it
	}
}

// replayOf reads whether a response is wanted as a stream, and after which of its events; -1 is ahead of the first.
func replayOf(q url.Values) (stream bool, after int, bad *fault.Error) {
	after = -1
	switch q.Get("stream") {
	case "", "false":
	case "true":
		stream = true
	default:
		return false, 0, fault.Bad("stream", "`stream` must be true or false").WithCode("invalid_value")
	}
	if v := q.Get("starting_after"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return false, 0, fault.Bad("starting_after", "`starting_after` must be the number of an event").WithCode("invalid_value")
		}
		after = n
	}
	return stream, after, nil
}

// replay tells a kept response as a stream.
func (s *Server) replay(w http.ResponseWriter, r *http.Request, kept *reply.Kept, after int) {
	out := sse.NewWriter(w, r, s.opts.Stream)
	defer out.Close()
	// A client that leaves loses nothing: it may ask again.
	if err := reply.Replay(out, kept, after); err != nil && out.Abandon() && r.Context().Err() == nil {
		s.errors.write(w, fault.New(fault.Internal, "The response could not be read").Because(err))
	}
}

// keptInput answers GET /v1/responses/{id}/input_items.
func (s *Server) keptInput(w http.ResponseWriter, r *http.Request) {
	page, err := pageOf(r.URL.Query())
	if err != nil {
		s.errors.write(w, fault.From(err))
		return
	}
	id := chi.URLParam(r, "id")
	list, ok, err := s.kept.InputItems(id, owner(r), page, s.opts.Decode)
	switch {
	case !ok:
		s.errors.write(w, noResponse(id))
	case err != nil:
		s.errors.write(w, fault.From(err))
	default:
		_ = writeJSON(w, list)
	}
}

// pageOf reads which part of a list is wanted. As for OpenAI it is the newest twenty.
func pageOf(q url.Values) (responses.Page, error) {
	p := responses.Page{Limit: 20, After: q.Get("after")}
	if v := q.Get("limit"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > 100 {
			return p, fault.Bad("limit", "`limit` must be an integer from 1 to 100").WithCode("invalid_value")
		}
		p.Limit = n
	}
	switch v := q.Get("order"); v {
	case "", "desc":
	case "asc":
		p.Asc = true
	default:
		return p, fault.Bad("order", "`order` must be asc or desc").WithCode("invalid_value")
	}
	return p, nil
}

// forgetResponse answers DELETE /v1/responses/{id}.
func (s *Server) forgetResponse(w http.ResponseWriter, r *http.Request) {
	id := chi.URLParam(r, "id")
	if !s.kept.Delete(id, owner(r)) {
		s.errors.write(w, noResponse(id))
		return
	}
	_ = writeJSON(w, openai.AppendDeleted(nil, id, "response"))
}

// cancelResponse answers POST /v1/responses/{id}/cancel: there is nothing that could be cancelled so.
func (s *Server) cancelResponse(w http.ResponseWriter, r *http.Request) {
	id := chi.URLParam(r, "id")
	if _, ok := s.kept.Get(id, owner(r)); !ok {
		s.errors.write(w, noResponse(id))
		return
	}
	s.errors.write(w, fault.Bad("", "Only background responses can be cancelled; close the connection of a running one"))
}
