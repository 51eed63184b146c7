package tokenizer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/portico-llm/portico/internal/native"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/detok"
	"github.com/portico-llm/portico/internal/prepost/executor"
)

// Options of Load. One of JSON and Tiktoken, and Registry, are required.
type Options struct {
	JSON     []byte // a tokenizer.json; not kept
	Tiktoken string // path of a tiktoken model, with its tokenizer_config.json in the same folder
	Pattern  string // split pattern of Tiktoken; empty: Kimi K2's

	Backend  string // Auto, Tokenizers or FastBPE; empty: Auto
	Name     string // of the model, for the log; may be empty
	Registry *executor.Registry
	Caches   *Caches      // nil: nothing is remembered
	Log      *slog.Logger // nil: slog.Default()
}

// withDefaults fills in what is empty.
func (o Options) withDefaults() Options {
	if o.Backend == "" {
		o.Backend = Auto
	}
	if o.Pattern == "" {
		o.Pattern = kimiPattern
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// validate refuses what can't be loaded, before anything is.
func (o Options) validate() error {
	if o.Registry == nil {
		return errors.New("tokenizer: no registry")
	}
	if (len(o.JSON) == 0) == (o.Tiktoken == "") {
		return errors.New("tokenizer: either a tokenizer.json or a tiktoken model is needed")
	}
	switch o.Backend {
	case Auto, Tokenizers, FastBPE:
		return nil
	}
	return fmt.Errorf("tokenizer: unknown backend %q; there are %s, %s and %s", o.Backend, Auto, Tokenizers, FastBPE)
}

// Load makes a tokenizer. It takes up to a second and, for a while, some hundred megabytes. ctx is looked at between the
// steps, of which the longest takes about half of the time.
func Load(ctx context.Context, o Options) (*Tokenizer, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	defer debug.FreeOSMemory() // what loading leaves, and tokenizers dropped earlier
	if o.Tiktoken != "" {
		return loadTiktoken(o)
	}
	src, err := newSource(ctx, o)
	if err != nil {
		return nil, err
	}
	t, err := build(ctx, o, src)
	if err != nil {
		return nil, errors.Join(err, src.Close())
	}
	return t, nil
}

// build puts a tokenizer around src.
func build(ctx context.Context, o Options, src *source) (*Tokenizer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dec := &decodeCall{reference: src.reference}
	model, err := detok.NewModel(o.JSON, dec.decode)
	if err != nil {
		return nil, err
	}
	if model.Table() && src.fast != nil {
		// Nothing needs the reference any more.
		if err := src.closeReference(); err != nil {
			return nil, err
		}
	}
	t := &Tokenizer{model: model, backend: src.backend()}
	if o.Caches != nil {
		c, err := newCuts(o.JSON)
		if err != nil {
			return nil, err
		}
		if c != nil {
			t.cache = o.Caches.newCache(c, o.Name)
		}
	}
	return bind(o, src, dec, t)
}

// bind registers t, whose executor owns src from then on.
func bind(o Options, src *source, dec *decodeCall, t *Tokenizer) (*Tokenizer, error) {
	exec, bound, err := executor.Bind(o.Registry, t, src)
	if err != nil {
		return nil, err
	}
	if !bound {
		return nil, errors.New("tokenizer: bound twice")
	}
	// dec, which the model calls, gets the handle and not t: it would keep t alive.
	t.exec, dec.handle = exec, exec.Handle()
	return t, nil
}

// decodeCall decodes with the reference, on the caller's goroutine, holding the native memory for as long.
type decodeCall struct {
	reference *native.Tokenizer
	handle    *executor.Handle
	below     prepost.TokenID // ids from here on are skipped; 0: the reference skips them itself
}

// decode is the detokeniser's way to the reference. A closed tokenizer is an error, not a use after free.
func (d *decodeCall) decode(ids []prepost.TokenID, skipSpecial bool) (string, error) {
	if !d.handle.Acquire() {
		return "", executor.ErrClosed
	}
	defer func() { _ = d.handle.Release() }() // freeing a handle doesn't fail
	if d.below > 0 {
		ids = known(ids, d.below)
	}
	return d.reference.Decode(ids, skipSpecial)
}

// known returns ids without those from below on.
func known(ids []prepost.TokenID, below prepost.TokenID) []prepost.TokenID {
	kept := ids[:0:0]
	for _, id := range ids {
		if id < below {
			kept = append(kept, id)
		}
	}
	return kept
}

// newSource loads the backends that o asks for.
func newSource(ctx context.Context, o Options) (*source, error) {
	// Always: it serves what fast doesn't cover, and fast is checked against it. Where fast is in use and a table decodes,
	// build frees it again.
	reference, err := native.NewTokenizer(o.JSON)
	if err != nil {
		return nil, err
	}
	src := &source{reference: reference}
	if o.Backend == Tokenizers {
		return src, nil
	}
	begin := time.Now()
	fast, err := loadFast(ctx, o.JSON, reference)
	if err == nil {
		src.fast = fast
		o.Log.Debug("fast tokenizer agrees with the reference", "model", o.Name, "took", time.Since(begin))
		return src, nil
	}
	// An operator who asks for fast is told; one who leaves the choice to us is served.
	if ctx.Err() != nil || o.Backend == FastBPE {
		return nil, errors.Join(err, src.Close())
	}
	o.Log.Info("fast tokenizer not used", "model", o.Name, "reason", err)
	return src, nil
}

// loadFast loads the fast backend and checks it against the reference.
func loadFast(ctx context.Context, json []byte, reference *native.Tokenizer) (*native.Fast, error) {
	fast, err := native.NewFast(json)
	if err != nil {
		return nil, err
	}
	if err := selfCheck(ctx, json, fast, reference); err != nil {
		return nil, errors.Join(err, fast.Close())
	}
	return fast, nil
}
