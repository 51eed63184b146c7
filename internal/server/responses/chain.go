package responses

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/reply"
)

// Conversation is a request together with what came before it.
type Conversation struct {
	Items []openai.InputItem // all of it, the request's own last
	own   int                // how many are the request's own
	store *Store
	owner string
	prior *link
}

// Join finds what came before req, and what its references mean. Failures are *fault.Error.
func (s *Store) Join(req *openai.ResponsesRequest, owner string, opts openai.DecodeOptions) (*Conversation, error) {
	c := &Conversation{store: s, owner: owner}
	size := int64(0) // of what is said by reference
	if req.PreviousID != nil {
		r, ok := s.get(*req.PreviousID, owner)
		if !ok {
			return nil, fault.Bad("previous_response_id", "Previous response with id '%s' not found",
				shorten(*req.PreviousID)).WithCode("previous_response_not_found")
		}
		c.prior = r.link
		for l := r.link; l != nil; l = l.before {
			size += int64(len(l.input) + len(l.output))
		}
		if size > s.opts.MaxTalk {
			return nil, s.tooLong("previous_response_id")
		}
		var err error
		if c.Items, err = r.link.items(opts); err != nil {
			return nil, err
		}
	}
	refs := references{store: s, owner: owner, opts: opts}
	for i := range req.Items {
		item := req.Items[i]
		if item.Type == openai.ItemReference {
			found, err := refs.item(item.ID)
			if err != nil {
				return nil, err
			}
			// A few bytes can stand for very many, any number of times.
			if size += int64(len(found.Raw)); size > s.opts.MaxTalk {
				return nil, s.tooLong("input")
			}
			item = *found
		}
		c.Items = append(c.Items, item)
		c.own++
	}
	return c, nil
}

// tooLong refuses a request that refers to more than it could hold.
func (s *Store) tooLong(param string) error {
	return fault.Bad(param, "`%s` refers to more than %d bytes of earlier responses", param, s.opts.MaxTalk)
}

// items reads all that was said up to and with l, in order.
func (l *link) items(opts openai.DecodeOptions) ([]openai.InputItem, error) {
	var lists [][]byte
	for ; l != nil; l = l.before {
		lists = append(lists, l.output, l.input)
	}
	slices.Reverse(lists)
	var all []openai.InputItem
	for _, list := range lists {
		items, err := openai.DecodeItems(list, opts)
		if err != nil { // it was read before, or written here
			return nil, fault.New(fault.Internal, "A kept response could not be read").Because(err)
		}
		all = append(all, items...)
	}
	return all, nil
}

// itemID is how long the part of an item's id is that its response's has too.
const itemID = 32

// references finds the items that one request refers to, and reads each response once.
type references struct {
	store *Store
	owner string
	opts  openai.DecodeOptions
	read  map[string]map[string]*openai.InputItem // by the response's id and by the item's
}

// item finds an item of an earlier answer by its id, which holds its response's.
func (f *references) item(id string) (*openai.InputItem, error) {
	unknown := fault.New(fault.NotFound, "Item with id '%s' not found; items are kept only with `store`, and for a while",
		shorten(id))
	unknown.Param = "input"
	_, code, ok := strings.Cut(id, "_")
	if !ok || len(code) <= itemID {
		return nil, unknown
	}
	response := "resp_" + code[:itemID]
	items, known := f.read[response]
	if !known {
		r, ok := f.store.get(response, f.owner)
		if !ok {
			return nil, unknown
		}
		list, err := openai.DecodeItems(r.link.output, f.opts)
		if err != nil {
			return nil, fault.New(fault.Internal, "A kept response could not be read").Because(err)
		}
		items = make(map[string]*openai.InputItem, len(list))
		for i := range list {
			items[list[i].ID] = &list[i]
		}
		if f.read == nil {
			f.read = map[string]map[string]*openai.InputItem{}
		}
		f.read[response] = items
	}
	if item := items[id]; item != nil {
		return item, nil
	}
	return nil, unknown
}

// Keeper returns what keeps the answer to the conversation, of which it makes a copy. It holds no more of the
// conversation than what will be kept: answers take long.
func (c *Conversation) Keeper(id string) func(reply.Kept) {
	input := []byte{'['}
	code := strings.TrimPrefix(id, "resp_")
	own := c.Items[len(c.Items)-c.own:]
	for i := range own {
		if i > 0 {
			input = append(input, ',')
		}
		input = appendItem(input, &own[i], code, i)
	}
	link := &link{before: c.prior, input: append(input, ']')}
	store, owner := c.store, c.owner
	return func(w reply.Kept) {
		link.output = bytes.Clone(w.Output)
		store.put(id, owner, reply.Kept{Body: bytes.Clone(w.Body), Cuts: bytes.Clone(w.Cuts)}, link)
	}
}

// appendItem appends an item as it is listed: with its type, an id, and a message's text as a part.
func appendItem(b []byte, m *openai.InputItem, code string, index int) []byte {
	id := m.ID
	if id == "" {
		prefix := map[string]string{openai.ItemMessage: "msg_", openai.ItemCall: "fc_", openai.ItemReasoning: "rs_"}[m.Type]
		if prefix == "" {
			prefix = "item_"
		}
		// Apart from those of the answer's items, which have a number there.
		id = prefix + code + "in" + strconv.Itoa(index)
	}
	if m.Type == openai.ItemMessage && m.Plain {
		part := "input_text"
		if m.Role == openai.RoleAssistant {
			part = "output_text"
		}
		b = appendString(append(b, `{"id":`...), id)
		b = appendString(append(b, `,"type":"message","status":"completed","role":`...), string(m.Role))
		b = appendString(append(b, `,"content":[{"type":`...), part)
		b = appendString(append(b, `,"text":`...), m.Parts[0].Text)
		return append(b, "}]}"...)
	}
	b = appendString(append(b, `{"id":`...), id)
	b = appendString(append(b, `,"type":`...), m.Type)
	return append(appendOthers(b, m.Raw), '}')
}

// appendOthers appends the members of an object but id and type, each behind a comma.
func appendOthers(b, object []byte) []byte {
	// The object was read before, so that nothing fails here.
	dec := jsontext.NewDecoder(bytes.NewReader(object), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return b
	}
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return b
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return b
		}
		if name != "id" && name != "type" {
			b = append(append(appendString(append(b, ','), name), ':'), value...)
		}
	}
	return b
}

// shorten bounds what a message repeats of an id.
func shorten(id string) string {
	if len(id) > 80 {
		return strings.ToValidUTF8(id[:80], "") + "…"
	}
	return id
}
