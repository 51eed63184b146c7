// Package courier brings a request's images from the URLs that the client gave into memory that a worker reads from:
// it fetches them, has the model's processor write them into the transfer's memory, and says what the worker is to be
// told.
//
// Images that are wrong are the client's to hear of. Whatever else is in the way, such as a full pool or a prompt that
// doesn't fit its images, leaves the images to travel by URL, as they do without a courier: under no identity, so that a
// worker doesn't mistake what it finds in its caches.
//
// A Courier is safe for concurrent use.
package courier

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
)

// Fetcher gets the files of a request; *fetch.Fetcher is one.
type Fetcher interface {
	Fetch(ctx context.Context, sources []multimodal.Source) ([]multimodal.File, error)
}

// Batch is the memory of one request's images; *transfer.Batch is one.
type Batch interface {
	multimodal.Held
	// Bytes returns the memory of image i, as long as was asked for.
	Bytes(i int) []byte
	// Kwargs says what a worker is told of processed items: a field of extra_args.
	Kwargs(modality string, lengths []int, hashes []string) (field string, value json.RawMessage, err error)
	// Pixels says what a worker is told of image i, which has been decoded into its memory: an element of
	// multi_modal_data.
	Pixels(i int, p *multimodal.Pixels) (json.RawMessage, error)
}

