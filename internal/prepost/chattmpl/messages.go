package chattmpl

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/portico-llm/portico/internal/fault"
)

// continueMark is put at the end of the message to be continued; the prompt is cut where it comes out. The space tells
// whether the template strips the content.
const continueMark = "PORTICO_CONTINUE_HERE "

// reasoningKeys are the names under which clients and templates keep a message's reasoning. As in transformers, a
// template finds it under any of them.
var reasoningKeys = [...]string{"reasoning_content", "thinking", "reasoning"}

// message is what the rewriter needs to know of one message before it decides.
type message struct {
	place     span                     // the whole object
	role      string                   // without its quotes; empty when absent
	content   span                     // zero when absent
	toolCalls span                     // zero when absent
	function  span                     // function_call, zero when absent
	reasoning [len(reasoningKeys)]span // by key; zero when absent or null
	nulls     bool                     // a member is null, which templates must not see
}

// rewriter appends a conversation to the template's arguments, changing only what the template can't take: most
// messages are copied as the client wrote them.
type rewriter struct {
	raw    []byte  // the array of messages, as the client sent it
	traits *traits // of the template that is used
	finish bool    // mark the end of the last message
}

// appendMessages appends the conversation. What lies between two messages that change is copied in one piece.
func (w *rewriter) appendMessages(dst []byte) ([]byte, error) {
	last := -1
	// The last message is marked, and only a walk over all of them tells which it is.
	if w.finish {
		_ = eachItem(w.raw, span{0, len(w.raw)}, func(n int, _ span) error { last = n; return nil })
		if last < 0 {
			return dst, fault.Bad("messages", "There is no message to continue")
		}
	}
	copied := 0
	err := eachItem(w.raw, span{0, len(w.raw)}, func(n int, item span) error {
		m, err := w.read(item)
		if err != nil {
			return err
		}
		// With nothing to finish last is -1, and no message is it.
		mark := n == last
		if !mark && !w.mustChange(&m) {
			return nil
		}
		dst = append(dst, w.raw[copied:item.from]...)
		copied = item.to
		dst, err = w.appendMessage(dst, n, &m, mark)
		return err
	})
	if err != nil {
		return dst, err
	}
	return append(dst, w.raw[copied:]...), nil
}

// read finds the members of a message that may have to change. Of equal keys the last one counts, as for the template.
func (w *rewriter) read(item span) (message, error) {
	m := message{place: item}
	if !isObject(item.in(w.raw)) {
		return m, errMalformed
	}
	err := eachMember(w.raw, item, func(k, v span) error {
		name := string(w.raw[k.from+1 : k.to-1])
		switch name {
		case "role":
			// Escapes inside stay: no role that is known has one.
			m.role = strings.Trim(string(v.in(w.raw)), `"`)
		case "content":
			m.content = v
		case "tool_calls":
			m.toolCalls = v
		case "function_call":
			m.function = v
		}
		null := isNull(v.in(w.raw))
		m.nulls = m.nulls || null
		for i, key := range reasoningKeys {
			if name == key && !null {
				m.reasoning[i] = v
			}
		}
		return nil
	})
	return m, err
}

// mustChange reports whether the template can't take the message as it is. The answer depends on the message and the
// template's traits alone. A yes that wasn't needed costs a copy.
func (w *rewriter) mustChange(m *message) bool {
	content := m.content.in(w.raw)
	switch {
	// Arrays may hold parts that no template knows; null and reasoning are as transformers shows them.
	case m.nulls, isArray(content), m.hasReasoning():
		return true
	case isString(content) && w.traits.role(m.role).arraysOnly:
		return true
	// Absent is not null: the template would see an undefined variable.
	case len(content) == 0 && w.fills(m):
		return true
	}
	return w.traits.arguments != argumentsAsSent && (len(m.toolCalls.in(w.raw)) > 0 || len(m.function.in(w.raw)) > 0)
}

