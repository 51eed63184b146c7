// Package chattmpl turns conversations into prompts with a model's chat template, with transformers' semantics.
//
// A Renderer compiles the templates of a model and renders a few probes when it is made, so that a template that can't
// work shows when the model is added, and what it takes — content as text or as parts, tool arguments as JSON text or
// as objects, image placeholders — is known before the first request. A request's own JSON goes to the template as the
// client sent it, but for the places that the template couldn't take.
//
// Templates are the operator's, messages are the client's: a render is bounded in work, nesting and time, and whatever
// fails in it is a bad request that names the messages.
//
// A Renderer is safe for concurrent use. Close it when no request will be started with it; those that are being
// rendered end first.
package chattmpl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
)

// Options configure a Renderer. It needs at least one template.
type Options struct {
	Default       string            // the template; empty: ToolUse is used for all requests
	ToolUse       string            // the template for requests with tools; empty: Default
	SpecialTokens map[string]string // such as bos_token; variables of the template
	Gate          *native.Gate      // bounds native calls over all models; nil doesn't bound
	Timeout       time.Duration     // bounds a render and the wait for the gate; 0 is 10 s
	Log           *slog.Logger      // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Renderer renders the chat templates of one model.
type Renderer struct {
	def, tool *variant         // tool is def when the model has no template of its own for tools
	special   []byte           // the special tokens as members of a JSON object, each with a comma after it
	gate      *native.Gate     // nil: no bound
	timeout   time.Duration    // of a render, with the wait for the gate
	log       *slog.Logger     // for failures of the engine and of probes
	buffers   pool             // of arguments
	renders   *lifecycle.Group // those of abandoned requests included
}

// variant is one template and what is known of it.
type variant struct {
	template *native.Template // compiled; closed by Renderer.Close
	traits   *traits          // what it takes
	isolated bool             // rendered in a goroutine that can be given up
}

var _ prepost.Renderer = (*Renderer)(nil)

// New compiles the templates and renders the probes. An error says what is wrong with the template.
func New(opts Options) (*Renderer, error) {
	opts = opts.withDefaults()
	if opts.Default == "" {
		opts.Default = opts.ToolUse
	}
	// Encoded once: every request begins with the same special tokens.
	special, err := members(opts.SpecialTokens)
	if err != nil {
		return nil, err
	}
	r := &Renderer{special: special, gate: opts.Gate, timeout: opts.Timeout, log: opts.Log}
	// Renders outlive nobody's context: each is waited for by its request, and Close frees the template after the last.
	r.renders = lifecycle.New(context.Background())
	if r.def, err = r.load("default", opts.Default); err != nil {
		return nil, err
	}
	r.tool = r.def
	if opts.ToolUse != "" && opts.ToolUse != opts.Default {
		if r.tool, err = r.load(toolUse, opts.ToolUse); err != nil {
			return nil, errors.Join(err, r.def.template.Close())
		}
	}
	return r, nil
}

// load compiles a template and finds out what it takes. The template is closed when that fails.
func (r *Renderer) load(name, src string) (*variant, error) {
	template, err := native.NewTemplate(src)
	if err != nil {
		return nil, fmt.Errorf("compile the %s chat template: %w", name, err)
	}
	found, reasons, err := inspect(r.tryOut(template), r.special, name == toolUse)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("try the %s chat template: %w", name, err), template.Close())
	}
	for _, reason := range reasons {
		// Most templates refuse some probe; one that names a filter or function that isn't there is broken.
		report := r.log.Debug
		if strings.HasPrefix(reason.Error(), "unknown f") || strings.HasPrefix(reason.Error(), "unknown test") {
			report = r.log.Warn
		}
		report("chat template failed on a probe", "template", name, "reason", reason)
	}
	return &variant{template: template, traits: found, isolated: mayHideWork(src)}, nil
}

// probeTime is how long a probe, a conversation of a line or two, may take.
const probeTime = 2 * time.Second

// tryOut returns what renders a probe. Once one took too long it renders no more of them. It is used by one goroutine.
func (r *Renderer) tryOut(template *native.Template) func(args []byte) (string, error) {
	hopeless := false
	return func(args []byte) (string, error) {
		if hopeless {
			return "", errAbandoned
		}
		bounded, cancel := context.WithTimeout(r.renders.Context(), probeTime)
		defer cancel()
		if err := r.gate.Enter(bounded); err != nil {
			return "", fmt.Errorf("wait to render: %w", err)
		}
		// Probes have a fixed clock, so that a template with the date in it tells the same of itself every day.
		text, err := r.run(bounded.Done(), template, &buffer{args: args}, time.Date(2025, 1, 1, 12, 0, 0, 0, time.UTC))
		hopeless = errors.Is(err, errAbandoned)
		return text, err
	}
}

