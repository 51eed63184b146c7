package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errRecord is the root of the errors for discovery records that can't be used.
var errRecord = errors.New("unusable discovery record")

// The values of a record's type field.
const (
	typeEndpoint = "Endpoint"
	typeModel    = "Model"
)

// ParseInstance reads an Endpoint record. Unknown fields are ignored, nulls count as absent. Errors wrap one cause: the
// record is of no use, whatever is wrong with it.
func ParseInstance(value []byte) (*Instance, error) {
	var raw struct {
		Type string `json:"type"`
		Instance
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	in := &raw.Instance
	switch {
	// A record without a type is taken at its bucket's word.
	case raw.Type != typeEndpoint && raw.Type != "":
		return nil, fmt.Errorf("%w: type %q", errRecord, raw.Type)
	case !in.ID().valid():
		return nil, fmt.Errorf("%w: endpoint %q", errRecord, in.ID())
	// Neither is a transport that only other frontends speak; both would leave the choice open.
	case (in.Transport.NATS == "") == (in.Transport.TCP == ""):
		return nil, fmt.Errorf("%w: instance %s has no transport known here", errRecord, in.Hex())
	}
	return in, nil
}

// ParseModel reads a Model record. Unknown fields are ignored, nulls count as absent.
func ParseModel(value []byte) (*ModelRecord, error) {
	var raw struct {
		Type string `json:"type"`
		ModelRecord
	}
	if err := json.Unmarshal(value, &raw); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	m := &raw.ModelRecord
	switch {
	// As with instances.
	case raw.Type != typeModel && raw.Type != "":
		return nil, fmt.Errorf("%w: type %q", errRecord, raw.Type)
	case !m.ID().valid():
		return nil, fmt.Errorf("%w: endpoint %q", errRecord, m.ID())
	case m.Card.DisplayName == "":
		return nil, fmt.Errorf("%w: model card without a name", errRecord)
	}
	return m, nil
}

// Record returns the instance as an Endpoint record.
func (i *Instance) Record() ([]byte, error) {
	return json.Marshal(struct {
		Type string `json:"type"`
		*Instance
	}{typeEndpoint, i})
}

// Record returns the model as a Model record.
func (m *ModelRecord) Record() ([]byte, error) {
	return json.Marshal(struct {
		Type string `json:"type"`
		*ModelRecord
	}{typeModel, m})
}

// Path returns where the instance stands inside its bucket: namespace/component/endpoint/id, the id in hexadecimal.
func (i *Instance) Path() string { return i.ID().String() + "/" + i.Hex() }

// Path returns where the model stands inside its bucket; adapters have their suffix at the end.
func (m *ModelRecord) Path() string {
	p := m.ID().String() + "/" + strconv.FormatUint(m.InstanceID, 16)
	if m.Suffix != "" {
		p += "/" + m.Suffix
	}
	return p
}

// ParsePath splits a path inside the instance or model bucket. It is the inverse of both Path methods.
func ParsePath(path string) (id EndpointID, instance uint64, suffix string, err error) {
	// What is beyond the fourth slash is the suffix, slashes included: adapters are named by people.
	parts := strings.SplitN(path, "/", 5)
	if len(parts) < 4 {
		return id, 0, "", fmt.Errorf("%w: key %q", errRecord, path)
	}
	// Without a prefix and without padding, as Hex writes it; capitals are read as well.
	instance, err = strconv.ParseUint(parts[3], 16, 64)
	if err != nil {
		return id, 0, "", fmt.Errorf("%w: key %q: %w", errRecord, path, err)
	}
	if len(parts) == 5 {
		suffix = parts[4]
	}
	return EndpointID{parts[0], parts[1], parts[2]}, instance, suffix, nil
}

// Defaults of the parts that an endpoint's text form leaves out.
const (
	defaultNamespace = "NS"
	defaultComponent = "C"
	defaultEndpoint  = "E"
)

// ParseEndpointID reads an endpoint's text form, such as dyn://ns.comp.ep. The scheme is optional and slashes are as
// good as dots. One part names a component, two a namespace and a component, and what is beyond three belongs to the
// name, joined by underscores.
func ParseEndpointID(s string) (EndpointID, error) {
	// FieldsFunc drops empty parts, so that doubled separators don't matter.
	rest := strings.TrimPrefix(s, "dyn://")
	parts := strings.FieldsFunc(rest, func(c rune) bool { return c == '.' || c == '/' })
	id := EndpointID{defaultNamespace, defaultComponent, defaultEndpoint}
	switch len(parts) {
	case 0:
		if rest != "" {
			return EndpointID{}, fmt.Errorf("endpoint %q has no parts", s)
		}
	case 1:
		id.Component = parts[0]
	case 2:
		id.Namespace, id.Component = parts[0], parts[1]
	default:
		id = EndpointID{parts[0], parts[1], strings.Join(parts[2:], "_")}
	}
	return id, nil
}

// URI returns the endpoint's text form, dyn://ns.comp.ep.
func (e EndpointID) URI() string { return "dyn://" + e.Namespace + "." + e.Component + "." + e.Name }

// valid reports whether all three parts are there.
func (e EndpointID) valid() bool { return e.Namespace != "" && e.Component != "" && e.Name != "" }
