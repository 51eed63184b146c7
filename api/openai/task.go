package openai

import "encoding/json"

// Task is what a model is asked for where it doesn't write text: each has an endpoint, and workers of its own.
type Task uint8

// The tasks.
const (
	TaskEmbed    Task = iota // a vector for each input
	TaskRerank               // documents in the order of their relevance to a query
	TaskScore                // the relevance of texts to another text, in the order given
	TaskClassify             // a label for each input
	TaskPool                 // what the model's pooler makes of each input
	TaskImage                // pictures from a prompt
	TaskEdit                 // pictures from a prompt and another picture
	TaskVideo                // a video from a prompt
	TaskFrames               // the same, frame by frame as it is made
	TaskSpeech               // a text read aloud
	tasks                    // how many there are
)

// TaskRequest is the body of an endpoint for a task. Workers take nearly all of it as the client wrote it: what stands
// here is what somebody looks at. A field that the task doesn't have is nil, as one that is absent.
type TaskRequest struct {
	Model string // required

	Input          Prompt  // embeddings, classify, pooling: one input or a batch, each as text or as token ids
	EncodingFormat *string // of the numbers: float, base64; poolers know more
	Dimensions     *int64  // of each vector; absent: all the model has
	Truncate       *int64  // tokens to keep of each text; -1: as many as the model takes
	AddSpecial     *bool   // the model's own tokens around a text; absent is true

	Query     *string  // rerank: what the documents are compared with
	Documents []string // rerank: in the client's order
	TopN      *int64   // rerank: how many of them to return

	Text1, Text2         []string // score: the second ones are compared with the first
	Text1Name, Text2Name string   // score: what the client calls them

	Text       *string  // speech: what to say; images, videos: what to show
	N          *int64   // images: how many
	Reference  *string  // edits: the picture, by URL or inline as a data URL
	Format     *string  // images: url or b64_json; speech: the codec
	Speed      *float64 // speech: 1 is the voice's own
	DataSource *string  // speech: url for an answer in JSON; b64_json: the sound itself, as when it is absent

	NvExt    *NvExt          // embeddings: annotations, and the worker to use
	MediaExt json.RawMessage // nvext of the tasks that make media: object, for the worker

	Unknown Unknown // what was skipped while reading

	task Task
	body []byte // what the request was decoded from
}

// Task returns the task the request is for.
func (r *TaskRequest) Task() Task { return r.task }

// DecodeTask reads the body of a task's request. The request aliases body, or a mended copy of it.
func DecodeTask(task Task, body []byte, opts DecodeOptions) (*TaskRequest, error) {
	fields := &taskTables[task]
	req, err := decode(body, opts.withDefaults(), fields.table, func(r *TaskRequest, body []byte) *Unknown {
		*r = TaskRequest{task: task, body: body}
		return &r.Unknown
	})
	if err != nil {
		return nil, err
	}
	if req.Model == "" {
		return nil, missing("model", "the name of a model")
	}
	for _, n := range fields.needs {
		if !n.given(req) {
			return nil, missing(n.name, n.allowed)
		}
	}
	return req, nil
}
