// Package fetch gets the bytes of a request's media from where the client said they are: http and https, data URLs, and
// files inside one configured folder.
//
// A client chooses the URLs, so they are as good as an attacker's. Names are resolved here, every address is checked,
// and the very address that was checked is dialled, again at each redirect. What the other side answers decides between
// bytes and a refusal, and is never repeated to the client. All is bounded: time, bytes, redirects, downloads at once.
//
// Whatever is wrong with a piece of media is a bad request that names its part. A Fetcher is safe for concurrent use.
package fetch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
)

// Options configure a Fetcher. The zero value works: http, https and data URLs, of public addresses alone.
type Options struct {
	AllowInternal bool     // private, loopback and otherwise special addresses may be fetched from
	Domains       []string // hosts that may be fetched from; *.name stands for all below name; empty: any
	LocalDir      string   // folder that file URLs may name files in; empty: there are no file URLs

	MaxDataURL int64 // bytes that a data URL may hold; 0 is 16 MiB
	MaxBytes   int64 // bytes of a download or a file; 0 is 64 MiB
	MaxRequest int64 // bytes of all media of a request together; 0 is 256 MiB

	Timeout     time.Duration // for all media of a request together; 0 is 30 s
	PerRequest  int           // downloads of one request at once; 0 is 8
	AtOnce      int           // downloads of all requests at once; 0 is 64
	CacheBytes  int64         // of downloads kept for later requests; 0 keeps none
	DialTimeout time.Duration // for one address; 0 is 5 s

	Resolver   *net.Resolver         // nil: the system's
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
	Log        *slog.Logger          // nil: slog.Default()
}

// maxRedirects is how often a download may be sent elsewhere.
const maxRedirects = 3

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	o.MaxDataURL = cmp.Or(o.MaxDataURL, 16<<20)
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	o.MaxRequest = cmp.Or(o.MaxRequest, 256<<20)
	o.Timeout = cmp.Or(o.Timeout, 30*time.Second)
	o.PerRequest = cmp.Or(o.PerRequest, 8)
	o.AtOnce = cmp.Or(o.AtOnce, 64)
	o.DialTimeout = cmp.Or(o.DialTimeout, 5*time.Second)
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// Fetcher fetches media. Close it when no request will be started with it.
type Fetcher struct {
	opts    Options
	guard   *guard
	client  *http.Client
	root    *os.Root      // nil: no file URLs
	slots   chan struct{} // one for each download that runs
	cache   *cache        // nil: nothing is kept
	metrics *metrics
}

// New returns a Fetcher. It fails when the folder for files can't be opened.
func New(opts Options) (*Fetcher, error) {
	opts = opts.withDefaults()
	f := &Fetcher{
		opts:    opts,
		guard:   newGuard(&opts),
		slots:   make(chan struct{}, opts.AtOnce), // a download holds one slot
		metrics: newMetrics(opts.Registerer),
	}
	if opts.LocalDir != "" {
		root, err := os.OpenRoot(opts.LocalDir)
		if err != nil {
			return nil, fmt.Errorf("folder of media files: %w", err)
		}
		f.root = root
	}
	if opts.CacheBytes > 0 {
		f.cache = newCache(opts.CacheBytes)
	}
	f.client = f.newClient()
	return f, nil
}

// Close ends idle connections and closes the folder of files. Running fetches go on to their end.
func (f *Fetcher) Close() error {
	f.client.CloseIdleConnections()
	if f.root == nil {
		return nil
	}
	return f.root.Close()
}

// batch is what the media of one request share.
type batch struct {
	left atomic.Int64 // bytes that may still be read
}

// take counts n more bytes and reports whether they are within the request's bound.
func (b *batch) take(n int64) bool { return b.left.Add(-n) >= 0 }

// Fetch returns the file of each source, in order. The same URL is fetched once; what it holds is then shared, also with
// other requests, and only read. The first failure ends the whole:
// it is a *fault.Error that names the part, or ctx's error when that ended first. Fetch returns when nothing of it runs
// any more.
func (f *Fetcher) Fetch(ctx context.Context, sources []multimodal.Source) ([]multimodal.File, error) {
	// One deadline for all: a request with many slow images is as slow as its slowest.
	limited, cancel := context.WithTimeout(ctx, f.opts.Timeout)
	defer cancel()
	b := &batch{}
	b.left.Store(f.opts.MaxRequest)
	out := make([]multimodal.File, len(sources))
	errs := make([]error, len(sources))
	group := lifecycle.New(limited)
	// A source whose URL came before waits for nobody: it takes over the first one's result.
	first := make(map[string]int, len(sources))
	running := make(chan struct{}, f.opts.PerRequest) // a fetch of this request holds one place
	for i := range sources {
		if _, seen := first[sources[i].URL]; seen {
			continue
		}
		first[sources[i].URL] = i
		if err := enter(group.Context(), running); err != nil {
			errs[i] = f.refuse(group.Context(), &sources[i], err)
			break
		}
		group.Go("fetch", func(ctx context.Context) error {
			defer func() { <-running }()
			data, err := f.one(ctx, b, sources[i].URL)
			if err != nil {
				errs[i] = f.refuse(ctx, &sources[i], err)
				return errs[i] // ends the others
			}
			out[i].Data = data
			return nil
		})
	}
	_ = group.Wait() // its error is one of errs, or a panic
	_ = group.Stop() // ends its context; nothing runs any more
	if err := verdict(ctx, errs); err != nil {
		return nil, err
	}
	for i := range sources {
		out[i] = multimodal.File{Path: sources[i].Path, Data: out[first[sources[i].URL]].Data}
		if len(out[i].Data) == 0 {
			return nil, errLost
		}
	}
	return out, nil
}

// enter takes a place, or gives up when ctx ends.
func enter(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// verdict chooses which failure the client is told: its own leaving first, then the first part that is to blame.
func verdict(ctx context.Context, errs []error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var follow error // of a fetch that was ended by another's failure
	for _, err := range errs {
		if err != nil && !isFollow(err) {
			return err
		}
		follow = cmp.Or(follow, err)
	}
	return follow
}

// one fetches one URL, and counts it.
func (f *Fetcher) one(ctx context.Context, b *batch, raw string) ([]byte, error) {
	scheme, _, _ := strings.Cut(raw, ":")
	begin := time.Now()
	var data []byte
	var err error
	switch scheme = strings.ToLower(scheme); {
	case scheme == "http" || scheme == "https":
		if err = enter(ctx, f.slots); err != nil {
			return nil, err
		}
		defer func() { <-f.slots }()
		data, err = f.download(ctx, b, raw)
	case scheme == "data" && len(raw) > len(scheme):
		data, err = f.inline(b, raw)
	case scheme == "file" && len(raw) > len(scheme) && f.root != nil:
		data, err = f.local(b, raw)
	case f.root != nil:
		return nil, refuse("must be an http, https, data or file URL")
	default:
		return nil, refuse("must be an http, https or data URL")
	}
	f.metrics.done(scheme, begin, data, err)
	return data, err
}

// whole takes bytes that are complete.
func whole(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, refuse("is empty")
	}
	return data, nil
}
