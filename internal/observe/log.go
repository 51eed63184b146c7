package observe

import (
	"context"
	"io"
	"log/slog"

	"go.opentelemetry.io/otel/trace"
)

// Target is the attribute that names the part of the program a logger belongs to. Levels can be set per target:
//
//	log.With(observe.Target, "router")
const Target = "target"

// LogOptions says what is logged and how. The zero value logs from Info on, as text.
type LogOptions struct {
	Level   slog.Level            // the lowest that is logged
	Targets map[string]slog.Level // levels of loggers with a Target
	JSON    bool                  // one JSON object a line, with Dynamo's key names
}

// NewLogger returns a logger that writes to w. Lines are written one at a time, each with one call of w.Write. The maps
// in opts must not change any more.
func NewLogger(w io.Writer, opts LogOptions) *slog.Logger {
	lowest := opts.Level
	for _, level := range opts.Targets {
		lowest = min(lowest, level)
	}
	// The inner handler lets through what any target wants; ours, in front of it, knows which target is speaking.
	handlerOpts := &slog.HandlerOptions{Level: lowest, ReplaceAttr: rename(opts.JSON)}
	var inner slog.Handler = slog.NewTextHandler(w, handlerOpts)
	if opts.JSON {
		inner = slog.NewJSONHandler(w, handlerOpts)
	}
	return slog.New(&handler{inner: inner, level: opts.Level, targets: opts.Targets})
}

// rename gives the level below debug its name, and in JSON the message the key it has in Dynamo's log.
func rename(json bool) func([]string, slog.Attr) slog.Attr {
	return func(groups []string, a slog.Attr) slog.Attr {
		switch {
		// Inside a group these keys are somebody's own attributes.
		case len(groups) > 0:
		case a.Key == slog.LevelKey:
			if level, ok := a.Value.Any().(slog.Level); ok && level < slog.LevelDebug {
				a.Value = slog.StringValue("TRACE")
			}
		case json && a.Key == slog.MessageKey:
			a.Key = "message"
		}
		return a
	}
}

// handler filters by target and adds the ids of the trace a line belongs to.
type handler struct {
	inner   slog.Handler          // formats and writes
	level   slog.Level            // of this logger's target, or the default
	targets map[string]slog.Level // by name; only read
	grouped bool                  // attributes from here on are inside a group: none of them is the target
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		r.AddAttrs(slog.String("trace_id", span.TraceID().String()), slog.String("span_id", span.SpanID().String()))
	}
	return h.inner.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	next := *h
	next.inner = h.inner.WithAttrs(attrs)
	if !h.grouped {
		for _, a := range attrs {
			if level, ok := h.targets[a.Value.String()]; ok && a.Key == Target {
				next.level = level
			}
		}
	}
	return &next
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	next := *h
	next.inner = h.inner.WithGroup(name)
	next.grouped = h.grouped || name != ""
	return &next
}