// hasReasoning reports whether the message has reasoning under any of its names.
func (m *message) hasReasoning() bool {
	return m.reasoning != [len(reasoningKeys)]span{}
}

// fills reports whether a missing content is given as an empty string.
func (w *rewriter) fills(m *message) bool { return w.traits.fillContent && m.role == "assistant" }

// appendMessage writes one message with everything the template needs changed. The members keep their order, and what
// is added comes last. n is the index in the conversation, for failures.
func (w *rewriter) appendMessage(dst []byte, n int, m *message, mark bool) ([]byte, error) {
	dst = append(dst, '{')
	start := len(dst)
	// name is a key with its quotes; the comma goes ahead of all but the first.
	key := func(name []byte) {
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(append(dst, name...), ':')
	}
	marked := false
	err := eachMember(w.raw, m.place, func(k, v span) error {
		value := v.in(w.raw)
		// Places, not names, are compared: of two equal keys only the last is the content.
		isContent := v == m.content
		if isNull(value) {
			return nil // as transformers does, before any template sees the message
		}
		key(k.in(w.raw))
		var err error
		switch {
		// Later cases are about places that aren't the content.
		case isContent:
			dst, err = w.appendContent(dst, n, m, mark)
			marked = mark
		case v == m.toolCalls && isArray(value):
			dst, err = w.appendToolCalls(dst, v)
		case v == m.function && isObject(value):
			dst = w.appendFunction(dst, v)
		default:
			dst = append(dst, value...)
		}
		return err
	})
	if err != nil {
		return dst, err
	}
	if mark && !marked {
		return dst, fault.Bad(fmt.Sprintf("messages[%d].content", n), "The final message has no text to continue")
	}
	// Null members were dropped above, so a null content is missing by now, too.
	if c := m.content.in(w.raw); (len(c) == 0 || isNull(c)) && w.fills(m) {
		key([]byte(`"content"`))
		if w.traits.role(m.role).arraysOnly {
			dst = append(dst, `[{"type":"text","text":""}]`...)
		} else {
			dst = append(dst, `""`...)
		}
	}
	for i, name := range reasoningKeys {
		if m.reasoning[i] == (span{}) && m.hasReasoning() {
			key([]byte(`"` + name + `"`))
			dst = append(dst, m.firstReasoning().in(w.raw)...)
		}
	}
	return append(dst, '}'), nil
}

// firstReasoning returns the reasoning that is shown under the names the client didn't use.
func (m *message) firstReasoning() span {
	for _, s := range m.reasoning {
		if s != (span{}) {
			return s
		}
	}
	return span{}
}

// appendContent writes a message's content in the form the template takes for its role. Text parts may be joined and
// text made into parts; media can't be told in a string, and are refused.
func (w *rewriter) appendContent(dst []byte, n int, m *message, mark bool) ([]byte, error) {
	content, role := m.content.in(w.raw), w.traits.role(m.role)
	switch {
	case isString(content):
		if role.arraysOnly {
			dst = append(dst, `[{"type":"text","text":`...)
		}
		dst = appendMarked(dst, content, mark)
		if role.arraysOnly {
			dst = append(dst, `}]`...)
		}
		return dst, nil
	// The template walks over parts itself.
	case isArray(content) && role.arrays:
		return w.appendParts(dst, n, m.content, mark)
	case isArray(content):
		return w.appendJoined(dst, n, m.content, mark)
	// Null, a number or an object: nothing that could go on.
	case mark:
		return dst, fault.Bad(fmt.Sprintf("messages[%d].content", n), "The final message has no text to continue")
	}
	return append(dst, content...), nil
}

// appendMarked writes a JSON string, with the mark before its closing quote.
func appendMarked(dst, text []byte, mark bool) []byte {
	if !mark {
		return append(dst, text...)
	}
	dst = append(dst, text[:len(text)-1]...)
	return append(append(dst, continueMark...), '"')
}

// part is one part of a content array.
type part struct {
	kind string
	text span // of text parts: a JSON string
}

