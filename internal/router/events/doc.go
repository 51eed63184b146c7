// Package events carries the event topics of workers and routers: KV events, load reports, what routers have placed. It
// follows the publishers' records in discovery, receives over NATS and over ZeroMQ, whatever each of them advertises, and
// publishes over either.
//
//	snapshot ─▶ Hub ─▶ link (NATS subject, ZeroMQ connection) ─▶ track (sequence of one publisher) ─▶ Handler
//	Outlet ─▶ NATS subject or ZeroMQ socket, and a record in discovery
//
// Neither transport keeps what nobody received, so every publisher numbers its messages. The Hub drops what comes twice
// and tells the Handler whenever something may be missing: with each connection, the first included, and at each gap.
// What to do about it, such as asking for the whole state, is the Handler's business.
package events
