// Package catalog holds the models being served. It follows discovery, builds what a model needs (template, tokenizer)
// when its first worker appears, and retires it after its last. Readers take an immutable table; only Run's goroutine
// changes it.
//
//	Store.Watch ─▶ records (parsed, accepted?) ─▶ groups (name, endpoint, worker type) ─▶ Load ─▶ table ─▶ Lookup
//
// A Set stays usable for whoever holds it, however long: its text is closed when the last Set that uses it has become
// unreachable, which the garbage collector finds out, or when Run ends.
package catalog

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/router"
)

// Set is a model at one endpoint: the workers there share one card. It is immutable but for Serves and Prefill; requests in flight
// may hold one after it has been retired. To hold one is to keep the Set itself reachable: whoever goes on with a part
// of it, such as a Decoder, ends with runtime.KeepAlive(set).
type Set struct {
	Endpoint worker.EndpointID // where its workers listen
	Card     *worker.Card      // of the first worker; the others' differ in nothing that matters
	MDCSum   string            // identifies the card; workers with another card wait until this set has drained
	LoRA     string            // adapter name, empty for base models

	// For model_input "Tokens"; nil when the worker takes the client's own request ("Text").
	Renderer  prepost.Renderer // nil when the model has no chat template
	Tokenizer prepost.Tokenizer
	EOS       []prepost.TokenID

	// Images is what the model's workers take images as; nil: they fetch and process them themselves.
	Images multimodal.Processor
	// Pixels decodes images for workers that take them decoded; nil: they don't. Images goes before it.
	Pixels multimodal.Decoder

	// How answers to chats are taken apart; empty: they aren't.
	ToolParser, ReasoningParser string

	workers *atomic.Pointer[map[uint64]struct{}] // nil: every instance of the endpoint
	prefill *atomic.Pointer[Prefill]             // nil, or holding nil: its workers read their prompts themselves
}

// TakesText reports whether the set's workers take the client's request as it is and answer in the client's format.
func (s *Set) TakesText() bool { return s.Card.ModelInput == "Text" }

// Serves reports whether the instance now serves this model with this card. Other instances of the endpoint may serve
// it with another card, or lack the adapter. Safe for concurrent use.
func (s *Set) Serves(instanceID uint64) bool {
	if s.workers == nil {
		return true
	}
	_, ok := (*s.workers.Load())[instanceID]
	return ok
}

// Text is what a model needs to turn text into tokens and back. Load returns it; the catalog closes it.
type Text struct {
	Renderer  prepost.Renderer  // nil when the model has no chat template
	Tokenizer prepost.Tokenizer // never nil
	EOS       []prepost.TokenID

	Images multimodal.Processor // nil: images are the workers' part, or all of them but decoding is
	Pixels multimodal.Decoder   // nil: decoding is, too

	// Names of the parsers of the model's answers, however they were found out; empty: none.
	ToolParser, ReasoningParser string

	// Close releases renderer and tokenizer. It is called once, when no request can use them any more; nil: nothing to
	// release.
	Close func() error
}

// Snapshots is where the catalog learns of workers; *discovery.Store is one.
type Snapshots interface {
	// Snapshot returns what discovery knows now; it never blocks and never returns nil.
	Snapshot() *router.Snapshot
	// Watch calls f with the present snapshot and then with every newer one, never concurrently, until cancel has
	// returned. f must not block.
	Watch(f func(*router.Snapshot)) (cancel func())
}

// LoadFunc builds what the record's model needs. It returns soon after ctx ends.
type LoadFunc func(ctx context.Context, rec *worker.ModelRecord) (*Text, error)

