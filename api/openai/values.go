package openai

import "github.com/portico-llm/portico/internal/fault"

// readStop reads one stop string or an array of them.
func readStop(r *reader) ([]string, error) {
	if r.dec.PeekKind() == '"' {
		s, err := r.text("a string")
		return []string{s}, err
	}
	out := []string{}
	err := readArray(r, "a string or an array of strings", func(int) error {
		s, err := r.text("a string")
		out = append(out, s)
		return err
	})
	return out, err
}

// promptKinds and toolChoices say what is allowed where a field takes several shapes.
const promptKinds = "a string, an array of strings, an array of token ids, or an array of such arrays"

// readPrompt reads one prompt or a batch. The first element of an array decides what the others have to be.
func readPrompt(r *reader, p *Prompt) error {
	p.Given = true
	if r.dec.PeekKind() == '"' {
		s, err := r.text(promptKinds)
		p.Texts = []string{s}
		return err
	}
	if err := r.begin('[', promptKinds); err != nil {
		return err
	}
	var (
		// Ids of a flat array are gathered here: they are one prompt, however many there are.
		single []uint32
		first  = r.dec.PeekKind()
	)
	// A flat array of numbers is one prompt, any other array a batch.
	p.Batch = first != '0'
	for i := 0; r.more(']'); i++ {
		r.enterIndex(i)
		switch first {
		case '"':
			s, err := r.text("a string, like the elements before it")
			if err != nil {
				return err
			}
			p.Texts = append(p.Texts, s)
		case '0':
			id, err := r.tokenID()
			if err != nil {
				return err
			}
			single = append(single, id)
		default:
			ids, err := readTokens(r)
			if err != nil {
				return err
			}
			p.Tokens = append(p.Tokens, ids)
		}
		r.leave()
	}
	// An empty array has no first element and stays an empty batch.
	if single != nil {
		p.Tokens = [][]uint32{single}
	}
	return r.end()
}

// readTokens reads one prompt of a batch of token ids.
func readTokens(r *reader) ([]uint32, error) {
	out := []uint32{}
	err := readArray(r, "a string, a token id or an array of token ids", func(int) error {
		id, err := r.tokenID()
		out = append(out, id)
		return err
	})
	return out, err
}

// readTools reads the tools: their text stays as it is for the template, what a tool is called and takes is noted.
func readTools(r *reader, req *ChatRequest) (err error) {
	req.Tools, err = rawArray(r, "an array of tools", func(int) error {
		var tool Tool
		if err := readObject(r, toolTable, &tool); err != nil {
			return err
		}
		req.ToolList = append(req.ToolList, tool)
		return nil
	})
	return err
}

// readThinking reads the switch, which may be a mere true or false.
func readThinking(r *reader) (*Thinking, error) {
	switch r.dec.PeekKind() {
	case 't', 'f':
		on, err := r.boolean()
		if on {
			return &Thinking{Type: "enabled"}, err
		}
		return &Thinking{Type: "disabled"}, err
	case '{':
		t := new(Thinking)
		return t, readObject(r, thinkingTable, t)
	}
	return nil, r.wrong("a boolean or an object")
}

const toolChoices = `"none", "auto", "required" or {"type":"function","function":{"name":…}}`

// readToolChoice reads a mode or a named function.
func readToolChoice(r *reader) (*ToolChoice, error) {
	switch r.dec.PeekKind() {
	case '"':
		mode, err := r.text(toolChoices)
		if err != nil {
			return nil, err
		}
		// Any other word is more likely a function's bare name, which OpenAI doesn't take either.
		if mode != "none" && mode != "auto" && mode != "required" {
			return nil, r.bad(toolChoices)
		}
		return &ToolChoice{Mode: mode}, nil
	// Kinds other than function, such as allowed_tools, are not supported, and said so.
	case '{':
		var named Tool
		if err := readObject(r, toolTable, &named); err != nil {
			return nil, err
		}
		if named.Type != "function" || named.Name == "" {
			return nil, r.bad(toolChoices)
		}
		return &ToolChoice{Mode: "function", Name: named.Name}, nil
	}
	return nil, r.wrong(toolChoices)
}

// oneOf is the failure of a string that is none of the allowed ones; it names the string.
func (r *reader) oneOf(got, allowed string) error {
	path := r.where()
	return fault.Bad(path, "`%s` must be one of %s, not %q", path, allowed, clip(got, maxUnknownBytes)).
		WithCode("invalid_value")
}
