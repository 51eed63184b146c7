package pipeline

import (
	"context"
	"encoding/json"
	"sync/atomic"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
)

// images returns the sources of a request's images when they are to be processed or decoded here; empty: the worker does
// it all, from the URLs. Processing here is for images alone, as the model's processor makes them without further settings.
func (p *Pipeline) images(set *catalog.Set, req *openai.ChatRequest) []multimodal.Source {
	media := req.Conversation.Media
	if p.courier == nil || (set.Images == nil && set.Pixels == nil) || len(media) == 0 || len(req.MMProcessorKwargs) > 0 {
		return nil
	}
	// Workers that share the work take no items, only URLs.
	if set.Prefill() != nil || set.NeedsPrefill() {
		return nil
	}
	// Nobody knows whether the client's own tokens have their places for images filled in already.
	if req.NvExt != nil && req.NvExt.TokenData != nil {
		return nil
	}
	out := make([]multimodal.Source, len(media))
	for i := range media {
		m := &media[i]
		if m.Kind != string(multimodal.ImageURL) {
			return nil
		}
		out[i] = multimodal.Source{Kind: multimodal.ImageURL, URL: m.URL, Path: mediaPath(m) + ".image_url"}
	}
	return out
}

// loadedMedia is what became of a request's images. A nil one is a request without any.
type loadedMedia struct {
	load *multimodal.Load
	sent atomic.Int32    // how often the request was encoded for a worker
	args json.RawMessage // extra_args without the images
	data json.RawMessage // multi_modal_data with URLs alone

	paths  []string // JSON paths of the images
	shrunk bool     // data URLs have been left out
}

// loadMedia brings the images of a request within its worker's reach, and writes into the request where they are. The
// URLs stay in it: a worker that fails to read takes them. It blocks until the images are there; its error is for the
// client. What it takes is released by req.media.close.
func (p *Pipeline) loadMedia(ctx context.Context, req *Prepared) error {
	if len(req.Images) == 0 || p.courier == nil {
		return nil
	}
	ctx, span := p.tracer.Start(ctx, "multimodal.load")
	defer span.End()
	q := req.Requests[0]
	load, err := p.courier.Load(ctx, &multimodal.Request{
		Model: req.Model, Processor: req.Set.Images, Decoder: req.Set.Pixels, Sources: req.Images, Tokens: q.TokenIDs, Routing: p.mmRouting,
	})
	if err != nil {
		if ctx.Err() != nil && !isFault(err) {
			err = fault.From(context.Cause(ctx))
		}
		endWith(span, err)
		return err
	}
	sources := req.Images
	req.Images = nil // data URLs are large, and the request has them
	if load == nil {
		return nil
	}
	// From here on the request says where the memory is, and whoever sees it may pass that on.
	load.Held.Told()
	req.media = &loadedMedia{load: load, args: q.ExtraArgs, data: q.MultiModalData, paths: make([]string, len(sources))}
	for i := range sources {
		req.media.paths[i] = sources[i].Path
	}
	q.ExtraArgs = withArgs(q.ExtraArgs, load.Args)
	if len(load.Data) > 0 {
		q.MultiModalData = load.Data
	}
	if load.RoutingTokens != nil {
		q.MMRoutingInfo = multimodal.RoutingInfo(load.RoutingTokens)
	}
	return nil
}

// withArgs adds fields to an object that may be empty.
func withArgs(object json.RawMessage, args []multimodal.Arg) json.RawMessage {
	var w objectWriter
	if n := len(object); n > 2 {
		// Cut to capacity, so that appending copies: the original is kept.
		w.buf = object[: n-1 : n-1]
	}
	for _, a := range args {
		w.raw(a.Name, a.Value)
	}
	return w.done()
}

// told notes that the request is about to be sent, for the first time or to one more worker.
func (m *loadedMedia) told() {
	if m == nil {
		return
	}
	if m.sent.Add(1) > 1 {
		m.load.Held.Told()
	}
}

// unsent notes that the request has not been sent, if that is so: no worker took it.
func (m *loadedMedia) unsent() {
	if m != nil && m.sent.Load() == 0 {
		m.load.Held.Untold()
	}
}

// maxSpare is the length up to which a data URL is never left out: that would make no room.
const maxSpare = 1 << 10

// shrink takes long data URLs out of a request that was too large to be sent, and reports whether it may fit now. The
// images themselves are within the worker's reach. One that can't read them would answer as if there were none if it
// found no URL, so there is one, which is no image and says so: then the request fails.
func (m *loadedMedia) shrink(q *worker.Request, err error) bool {
	if m == nil || m.shrunk || fault.KindOf(err) != fault.TooLarge || len(m.load.Data) > 0 {
		return false
	}
	var data struct {
		Images []struct {
			URL string `json:"Url"`
		} `json:"image_url"`
	}
	if json.Unmarshal(q.MultiModalData, &data) != nil || len(data.Images) != len(m.paths) {
		return false
	}
	list := []byte{'['}
	for i := range data.Images {
		url := data.Images[i].URL
		if len(url) > maxSpare && isDataURL(url) {
			url, m.shrunk = "data:text/plain,"+m.paths[i]+" is too large to be sent along", true
		}
		if i > 0 {
			list = append(list, ',')
		}
		list = append(appendQuoted(append(list, `{"Url":`...), url), '}')
	}
	if !m.shrunk {
		return false
	}
	var w objectWriter
	w.raw("image_url", append(list, ']'))
	q.MultiModalData = w.done()
	m.sent.Add(-1) // encoded, but not sent
	return true
}

// close ends the request's use of the images' memory. It doesn't wait.
func (m *loadedMedia) close() {
	if m != nil {
		m.load.Held.Close()
	}
}

// routing returns the prompt as routers see it: images stand in it as what they are.
func (m *loadedMedia) routing(q *worker.Request) []uint32 {
	if m == nil || m.load.RoutingTokens == nil {
		return q.TokenIDs
	}
	return m.load.RoutingTokens
}

// without returns the request with its images by URL alone.
func (m *loadedMedia) without(q *worker.Request) *worker.Request {
	if m == nil {
		return q
	}
	c := *q
	c.ExtraArgs, c.MultiModalData, c.MMRoutingInfo = m.args, m.data, nil
	return &c
}
