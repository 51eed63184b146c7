package courier

import (
	"context"
	"encoding/json"

	"github.com/portico-llm/portico/internal/multimodal"
)

// pixels fetches and decodes; resizing and all that follows is the worker's part. A worker is told of each image either
// by its URL or by where its pixels are, so the URLs don't go along here.
func (c *Courier) pixels(ctx context.Context, r *multimodal.Request) (*multimodal.Load, error) {
	files, err := c.opts.Fetcher.Fetch(ctx, r.Sources)
	if err != nil {
		return nil, err
	}
	sizes, left := make([]int, len(files)), c.opts.MaxPixels
	for i, file := range files {
		header, err := r.Decoder.Header(file)
		if err != nil {
			return nil, err
		}
		if left -= int64(header.Width) * int64(header.Height); left < 0 {
			return nil, c.tooMany(file.Path)
		}
		sizes[i] = header.Width * header.Height * 3
	}
	batch, err := c.opts.OpenPixels(ctx, sizes)
	if err != nil {
		return nil, err
	}
	data, err := c.decode(ctx, r.Decoder, files, batch)
	if err != nil {
		batch.Close()
		return nil, err
	}
	return &multimodal.Load{Held: batch, Data: data}, nil
}

// decode has the images decoded into the batch and returns multi_modal_data with them.
func (c *Courier) decode(ctx context.Context, d multimodal.Decoder, files []multimodal.File, batch Batch) (json.RawMessage, error) {
	list := make([]struct {
		Decoded json.RawMessage
	}, len(files))
	err := c.each(ctx, len(files), func(ctx context.Context, i int) error {
		p, err := d.Decode(ctx, files[i], batch.Bytes(i))
		if err == nil {
			list[i].Decoded, err = batch.Pixels(i, p)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[multimodal.Kind]any{multimodal.ImageURL: list})
}