// toolUse is transformers' name for the template of requests with tools.
const toolUse = "tool_use"

// members encodes the special tokens in a fixed order. The order has no meaning to a template; equal models get equal
// arguments.
func members(tokens map[string]string) ([]byte, error) {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(tokens)) {
		key, err := json.Marshal(name)
		if err != nil {
			return nil, fmt.Errorf("special token %q: %w", name, err)
		}
		value, err := json.Marshal(tokens[name])
		if err != nil {
			return nil, fmt.Errorf("special token %q: %w", name, err)
		}
		out = append(append(append(append(out, key...), ':'), value...), ',')
	}
	return out, nil
}

// Close frees the templates. It is idempotent. A render under way keeps its template until it ends.
func (r *Renderer) Close() error {
	return errors.Join(r.def.template.Close(), r.tool.template.Close())
}

// Render renders a conversation. Failures that come from the conversation or the template are bad requests; a template
// that calls raise_exception chooses the message. It blocks for at most Options.Timeout in the gate and as long again
// in the template. in is only read, and not after the return. When ctx ends first the error is ctx's.
func (r *Renderer) Render(ctx context.Context, in *prepost.ChatInput) (string, error) {
	buf := r.buffers.Get()
	// The arguments are written before the wait: a malformed request takes no place in the gate.
	v, err := r.appendInput(buf, in)
	if err != nil {
		r.buffers.Put(buf)
		return "", err
	}
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := r.gate.Enter(bounded); err != nil {
		r.buffers.Put(buf)
		// Who left first: the client, or the time the renderer gives a request.
		if ctx.Err() != nil {
			return "", fmt.Errorf("wait to render: %w", ctx.Err())
		}
		return "", fault.New(fault.Overloaded, "Too many prompts are being prepared").Because(err)
	}
	var text string
	if v.isolated {
		text, err = r.run(bounded.Done(), v.template, buf, in.Now)
	} else {
		// On this goroutine, within fuel and time; ctx can't end it.
		text, err = v.template.Render(buf.args, in.Now, r.timeout)
		r.gate.Leave()
		r.buffers.Put(buf)
	}
	switch {
	// A client that left is no failure of the template's.
	case errors.Is(err, errAbandoned) && ctx.Err() != nil:
		return "", fmt.Errorf("render: %w", ctx.Err())
	case err != nil:
		return "", r.explain(err)
	case in.ContinueFinalMessage:
		return cutAtMark(text)
	}
	return text, nil
}

// errAbandoned is the end of waiting for a render that goes on.
var errAbandoned = errors.New("render abandoned")

// run renders in a goroutine of its own and waits for it until done closes. A call into the engine can't be
// interrupted: one that goes on keeps its buffer and its place in the gate, and the template stays loaded for it. Fuel
// ends all but a few, those of templates that hide more work in one step than the engine counts.
func (r *Renderer) run(done <-chan struct{}, template *native.Template, buf *buffer, now time.Time) (string, error) {
	type outcome struct {
		text string
		err  error
	}
	result := make(chan outcome, 1) // so that an abandoned render can end
	r.renders.Go("render", func(context.Context) error {
		defer r.gate.Leave()
		text, err := template.Render(buf.args, now, r.timeout)
		r.buffers.Put(buf)
		result <- outcome{text, err}
		return nil
	})
	select {
	case out := <-result:
		return out.text, out.err
	case <-done:
		return "", errAbandoned
	}
}

// buffer holds the variables of one render.
type buffer struct{ args []byte }

// pool keeps buffers for the next render, but not that of a huge request.
type pool struct{ sync.Pool }

// maxPooled is the largest buffer worth keeping.
const maxPooled = 1 << 20 // bytes

// Get returns a buffer with any content.
func (p *pool) Get() *buffer {
	if buf, ok := p.Pool.Get().(*buffer); ok {
		return buf
	}
	return new(buffer)
}

// Put takes a buffer back that nobody reads any more.
func (p *pool) Put(buf *buffer) {
	if cap(buf.args) <= maxPooled {
		p.Pool.Put(buf)
	}
}

