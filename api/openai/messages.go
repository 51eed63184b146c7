package openai

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// readMessages walks the conversation: its text stays as it is for the template, its shape is checked, and what the
// server needs to know of it is noted.
func readMessages(r *reader, req *ChatRequest) (err error) {
	conv := &req.Conversation
	// Media of all messages go to one list, in the order in which the prompt has its placeholders.
	req.Messages, err = rawArray(r, "an array of messages", func(i int) error {
		m := message{index: i, media: conv.Media}
		if err := m.read(r); err != nil {
			return err
		}
		conv.Messages, conv.LastRole, conv.Media = i+1, m.role, m.media
		return nil
	})
	return err
}

// message is one message while it is read.
type message struct {
	index   int           // in the conversation
	role    Role          // empty until read
	content jsontext.Kind // of the content; 0: absent or null
	media   []Media       // of the conversation so far
	seen    uint32        // known fields already read, by bit
}

// The fields of a message that are looked at; all others are the template's business.
const (
	seenRole uint32 = 1 << iota
	seenContent
	seenToolCalls
	seenTexts // the first of messageTexts
)

// messageTexts are the fields that only have to be strings.
var messageTexts = [...]string{"name", "tool_call_id", "refusal", "reasoning_content", "reasoning"}

// read reads one message of the conversation.
func (m *message) read(r *reader) error {
	if err := r.begin('{', "a message object"); err != nil {
		return err
	}
	for r.more('}') {
		name, err := r.name()
		if err != nil {
			return err
		}
		if err := m.field(r, name); err != nil {
			return err
		}
	}
	if err := r.end(); err != nil {
		return err
	}
	return m.check(r)
}

// field reads the value of one field. Those not looked at are skipped; templates see them all the same.
func (m *message) field(r *reader, name []byte) error {
	switch string(name) {
	case "role":
		return m.once(r, "role", seenRole, m.readRole)
	case "content":
		return m.once(r, "content", seenContent, m.readContent)
	case "tool_calls":
		return m.once(r, "tool_calls", seenToolCalls, m.readToolCalls)
	}
	for i, known := range messageTexts {
		if string(name) == known {
			return m.once(r, known, seenTexts<<i, readAnyText)
		}
	}
	return r.dec.SkipValue()
}

// once reads a field of the message, which may be null and may not come twice: template and worker could each take
// another one.
func (m *message) once(r *reader, name string, bit uint32, read func(*reader) error) error {
	r.enter(name)
	if m.seen&bit != 0 {
		return r.bad("given only once")
	}
	// Null counts as given, so that a second one is still told apart from a first.
	m.seen |= bit
	if null, err := r.null(); err != nil {
		return err
	} else if !null {
		if err := read(r); err != nil {
			return err
		}
	}
	r.leave()
	return nil
}

// readAnyText checks that a value is a string; the template reads it.
func readAnyText(r *reader) error {
	_, err := r.quoted("a string")
	return err
}

// roles names the roles for failures.
const roles = `"developer", "system", "user", "assistant", "tool" or "function"`

// readRole reads who the message is from.
func (m *message) readRole(r *reader) error {
	v, err := r.quoted(roles)
	if err != nil {
		return err
	}
	switch string(v) { // the usual spellings need no memory
	case `"user"`:
		m.role = RoleUser
	case `"assistant"`:
		m.role = RoleAssistant
	case `"system"`:
		m.role = RoleSystem
	default:
		s, err := unquote(v)
		if err != nil {
			return err
		}
		switch m.role = Role(s); m.role {
		case RoleDeveloper, RoleSystem, RoleUser, RoleAssistant, RoleTool, RoleFunction:
		default:
			return r.oneOf(s, roles)
		}
	}
	return nil
}

// readContent checks a text or a list of parts and notes the parts that aren't text.
func (m *message) readContent(r *reader) error {
	m.content = r.dec.PeekKind()
	if m.content == '"' {
		return r.dec.SkipValue()
	}
	return readArray(r, "a string or an array of content parts", func(i int) error {
		p := part{}
		if err := p.read(r); err != nil {
			return err
		}
		// Text and refusals stay where they are, in the conversation's own bytes.
		if p.kind != "text" && p.kind != "refusal" {
			m.media = append(m.media, Media{Message: m.index, Part: i, Kind: p.kind, URL: p.url})
		}
		return nil
	})
}

