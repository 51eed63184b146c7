package catalog

import (
	"cmp"
	"slices"

	"github.com/portico-llm/portico/api/worker"
)

// table is what readers see. It is immutable.
type table struct {
	models map[string]*entry // by name and alias
	list   []ModelInfo       // ordered by id
	facts  []fact            // ordered by name
	ready  bool
}

// entry is one name that clients may use.
type entry struct {
	text  choices // sets that offer chat or completions
	other choices // sets that offer something else only

	by map[string]choices // sets by what they offer; surfaces none of whose sets is ready have an empty entry

	listed bool // some workers of it answer clients
}

// ready reports whether a Lookup of the name finds a set.
func (e *entry) ready() bool { return len(e.text.sets)+len(e.other.sets) > 0 }

// choices are servable sets with their running totals of weight.
type choices struct {
	sets []*Set // each with at least one live worker
	upTo []int  // weight of the set and of all before it
}

// add appends a set with its number of live workers.
func (c *choices) add(s *Set, weight int) {
	total := weight
	if n := len(c.upTo); n > 0 {
		total += c.upTo[n-1]
	}
	c.sets, c.upTo = append(c.sets, s), append(c.upTo, total)
}

// fact is what the metrics say of one model.
type fact struct {
	name    string // display name
	card    *worker.Card
	ready   bool
	waiting int // workers with another card, over all its groups
}

// publish builds the table anew from the groups.
func (f *follower) publish() {
	groups := f.ordered()
	usable := usable(groups)
	// Always from nothing: a table is small, and what is rebuilt can't go stale.
	t := &table{models: map[string]*entry{}}
	owner := names(groups)
	facts := map[string]int{} // display name → index in t.facts
	for _, g := range groups {
		t.tell(facts, g)
		for _, name := range answersTo(g.card) {
			if owner[name] != g.key.name {
				continue
			}
			if t.admit(name, g, usable[g]) {
				t.list = append(t.list, f.describe(name, g, groups))
			}
		}
	}
	for i := range t.facts {
		t.facts[i].ready = t.models[t.facts[i].name].ready()
		t.ready = t.ready || t.facts[i].ready
	}
	for i := range t.list {
		t.list[i].Ready = t.models[t.list[i].ID].ready()
	}
	slices.SortFunc(t.list, func(a, b ModelInfo) int { return cmp.Compare(a.ID, b.ID) })
	f.retired.Store(int64(f.orphans))
	f.table.Store(t)
}

// answersTo returns the card's names, each once: an alias may repeat the name.
func answersTo(c *worker.Card) []string {
	out := []string{c.DisplayName}
	for _, alias := range c.Aliases {
		if alias != "" && !slices.Contains(out, alias) {
			out = append(out, alias)
		}
	}
	return out
}

// names says which model each name belongs to. A model's own name goes before another's alias, and of two models with
// one alias the first by name has it.
func names(groups []*group) map[string]string {
	owner := map[string]string{}
	for _, g := range groups {
		owner[g.key.name] = g.key.name
	}
	for _, g := range groups {
		for _, alias := range answersTo(g.card) {
			if _, taken := owner[alias]; !taken {
				owner[alias] = g.key.name
			}
		}
	}
	return owner
}

// admit adds the group under the name, and reports whether the name is to be listed because of it.
func (t *table) admit(name string, g *group, usable bool) (list bool) {
	e := t.models[name]
	if e == nil {
		e = &entry{by: map[string]choices{}}
		t.models[name] = e
	}
	if !serves(g.key.kind) {
		return false
	}
	list, e.listed = !e.listed, true
	e.offer(g, usable)
	switch {
	case !usable:
	case g.card.Has("Chat") || g.card.Has("Completions"):
		e.text.add(g.set, g.live)
	default:
		e.other.add(g.set, g.live)
	}
	return list
}

// offer adds the group under each of its surfaces.
func (e *entry) offer(g *group, usable bool) {
	for _, s := range surfaces {
		if !g.card.Has(s.flag) {
			continue
		}
		c := e.by[s.flag]
		if usable {
			c.add(g.set, g.live)
		}
		e.by[s.flag] = c
	}
}

// describe returns a name's line in the list; whether it is ready is known once all groups have been admitted.
func (f *follower) describe(name string, g *group, groups []*group) ModelInfo {
	m := ModelInfo{
		ID: name, Created: f.created[g.key.name], Root: g.key.name, Endpoints: offers(g.card),
		ContextWindow: cmp.Or(f.opts.ContextWindow, g.card.EffectiveContextLength()), MaxOutput: f.opts.MaxOutput,
	}
	if g.key.adapter {
		// Without a base model at hand the card's own word has to do.
		m.Parent = g.card.SourcePath
		if base := base(g, groups); base != nil {
			m.Parent = base.key.name
		}
	}
	return m
}

// tell adds the group to what the metrics say; the first serving group of a name speaks for it.
func (t *table) tell(facts map[string]int, g *group) {
	if !serves(g.key.kind) {
		return
	}
	i, ok := facts[g.key.name]
	if !ok {
		i = len(t.facts)
		facts[g.key.name] = i
		t.facts = append(t.facts, fact{name: g.key.name, card: g.card})
	}
	t.facts[i].waiting += g.waiting
}

// usable returns the groups that requests may be sent to: ready to serve, with a worker, in a namespace that is complete
// for the model. Decode groups learn on the way who reads prompts for them.
func usable(groups []*group) map[*group]bool {
	type place struct{ name, namespace string }
	together := map[place][]*group{}
	for _, g := range groups {
		p := place{g.key.name, g.key.endpoint.Namespace}
		together[p] = append(together[p], g)
	}
	out := map[*group]bool{}
	for _, list := range together {
		assist(list)
		if !complete(list) {
			continue
		}
		for _, g := range list {
			out[g] = g.live > 0 && g.set != nil && serves(g.key.kind)
		}
	}
	return out
}

// complete reports whether a namespace's workers for a model can serve it together: every worker type there has a live
// worker, nobody lacks a peer it needs, and no two live groups claim the same special role. Workers of a version that
// declares no type can't tell; one of them makes a single live worker enough.
func complete(groups []*group) bool {
	live := map[string]int{} // worker type → groups with a live worker
	legacy, all := false, true
	for _, g := range groups {
		legacy = legacy || g.legacy
		if g.live > 0 {
			live[g.key.kind]++
		}
	}
	if legacy {
		return len(live) > 0
	}
	for _, g := range groups {
		all = all && live[g.key.kind] > 0
		if g.live > 0 && !satisfied(g.card.Needs, live) {
			return false
		}
	}
	for kind, n := range live {
		if kind != aggregated && n > 1 {
			return false
		}
	}
	return all
}

// satisfied reports whether one of the alternatives has all its worker types; none asked for is satisfied.
func satisfied(alternatives [][]string, live map[string]int) bool {
	if len(alternatives) == 0 {
		return true
	}
	for _, types := range alternatives {
		if !slices.ContainsFunc(types, func(kind string) bool { return live[kind] == 0 }) {
			return true
		}
	}
	return false
}
