package server

import (
	"errors"

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
	streams := sound || task == openai.TaskFrames
	set, err := x.find(req.Model, streams)
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
	if streams {
		return x.answerMedia(prepared, task == openai.TaskFrames)
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