// readToolCalls checks the calls of an assistant's turn.
func (m *message) readToolCalls(r *reader) error {
	return readArray(r, "an array of tool calls", func(int) error { return readToolCall(r) })
}

// readToolCall checks a call of the history. Its arguments are a JSON object in a string, or nothing at all; some
// clients send the object itself.
func readToolCall(r *reader) error {
	if err := r.begin('{', "a tool call object"); err != nil {
		return err
	}
	for r.more('}') {
		name, err := r.name()
		if err != nil {
			return err
		}
		read, known := toolCallFields[string(name)]
		if !known || r.dec.PeekKind() == 'n' {
			if err := r.dec.SkipValue(); err != nil {
				return err
			}
			continue
		}
		r.enter(string(name))
		if err := read(r); err != nil {
			return err
		}
		r.leave()
	}
	return r.end()
}

// toolCallFields are the fields of a call that are looked at. Which id and type it has matters to nobody before the
// template.
var toolCallFields = map[string]func(*reader) error{
	"id": readAnyText, "type": readAnyText, "function": readCalledFunction,
}

// readCalledFunction checks the name and the arguments of a call.
func readCalledFunction(r *reader) error {
	if err := r.begin('{', "an object"); err != nil {
		return err
	}
	for r.more('}') {
		name, err := r.name()
		if err != nil {
			return err
		}
		// Null passes for either field: clients that stream calls together leave it behind.
		read := skipValue
		if r.dec.PeekKind() != 'n' {
			switch string(name) {
			case "arguments":
				read = readArguments
			case "name":
				read = readAnyText
			}
		}
		r.enter(string(name))
		if err := read(r); err != nil {
			return err
		}
		r.leave()
	}
	return r.end()
}

// skipValue passes over a value of any kind.
func skipValue(r *reader) error { return r.dec.SkipValue() }

// readArguments checks the arguments of a call. A broken object is refused here because many templates take it apart,
// and their failure names no field.
func readArguments(r *reader) error {
	const allowed = "a JSON object in a string"
	// An object was read whole and so is valid; two bytes are an empty string, a call without arguments.
	v, err := r.rawOf(allowed, '"', '{')
	if err != nil || v[0] == '{' || len(v) == 2 {
		return err
	}
	inner, err := jsontext.AppendUnquote(nil, v)
	if err != nil {
		return err
	}
	// Models write blanks around what they generate, and histories repeat it.
	inner = bytes.TrimSpace(inner)
	if len(inner) == 0 {
		return nil
	}
	if inner[0] != '{' || !jsontext.Value(inner).IsValid(lenientNames) {
		return r.bad(allowed)
	}
	return nil
}

// check looks at what only the whole message tells.
func (m *message) check(r *reader) error {
	switch {
	case m.role == "":
		r.enter("role")
		return r.bad(roles)
	case m.content != 0:
		return nil
	case m.role == RoleAssistant, m.role == RoleFunction:
		return nil // a turn of calls only, or of nothing, is part of many histories
	}
	r.enter("content")
	return r.bad("a string or an array of content parts")
}

// part is one content part while it is read.
type part struct {
	kind string // text, image_url and so on; empty until read
	url  string // of media: where it is, or a data URL
	seen uint32 // fields already read, by partBit
}

// partKinds names the kinds of content part for failures.
const partKinds = `"text", "image_url", "video_url", "audio_url", "input_audio", "file" or "refusal"`

