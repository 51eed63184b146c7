// Package worker is the contract with inference workers: what stands in discovery, what travels to a worker and what
// comes back. It holds no behaviour beyond encoding.
//
//   - instance.go, card.go: discovery records, read and written by records.go;
//   - frame.go, envelope.go: the two-part codec and the request envelope around a body;
//   - control.go: the frames without a body: handshake, prologue, signals;
//   - request*.go: the body a token worker takes (PreprocessedRequest);
//   - item*.go: one item of the answer (Annotated<LLMEngineOutput>), errors.go its error form;
//   - reader*.go, writer.go: one pull reader and one writer for both codecs; transcode.go between the two.
//
// Bodies are JSON or msgpack maps with string keys, as the worker advertises (Codec). All integers of the framing are
// big-endian. Unknown fields are ignored everywhere; integers may exceed 2^53 and stay exact.
//
// Values are plain data: safe for concurrent reading, not for concurrent writing. Parse functions return values that
// may alias their input unless they say otherwise.
package worker

// Codec names the encoding of bodies between frontend and worker.
type Codec uint8

const (
	// JSON is the codec of workers that advertise none.
	JSON Codec = iota
	// Msgpack is the codec of current workers.
	Msgpack
)

// String returns the codec's name on the wire.
func (c Codec) String() string {
	if c == Msgpack {
		return "msgpack"
	}
	return "json"
}
