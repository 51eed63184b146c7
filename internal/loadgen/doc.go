// Package loadgen measures an OpenAI-compatible server from outside: latency of streamed answers, their correctness,
// and what the server process spent on them.
//
// It sends streamed chat requests with fresh prompts, either closed loop (a number of connections, each with one
// request at a time) or open loop (arrivals at a rate, whether the server keeps up or not). Every answer is checked:
// status, event framing, the closing [DONE], and the token count the server reports. Times are what a client sees; in
// the open loop they start at the scheduled arrival, so a generator that falls behind doesn't hide a slow server.
//
// The generator shares the machine with what it measures. It therefore speaks HTTP/1.1 itself, scans event bytes
// without decoding JSON, and takes the time once per read, not per token: tokens that arrive in one read have a gap of
// zero, as they have for a client.
//
// Run is safe for concurrent use; it starts what it needs and returns after the last goroutine.
package loadgen
