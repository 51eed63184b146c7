package catalog

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/api/worker"
)

// Waits between attempts to load a model.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// groupKey names workers that serve one model in one way at one endpoint.
type groupKey struct {
	name     string // display name
	endpoint worker.EndpointID
	kind     string // worker type
	adapter  bool   // an adapter, not a base model
}

// compareKeys orders groups by name first: neighbours in the order belong to one model.
func compareKeys(a, b groupKey) int {
	return cmp.Or(
		cmp.Compare(a.name, b.name),
		cmp.Compare(a.endpoint.Namespace, b.endpoint.Namespace),
		cmp.Compare(a.endpoint.Component, b.endpoint.Component),
		cmp.Compare(a.endpoint.Name, b.endpoint.Name),
		cmp.Compare(a.kind, b.kind),
		cmp.Compare(flag(a.adapter), flag(b.adapter)),
	)
}

// flag is 1 for true.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// identity is what the cards of one group have in common. A different identity waits until the group has drained.
type identity struct {
	sum       string // mdcsum
	modelType string // normalised; it and the next are not part of the sum, yet decide how a request is made
	input     string // model_input
	adapter   string // LoRA name; empty for base models
}

// identify returns a card's identity; sum is its mdcsum, which is costly to compute.
func identify(c *worker.Card, sum string) identity {
	id := identity{sum: sum, modelType: strings.Join(offers(c), ","), input: c.ModelInput}
	if c.LoRA != nil {
		id.adapter = c.LoRA.Name
	}
	return id
}

// group is a set in the making, then being served, then retired: workers that share name, endpoint, type and card. The
// follower alone uses it. When the card changes a new group takes its place.
type group struct {
	key     groupKey     // in follower.groups
	id      identity     // of card, and of every member
	card    *worker.Card // of the first member there ever was
	members []*record    // that have this card, in the order of their keys
	waiting int          // records under the same key with another card
	legacy  bool         // some member declares no worker type

	live    int                                  // members whose instance is there
	workers *atomic.Pointer[map[uint64]struct{}] // ids of the live ones; shared with the Set
	prefill *atomic.Pointer[Prefill]             // who reads prompts for it; shared with the Set

	set  *Set  // nil until it can be served
	text *text // nil when the set needs none, or it isn't loaded

	phase   phase              // of its text
	cancel  context.CancelFunc // of the load under way
	attempt int                // failed loads in a row
	retryAt time.Time          // only when failed
	fresh   *record            // a member that came after a load had begun, to be asked first; nil: none
	gone    bool               // retired: results of its load are thrown away
}

// phase is how far a group's text has come.
type phase uint8

const (
	idle    phase = iota // waits for its base model, or needs no text
	queued               // waits for a loader
	loading              // a loader is at work
	failed               // waits for retryAt
	loaded               // has its set
)

// newGroup returns an idle group without members.
func newGroup(key groupKey, first *record) *group {
	g := &group{
		key: key, id: first.id, card: &first.rec.Card,
		workers: new(atomic.Pointer[map[uint64]struct{}]), prefill: new(atomic.Pointer[Prefill]),
	}
	g.workers.Store(&map[uint64]struct{}{})
	return g
}

// backoff returns the wait before the next attempt, after n failures.
func backoff(n int) time.Duration {
	d := minRetry
	for ; n > 1 && d < maxRetry; n-- {
		d *= 2
	}
	return min(d, maxRetry)
}

// source returns the record to load from. Workers on different machines name the same files by different paths, so that
// each attempt asks the next one, but first a member that came meanwhile: it may well be the one that mends things.
func (g *group) source() *worker.ModelRecord {
	r := g.fresh
	g.fresh = nil
	if r != nil && slices.Contains(g.members, r) {
		return r.rec
	}
	return g.members[g.attempt%len(g.members)].rec
}

// greet looks for a member that was not among before. While the group fails to load, it ends the wait.
func (g *group) greet(before []*record) {
	// What has not begun asks the first member, and what is loaded asks nobody.
	if g.phase != failed && g.phase != loading && (g.phase != queued || g.attempt == 0) {
		return
	}
	known := make(map[*record]struct{}, len(before))
	for _, r := range before {
		known[r] = struct{}{}
	}
	for _, r := range g.members {
		if _, ok := known[r]; ok {
			continue
		}
		g.fresh = r
		if g.phase == failed {
			g.retryAt = time.Now()
		}
		return
	}
}

// makeSet makes the group servable with t, which is nil for workers that take text.
func (g *group) makeSet(t *text) {
	g.set = newSet(Set{
		Endpoint: g.key.endpoint, Card: g.card, MDCSum: g.id.sum, LoRA: g.id.adapter, workers: g.workers,
		prefill: g.prefill,
	}, t)
	g.text, g.phase = t, loaded
	if t != nil {
		t.groups++
	}
}