// Options configure a Courier. Fetcher and Open are required.
type Options struct {
	Fetcher Fetcher
	// Open takes memory for images of these sizes. Its failure leaves the images to travel by URL.
	Open func(ctx context.Context, sizes []int) (Batch, error)
	// OpenPixels is Open for decoded images, which go one way alone; nil: they don't.
	OpenPixels func(ctx context.Context, sizes []int) (Batch, error)

	MaxPixels  int64                 // of all images of a request together; 0 is 715,827,880: four of the largest
	Parallel   int                   // images of one request processed at once; 0 is 4
	CacheBytes int64                 // bound of processed images that are kept; 0 keeps none
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.MaxPixels = cmp.Or(o.MaxPixels, 4*178_956_970)
	o.Parallel = cmp.Or(o.Parallel, 4)
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Courier implements multimodal.Courier.
type Courier struct {
	opts    Options
	items   *items // nil: none are kept
	metrics *metrics
}

var _ multimodal.Courier = (*Courier)(nil)

// New returns a Courier. It starts nothing.
func New(opts Options) *Courier {
	opts = opts.withDefaults()
	c := &Courier{opts: opts, items: newItems(opts.CacheBytes)}
	c.metrics = newMetrics(opts.Registerer, c.items)
	return c
}

// Load implements multimodal.Courier.
func (c *Courier) Load(ctx context.Context, r *multimodal.Request) (*multimodal.Load, error) {
	if len(r.Sources) == 0 {
		return nil, nil
	}
	var bring func(context.Context, *multimodal.Request) (*multimodal.Load, error)
	way := multimodal.ByKwargs
	switch {
	case r.Processor != nil:
		bring = c.kwargs
	case r.Decoder != nil && c.opts.OpenPixels != nil:
		bring, way = c.pixels, multimodal.ByPixels
	default:
		return nil, nil
	}
	begin := time.Now()
	load, err := bring(ctx, r)
	if err == nil {
		c.metrics.done(string(way), begin)
		return load, nil
	}
	// What the client did wrong it can mend, and what it no longer waits for needs no other way.
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Kind != fault.Internal || ctx.Err() != nil {
		c.metrics.done("refused", begin)
		return nil, err
	}
	c.metrics.done("url", begin)
	c.opts.Log.Warn("images of a request travel by URL", "model", r.Model, "images", len(r.Sources), "error", err)
	return nil, nil
}

// kwargs goes the whole way: fetch, plan, expand, process, describe.
func (c *Courier) kwargs(ctx context.Context, r *multimodal.Request) (*multimodal.Load, error) {
	files, err := c.opts.Fetcher.Fetch(ctx, r.Sources)
	if err != nil {
		return nil, err
	}
	plans, sizes, err := c.plan(r.Processor, files)
	if err != nil {
		return nil, err
	}
	// Before any memory is taken: a prompt that doesn't fit its images costs nothing then.
	expansion, err := r.Processor.Expand(r.Tokens, plans)
	if err != nil {
		return nil, err
	}
	batch, err := c.opts.Open(ctx, sizes)
	if err != nil {
		return nil, err
	}
	load, err := c.fill(ctx, r, files, plans, expansion, batch)
	if err != nil {
		batch.Close()
		return nil, err
	}
	return load, nil
}

// plan reads the files' headers, and refuses what would be too much to decode before anything is decoded.
func (c *Courier) plan(p multimodal.Processor, files []multimodal.File) ([]*multimodal.Plan, []int, error) {
	plans, sizes := make([]*multimodal.Plan, len(files)), make([]int, len(files))
	left := c.opts.MaxPixels
	for i, file := range files {
		header, err := p.Header(file)
		if err != nil {
			return nil, nil, err
		}
		if left -= int64(header.Width) * int64(header.Height); left < 0 {
			return nil, nil, c.tooMany(file.Path)
		}
		if plans[i], err = p.Plan(header); err != nil {
			return nil, nil, err
		}
		sizes[i] = plans[i].Size
	}
	return plans, sizes, nil
}

// tooMany refuses the image at which a request has too many pixels.
func (c *Courier) tooMany(path string) error {
	return fault.Bad(path, "`%s` brings the request's images over %d pixels", path, c.opts.MaxPixels).
		WithCode("invalid_image_url")
}

// fill has the images written into the batch and says what the worker is told.
func (c *Courier) fill(ctx context.Context, r *multimodal.Request, files []multimodal.File, plans []*multimodal.Plan,
	expansion *multimodal.Expansion, batch Batch) (*multimodal.Load, error) {
	items, err := c.process(ctx, r.Processor, files, plans, batch)
	if err != nil {
		return nil, err
	}
	lengths, ids := make([]int, len(items)), make([]string, len(items))
	for i, item := range items {
		lengths[i], ids[i] = len(item.Blob), item.Identity
	}
	field, value, err := batch.Kwargs("image", lengths, ids)
	if err != nil {
		return nil, err
	}
	load := &multimodal.Load{Held: batch, Args: []multimodal.Arg{
		{Name: "mm_placeholders", Value: placeholders(expansion.Placeholders)},
		{Name: "expanded_token_ids", Value: multimodal.AppendTokens(nil, expansion.Tokens)},
		{Name: field, Value: value},
	}}
	tokens, ok := multimodal.RoutingTokens(expansion, ids)
	if !ok {
		return nil, errors.New("the images' places are not those of the prompt")
	}
	// Hashes outside the metadata are for caches that are routed by. A worker that has to fall back on the URL after it
	// has had the same image as an item then fails, so they are sent only where somebody looks at them.
	if r.Routing {
		hashes, err := json.Marshal(ids)
		if err != nil {
			return nil, err
		}
		load.RoutingTokens = tokens
		load.Args = append(load.Args, multimodal.Arg{Name: "mm_hashes", Value: hashes})
	}
	return load, nil
}

// process has each image written to its memory. It returns when nothing writes any more.
func (c *Courier) process(ctx context.Context, p multimodal.Processor, files []multimodal.File, plans []*multimodal.Plan,
	batch Batch) ([]*multimodal.Item, error) {
	items := make([]*multimodal.Item, len(files))
	err := c.each(ctx, len(files), func(ctx context.Context, i int) (err error) {
		items[i], err = c.one(ctx, p, files[i], plans[i], batch.Bytes(i))
		return err
	})
	return items, err
}

// each calls f for each of n images, a few at a time, and returns the first failure, which ends the others. It returns
// when none of them runs any more.
func (c *Courier) each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	group := lifecycle.New(ctx)
	places := make(chan struct{}, c.opts.Parallel) // an image that is processed holds one
	var ended sync.Once
	var first error
	for i := range n {
		places <- struct{}{} // those before it end, if only by the context
		group.Go("image "+strconv.Itoa(i), func(ctx context.Context) error {
			defer func() { <-places }()
			if ctx.Err() != nil {
				return nil // another one failed, which says enough
			}
			err := f(ctx, i)
			if err != nil {
				ended.Do(func() { first = err })
			}
			return err
		})
	}
	err := group.Wait() // of a panic, too
	_ = group.Stop()    // ends its context; nothing runs any more
	if first != nil {
		err = first
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// one brings one image into dst: a kept item, or a new one, which is kept then.
func (c *Courier) one(ctx context.Context, p multimodal.Processor, file multimodal.File, plan *multimodal.Plan, dst []byte) (*multimodal.Item, error) {
	if c.items == nil {
		return c.fresh(ctx, p, file, plan, dst)
	}
	id := p.Identity(file)
	if blob := c.items.get(id); len(blob) > 0 && len(blob) == plan.Size && len(blob) <= len(dst) {
		c.metrics.cached.Inc()
		return &multimodal.Item{Plan: plan, Blob: dst[:copy(dst, blob)], Identity: id}, nil
	}
	item, err := c.fresh(ctx, p, file, plan, dst)
	if err == nil && item.Identity == id {
		c.items.put(id, item.Blob)
	}
	return item, err
}

// fresh processes one image into dst.
func (c *Courier) fresh(ctx context.Context, p multimodal.Processor, file multimodal.File, plan *multimodal.Plan, dst []byte) (*multimodal.Item, error) {
	c.metrics.processed.Inc()
	item, err := p.Process(ctx, file, plan, dst)
	if err != nil {
		return nil, err
	}
	// A processor may have found its memory too small, and have used its own.
	if len(item.Blob) > len(dst) {
		return nil, errors.New("an item is larger than it was planned to be")
	}
	if len(item.Blob) > 0 && &item.Blob[0] != &dst[0] {
		copy(dst, item.Blob)
	}
	return item, nil
}

// placeholders writes the images' places as workers take them: a pair, or an object where only a part is replaced.
func placeholders(list []multimodal.Placeholder) json.RawMessage {
	dst := []byte{'['}
	for i, p := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		if p.IsEmbed == nil {
			dst = strconv.AppendInt(append(dst, '['), int64(p.Offset), 10)
			dst = append(strconv.AppendInt(append(dst, ','), int64(p.Length), 10), ']')
			continue
		}
		dst = strconv.AppendInt(append(dst, `{"offset":`...), int64(p.Offset), 10)
		dst = strconv.AppendInt(append(dst, `,"length":`...), int64(p.Length), 10)
		dst = append(dst, `,"is_embed":[`...)
		for j, embed := range p.IsEmbed {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendBool(dst, embed)
		}
		dst = append(dst, `]}`...)
	}
	return append(dst, ']')
}
