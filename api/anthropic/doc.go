// Package anthropic holds the wire types of Anthropic's Messages API, as far as clients of /v1/messages and
// /v1/messages/count_tokens send and read them: the request with its content blocks, and the form of errors and of the
// list of models.
//
// Decode is tolerant where Anthropic's own clients need it: unknown fields are skipped, null means absent, and the
// mistakes inside strings that package openai mends are mended here too. A value of the wrong type, a block of a kind
// that no model is shown, and a field that has to be there and isn't are a *fault.Error that names the JSON path.
//
// Values are plain data: a decoded request is read-only for everybody and safe for concurrent readers.
package anthropic
