// Package stack runs the real programs that end-to-end tests and benchmarks need, on loopback: NATS in process, etcd,
// Dynamo's mocker and frontend, a real model's worker, this project's frontend.
//
// A Stack is one deployment: a discovery backend, a request plane, and the processes that share them. Every process
// gets its own log file in the stack's folder and an environment made from scratch, so that nothing of the caller's
// leaks in. Close ends the processes it started, each by its own id, and waits for them.
//
// Methods are safe for concurrent use, except Close, which comes last.
package stack
