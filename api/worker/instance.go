package worker

import "strconv"

// EndpointID names an endpoint of a component: the unit a model is served by. It is comparable, and used as a key.
type EndpointID struct {
	Namespace string `json:"namespace"` // a deployment
	Component string `json:"component"` // a kind of worker in it
	Name      string `json:"name"`      // one of its functions, such as generate
}

// String returns namespace/component/name, which is also the path of the endpoint in discovery keys.
func (e EndpointID) String() string { return e.Namespace + "/" + e.Component + "/" + e.Name }

// Transport is where an instance takes requests. Exactly one field is set; the address is used as it stands.
type Transport struct {
	NATS string `json:"nats_tcp,omitempty"` // subject
	TCP  string `json:"tcp,omitempty"`      // host:port/path
}

// Instance is one worker process at one endpoint (an Endpoint record of discovery).
type Instance struct {
	Namespace  string    `json:"namespace"`
	Component  string    `json:"component"`
	Endpoint   string    `json:"endpoint"`
	InstanceID uint64    `json:"instance_id"`                   // unique in the cluster: the id of the worker's lease
	Transport  Transport `json:"transport"`                     // where it takes requests
	DeviceType string    `json:"device_type,omitempty"`         // "cuda" or DeviceCPU; older workers don't say
	CodecName  string    `json:"request_plane_codec,omitempty"` // "json", "msgpack"; empty is a JSON-only worker
}

// DeviceCPU is the device type of a worker without an accelerator.
const DeviceCPU = "cpu"

// ID returns the endpoint the instance serves.
func (i *Instance) ID() EndpointID { return EndpointID{i.Namespace, i.Component, i.Endpoint} }

// Codec returns the codec to use toward the instance.
func (i *Instance) Codec() Codec {
	if i.CodecName == "msgpack" {
		return Msgpack
	}
	return JSON
}

// Hex returns the instance id as it stands in keys and subjects: lower-case hexadecimal without padding.
func (i *Instance) Hex() string { return strconv.FormatUint(i.InstanceID, 16) }

// ModelRecord is a Model record of discovery: one model (or LoRA adapter) served by one instance.
type ModelRecord struct {
	Namespace  string `json:"namespace"`
	Component  string `json:"component"`
	Endpoint   string `json:"endpoint"`
	InstanceID uint64 `json:"instance_id"`            // of the worker, which may serve several models
	Card       Card   `json:"card_json"`              // what it says of the model
	Suffix     string `json:"model_suffix,omitempty"` // set for LoRA adapters only
}

// ID returns the endpoint that serves the model.
func (m *ModelRecord) ID() EndpointID { return EndpointID{m.Namespace, m.Component, m.Endpoint} }
