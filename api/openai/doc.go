// Package openai holds the wire types of the HTTP surface: chat and completion requests, and error bodies.
//
// DecodeChat and DecodeCompletion read a request in one pass and check its shape: JSON syntax, the type of every known
// field, the roles and content parts of messages. Ranges and rules between fields are not their business (package
// validate has them). What a chat template is to see (messages, tools) stays as the client sent it: the request keeps
// the bytes and only notes what the server needs to know of them.
//
// The rules of reading:
//
//   - null is the same as absent for every optional field.
//   - A field given twice is refused in the request object, in nvext, in a message and in a content part; deeper down,
//     and in fields the server doesn't know, the last one wins, as it does for templates and workers.
//   - Unknown fields are skipped and noted (Unknown), or refused with DecodeOptions.Strict.
//   - Raw control characters inside strings, invalid UTF-8 and unpaired surrogates are mended, but only after a first
//     reading has failed on them.
//   - Nesting is bounded (DecodeOptions.MaxDepth).
//
// Failures are *fault.Error of kind BadRequest whose Param is the JSON path of the offending field, such as
// messages[2].content[0].image_url.url.
//
// Requests are plain data that alias the body they were decoded from: it must not change while they are in use. They
// are safe for concurrent reading.
package openai
