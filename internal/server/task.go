package server

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/server/reply"
	"github.com/portico-llm/portico/internal/server/validate"
)

// task answers the endpoints of models that don't write text: embeddings, rerank, score, classify, pooling, images,
// videos and speech. Their workers take the client's own request, but for embeddings of tokens.
func (x *exchange) task(task openai.Task) error {
	body, err := x.s.readBody(x.w, x.r)
	if task == openai.TaskEdit && errors.Is(err, errContentType) {
		return errImageForm
	}
	if err != nil {
		return err
	}
	req, err := openai.DecodeTask(task, body, x.s.opts.Decode)
	if err != nil {
		return err
	}
	if n := req.Unknown.Count; n > 0 {
		x.s.metrics.unknown.WithLabelValues(x.endpoint.String()).Add(float64(n))
	}
	// Sound streams, unless only the place where it lies is wanted.
	sound := task == openai.TaskSpeech && (req.DataSource == nil || *req.DataSource != "url")
	set, err := x.find(req.Model, sound)
	if fault.KindOf(err) == fault.Unavailable {
		return err
	}
	// The same order as in chat.
	if err := validate.Task(req, x.s.opts.Validate); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	x.describe(&openai.Common{Model: req.Model}, x.endpoint.String(), nil)
	x.answerID = x.endpoint.String() + "-" + x.meta.RequestID
	if task == openai.TaskScore {
		return x.answerScores(set, req)
	}
	prepared, err := x.s.opts.Pipeline.PrepareTask(x.r.Context(), set, x.meta, req)
	if err != nil {
		return err
	}
	if sound {
		return x.answerSound(prepared)
	}
	return x.answerTask(prepared, req)
}

// errImageForm is errContentType for clients that send an image as OpenAI takes it: as a file in a multipart body. Workers
// know images by reference, and Dynamo refuses such a body, too.
var errImageForm = fault.New(fault.UnsupportedMedia,
	"%s, with the image in `input_reference`, as a URL or a data URL", errContentType.Message)

// answerTask waits for the worker's value and writes it in the form of the endpoint.
func (x *exchange) answerTask(p *pipeline.Prepared, req *openai.TaskRequest) error {
	var whole reply.Whole
	if err := x.s.opts.Pipeline.Run(x.r.Context(), p, &whole); err != nil {
		return err
	}
	value, err := whole.Value()
	if err != nil {
		return err
	}
	if req.Task() == openai.TaskEmbed {
		e := reply.Embeddings{
			Model: req.Model, Count: req.Input.Len(),
			Base64: req.EncodingFormat != nil && *req.EncodingFormat == "base64",
		}
		value, err = e.Append(nil, value)
	}
	if err != nil {
		return err
	}
	return x.write(value)
}

// answerScores asks for one part of a score request after the other: what is compared with the same text.
func (x *exchange) answerScores(set *catalog.Set, req *openai.TaskRequest) error {
	s := reply.Scores{ID: x.answerID, Model: req.Model, Created: x.s.opts.Now().Unix()}
	for _, part := range req.ScoreParts() {
		prepared, err := x.s.opts.Pipeline.PrepareTask(x.r.Context(), set, x.meta, part)
		if err != nil {
			return err
		}
		var whole reply.Whole
		if err := x.s.opts.Pipeline.Run(x.r.Context(), prepared, &whole); err != nil {
			return err
		}
		value, err := whole.Value()
		if err == nil {
			err = s.Add(value, len(part.Text2))
		}
		if err != nil {
			return err
		}
	}
	return x.write(s.Append(nil))
}

// answerSound passes sound on as it comes.
func (x *exchange) answerSound(p *pipeline.Prepared) error {
	s := &sound{x: x}
	err := x.s.opts.Pipeline.Run(x.r.Context(), p, s)
	switch {
	case err != nil && x.answered && !s.gone:
		// The end of the body would look like the end of the sound: the connection breaks off instead.
		_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now())
		return err
	case err == nil && !x.answered:
		return errNoSound.Because(errors.New("the answer is empty"))
	}
	return err
}

// errNoSound is the failure of a speech worker that doesn't speak. It is never changed: Because makes copies.
var errNoSound = fault.New(fault.BadGateway, "The worker sent no sound")

// sound writes the sound that a speech worker sends, item by item. It belongs to one request.
type sound struct {
	x    *exchange
	gone bool // the client doesn't read
}

var _ pipeline.Sink = (*sound)(nil)

// soundItem is what a speech worker sends.
type soundItem struct {
	Status string `json:"status"`
	Error  string `json:"error"` // the worker's own words, for the log
	Data   []struct {
		Format string `json:"output_format"`
		Base64 []byte `json:"b64_json"`
	} `json:"data"`
}

// soundTypes are the media types of the codecs workers know by name.
var soundTypes = map[string]string{
	"wav": "audio/wav", "mp3": "audio/mpeg", "opus": "audio/opus", "aac": "audio/aac", "flac": "audio/flac",
	"pcm": "audio/pcm",
}

// Start does nothing: until there is sound, a failure is a status.
func (s *sound) Start(*pipeline.Prepared) error { return nil }

// Delta writes what the item holds.
func (s *sound) Delta(d *pipeline.Delta) error {
	if d.Raw == nil {
		return nil
	}
	var item soundItem
	if err := json.Unmarshal(d.Raw, &item); err != nil {
		if broken, ok := errors.AsType[base64.CorruptInputError](err); ok {
			err = fmt.Errorf("b64_json: %w", broken)
		}
		return errNoSound.Because(err)
	}
	if item.Error != "" || item.Status == "failed" {
		return errNoSound.Because(errors.New(item.Error))
	}
	for _, one := range item.Data {
		if err := s.write(one.Format, one.Base64); err != nil {
			return err
		}
	}
	return nil
}

// write writes a piece of sound; the first decides the type of the whole.
func (s *sound) write(format string, piece []byte) error {
	if len(piece) == 0 {
		return nil
	}
	x := s.x
	if !x.answered {
		media, ok := soundTypes[format]
		if !ok {
			media = "application/octet-stream"
		}
		x.w.Header()["Content-Type"] = []string{media}
		x.answered = true
		x.dequeue()
	}
	x.s.writeWithin(x.w, x.s.opts.Stream.WriteTimeout)
	if _, err := x.w.Write(piece); err != nil {
		s.gone = true
		return errGone.Because(err)
	}
	return nil
}

// Flush sends what there is: somebody is listening.
func (s *sound) Flush() error {
	if !s.x.answered {
		return nil
	}
	if err := http.NewResponseController(s.x.w).Flush(); err != nil {
		s.gone = true
		return errGone.Because(err)
	}
	return nil
}
