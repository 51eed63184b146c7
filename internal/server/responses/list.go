package responses

import (
	"slices"
	"strconv"

	"github.com/portico-llm/portico/api/openai"
)

// Page says which part of a list a client wants.
type Page struct {
	Limit int    // 1 to 100
	After string // id of the item ahead of the first; empty: from the start
	Asc   bool   // in the order of the conversation; otherwise the newest first
}

// InputItems returns one page of what a response was an answer to, as OpenAI's list object.
func (s *Store) InputItems(id, owner string, page Page, opts openai.DecodeOptions) (list []byte, ok bool, err error) {
	r, ok := s.get(id, owner)
	if !ok {
		return nil, false, nil
	}
	items, err := r.link.before.items(opts)
	if err != nil {
		return nil, true, err
	}
	own, err := openai.DecodeItems(r.link.input, opts)
	if err != nil {
		return nil, true, err
	}
	items = append(items, own...)
	if !page.Asc {
		slices.Reverse(items)
	}
	if page.After != "" {
		at := slices.IndexFunc(items, func(m openai.InputItem) bool { return m.ID == page.After })
		items = items[at+1:] // an id that isn't there begins at the start
	}
	more := len(items) > page.Limit
	items = items[:min(len(items), page.Limit)]
	b := []byte(`{"object":"list","data":[`)
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, items[i].Raw...)
	}
	b = append(b, `],"first_id":`...)
	if len(items) == 0 {
		b = append(b, `null,"last_id":null`...)
	} else {
		b = appendString(b, items[0].ID)
		b = appendString(append(b, `,"last_id":`...), items[len(items)-1].ID)
	}
	b = strconv.AppendBool(append(b, `,"has_more":`...), more)
	return append(b, '}'), true, nil
}
