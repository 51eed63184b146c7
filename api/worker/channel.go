package worker

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Types of the records of event publishers.
const (
	typeEventChannel = "EventChannel"
	typeEventSource  = "EventSource"
)

// The topics that workers and routers publish on.
const (
	TopicKVEvents        = "kv-events"               // blocks stored in a KV cache and removed from it
	TopicKVMetrics       = "kv_metrics"              // load of a worker
	TopicActiveSequences = "active_sequences_events" // requests that a router has placed
	TopicSessionAffinity = "session_affinity_events" // workers that a router has bound sessions to
)

// The kinds of EventScope.
const (
	ScopeNamespace = "namespace"
	ScopeComponent = "component"
	ScopeEndpoint  = "endpoint"
)

// EventScope is what the events of a channel are about: a namespace, a component or an endpoint. It is comparable.
type EventScope struct {
	Kind string     // one of the scopes
	ID   EndpointID // as many of its parts as the kind has
}

// EndpointScope returns the scope of one endpoint.
func EndpointScope(id EndpointID) EventScope { return EventScope{Kind: ScopeEndpoint, ID: id} }

// scopeJSON is a scope on the wire.
type scopeJSON struct {
	Kind      string      `json:"kind"`
	Name      string      `json:"name,omitempty"`
	Namespace string      `json:"namespace,omitempty"`
	Component string      `json:"component,omitempty"`
	Endpoint  *EndpointID `json:"endpoint,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (s EventScope) MarshalJSON() ([]byte, error) {
	switch s.Kind {
	case ScopeNamespace:
		return json.Marshal(scopeJSON{Kind: s.Kind, Name: s.ID.Namespace})
	case ScopeComponent:
		return json.Marshal(scopeJSON{Kind: s.Kind, Namespace: s.ID.Namespace, Component: s.ID.Component})
	}
	return json.Marshal(scopeJSON{Kind: s.Kind, Endpoint: &s.ID})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *EventScope) UnmarshalJSON(b []byte) error {
	var raw scopeJSON
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*s = EventScope{Kind: raw.Kind}
	switch {
	case raw.Kind == ScopeNamespace:
		s.ID.Namespace = raw.Name
	case raw.Kind == ScopeComponent:
		s.ID.Namespace, s.ID.Component = raw.Namespace, raw.Component
	case raw.Kind == ScopeEndpoint && raw.Endpoint != nil:
		s.ID = *raw.Endpoint
	default:
		return fmt.Errorf("%w: event scope %q", errRecord, raw.Kind)
	}
	return nil
}

// parts lists the names of the scope, each behind its kind.
func (s EventScope) parts() []string {
	out := []string{ScopeNamespace, s.ID.Namespace, ScopeComponent, s.ID.Component, ScopeEndpoint, s.ID.Name}
	switch s.Kind {
	case ScopeNamespace:
		return out[:2]
	case ScopeComponent:
		return out[:4]
	}
	return out
}

// join puts the parts together, with their names encoded.
func (s EventScope) join(separator string) string {
	parts := s.parts()
	for i := 1; i < len(parts); i += 2 {
		parts[i] = encodeSegment(parts[i])
	}
	return strings.Join(parts, separator)
}

// Subject returns the beginning of the scope's subjects on NATS; a dot and the topic follow.
func (s EventScope) Subject() string { return s.join(".") }

// encodeSegment writes everything but ASCII letters, digits, - and _ as %XX.
func encodeSegment(s string) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', digits[c>>4], digits[c&0xf]})
		}
	}
	return b.String()
}

// The kinds of EventTransport.
const (
	TransportNATS      = "Nats"
	TransportZMQ       = "Zmq"
	TransportZMQBroker = "ZmqBroker"
)

// EventTransport is how a publisher's events are received. Which fields are set follows from the kind.
type EventTransport struct {
	Kind          string   // one of the transports; others belong to publishers newer than this
	SubjectPrefix string   // Nats: a dot and the topic follow
	Endpoint      string   // Zmq: tcp://host:port of the publisher
	XPub          []string // ZmqBroker: where to subscribe
	XSub          []string // ZmqBroker: where to publish
}

// transportJSON is a transport on the wire.
type transportJSON struct {
	Kind   string `json:"kind"`
	Config struct {
		SubjectPrefix string   `json:"subject_prefix,omitempty"`
		Endpoint      string   `json:"endpoint,omitempty"`
		XSub          []string `json:"xsub_endpoints,omitempty"`
		XPub          []string `json:"xpub_endpoints,omitempty"`
	} `json:"config"`
}

// MarshalJSON implements json.Marshaler.
func (t EventTransport) MarshalJSON() ([]byte, error) {
	raw := transportJSON{Kind: t.Kind}
	raw.Config.SubjectPrefix, raw.Config.Endpoint, raw.Config.XSub, raw.Config.XPub = t.SubjectPrefix, t.Endpoint, t.XSub, t.XPub
	return json.Marshal(raw)
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *EventTransport) UnmarshalJSON(b []byte) error {
	var raw transportJSON
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	c := &raw.Config
	*t = EventTransport{Kind: raw.Kind, SubjectPrefix: c.SubjectPrefix, Endpoint: c.Endpoint, XPub: c.XPub, XSub: c.XSub}
	return nil
}

// EventChannel is an EventChannel record of discovery: one publisher of one topic, and where its events are to be had.
type EventChannel struct {
	Scope     EventScope     `json:"scope"`
	Topic     string         `json:"topic"`
	Publisher uint64         `json:"instance_id"` // of the publisher, not of a worker
	Transport EventTransport `json:"transport"`
}

// EventSource is an EventSource record of discovery: one publisher of KV events, and where to ask for the state that its
// events build on.
type EventSource struct {
	Scope     EventScope     `json:"scope"`
	Topic     string         `json:"topic"`
	Publisher uint64         `json:"publisher_id"`
	Metadata  SourceMetadata `json:"metadata"`
}

// SourceMetadata says whose events a source publishes.
type SourceMetadata struct {
	Endpoint  EndpointID `json:"kv_state_endpoint"` // that the worker serves
	Worker    WorkerRank `json:"worker"`
	Publisher uint64     `json:"publisher_id"`    // as in the source
	Recovery  *Instance  `json:"recovery_target"` // answers KVQuery; nil: nobody does
}

// WorkerRank is one data-parallel rank of one worker.
type WorkerRank struct {
	WorkerID uint64 `json:"worker_id"`
	DPRank   uint32 `json:"dp_rank"`
}

// ParseEventChannel reads an EventChannel record. Unknown fields are ignored.
func ParseEventChannel(value []byte) (*EventChannel, error) {
	var raw struct {
		Type string `json:"type"`
		EventChannel
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	if raw.Type != typeEventChannel && raw.Type != "" {
		return nil, fmt.Errorf("%w: type %q", errRecord, raw.Type)
	}
	return &raw.EventChannel, checkPublisher(raw.Scope, raw.Topic)
}

// ParseEventSource reads an EventSource record. Unknown fields are ignored.
func ParseEventSource(value []byte) (*EventSource, error) {
	var raw struct {
		Type string `json:"type"`
		EventSource
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	if raw.Type != typeEventSource && raw.Type != "" {
		return nil, fmt.Errorf("%w: type %q", errRecord, raw.Type)
	}
	return &raw.EventSource, checkPublisher(raw.Scope, raw.Topic)
}

// checkPublisher refuses what could stand under no key.
func checkPublisher(s EventScope, topic string) error {
	if topic == "" || s.Kind == "" {
		return fmt.Errorf("%w: an event publisher without topic or scope", errRecord)
	}
	return nil
}

// Record returns the channel as an EventChannel record.
func (c *EventChannel) Record() ([]byte, error) {
	return json.Marshal(struct {
		Type string `json:"type"`
		*EventChannel
	}{typeEventChannel, c})
}

// Record returns the source as an EventSource record.
func (s *EventSource) Record() ([]byte, error) {
	return json.Marshal(struct {
		Type string `json:"type"`
		*EventSource
	}{typeEventSource, s})
}

// Path returns where the channel stands inside its bucket.
func (c *EventChannel) Path() string { return publisherPath(c.Scope, c.Topic, c.Publisher) }

// Path returns where the source stands inside its bucket.
func (s *EventSource) Path() string { return publisherPath(s.Scope, s.Topic, s.Publisher) }

// publisherPath is the layout of both buckets.
func publisherPath(s EventScope, topic string, publisher uint64) string {
	return s.join("/") + "/topic/" + encodeSegment(topic) + "/" + strconv.FormatUint(publisher, 16)
}
