// Package validate checks the ranges of a request's fields and the rules between them, after package openai has checked
// their types and before anything is rendered. What it refuses never reaches a worker.
//
// Every failure is a *fault.Error that names the JSON path of the field and says what is allowed. The functions are
// pure: they change nothing and may be called concurrently.
//
// What can only be judged with the model at hand (token ids against its vocabulary, lengths against its context, media
// against its template) is left to the pipeline.
package validate

import (
	"strconv"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
)

// Options are the limits a request has to keep. Zero values are replaced by the defaults.
type Options struct {
	// MaxChoices bounds n, and n times the prompts of a batch: a worker takes n as one byte, and each choice is a
	// sequence of its own to it. 128.
	MaxChoices int
	// MaxStops bounds the stop strings, each of which is looked for in every piece of text. 32.
	MaxStops     int
	MaxStopBytes int // of all stop strings together; 65536
	// MaxTools and MaxToolName bound the tools and the bytes of a function's name. 1536 and 128.
	MaxTools, MaxToolName int
	// MaxTopLogprobs bounds the alternatives for each token of an answer or a prompt: engines keep that many rows of
	// the whole vocabulary. 20.
	MaxTopLogprobs int
	// MaxLogitBias bounds the entries of logit_bias. 16384.
	MaxLogitBias int
	// MaxMessages bounds the conversation. 65536.
	MaxMessages int
	// MaxInputs bounds the texts of one embeddings request, or of another task's. 2048, as for OpenAI.
	MaxInputs int
	// MaxOutput bounds the tokens to generate for each choice. 1048576, as for Dynamo.
	MaxOutput int
}

// withDefaults fills in the limits that were left open.
func (o Options) withDefaults() Options {
	for _, d := range []struct {
		limit *int
		value int
	}{
		{&o.MaxChoices, 128}, {&o.MaxStops, 32}, {&o.MaxStopBytes, 64 << 10}, {&o.MaxTools, 1536}, {&o.MaxToolName, 128},
		{&o.MaxTopLogprobs, 20}, {&o.MaxLogitBias, 16384}, {&o.MaxMessages, 65536}, {&o.MaxOutput, 1 << 20},
		{&o.MaxInputs, 2048},
	} {
		if *d.limit <= 0 {
			*d.limit = d.value
		}
	}
	return o
}

// Chat checks a chat request. It reads each field at most a few times and looks into schemas once: its time is linear
// in the body.
func Chat(req *openai.ChatRequest, opts Options) error {
	opts = opts.withDefaults()
	// The order decides which of several mistakes is reported: first what the request is, then its parts.
	checks := [...]func() error{
		func() error { return deprecated(req) },
		func() error { return conversation(req, opts) },
		func() error { return common(&req.Common, opts) },
		// From here on what only chat has.
		func() error { return limit("max_completion_tokens", req.MaxCompletionTokens, opts) },
		func() error { return within("top_logprobs", req.TopLogprobs, 0, int64(opts.MaxTopLogprobs)) },
		func() error { return choices(req.N, req.Temperature, 1, opts) },
		func() error { return tools(req, opts) },
		func() error { return toolChoice(req) },
		func() error { return responseFormat(req) },
		func() error { return reasoning(req) },
		func() error { return template(req) },
	}
	// The first mistake ends it: clients mend one at a time, and later checks may rest on earlier ones.
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// Completion checks a completion request. All prompts of a batch are checked before any is tokenised: it is refused as
// a whole.
func Completion(req *openai.CompletionRequest, opts Options) error {
	opts = opts.withDefaults()
	// As in Chat the request's content comes first, then sampling.
	checks := [...]func() error{
		func() error { return prompt(req) },
		func() error { return common(&req.Common, opts) },
		// OpenAI's bound for completions is lower than for chat.
		func() error { return within("logprobs", req.Logprobs, 0, 5) },
		// A bound of its own comes ahead of those that depend on n.
		func() error { return bestOf(req) },
		func() error { return choices(req.N, req.Temperature, req.Prompt.Len(), opts) },
	}
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// refuse is the failure of a value that isn't allowed. The param is the field to change; the message repeats it for
// those who read only that.
func refuse(param, format string, args ...any) error {
	return fault.Bad(param, format, args...).WithCode("invalid_value")
}

// within checks that an integer lies between two bounds, both allowed.
func within(name string, v *int64, low, high int64) error {
	// Absent is always allowed: whoever needs a value fills in a default.
	if v != nil && (*v < low || *v > high) {
		return refuse(name, "`%s` must be from %d to %d, not %d", name, low, high, *v)
	}
	return nil
}

// span checks that a number lies between two bounds; open excludes the lower one.
func span(name string, v *float64, low, high float64, open bool) error {
	// NaN can't come: JSON has none.
	if v == nil || (*v > low || *v == low && !open) && *v <= high {
		return nil
	}
	if open {
		return refuse(name, "`%s` must be greater than %g and at most %g, not %s", name, low, high, number(*v))
	}
	return refuse(name, "`%s` must be from %g to %g, not %s", name, low, high, number(*v))
}

// number writes a value briefly: a client may have sent hundreds of digits.
func number(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// maxTokens is the largest number of tokens a worker can be told.
const maxTokens = 1<<32 - 1

// limit checks how many tokens may be generated: at least one, and no more than any context holds. An engine takes
// longer than anybody waits to come to a larger one.
func limit(name string, v *int64, opts Options) error {
	return within(name, v, 1, int64(opts.MaxOutput))
}

// notEmpty checks a string that, when given, has to say something.
func notEmpty(name string, v *string) error {
	if v != nil && *v == "" {
		return refuse(name, "`%s` must not be empty", name)
	}
	return nil
}
