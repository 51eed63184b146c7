package main

import (
	"context"
	"fmt"

	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/courier"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
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
		NIXL: c.Transfer != "shm", Libraries: libraries, ProgressDelay: c.ProgressDelay(),
		PoolBytes: c.PoolBytes, Wait: c.PoolWait, Cleanup: cleanup, Registerer: a.registry, Log: log,
	})
	// Notifications end after the requests and before what they are about.
	a.onClose(func(context.Context) error { return t.Close() })
	a.run("images", t.Run)
	return courier.New(courier.Options{
		Fetcher: fetcher,
		Open: func(ctx context.Context, sizes []int) (courier.Batch, error) {
			b, err := t.Open(ctx, sizes)
			if err != nil {
				return nil, err // not a nil batch in an interface
			}
			return b, nil
		},
		Registerer: a.registry, Log: log,
	}), nil
}
