package chattmpl

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// argumentsForm says how a template takes the arguments of tool calls in the history. OpenAI's clients send a string
// that holds JSON.
type argumentsForm uint8

const (
	argumentsAsSent   argumentsForm = iota // the template prints strings as they are
	argumentsAsObject                      // it would encode a string once more, or walks over the members
	argumentsAsText                        // it needs a string
)

// roleTraits says how a template takes the content of one role's messages.
type roleTraits struct {
	arrays     bool // arrays of parts
	arraysOnly bool // nothing but arrays of parts
}

// traits is what rendering a few probes tells about a template.
type traits struct {
	roles       map[string]roleTraits // by role; only those that were probed with success
	media       map[string]bool       // which placeholders print something
	arguments   argumentsForm
	fillContent bool // an assistant message without content fails, with an empty one it doesn't
	fillTools   bool // a tool without description and parameters fails
}

// role returns the traits for a role; one that wasn't probed is taken as the user's.
func (t *traits) role(name string) roleTraits {
	if r, ok := t.roles[name]; ok {
		return r
	}
	return t.roles["user"]
}

const (
	probeText    = "template_probe" // looked for in the output
	probeString  = `"` + probeText + `"`
	probeArray   = `[{"type":"text","text":"` + probeText + `"}]`
	probeArgs    = `{"probe_key": "probe_value"}` // with spaces, as models write them
	probeArgsStr = `"{\"probe_key\": \"probe_value\"}"`
	probeTool    = `{"type":"function","function":{"name":"probe","description":"A probe.","parameters":{"type":"object",` +
		`"properties":{"probe_key":{"type":"string","description":"A key."}},"required":["probe_key"]}}}`
	sparseTool = `{"type":"function","function":{"name":"probe"}}`
	probeUser  = `{"role":"user","content":"` + probeText + `"}`
	probeID    = "aB3dE6gH9" // some templates insist on nine letters and digits
)

// probe renders made-up conversations with a template.
type probe struct {
	try     func(args []byte) (string, error) // renders
	special []byte                            // special tokens, ahead of the other arguments
	always  string                            // tools of every conversation; empty: none
	arrays  bool                              // content must be an array
	reasons []error                           // why probes failed, in order
}

// text puts a JSON string into the form the template takes for the user's content.
func (p *probe) text(s string) string {
	if p.arrays {
		return `[{"type":"text","text":` + s + `}]`
	}
	return s
}

// render renders a conversation, given as the members of a JSON array, and keeps the reason of a failure.
func (p *probe) render(messages, tools string) (string, error) {
	args := append([]byte{'{'}, p.special...)
	args = append(args, `"messages":[`+messages+`],"documents":null,"add_generation_prompt":false,"tools":`...)
	if tools = cmp.Or(tools, p.always); tools == "" {
		args = append(args, "null}"...)
	} else {
		args = append(args, "["+tools+"]}"...)
	}
	out, err := p.try(args)
	if err != nil {
		p.reasons = append(p.reasons, err)
	}
	return out, err
}

// user is a message of the user's; content is JSON.
func user(content string) string { return `{"role":"user","content":` + content + `}` }

// call is a conversation with a tool call: the assistant's content (with a comma after it, or nothing), the call's
// arguments, and the tool's answer.
func (p *probe) call(content, args, answer string) string {
	return user(p.text(`"hi"`)) + `,{"role":"assistant",` + content + `"tool_calls":[{"id":"` + probeID +
		`","type":"function","function":{"name":"probe","arguments":` + args + `}}]},` +
		`{"role":"tool","name":"probe","tool_call_id":"` + probeID + `","content":` + answer + `}`
}

// inspect renders the probes. It fails when the template can render none of the conversations that any chat model
// should take: then nothing a client sends would work either.
//
// forTools says that the template is only used for requests with tools. The reasons returned beside the traits are
// those of single probes and no failure: most templates refuse something.
func inspect(try func(args []byte) (string, error), special []byte, forTools bool) (*traits, []error, error) {
	p := &probe{try: try, special: special}
	if forTools {
		p.always = probeTool
	}
	t := &traits{roles: map[string]roleTraits{}, media: map[string]bool{}}
	// Users come first: the form of their content is part of every later probe.
	usable := p.users(t)
	usable = p.system(t) || usable
	usable = p.assistant(t) || usable
	if !usable {
		return nil, nil, fmt.Errorf("the chat template renders no conversation: %w", errors.Join(distinct(p.reasons)...))
	}
	p.media(t)
	p.tools(t)
	for _, reason := range p.reasons {
		if errors.Is(reason, errAbandoned) {
			return nil, nil, fmt.Errorf("the chat template takes longer than %s for a conversation of a few words", probeTime)
		}
	}
	return t, distinct(p.reasons), nil
}

