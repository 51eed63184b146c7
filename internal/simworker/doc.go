// Package simworker is the worker side of the worker protocol, with simulated engines: for development without a GPU,
// for tests that need a worker to misbehave in a chosen way, and for load at a chosen pace.
//
// A Worker registers itself through a Registrar, takes requests from one plane (a NATS subject or a TCP listener),
// acknowledges each, dials the frontend back and streams what its Engine produces, as a real worker does:
//
//	request ─▶ acknowledge ─▶ dial back ─▶ handshake ─▶ prologue ─▶ items … ─▶ complete_final ─▶ sentinel ─▶ await close
//
// Engines: Generator makes tokens (from a text, from the prompt, at random, or each from all before it) at a pace given
// by Timing; Script plays prepared items; Prefiller and Decoder share a request between two workers. Faults, chosen per request, break the protocol at any step.
//
// Run blocks until its context ends and waits for everything it started. Other methods are safe for concurrent use.
package simworker
