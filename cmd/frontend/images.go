package main

import (
	"context"
	"fmt"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/courier"
	"github.com/portico-llm/portico/internal/multimodal/decode"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/process"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/prepost/modelcard"
)

// gib is what caches of images are counted in.
const gib = 1 << 30

// startImages opens the way of images to workers; nil when they travel as URLs. What it opens is closed after the last
// request has ended.
func (a *app) startImages() (multimodal.Courier, error) {
	c := &a.cfg.Images
	if c.Way == "url" || c.NoTransfer {
		return nil, nil
	}
	log := a.target("images")
	fetcher, err := fetch.New(fetch.Options{
		AllowInternal: c.AllowInternal, Domains: c.Domains, LocalDir: c.LocalPath,
		MaxDataURL: c.MaxDataURL, MaxBytes: c.MaxFile, Timeout: c.FetchTimeout,
		CacheBytes: int64(c.CacheGB * gib), Registerer: a.registry, Log: log,
	})
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	a.onClose(func(context.Context) error { return fetcher.Close() })
	cleanup, ok := c.CleanupAfter()
	if !ok {
		log.Warn("not a positive number of seconds: a minute is used", "setting", "mm-nixl-cleanup-timeout-s", "value", c.CleanupTimeout)
	}
	libraries := []string{c.Library}
	if c.Library == "" {
		libraries = nixl.Find(c.Python)
	}
	t := transfer.New(transfer.Options{
		NIXL: c.Transfer != "shm" || c.Way == "pixels", Libraries: libraries, ProgressDelay: c.ProgressDelay(),
		PoolBytes: c.PoolBytes, Wait: c.PoolWait, Cleanup: cleanup, Registerer: a.registry, Log: log,
	})
	// Notifications end after the requests and before what they are about.
	a.onClose(func(context.Context) error { return t.Close() })
	a.run("images", t.Run)
	if c.Way == "pixels" && !t.NIXL() {
		log.Warn("images travel by URL: decoded ones go over NIXL alone, and it can't be used")
		return nil, nil
	}
	a.images = decode.New(decode.Options{Workers: c.Workers, MaxPixels: c.MaxPixels, Registerer: a.registry, Log: log})
	a.onClose(func(context.Context) error { return a.images.Close() })
	return courier.New(courier.Options{
		Fetcher: fetcher, Open: opener(t.Open), OpenPixels: opener(t.OpenNIXL), CacheBytes: c.ItemCache,
		Registerer: a.registry, Log: log,
	}), nil
}

// opener turns batches into the courier's, and no batch into none.
func opener(open func(context.Context, []int) (*transfer.Batch, error)) func(context.Context, []int) (courier.Batch, error) {
	return func(ctx context.Context, sizes []int) (courier.Batch, error) {
		b, err := open(ctx, sizes)
		if err != nil {
			return nil, err // not a nil batch in an interface
		}
		return b, nil
	}
}

// imageDecoder returns what decodes a model's images; nil when its workers don't take pixels or aren't to get them.
func (a *app) imageDecoder(rec *worker.ModelRecord) multimodal.Decoder {
	if a.images == nil || a.cfg.Images.Way != "pixels" || len(rec.Card.MediaDecoder) == 0 {
		return nil
	}
	a.target("images").Info("the images of a model are decoded here", "model", rec.Card.DisplayName)
	return a.images
}

// imageProcessor returns what makes a model's images; nil when they travel by URL. Why is told once, here.
func (a *app) imageProcessor(
	ctx context.Context, rec *worker.ModelRecord, files *modelcard.Files, tok prepost.Tokenizer,
) multimodal.Processor {
	if a.images == nil || a.cfg.Images.Way != "kwargs" || len(files.Preprocessor)+len(files.Processor) == 0 {
		return nil // a model without a processor takes no images, most likely
	}
	c, name, log := &a.cfg.Images, rec.Card.DisplayName, a.target("images")
	p, err := process.New(process.Options{
		Config: files.Config, Preprocessor: files.Preprocessor, Processor: files.Processor, Pool: a.images,
		TokenID: tok.TokenID,
		Encode:  func(text string) ([]uint32, error) { return tok.Encode(ctx, text, false) },
		Settings: process.Settings{
			Engine: config.Of(c.Engine, name), Backend: process.Backend(config.Of(c.Backend, name)),
			Scale: process.Scale(config.Of(c.Scale, name)), DType: multimodal.DType(config.Of(c.DType, name)),
		},
	})
	if err != nil {
		log.Warn("the images of a model travel by URL", "model", name, "error", err)
		return nil
	}
	if err := p.Sendable(); err != nil {
		log.Warn("the images of a model travel by URL", "model", name, "error", err)
		return nil
	}
	log.Info("the images of a model are processed here", "model", name, "processor", p.Name(), "settings", p.Settings())
	return p
}