// Options of a Catalog. Store, Load and Sum are required.
type Options struct {
	Store Snapshots
	Load  LoadFunc
	Sum   func(*worker.Card) string // identifies a card: mdcsum

	Namespace       string // serve only this namespace; empty or "dynamo": all
	NamespacePrefix string // or those that begin with this; Namespace goes first
	PrefixStrict    bool   // the prefix itself, with -legacy, or with - and eight hexadecimal digits; nothing else

	Loaders     int           // models loaded at the same time; 0: 2
	LoadTimeout time.Duration // of one attempt; 0: 2 min

	ContextWindow, MaxOutput uint32 // shown in the list of models in place of the card's; 0: the card's

	Log        *slog.Logger          // nil: slog.Default()
	Registerer prometheus.Registerer // nil: no metrics

	// sweepEvery is how long after a retirement the catalog first looks for texts that nobody holds; tests shorten it.
	sweepEvery time.Duration
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if o.Loaders <= 0 {
		o.Loaders = 2
	}
	if o.LoadTimeout <= 0 {
		o.LoadTimeout = 2 * time.Minute
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.sweepEvery <= 0 {
		o.sweepEvery = time.Second
	}
	return o
}

// Catalog knows the models. Run is called once; everything else is safe for concurrent use, before, during and after
// it.
type Catalog struct {
	opts  Options
	table atomic.Pointer[table] // never nil; replaced as a whole by Run's goroutine

	retired  atomic.Int64 // texts of retired models that are still open
	failures atomic.Int64 // loads that failed
}

// New returns a catalog without models; Run fills it.
func New(opts Options) *Catalog {
	c := &Catalog{opts: opts.withDefaults()}
	c.table.Store(&table{})
	if c.opts.Registerer != nil {
		c.opts.Registerer.MustRegister(&collector{catalog: c})
	}
	return c
}

// Run follows discovery until ctx ends. Then it waits for what is being loaded, closes every text and returns nil; no
// request may be in flight by then.
func (c *Catalog) Run(ctx context.Context) error {
	f := newFollower(ctx, c)
	return f.run(ctx)
}

// Lookup returns a set that can serve the model, given by its name or an alias. A model in several namespaces, or at
// several endpoints, has several sets: Lookup draws one, weighted by its live workers. Sets that offer neither chat nor
// completions are drawn only when there is no other.
//
// The error is a *fault.Error: NotFound with code model_not_found, or Unavailable for a model that is known but has no
// worker ready, or is still being loaded.
func (c *Catalog) Lookup(model string) (*Set, error) {
	// No lock: the table is immutable, and so is what it holds.
	e := c.table.Load().models[model]
	if e == nil {
		return nil, notFound(model)
	}
	if s := draw(e.text); s != nil {
		return s, nil
	}
	if s := draw(e.other); s != nil {
		return s, nil
	}
	return nil, notReady(model)
}

// LookupFor is Lookup among the sets that offer one surface: a flag of a card's model type, such as Chat or Embedding.
// A model that offers others only is NotFound with code model_not_supported.
func (c *Catalog) LookupFor(model, surface string) (*Set, error) {
	e := c.table.Load().models[model]
	if e == nil {
		return nil, notFound(model)
	}
	offered, ok := e.by[surface]
	switch {
	case len(offered.sets) > 0:
		return draw(offered), nil
	case ok || len(e.by) == 0:
		return nil, notReady(model)
	}
	return nil, notSupported(model, surface, e)
}

// notSupported names what the model can be asked for instead.
func notSupported(model, surface string, e *entry) *fault.Error {
	var wanted string
	var offered []string
	for _, s := range surfaces {
		if s.flag == surface {
			wanted = s.name
		}
		if _, ok := e.by[s.flag]; ok {
			offered = append(offered, s.name)
		}
	}
	return &fault.Error{
		Kind: fault.NotFound, Code: "model_not_supported", Param: "model",
		Message: "The model `" + model + "` does not offer " + wanted + "; it offers " + strings.Join(offered, ", "),
	}
}

// notFound is OpenAI's failure for a model it doesn't have.
func notFound(model string) *fault.Error {
	return &fault.Error{
		Kind: fault.NotFound, Code: "model_not_found", Param: "model",
		Message: "The model `" + model + "` does not exist",
	}
}

// notReady is the failure of a model that is known; a client that tries again in a second may find it served.
func notReady(model string) *fault.Error {
	return &fault.Error{
		Kind: fault.Unavailable, RetryAfter: time.Second, Code: "model_not_ready",
		Message: "Model `" + model + "` is not ready to serve requests yet. The deployment may still be starting up or " +
			"is not fully provisioned. Please retry shortly.",
	}
}

// draw returns one of the sets, weighted; nil without any.
func draw(c choices) *Set {
	switch len(c.sets) {
	case 0:
		return nil
	case 1:
		return c.sets[0]
	}
	// The last total is positive: only sets with a live worker are among the choices.
	at := rand.IntN(c.upTo[len(c.upTo)-1]) //nolint:gosec // spreads load; nothing secret
	for i, limit := range c.upTo {
		if at < limit {
			return c.sets[i]
		}
	}
	return c.sets[len(c.sets)-1]
}

// ModelInfo is one line of the list of models.
type ModelInfo struct {
	ID            string   // name or alias
	Created       int64    // Unix seconds: when the model was first seen
	ContextWindow uint32   // tokens; 0: unknown
	MaxOutput     uint32   // tokens; 0: unknown
	Root          string   // the model this is a name or an adapter of
	Parent        string   // base model of an adapter, when it is known
	Endpoints     []string // what it offers, such as chat, completions, embedding
	Ready         bool     // at least one set can be looked up
}

// Models returns the models in the order of their ids, aliases included, whether or not they are ready. Models that only
// prefill or encode for others are not listed. The caller must not change the slice.
func (c *Catalog) Models() []ModelInfo { return c.table.Load().list }

// Ready reports whether at least one model can be served.
func (c *Catalog) Ready() bool { return c.table.Load().ready }
