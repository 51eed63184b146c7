package openai

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Forward returns the request as workers of the task take it: the fields the server knows as they were sent, nulls left
// out, and what workers expect to find filled in. Fields nobody here knows reach the workers that make media, in
// extra_args.media_passthrough, and no others.
func (r *TaskRequest) Forward() json.RawMessage {
	if r.task == TaskScore {
		return r.forwardScore()
	}
	fields := &taskTables[r.task]
	out, extra := []byte{'{'}, []byte(nil)
	var given []string
	// The body has been decoded once, so none of the failures below can happen; they end in an empty request rather than
	// in a wrong one.
	dec := jsontext.NewDecoder(bytes.NewBuffer(r.body), lenientNames)
	if _, err := dec.ReadToken(); err != nil {
		return nil
	}
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return nil
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return nil
		}
		// Of a name that nobody knows the first value counts: workers would refuse a second one.
		if value.Kind() == 'n' || slices.Contains(given, name) {
			continue
		}
		switch {
		case name == "nvext": // written by complete
		case fields.table.byName[name] != nil:
			out, given = appendMember(out, name, value), append(given, name)
		case fields.nested && len(given) < maxPassed:
			extra, given = appendMember(extra, name, value), append(given, name)
		}
	}
	return r.complete(out, extra, given)
}

// maxPassed bounds the members of a request for a worker that makes media: those nobody knows are looked up one by one.
const maxPassed = 256

// complete adds what stands beside the client's own members, and closes the object.
func (r *TaskRequest) complete(out, extra []byte, given []string) json.RawMessage {
	for _, d := range taskTables[r.task].defaults {
		if !slices.Contains(given, d.name) {
			out = appendMember(out, d.name, []byte(d.value))
		}
	}
	if ext := r.mediaExt(); len(ext) > 0 {
		out = appendMember(out, "nvext", ext)
	}
	if extra != nil {
		nested := append(append([]byte(`{"media_passthrough":{`), extra...), "}}"...)
		out = appendMember(out, "extra_args", nested)
	}
	return append(out, '}')
}

// chunks is the member by which a speech worker learns that the sound may come in pieces.
const chunks = `"frontend_accepts_audio_chunks":true`

// mediaExt is nvext as the worker gets it. A speech worker sends its sound in pieces only to those who say that they put
// pieces together, and in JSON it comes whole.
func (r *TaskRequest) mediaExt() []byte {
	if r.task != TaskSpeech || r.DataSource != nil || bytes.Contains(r.MediaExt, []byte(chunks[:31])) {
		return r.MediaExt
	}
	inner := bytes.TrimSpace(r.MediaExt)
	if len(inner) < 2 || len(bytes.TrimSpace(inner[1:len(inner)-1])) == 0 {
		return []byte("{" + chunks + "}")
	}
	return append(append(append([]byte{}, inner[:len(inner)-1]...), ","+chunks...), '}')
}

// ScoreParts splits a score request where the text that others are compared with changes: workers compare many texts
// with one. A request with one is its only part.
func (r *TaskRequest) ScoreParts() []*TaskRequest {
	if len(r.Text1) <= 1 {
		return []*TaskRequest{r}
	}
	var parts []*TaskRequest
	for i := range r.Text1 {
		if i > 0 && r.Text1[i] == r.Text1[i-1] {
			last := parts[len(parts)-1]
			last.Text2 = last.Text2[:len(last.Text2)+1]
			continue
		}
		part := *r
		part.Text1, part.Text2 = r.Text1[i:i+1], r.Text2[i:i+1]
		parts = append(parts, &part)
	}
	return parts
}

// forwardScore writes a score request as a rerank request. Workers then return a score for every text.
func (r *TaskRequest) forwardScore() json.RawMessage {
	var query string
	if len(r.Text1) > 0 {
		query = r.Text1[0]
	}
	out := appendString([]byte(`{"model":`), r.Model)
	out = appendString(append(out, `,"query":`...), query)
	out = append(out, `,"documents":[`...)
	for i, text := range r.Text2 {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendString(out, text)
	}
	return append(out, `],"return_documents":false}`...)
}

// appendMember appends one member of an object, with a comma where it isn't the first.
func appendMember(dst []byte, name string, value []byte) []byte {
	if n := len(dst); n > 0 && dst[n-1] != '{' {
		dst = append(dst, ',')
	}
	return append(append(appendString(dst, name), ':'), value...)
}
