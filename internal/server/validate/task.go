package validate

import (
	"slices"
	"strconv"
	"strings"

	"github.com/portico-llm/portico/api/openai"
)

// Task checks the request of a task. What only the worker can judge, such as a size or a voice, is left to it.
func Task(req *openai.TaskRequest, opts Options) error {
	opts = opts.withDefaults()
	switch req.Task() {
	case openai.TaskEmbed:
		return first(
			func() error { return inputs(&req.Input, opts) },
			func() error { return among("encoding_format", req.EncodingFormat, "float", "base64") },
			func() error { return within("dimensions", req.Dimensions, 1, maxDimensions) },
			func() error { return truncation(req.Truncate) },
		)
	case openai.TaskClassify, openai.TaskPool:
		return first(
			func() error { return inputs(&req.Input, opts) },
			func() error {
				return among("encoding_format", req.EncodingFormat, "float", "base64", "bytes", "bytes_only")
			},
			func() error { return within("dimensions", req.Dimensions, 1, maxDimensions) },
			func() error { return truncation(req.Truncate) },
		)
	case openai.TaskRerank:
		return first(
			func() error { return notEmpty("query", req.Query) },
			func() error { return texts("documents", req.Documents, opts) },
			func() error { return within("top_n", req.TopN, 1, maxTokens) },
		)
	case openai.TaskScore:
		return first(
			func() error { return texts(req.Text2Name, req.Text2, opts) },
			func() error { return scored(req) },
		)
	}
	return media(req, opts)
}

// maxDimensions is more than any model's vector has.
const maxDimensions = 1 << 16

// media checks a request for images, a video or speech.
func media(req *openai.TaskRequest, opts Options) error {
	text := "prompt"
	if req.Task() == openai.TaskSpeech {
		text = "input"
	}
	if err := notEmpty(text, req.Text); err != nil {
		return err
	}
	if req.Task() == openai.TaskSpeech { // its format is a codec, of which workers know various
		return first(
			func() error { return span("speed", req.Speed, 0.25, 4, false) },
			func() error { return among("data_source", req.DataSource, "url", "b64_json") },
		)
	}
	return first(
		func() error { return notEmpty("input_reference", req.Reference) },
		func() error { return within("n", req.N, 1, int64(opts.MaxChoices)) },
		func() error { return among("response_format", req.Format, "url", "b64_json") },
	)
}

// first runs checks up to the first that fails.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// inputs checks that there is something in every input.
func inputs(p *openai.Prompt, opts Options) error {
	if p.Len() == 0 {
		return refuse("input", "`input` must hold at least one input")
	}
	if p.Len() > opts.MaxInputs {
		return refuse("input", "`input` must hold at most %d inputs, not %d", opts.MaxInputs, p.Len())
	}
	at := func(i int) string {
		if p.Batch {
			return "input[" + strconv.Itoa(i) + "]"
		}
		return "input"
	}
	for i, s := range p.Texts {
		if s == "" {
			return refuse(at(i), "`%s` must not be empty", at(i))
		}
	}
	for i, ids := range p.Tokens {
		if len(ids) == 0 {
			return refuse(at(i), "`%s` must hold at least one token id", at(i))
		}
	}
	return nil
}

// texts checks a list of texts to compare something with.
func texts(name string, list []string, opts Options) error {
	if len(list) == 0 {
		return refuse(name, "`%s` must hold at least one text", name)
	}
	if len(list) > opts.MaxInputs {
		return refuse(name, "`%s` must hold at most %d texts, not %d", name, opts.MaxInputs, len(list))
	}
	return nil
}

// scored checks the texts that the others are compared with: one for all, or one for each.
func scored(req *openai.TaskRequest) error {
	name := req.Text1Name
	if n := len(req.Text1); n != 1 && n != len(req.Text2) {
		return refuse(name, "`%s` must be one text, or as many as `%s` (%d), not %d", name, req.Text2Name, len(req.Text2), n)
	}
	if len(req.Text1) == 1 {
		return notEmpty(name, &req.Text1[0])
	}
	for i := range req.Text1 {
		if err := notEmpty(name+"["+strconv.Itoa(i)+"]", &req.Text1[i]); err != nil {
			return err
		}
	}
	return nil
}

// truncation checks a length in tokens, or -1 for the model's own.
func truncation(n *int64) error {
	if n != nil && *n == 0 {
		return refuse("truncate_prompt_tokens", "`truncate_prompt_tokens` must be -1 or at least 1, not 0")
	}
	return within("truncate_prompt_tokens", n, -1, maxTokens)
}

// among checks that a string is one of a few.
func among(name string, v *string, allowed ...string) error {
	if v == nil || slices.Contains(allowed, *v) {
		return nil
	}
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		quoted[i] = strconv.Quote(a)
	}
	return refuse(name, "`%s` must be one of %s, not %.64q", name, strings.Join(quoted, ", "), *v)
}
