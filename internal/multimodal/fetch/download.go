package fetch

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

// newClient returns the client of all downloads. Proxies from the environment aren't used: they would resolve names
// again, behind the checks.
func (f *Fetcher) newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            f.guard.dial,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true, // what is counted is what is read
			MaxIdleConns:           64,
			MaxIdleConnsPerHost:    8,
			IdleConnTimeout:        30 * time.Second,
			TLSHandshakeTimeout:    10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: f.redirect,
	}
}

// redirect decides whether a download may go on elsewhere.
func (f *Fetcher) redirect(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return refuse("could not be fetched: it is redirected more than %d times", maxRedirects)
	}
	if err := f.guard.check(req.URL); err != nil {
		return err
	}
	req.Host = "" // follows the URL, whose host may have been rewritten
	// The next host is no business of the last one's address, which may be signed.
	req.Header.Del("Referer")
	return nil
}

// download fetches an http or https URL, or takes it from the cache.
func (f *Fetcher) download(ctx context.Context, b *batch, raw string) ([]byte, error) {
	u, err := f.guard.target(raw)
	if err != nil {
		return nil, err
	}
	key := u.String()
	known := f.cache.get(key)
	if known != nil && time.Now().Before(known.fresh) {
		f.metrics.hits.Inc()
		return f.known(b, known)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, key, nil)
	if err != nil {
		return nil, refuse("is not a URL").because(err)
	}
	req.Header.Set("User-Agent", "portico")
	req.Header.Set("Accept", "image/*,*/*;q=0.5")
	req.Header.Set("Accept-Encoding", "identity")
	known.condition(req.Header)
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	// Whatever is unread goes with the connection.
	defer func() { _ = resp.Body.Close() }()
	if known != nil && resp.StatusCode == http.StatusNotModified {
		f.metrics.hits.Inc()
		f.cache.put(key, known.content, resp.Header, known)
		return f.known(b, known)
	}
	content, err := f.body(b, resp)
	if err != nil {
		return nil, err
	}
	f.cache.put(key, content, resp.Header, nil)
	return content, nil
}

// known counts the bytes of a cached download against the request's bound, as if they had been read.
func (f *Fetcher) known(b *batch, e *entry) ([]byte, error) {
	if !b.take(int64(len(e.content))) {
		return nil, f.tooMuch()
	}
	return e.content, nil
}

// body reads an answer to its end. Its status, headers and text decide, but are not told.
func (f *Fetcher) body(b *batch, resp *http.Response) ([]byte, error) {
	if resp.StatusCode != http.StatusOK {
		return nil, refuse("could not be fetched: its server does not give it").because(errors.New(resp.Status))
	}
	if resp.ContentLength > f.opts.MaxBytes {
		return nil, f.tooLarge()
	}
	var from io.Reader = resp.Body
	switch strings.ToLower(resp.Header.Get("Content-Encoding")) {
	case "", "identity":
	case "gzip", "x-gzip": // stored like that by some servers, whatever was asked for
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			return nil, refuse("could not be fetched: it breaks off or is damaged").because(err)
		}
		from = z
	default:
		return nil, refuse("could not be fetched: it has an encoding that is not supported")
	}
	return f.read(b, from, resp.ContentLength)
}

// read reads at most as much as a download may have. size is a hint, and not trusted with memory.
func (f *Fetcher) read(b *batch, from io.Reader, size int64) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(int(min(max(size, 0), 1<<20)) + bytes.MinRead)
	n, err := buf.ReadFrom(io.LimitReader(&counted{from, b}, f.opts.MaxBytes+1))
	switch {
	case errors.Is(err, errBudget):
		return nil, f.tooMuch()
	case err != nil:
		return nil, refuse("could not be fetched: it breaks off or is damaged").because(err)
	case n > f.opts.MaxBytes:
		return nil, f.tooLarge()
	}
	return whole(buf.Bytes())
}

// errBudget is the end of what a request may read.
var errBudget = errors.New("the request's bytes are used up")

// counted counts what is read against the request's bound.
type counted struct {
	from  io.Reader
	batch *batch
}

// Read reads, and fails once the request has read too much.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	if !c.batch.take(int64(n)) {
		return 0, errBudget
	}
	return n, err
}

// tooLarge is the refusal of one piece of media that is over its bound.
func (f *Fetcher) tooLarge() error { return refuse("is larger than %s", mebibytes(f.opts.MaxBytes)) }

// tooMuch is the refusal of the piece of media that the request has no room for.
func (f *Fetcher) tooMuch() error {
	return refuse("brings the request's media over %s", mebibytes(f.opts.MaxRequest))
}
