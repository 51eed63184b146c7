package validate

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/portico-llm/portico/api/openai"
)

// common checks what chat and completion requests share.
func common(c *openai.Common, opts Options) error {
	// As OpenAI documents it: options without a stream are a client's mistake about what it gets.
	if c.StreamOptions != nil && !c.Streaming() {
		return refuse("stream_options", "`stream_options` is only allowed when `stream` is true")
	}
	// One after the other: a client learns of one mistake at a time, the first in this order.
	for _, check := range [...]func(*openai.Common, Options) error{sampling, lengths, stops, logitBias, guided, nvext} {
		if err := check(c, opts); err != nil {
			return err
		}
	}
	return notEmpty("user", c.User)
}

// sampling checks how tokens are drawn. The bounds are OpenAI's and, for the extensions, those of the engines. Absent
// fields stay absent: workers have defaults, some of them the model's own.
func sampling(c *openai.Common, opts Options) error {
	for _, f := range [...]struct {
		name      string
		value     *float64
		low, high float64 // the upper bound is always allowed
		open      bool    // the lower one isn't
	}{
		{"temperature", c.Temperature, 0, 2, false},
		{"top_p", c.TopP, 0, 1, true}, // 0 would leave no token to draw
		{"min_p", c.MinP, 0, 1, false},
		{"frequency_penalty", c.FrequencyPenalty, -2, 2, false},
		{"presence_penalty", c.PresencePenalty, -2, 2, false},
		{"repetition_penalty", c.RepetitionPenalty, 0, 2, true}, // a divisor
	} {
		if err := span(f.name, f.value, f.low, f.high, f.open); err != nil {
			return err
		}
	}
	// Both -1 and 0 stand for all tokens.
	if err := within("top_k", c.TopK, -1, math.MaxInt32); err != nil {
		return err
	}
	return within("prompt_logprobs", c.PromptLogprobs, 0, int64(opts.MaxTopLogprobs))
}

// lengths checks how much is to be generated. Whether it fits the model is known only after tokenising.
func lengths(c *openai.Common, opts Options) error {
	if err := limit("max_tokens", c.MaxTokens, opts); err != nil {
		return err
	}
	return within("min_tokens", c.MinTokens, 0, maxTokens)
}

// stops checks the stop strings. An empty one would end every answer at once, and their search takes memory for each
// byte of them and each choice.
func stops(c *openai.Common, opts Options) error {
	if c.Stop == nil {
		return nil // not given, which isn't the same as an empty list
	}
	if len(c.Stop) == 0 {
		return refuse("stop", "`stop` must not be an empty array; leave it out to have no stop strings")
	}
	// OpenAI allows four; engines take more, and clients of theirs use them.
	if len(c.Stop) > opts.MaxStops {
		return refuse("stop", "`stop` must hold at most %d strings, not %d", opts.MaxStops, len(c.Stop))
	}
	size := 0
	for i, s := range c.Stop {
		if s == "" {
			return refuse("stop["+strconv.Itoa(i)+"]", "`stop` must not hold an empty string")
		}
		size += len(s)
	}
	if size > opts.MaxStopBytes {
		return refuse("stop", "`stop` must hold at most %d bytes in all, not %d", opts.MaxStopBytes, size)
	}
	return nil
}

// logitBias checks {"token id": bias}. Workers don't take it; a wrong one is refused all the same. Duplicate ids pass:
// the last one would win, and nothing depends on it.
func logitBias(c *openai.Common, opts Options) error {
	if c.LogitBias == nil {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(c.LogitBias), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return refuse("logit_bias", "`logit_bias` must be an object")
	}
	// Counting comes first, so that a flood of entries costs no more than the limit.
	for n := 1; dec.PeekKind() == '"'; n++ {
		if n > opts.MaxLogitBias {
			return refuse("logit_bias", "`logit_bias` must hold at most %d entries", opts.MaxLogitBias)
		}
		name, err := dec.ReadToken()
		if err != nil {
			return refuse("logit_bias", "`logit_bias` must be an object")
		}
		key := name.String()
		// Whether the id is in the vocabulary is not known before the model is.
		if _, err := strconv.ParseUint(key, 10, 32); err != nil {
			return refuse("logit_bias", "the keys of `logit_bias` must be token ids, integers from 0 to %d", uint32(math.MaxUint32))
		}
		// OpenAI documents the range -100 to 100: its ends ban a token and force it.
		value, err := dec.ReadValue()
		if err != nil {
			return refuse("logit_bias", "`logit_bias` must be an object")
		}
		// ParseFloat would take more than JSON's numbers, so the kind is looked at too.
		bias, err := strconv.ParseFloat(string(value), 64)
		if value.Kind() != '0' || err != nil || bias < -100 || bias > 100 {
			return refuse("logit_bias."+key, "the biases of `logit_bias` must be numbers from -100 to 100")
		}
	}
	return nil
}

// nvext checks the extensions that have ranges.
func nvext(c *openai.Common, _ Options) error {
	x := c.NvExt
	if x == nil {
		return nil
	}
	if err := within("nvext.max_thinking_tokens", x.MaxThinkingTokens, 0, maxTokens); err != nil {
		return err
	}
	// An empty prompt can't be meant: without token_data the prompt is rendered.
	if x.TokenData != nil && len(x.TokenData) == 0 {
		return refuse("nvext.token_data", "`nvext.token_data` must hold at least one token id")
	}
	return nil
}

// choices checks n against the sampling and against the number of prompts. Chat has one prompt.
func choices(n *int64, temperature *float64, prompts int, opts Options) error {
	if err := within("n", n, 1, int64(opts.MaxChoices)); err != nil {
		return err
	}
	// Left out, n is 1.
	each := int64(1)
	if n != nil {
		each = *n
	}
	// Equal answers would only cost n times as much.
	if each > 1 && temperature != nil && *temperature == 0 {
		return refuse("n", "`n` must be 1 when `temperature` is 0: all choices would be the same")
	}
	// All prompts of a batch run at once, with all their choices.
	if total := each * int64(prompts); total > int64(opts.MaxChoices) {
		return refuse("n", "`n` times the number of prompts must be at most %d, not %d", opts.MaxChoices, total)
	}
	return nil
}

// isObject reports whether raw is one whole JSON object.
func isObject(raw []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(raw), jsontext.AllowDuplicateNames(true))
	if dec.PeekKind() != '{' || dec.SkipValue() != nil {
		return false
	}
	// Anything behind the object makes it something else.
	_, err := dec.ReadToken()
	return errors.Is(err, io.EOF)
}