// printed reports whether an output holds the probe's text, and not as the text of a Python list or of JSON. Such a
// list shows that the template printed an array it didn't look into.
func printed(out string, err error) bool {
	return err == nil && strings.Contains(out, probeText) &&
		!strings.Contains(out, `'text'`) && !strings.Contains(out, `"text"`)
}

// forms renders a conversation with the content in question as a string and as an array. It reports whether either of
// them worked.
func (p *probe) forms(conversation func(content string) string, tools string) (roleTraits, bool) {
	// A template that prints an array as it is fails the second look, one that walks over a string fails the first.
	asString := printed(p.render(conversation(probeString), tools))
	asArray := printed(p.render(conversation(probeArray), tools))
	return roleTraits{arrays: asArray, arraysOnly: asArray && !asString}, asString || asArray
}

// users finds how a template takes the user's content. This and the next two report whether anything worked.
func (p *probe) users(t *traits) bool {
	r, ok := p.forms(user, "")
	if !ok { // perhaps it wants a system message
		r, ok = p.forms(func(content string) string {
			return `{"role":"system","content":"Be brief."},` + user(content)
		}, "")
	}
	t.roles["user"] = r
	p.arrays = r.arraysOnly
	return ok
}

// system does the same for the system's message; some templates refuse any.
func (p *probe) system(t *traits) bool {
	r, ok := p.forms(func(content string) string {
		return `{"role":"system","content":` + content + `},` + user(p.text(`"hi"`))
	}, "")
	if ok {
		t.roles["system"] = r
	}
	return ok
}

// assistant does the same for an earlier answer, between two messages of the user's: templates insist on turns.
func (p *probe) assistant(t *traits) bool {
	r, ok := p.forms(func(content string) string {
		return user(p.text(`"hi"`)) + `,{"role":"assistant","content":` + content + `},` + user(p.text(`"so"`))
	}, "")
	if ok {
		t.roles["assistant"] = r
	}
	return ok
}

// media finds which placeholders print something: a template that passes over them would lose a picture unnoticed.
func (p *probe) media(t *traits) {
	if !t.roles["user"].arrays {
		return
	}
	without, err := p.render(user(probeArray), "")
	if err != nil {
		return
	}
	for _, medium := range []string{"image", "video", "audio"} {
		with, err := p.render(user(`[{"type":"`+medium+`"},{"type":"text","text":"`+probeText+`"}]`), "")
		t.media[medium] = err == nil && with != without && printed(with, err)
	}
}

// tools finds how a template takes calls, their results, and tools that say little of themselves.
func (p *probe) tools(t *traits) {
	content := `"content":` + p.assistantText(t, `""`) + `,`
	answer := p.text(`"fine"`)
	asText, errText := p.render(p.call(content, probeArgsStr, answer), probeTool)
	asObject, errObject := p.render(p.call(content, probeArgs, answer), probeTool)
	// Text that is printed as it is stays text, and objects become text where the template fails on them. When only an
	// object shows its value, text becomes one. When neither works, calls go to the template as they are.
	args := probeArgsStr
	switch {
	case errText == nil && strings.Contains(asText, probeArgs):
		if errObject != nil {
			t.arguments = argumentsAsText
		}
	case errObject == nil && strings.Contains(asObject, "probe_value"):
		t.arguments = argumentsAsObject
		args = probeArgs
	}
	if r, ok := p.forms(func(answer string) string { return p.call(content, args, answer) }, probeTool); ok {
		t.roles["tool"] = r
		if r.arraysOnly {
			answer = `[{"type":"text","text":"fine"}]`
		} else {
			answer = `"fine"`
		}
	}
	// Compared with a conversation that works: a failure of both would say nothing of the content.
	if _, err := p.render(p.call(content, args, answer), probeTool); err == nil {
		_, err = p.render(p.call("", args, answer), probeTool)
		t.fillContent = err != nil
	}
	if _, err := p.render(user(p.text(probeString)), probeTool); err == nil {
		_, err = p.render(user(p.text(probeString)), sparseTool)
		t.fillTools = err != nil
	}
}

// assistantText puts a JSON string into the form the template takes for the assistant's content.
func (p *probe) assistantText(t *traits, s string) string {
	if t.role("assistant").arraysOnly {
		return `[{"type":"text","text":` + s + `}]`
	}
	return s
}

// distinct drops repeated reasons: most probes of a template fail for the same one.
func distinct(errs []error) []error {
	seen := map[string]bool{}
	var out []error
	for _, err := range errs {
		if !seen[err.Error()] {
			seen[err.Error()] = true
			out = append(out, err)
		}
	}
	return out
}
