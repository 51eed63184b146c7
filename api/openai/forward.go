package openai

import (
	"bytes"
	"cmp"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// Forward returns the request for a worker that takes the client's format itself: the fields the server knows, as they
// were sent, nulls and unknown ones left out. The worker always streams, and counts tokens when the client isn't
// streaming, because a whole answer always has its usage.
func (r *ChatRequest) Forward() json.RawMessage { return forward(&r.Common, chatTable) }

// Forward is the same for a completion request.
func (r *CompletionRequest) Forward() json.RawMessage { return forward(&r.Common, completionTable) }

// forward copies the request member by member, as text: values keep their spelling, numbers their digits.
func forward[T any](c *Common, fields *table[T]) json.RawMessage {
	out := append(make([]byte, 0, len(c.body)+64), `{"stream":true`...)
	if !c.Streaming() {
		out = append(out, `,"stream_options":{"include_usage":true}`...)
	}
	// The body has been decoded once, so none of the errors below can happen; they end in an empty request rather than
	// in a wrong one.
	dec := jsontext.NewDecoder(bytes.NewBuffer(c.body), lenientNames)
	if _, err := dec.ReadToken(); err != nil {
		return nil
	}
	// Every member goes over at most once, since duplicates of known fields don't pass decoding.
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil
		}
		f := fields.byName[name.String()]
		value, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		// Null means absent here, but not to every engine; stream and stream_options are written above.
		if f == nil || value.Kind() == 'n' || f.name == "stream" || (f.name == "stream_options" && !c.Streaming()) {
			continue
		}
		if f.name == "nvext" && c.saltOnly {
			value = saltObject(c.NvExt)
		}
		// An alias goes under the name that workers know.
		out = append(append(append(out, `,"`...), cmp.Or(f.of, f.name)...), `":`...)
		out = append(out, value...)
	}
	return append(out, '}')
}

// saltObject is all that is left of nvext when its other fields are ignored.
func saltObject(x *NvExt) []byte {
	if x == nil || x.CacheSalt == nil {
		return []byte("{}")
	}
	return append(appendString([]byte(`{"cache_salt":`), *x.CacheSalt), '}')
}
