// Package responses is what OpenAI's Responses interface needs beyond chat: its requests become chat requests, and its
// answers are kept for a while so that a conversation can go on by the id of its last response.
//
//   - convert.go: items become messages;
//   - tools.go: tools become functions, and what a call of one is told as;
//   - echo.go: what an answer repeats of its request;
//   - store.go, chain.go: the responses that are kept, bounded in number, bytes and age.
//
// The answers themselves are written by package reply. Conversion is pure; a Store is safe for concurrent use.
package responses
