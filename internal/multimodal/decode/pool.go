// Package decode runs the native image decoders: a bounded number at a time, in the goroutines of their callers.
//
// Native code can't be interrupted, so what is bounded is how much of it runs: Workers images at a time, of which one
// may be large, whatever the others are; a queue that is full refuses. So a huge image takes one worker for a second or
// two and delays nobody else, and neither prompts (which have workers of their own) nor memory suffer from many.
//
// Dimensions are read first, in Header, and checked against the limits; nothing is decoded before that.
package decode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/native"
)

// Options are a Pool's settings. The zero value works.
type Options struct {
	Workers     int // images that are worked on at a time; 0: as many as there are processors, and at least two
	Queue       int // images that wait; 0: 256
	MaxPixels   int // width times height of one image; 0: 178,956,970, as PIL
	LargePixels int // from here on an image is large; 0: 16,777,216

	Registerer prometheus.Registerer // nil: no metrics
	Log        *slog.Logger          // nil: nothing is logged
}

// maxPixels is where PIL sees a decompression bomb.
const maxPixels = 178_956_970

func (o Options) withDefaults() Options {
	if o.Workers <= 0 {
		o.Workers = max(2, runtime.GOMAXPROCS(0))
	}
	if o.Queue <= 0 {
		o.Queue = 256
	}
	if o.MaxPixels <= 0 {
		o.MaxPixels = maxPixels
	}
	if o.LargePixels <= 0 {
		o.LargePixels = 16 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Pool is a multimodal.Decoder, and runs the native steps of processors. Safe for concurrent use. After Close all calls
// fail; running ones finish.
type Pool struct {
	opts    Options
	metrics metrics
	slots   chan struct{} // one per image being worked on
	large   chan struct{} // one: for the large one among them
	waiting atomic.Int64

	mu     sync.Mutex
	closed bool
	idle   []*native.ImageWorker // not in use, at most Workers
}

var _ multimodal.Decoder = (*Pool)(nil)

// New returns a pool. Workers are made when there is work for them.
func New(opts Options) *Pool {
	opts = opts.withDefaults()
	p := &Pool{
		opts:  opts,
		slots: make(chan struct{}, opts.Workers), // one per image being worked on
		large: make(chan struct{}, 1),            // the large one
	}
	p.metrics = newMetrics(opts.Registerer, p)
	return p
}

// Close frees the workers that are idle, and the others when they become so. It is idempotent and doesn't wait.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var err error
	for _, w := range p.idle {
		err = errors.Join(err, w.Close())
	}
	p.idle = nil
	return err
}

var errClosed = fault.New(fault.Unavailable, "The server is shutting down")

// worker returns an idle worker or a new one.
func (p *Pool) worker() (*native.ImageWorker, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if n := len(p.idle); n > 0 {
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return w, nil
	}
	w, err := native.NewImageWorker()
	if err != nil {
		return nil, fault.New(fault.Overloaded, "Not enough memory for an image; try again later").Because(err)
	}
	return w, nil
}

func (p *Pool) release(w *native.ImageWorker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && len(p.idle) < p.opts.Workers {
		p.idle = append(p.idle, w)
		return
	}
	if err := w.Close(); err != nil {
		p.opts.Log.Error("freeing an image decoder failed", slog.Any("error", err))
	}
}

// Header reads the dimensions of a file and checks them.
func (p *Pool) Header(file multimodal.File) (multimodal.Header, error) {
	w, err := p.worker()
	if err != nil {
		return multimodal.Header{}, err
	}
	defer p.release(w)
	h, err := w.Header(file.Data, p.opts.MaxPixels)
	if err != nil {
		return multimodal.Header{}, p.refuse(file, err)
	}
	return header(file, h), nil
}

func header(file multimodal.File, h native.ImageHeader) multimodal.Header {
	formats := map[native.ImageFormat]multimodal.Format{
		native.ImageJPEG: multimodal.JPEG, native.ImagePNG: multimodal.PNG, native.ImageWebP: multimodal.WebP,
		native.ImageGIF: multimodal.GIF, native.ImageBMP: multimodal.BMP,
	}
	return multimodal.Header{Path: file.Path, Format: formats[h.Format], Width: h.Width, Height: h.Height}
}

// Decode decodes a file.
func (p *Pool) Decode(ctx context.Context, file multimodal.File, dst []byte) (*multimodal.Pixels, error) {
	h, err := p.Header(file)
	if err != nil {
		return nil, err
	}
	n := h.Width * h.Height * 3
	if len(dst) < n {
		dst = make([]byte, n)
	}
	job := &native.ImageJob{Steps: []native.ImageStep{{
		Filter: native.Bicubic, Width: h.Width, Height: h.Height, Layout: native.Interleaved,
	}}}
	if err := p.Run(ctx, file, h, job, dst[:n]); err != nil {
		return nil, err
	}
	return &multimodal.Pixels{Header: h, Data: dst[:n]}, nil
}

// Run runs a job on a file whose header h is; the job's limit of pixels is the pool's. When ctx ends while the job
// waits, its error is returned; a job that has begun is waited for, since it writes to dst.
func (p *Pool) Run(
	ctx context.Context, file multimodal.File, h multimodal.Header, job *native.ImageJob, dst []byte,
) error {
	large := h.Width*h.Height >= p.opts.LargePixels
	leave, err := p.enter(ctx, large)
	if err != nil {
		return err
	}
	defer leave()
	if large {
		// The allocator gives free pages back some time later: the next large image would be added to what this one took.
		defer native.TrimHeap()
	}
	w, err := p.worker()
	if err != nil {
		return err
	}
	defer p.release(w)
	begin := time.Now()
	limited := *job
	limited.MaxPixels = p.opts.MaxPixels
	got, err := w.Run(file.Data, &limited, dst)
	p.metrics.seconds.Observe(time.Since(begin).Seconds())
	if err != nil {
		return p.refuse(file, err)
	}
	if now := header(file, got); now != h {
		return p.refuse(file, fmt.Errorf("the image has changed from %v to %v", h, now))
	}
	return nil
}

// enter waits for a slot. A large image first waits for its turn among the large ones, so that it holds no slot then.
func (p *Pool) enter(ctx context.Context, large bool) (leave func(), err error) {
	if p.waiting.Add(1) > int64(p.opts.Queue+p.opts.Workers) {
		p.waiting.Add(-1)
		p.metrics.failures.WithLabelValues(failQueue).Inc()
		return nil, fault.New(fault.Overloaded, "Too many images are waiting to be processed; try again later")
	}
	begin := time.Now()
	took := []chan struct{}{}
	leave = func() {
		for _, c := range took {
			<-c
		}
		p.waiting.Add(-1)
	}
	turns := []chan struct{}{p.slots}
	if large {
		turns = []chan struct{}{p.large, p.slots}
	}
	for _, c := range turns {
		select {
		case c <- struct{}{}:
			took = append(took, c)
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
	p.metrics.wait.Observe(time.Since(begin).Seconds())
	return leave, nil
}

// refuse turns a failure of the native library into one for the client.
func (p *Pool) refuse(file multimodal.File, err error) error {
	e, ok := errors.AsType[*native.ImageError](err)
	switch {
	case ok && e.Failure == native.ImageBroken:
		p.metrics.failures.WithLabelValues(failBroken).Inc()
		return fault.Bad(file.Path, "`%s` can't be decoded: %s", file.Path, strings.ToValidUTF8(e.Message, "?"))
	case ok && e.Failure == native.ImageTooLarge:
		p.metrics.failures.WithLabelValues(failTooLarge).Inc()
		return fault.Bad(file.Path, "`%s` is too large: %s pixels; the limit is %d in all", file.Path, e.Message, p.opts.MaxPixels)
	case ok && e.Failure == native.ImageNoMemory:
		p.metrics.failures.WithLabelValues(failMemory).Inc()
		return fault.New(fault.Overloaded, "Not enough memory for an image; try again later")
	}
	p.metrics.failures.WithLabelValues(failDefect).Inc()
	p.opts.Log.Error("an image decoder failed", slog.Any("error", err))
	return fault.New(fault.Internal, "The image couldn't be processed").Because(err)
}