// appendInput writes the variables of the template as one JSON object. Of equal keys the last one counts, so the
// client's own variables come first: they can replace a special token but never the messages. It returns the template
// to use and leaves the arguments in buf, also those of a failure, half written.
func (r *Renderer) appendInput(buf *buffer, in *prepost.ChatInput) (*variant, error) {
	tools, err := items(in.Tools, "tools")
	if err != nil {
		return nil, err
	}
	// As in transformers, the tools of a request choose the template.
	v := r.def
	if tools != nil {
		v = r.tool
	}
	dst := append(append(buf.args[:0], '{'), r.special...)
	if len(in.Kwargs) > 0 && !isNull(in.Kwargs) {
		// Copied member by member as text: the braces go, the rest stays as it is.
		own, err := inner(in.Kwargs, '{')
		if err != nil {
			return nil, fault.Bad("chat_template_kwargs", "chat_template_kwargs must be an object")
		}
		if len(own) > 0 {
			dst = append(append(dst, own...), ',')
		}
	}
	dst = append(dst, `"messages":`...)
	// Messages are scanned once to see what has to change, which in most requests is nothing.
	w := rewriter{raw: in.Messages, traits: v.traits, finish: in.ContinueFinalMessage}
	if dst, err = w.appendMessages(dst); err != nil {
		return nil, malformed(err, "messages")
	}
	// None rather than an empty list: templates ask whether tools are there at all.
	if dst = append(dst, `,"tools":`...); tools == nil {
		dst = append(dst, "null"...)
	} else if dst, err = appendTools(dst, tools, v.traits.fillTools); err != nil {
		return nil, malformed(err, "tools")
	}
	// Documents follow the same rule.
	documents, err := items(in.Documents, "documents")
	if err != nil {
		return nil, err
	}
	if dst = append(dst, `,"documents":`...); documents == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, documents...)
	}
	buf.args = fmt.Appendf(dst, `,"add_generation_prompt":%t}`, in.AddGenerationPrompt)
	return v, nil
}

// items returns a non-empty array, or nil for none. An empty array is none, as for transformers, where templates ask
// whether the list is true.
func items(raw json.RawMessage, param string) ([]byte, error) {
	if len(raw) == 0 || isNull(raw) {
		return nil, nil
	}
	content, err := inner(raw, '[')
	if err != nil {
		return nil, fault.Bad(param, "%s must be an array", param)
	}
	if len(content) == 0 {
		return nil, nil
	}
	return raw, nil
}

// malformed names the field that the walk over raw JSON stumbled in; other errors name theirs already.
func malformed(err error, param string) error {
	if errors.Is(err, errMalformed) {
		return fault.Bad(param, "%s must be an array of objects", param)
	}
	return err
}

// explain turns a failed render into what the client is told. Nearly all failures are a client's to mend, by another
// conversation; only the engine's own are the server's.
func (r *Renderer) explain(err error) error {
	late := fault.Bad("messages", "Rendering this conversation takes longer than %s", r.timeout)
	if errors.Is(err, errAbandoned) {
		return late
	}
	failed, ok := errors.AsType[*native.TemplateError](err)
	// Whatever isn't the template's failure comes from a closed one.
	if !ok {
		return fault.New(fault.Unavailable, "The model is being removed").Because(err)
	}
	switch failed.Failure {
	// The template's author wrote this for whoever reads it: "roles must alternate", say.
	case native.TemplateRaised:
		return fault.Bad("messages", "%s", failed.Message)
	case native.TemplateFailed:
		return fault.Bad("messages", "The model's chat template can't render this conversation: %s", failed.Message)
	case native.TemplateOutOfFuel:
		return fault.Bad("messages", "Rendering this conversation takes more work than the model's chat template may do")
	case native.TemplateOutOfTime:
		return late
	case native.TemplateBadArguments:
		return fault.Bad("messages", "The conversation can't be given to the chat template: %s", failed.Message)
	default:
		r.log.Error("chat template engine failed", "failure", failed.Failure, "reason", failed.Message)
		return fault.New(fault.Internal, "Internal server error").Because(err)
	}
}

// cutAtMark ends the prompt where the final message's content ends. A template that strips content has stripped the
// mark's space too; then the content before it is stripped as well. What a template writes behind the content, such as
// an end of turn, goes too: the model is to write on.
func cutAtMark(text string) (string, error) {
	word := strings.TrimSpace(continueMark)
	// The last one: a client could have written the mark itself, earlier.
	at := strings.LastIndex(text, word)
	if at < 0 {
		return "", fault.Bad("messages", "The model's chat template leaves the final message out: it can't be continued")
	}
	if strings.HasPrefix(text[at:], continueMark) {
		return text[:at], nil
	}
	return strings.TrimRight(text[:at], " \t\r\n\v\f"), nil
}