// read reads one part: its type and what that type promises may come in any order.
func (p *part) read(r *reader) error {
	if err := r.begin('{', "a content part object"); err != nil {
		return err
	}
	for r.more('}') {
		name, err := r.name()
		if err != nil {
			return err
		}
		if err := p.field(r, name); err != nil {
			return err
		}
	}
	if err := r.end(); err != nil {
		return err
	}
	if p.kind == "" {
		r.enter("type")
		return r.bad(partKinds)
	}
	// The payload has the name of the type.
	if p.seen&partBit(p.kind) != 0 {
		return nil
	}
	r.enter(p.kind)
	if p.kind == "text" || p.kind == "refusal" {
		return r.bad("a string")
	}
	return r.bad("an object")
}

// field reads one field of a part; null payloads count as absent, as clients with fixed structs send them.
func (p *part) field(r *reader, name []byte) error {
	known := partField(name)
	if known == "" || r.dec.PeekKind() == 'n' {
		return r.dec.SkipValue()
	}
	r.enter(known)
	if p.seen&partBit(known) != 0 {
		return r.bad("given only once")
	}
	p.seen |= partBit(known)
	var err error
	switch known {
	case "type":
		err = p.readKind(r)
	case "text", "refusal":
		err = readAnyText(r)
	case "input_audio":
		p.url, err = readInputAudio(r)
	// No worker takes files; what is inside is looked at by nobody.
	case "file":
		_, err = r.rawOf("an object", '{')
	default:
		p.url, err = readMediaURL(r)
	}
	if err == nil {
		r.leave()
	}
	return err
}

// partFields are the fields of a content part that are looked at: its type, and one for each kind.
var partFields = [...]string{"type", "text", "refusal", "image_url", "video_url", "audio_url", "input_audio", "file"}

// partField returns name as a constant when it is a field that is looked at.
func partField(name []byte) string {
	for _, f := range partFields {
		if string(name) == f {
			return f
		}
	}
	return ""
}

// partBit is the bit of a field in part.seen.
func partBit(name string) uint32 {
	for i, f := range partFields {
		if name == f {
			return 1 << i
		}
	}
	return 0
}

// readKind reads the type.
func (p *part) readKind(r *reader) error {
	v, err := r.quoted(partKinds)
	if err != nil {
		return err
	}
	s, err := unquote(v)
	if err != nil {
		return err
	}
	// Every kind is also the name of its payload; type is a field, but no kind.
	if p.kind = partField([]byte(s)); p.kind == "" || p.kind == "type" {
		return r.oneOf(s, partKinds)
	}
	return nil
}

// readMediaURL reads {"url":…} of an image, video or audio part. Many clients write the URL in its place.
func readMediaURL(r *reader) (string, error) {
	if r.dec.PeekKind() == '"' {
		url, err := r.text("a URL")
		if err == nil && url == "" {
			err = r.bad("a URL")
		}
		return url, err
	}
	// What else the object holds is passed over: workers are told the URL alone.
	fields := map[string]string{"url": "", "detail": ""}
	if err := readTexts(r, fields); err != nil {
		return "", err
	}
	if fields["url"] == "" {
		r.enter("url")
		return "", r.bad("a URL")
	}
	return fields["url"], nil
}

// readInputAudio reads {"data":…,"format":…} and returns it as a data URL.
func readInputAudio(r *reader) (string, error) {
	fields := map[string]string{"data": "", "format": ""}
	if err := readTexts(r, fields); err != nil {
		return "", err
	}
	for _, name := range []string{"data", "format"} {
		if fields[name] == "" {
			r.enter(name)
			return "", r.bad("a string that isn't empty")
		}
	}
	// RFC 2397. One form for all media from here on: a worker is told a URL.
	return "data:audio/" + fields["format"] + ";base64," + fields["data"], nil
}

// readTexts reads an object and keeps the string fields asked for.
func readTexts(r *reader, fields map[string]string) error {
	if err := r.begin('{', "an object"); err != nil {
		return err
	}
	for r.more('}') {
		raw, err := r.name()
		if err != nil {
			return err
		}
		name := string(raw)
		if _, ok := fields[name]; !ok || r.dec.PeekKind() == 'n' {
			if err := r.dec.SkipValue(); err != nil {
				return err
			}
			continue
		}
		r.enter(name)
		if fields[name], err = r.text("a string"); err != nil {
			return err
		}
		r.leave()
	}
	return r.end()
}
