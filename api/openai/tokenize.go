package openai

import "encoding/json"

// TokenizeRequest is the body of POST /tokenize, in vLLM's form: a prompt, or a conversation.
type TokenizeRequest struct {
	Model      string       // empty: the only one there is
	Prompt     *string      // nil: Chat
	Chat       *ChatRequest // nil: Prompt
	AddSpecial *bool        // the model's own tokens around the text; absent: true for a prompt, false for a chat
	Texts      *bool        // the text of each token, too

	messages json.RawMessage // whether there are any
}

// DetokenizeRequest is the body of POST /detokenize, in vLLM's form.
type DetokenizeRequest struct {
	Model  string   // empty: the only one there is
	Tokens []uint32 // required; may be empty
}

// The tables of both requests. What else a conversation needs is read as a chat.
var (
	tokenizeTable = newTable("", []field[TokenizeRequest]{
		requiredText("model", func(r *TokenizeRequest) *string { return &r.Model }),
		textField("prompt", func(r *TokenizeRequest) **string { return &r.Prompt }),
		anyField("messages", func(r *TokenizeRequest) *json.RawMessage { return &r.messages }),
		boolField("add_special_tokens", func(r *TokenizeRequest) **bool { return &r.AddSpecial }),
		boolField("return_token_strs", func(r *TokenizeRequest) **bool { return &r.Texts }),
	}).quietly()
	detokenizeTable = newTable("", []field[DetokenizeRequest]{
		requiredText("model", func(r *DetokenizeRequest) *string { return &r.Model }),
		tokensField("tokens", func(r *DetokenizeRequest) *[]uint32 { return &r.Tokens }),
	}).quietly()
)

// DecodeTokenize reads the body of POST /tokenize. The request aliases body, or a mended copy of it. only is the name of
// the model that is meant where the body names none.
func DecodeTokenize(body []byte, only string, opts DecodeOptions) (*TokenizeRequest, error) {
	req, err := decodeNamed(body, only, opts, tokenizeTable, func(r *TokenizeRequest) *string { return &r.Model })
	if err != nil {
		return nil, err
	}
	if (req.Prompt == nil) == (len(req.messages) == 0) {
		return nil, missing("prompt", "a string, or there must be `messages` in its place")
	}
	// Fields of the chat that aren't the prompt's business mean nothing here, and neither do unknown ones.
	opts.Strict = false
	req.Chat, err = decode(body, opts.withDefaults(), chatTable, func(c *ChatRequest, body []byte) *Unknown {
		*c = ChatRequest{}
		c.body = body
		return &c.Unknown
	})
	if err != nil {
		return nil, err
	}
	if req.Prompt != nil { // what a conversation would need has to be of the right type all the same
		req.Chat = nil
		return req, nil
	}
	req.Chat.Model = req.Model
	return req, nil
}

// DecodeDetokenize reads the body of POST /detokenize. only is the name of the model that is meant where the body names
// none.
func DecodeDetokenize(body []byte, only string, opts DecodeOptions) (*DetokenizeRequest, error) {
	req, err := decodeNamed(body, only, opts, detokenizeTable, func(r *DetokenizeRequest) *string { return &r.Model })
	if err != nil {
		return nil, err
	}
	if req.Tokens == nil {
		return nil, missing("tokens", "an array of token ids")
	}
	return req, nil
}

// decodeNamed reads a request that may leave its model out where there is only one. Unknown fields mean nothing.
func decodeNamed[T any](body []byte, only string, opts DecodeOptions, t *table[T], model func(*T) *string) (*T, error) {
	req, err := decode(body, opts.withDefaults(), t, func(r *T, _ []byte) *Unknown {
		*r = *new(T)
		return new(Unknown)
	})
	if err != nil {
		return nil, err
	}
	name := model(req)
	if *name == "" {
		*name = only
	}
	if *name == "" {
		return nil, missing("model", "the name of a model")
	}
	return req, nil
}