// readPart reads part j of message n. Strings among the parts are texts; the kinds that begin with input_ and output_
// are those of OpenAI's Responses API.
func (w *rewriter) readPart(n, j int, item span) (part, error) {
	p := part{}
	if isString(item.in(w.raw)) {
		return part{kind: "text", text: item}, nil
	}
	if !isObject(item.in(w.raw)) {
		return p, fault.Bad(fmt.Sprintf("messages[%d].content[%d]", n, j), "A content part must be an object")
	}
	kind, _ := member(w.raw, item, "type")
	p.kind = strings.Trim(string(kind.in(w.raw)), `"`)
	switch p.kind {
	case "text", "input_text", "output_text", "refusal":
		name := "text"
		if p.kind == "refusal" {
			name = "refusal"
		}
		// Templates know one kind of text.
		p.kind = "text"
		if text, ok := member(w.raw, item, name); ok && isString(text.in(w.raw)) {
			p.text = text
			return p, nil
		}
		return p, fault.Bad(fmt.Sprintf("messages[%d].content[%d].%s", n, j, name), "A text part needs a string")
	}
	return p, nil
}

// media returns the kind of medium that a content part's type stands for, as templates name it. OpenAI's chat API says
// image_url, its Responses API input_image, and templates plain image.
func media(kind string) string {
	switch kind {
	case "image", "image_url", "input_image":
		return "image"
	case "video", "video_url", "input_video":
		return "video"
	case "audio", "audio_url", "input_audio":
		return "audio"
	}
	return ""
}

// appendParts writes a content array: text parts as they are, media as the placeholders that templates look for. The
// mark goes into the last text: media behind it stay ahead of what the model adds.
func (w *rewriter) appendParts(dst []byte, n int, arr span, mark bool) ([]byte, error) {
	lastText := -1
	if mark {
		err := w.eachPart(n, arr, func(j int, _ span, p part) error {
			if p.kind == "text" {
				lastText = j
			}
			return nil
		})
		if err != nil {
			return dst, err
		}
		if lastText < 0 {
			return dst, fault.Bad(fmt.Sprintf("messages[%d].content", n), "The final message has no text to continue")
		}
	}
	dst = append(dst, '[')
	err := w.eachPart(n, arr, func(j int, item span, p part) error {
		if j > 0 {
			dst = append(dst, ',')
		}
		if p.kind == "text" {
			dst = append(dst, `{"type":"text","text":`...)
			dst = append(appendMarked(dst, p.text.in(w.raw), j == lastText), '}')
			return nil
		}
		medium := media(p.kind)
		// A kind that only this template may know.
		if medium == "" {
			dst = append(dst, item.in(w.raw)...)
			return nil
		}
		// A template that prints nothing for it would answer as if the picture weren't there.
		if !w.traits.media[medium] {
			return w.refuse(n, j, p.kind)
		}
		// What the URL points at reaches the worker beside the prompt; the template only marks the place.
		dst = append(append(append(dst, `{"type":"`...), medium...), `"}`...)
		return nil
	})
	return append(dst, ']'), err
}

// eachPart calls f with every part of message n's content.
func (w *rewriter) eachPart(n int, arr span, f func(j int, item span, p part) error) error {
	return eachItem(w.raw, arr, func(j int, item span) error {
		p, err := w.readPart(n, j, item)
		if err != nil {
			return err
		}
		return f(j, item, p)
	})
}

// refuse is the failure of a part that the prompt would silently lack.
func (w *rewriter) refuse(n, j int, kind string) error {
	path := fmt.Sprintf("messages[%d].content[%d]", n, j)
	return fault.Bad(path, "This model's chat template takes no content part of type %q", kind)
}

