// Package chaos runs a deployment of two frontends and several simulated workers under load while workers, frontends,
// NATS and etcd are killed, frozen and restarted, and looks at every answer: its text is that of an undisturbed run, or
// it ends in a well-formed error. See chaos_test.go for how long it runs.
package chaos
