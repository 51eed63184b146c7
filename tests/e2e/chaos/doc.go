// Package chaos runs deployments of two frontends and several workers under load while workers, frontends, NATS and etcd
// are killed, frozen and restarted, and looks at every answer: its text is that of an undisturbed run, or it ends in a
// well-formed error. Dynamo's mockers, in mode kv, make up their texts: of those answers the tokens are counted, and in
// the end every frontend's index has to be that of a fresh one. A table says what has happened. See chaos_test.go for how
// long it runs.
package chaos