// appendJoined writes a content array as one string, its texts on lines of their own: the form for templates that
// print content as it is.
func (w *rewriter) appendJoined(dst []byte, n int, arr span, mark bool) ([]byte, error) {
	dst = append(dst, '"')
	err := w.eachPart(n, arr, func(j int, _ span, p part) error {
		if p.kind != "text" {
			return w.refuse(n, j, p.kind)
		}
		if j > 0 {
			dst = append(dst, `\n`...)
		}
		text := p.text.in(w.raw)
		// Without quotes and with its escapes: pieces of JSON strings can be joined as they are.
		dst = append(dst, text[1:len(text)-1]...)
		return nil
	})
	if mark {
		dst = append(dst, continueMark...)
	}
	return append(dst, '"'), err
}

// appendToolCalls writes the calls of a message with their arguments in the form the template takes. A call without a
// function, or with one that is no object, stays as it is: templates fail on it in their own words.
func (w *rewriter) appendToolCalls(dst []byte, calls span) ([]byte, error) {
	// Everything but the functions is copied: ids, types and what else a client sends.
	copied := calls.from
	err := eachItem(w.raw, calls, func(_ int, call span) error {
		// Left to the template, like everything that isn't as OpenAI documents it.
		if !isObject(call.in(w.raw)) {
			return nil
		}
		function, ok := member(w.raw, call, "function")
		if !ok || !isObject(function.in(w.raw)) {
			return nil
		}
		dst = append(dst, w.raw[copied:function.from]...)
		copied = function.to
		dst = w.appendFunction(dst, function)
		return nil
	})
	return append(dst, w.raw[copied:calls.to]...), err
}

// appendFunction writes one function of a call with its arguments in the form the template takes.
func (w *rewriter) appendFunction(dst []byte, function span) []byte {
	// Of equal names the last one counts, and it alone is rewritten.
	args, ok := member(w.raw, function, "arguments")
	if !ok {
		return append(dst, function.in(w.raw)...)
	}
	dst = append(dst, w.raw[function.from:args.from]...)
	dst = appendArguments(dst, args.in(w.raw), w.traits.arguments)
	return append(dst, w.raw[args.to:function.to]...)
}

// appendArguments writes a call's arguments. A string that holds no JSON stays a string: it is what a model once wrote,
// and another template may still print it. raw is the value as the client sent it, of any kind.
func appendArguments(dst, raw []byte, form argumentsForm) []byte {
	switch {
	case form == argumentsAsObject && isString(raw):
		var text string
		// Decoded from the string and put in its place: JSON inside JSON loses one level of quotes.
		if json.Unmarshal(raw, &text) == nil && json.Valid([]byte(text)) {
			return append(dst, text...)
		}
	// A client that sends objects, for a template that prints strings.
	case form == argumentsAsText && (isObject(raw) || isArray(raw)):
		if text, err := json.Marshal(string(raw)); err == nil {
			return append(dst, text...)
		}
	}
	return append(dst, raw...)
}

// appendTools writes the tools; with fill, what the OpenAI schema lets a client leave out is filled in. OpenAI
// documents description and parameters as optional; many templates print both without asking.
func appendTools(dst, raw []byte, fill bool) ([]byte, error) {
	if !fill {
		return append(dst, raw...), nil
	}
	copied := 0
	err := eachItem(raw, span{0, len(raw)}, func(_ int, tool span) error {
		function, ok := member(raw, tool, "function")
		if !ok || !isObject(function.in(raw)) {
			return nil
		}
		body, err := inner(function.in(raw), '{')
		if err != nil {
			return err
		}
		dst = append(dst, raw[copied:function.from]...)
		copied = function.to
		dst = append(append(dst, '{'), body...)
		// A null counts as missing; the member added behind it is the one that holds.
		fillIn := func(name, value string) {
			if v, ok := member(raw, function, name); ok && !isNull(v.in(raw)) {
				return
			}
			if dst[len(dst)-1] != '{' {
				dst = append(dst, ',')
			}
			dst = append(dst, `"`+name+`":`+value...)
		}
		fillIn("description", `""`)
		fillIn("parameters", `{"type":"object","properties":{}}`)
		dst = append(dst, '}')
		return nil
	})
	return append(dst, raw[copied:]...), err
}
