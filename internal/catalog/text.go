package catalog

import (
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/portico-llm/portico/api/worker"
)

// text is a loaded Text with its users: the groups that serve it, and every Set made of it for as long as somebody can
// still reach that Set. An adapter's sets share the text of their base model.
type text struct {
	*Text
	model  string // for the log
	groups int    // live groups; used by the follower alone

	sets atomic.Int32 // reachable sets
	free *freed       // where it goes after the last of them
}

// freed collects texts that no Set refers to any more. Cleanups put them here, on a goroutine of the runtime's, and do
// nothing else: closing may take time.
type freed struct {
	mu    sync.Mutex
	texts []*text // guarded by mu
}

// put is called by the runtime's cleanups.
func (f *freed) put(t *text) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.texts = append(f.texts, t)
}

// take empties the collection.
func (f *freed) take() []*text {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.texts
	f.texts = nil
	return out
}

// newSet returns a Set that keeps t, which may be nil, open for as long as it is reachable. Nothing that t reaches may
// refer to the Set: neither would ever go.
func newSet(s Set, t *text) *Set {
	set := &s
	if t == nil {
		return set
	}
	set.Renderer, set.Tokenizer, set.EOS = t.Renderer, t.Tokenizer, t.EOS
	set.Images, set.Pixels = t.Images, t.Pixels
	set.ToolParser, set.ReasoningParser = t.ToolParser, t.ReasoningParser
	// Counted before the cleanup exists, so that the count can't reach zero early.
	t.sets.Add(1)
	runtime.AddCleanup(set, func(t *text) {
		if t.sets.Add(-1) == 0 {
			t.free.put(t)
		}
	}, t)
	return set
}

// close releases the text. A panic there must not take the catalog's other tasks with it.
func (t *text) close(log *slog.Logger) {
	if t.Close == nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			log.Error("model can't be released", "model", t.model, "panic", p)
		}
	}()
	if err := t.Close(); err != nil {
		log.Warn("model can't be released", "model", t.model, "error", err)
	}
}

// sameText reports whether an adapter can use its base model's text as it is: it brings no tokenizer files of its own.
func sameText(base, adapter *worker.Card) bool {
	return adapter.Tokenizer.IsZero() || adapter.Tokenizer.File.Checksum == base.Tokenizer.File.Checksum &&
		adapter.ChatTemplate.File.Checksum == base.ChatTemplate.File.Checksum
}
