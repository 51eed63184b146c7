// Package callhome is the frontend's side of the response plane: a TCP listener that workers dial back to, one
// connection for each request.
//
// A Stream is registered with Expect under a fresh subject, which travels to the worker with the request. The worker
// connects and names the subject; Await takes the connection over and reads the worker's prologue; Each reads the
// answer. All reading happens on the goroutine of the stream's user, inside the poller, so that an idle stream holds
// neither a goroutine nor a buffer of its own.
//
// A Listener is safe for concurrent use; registrations are spread over shards so that requests share no lock. A Stream
// belongs to one goroutine, but for Fail.
package callhome
