package courier_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/courier"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files is a Fetcher whose URLs are what they hold.
type files struct{ err error }

func (f files) Fetch(_ context.Context, sources []multimodal.Source) ([]multimodal.File, error) {
	out := make([]multimodal.File, len(sources))
	for i, s := range sources {
		out[i] = multimodal.File{Path: s.Path, Data: []byte(s.URL)}
	}
	return out, f.err
}

// processor makes items of a file's text, in capitals, of which each letter is one token of the prompt. The place of an
// image is a zero.
type processor struct {
	multimodal.Processor
	running, most atomic.Int32
	made          atomic.Int32
	fail          map[string]error // by file
	own           bool             // it writes to memory of its own
	grow          int              // bytes more than planned
}

func (p *processor) Header(f multimodal.File) (multimodal.Header, error) {
	if len(f.Data) == 0 {
		return multimodal.Header{}, fault.Bad(f.Path, "`%s` is empty", f.Path)
	}
	return multimodal.Header{Width: len(f.Data), Height: 10}, nil
}

func (p *processor) Identity(f multimodal.File) string { return identity(string(f.Data)) }

func (p *processor) Plan(h multimodal.Header) (*multimodal.Plan, error) {
	return &multimodal.Plan{Header: h, Size: h.Width, Tokens: h.Width}, nil
}

func (p *processor) Process(_ context.Context, f multimodal.File, plan *multimodal.Plan, dst []byte) (*multimodal.Item, error) {
	n := p.running.Add(1)
	p.made.Add(1)
	defer p.running.Add(-1)
	for m := p.most.Load(); n > m && !p.most.CompareAndSwap(m, n); m = p.most.Load() {
	}
	if err := p.fail[string(f.Data)]; err != nil {
		return nil, err
	}
	if p.own {
		dst = make([]byte, plan.Size+p.grow)
	}
	copy(dst, bytes.ToUpper(f.Data))
	return &multimodal.Item{Plan: plan, Blob: dst[:plan.Size+p.grow], Identity: identity(string(f.Data))}, nil
}

func identity(file string) string {
	return multimodal.Identity(multimodal.Digest([]byte(file)), multimodal.ByKwargs, "test")
}

func (p *processor) Expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	e := &multimodal.Expansion{}
	for _, t := range tokens {
		if t != 0 {
			e.Tokens = append(e.Tokens, t)
			continue
		}
		if len(e.Placeholders) == len(plans) {
			return nil, errors.New("more places than images")
		}
		n := plans[len(e.Placeholders)].Tokens
		e.Placeholders = append(e.Placeholders, multimodal.Placeholder{Offset: len(e.Tokens), Length: n})
		e.Tokens = append(e.Tokens, make([]uint32, n)...)
	}
	if len(e.Placeholders) != len(plans) {
		return nil, errors.New("more images than places")
	}
	return e, nil
}

// batch is memory of Go's.
type batch struct {
	mem    [][]byte
	closed int
	told   int
	err    error
}

func (b *batch) Bytes(i int) []byte { return b.mem[i] }
func (b *batch) Told()              { b.told++ }
func (b *batch) Untold()            { b.told = 0 }
func (b *batch) Close()             { b.closed++ }

func (b *batch) Kwargs(modality string, lengths []int, hashes []string) (string, json.RawMessage, error) {
	v, err := json.Marshal(map[string]any{"modality": modality, "lengths": lengths, "hashes": hashes})
	return "mm_kwargs_test", v, errors.Join(err, b.err)
}

func (b *batch) Pixels(i int, p *multimodal.Pixels) (json.RawMessage, error) {
	v, err := json.Marshal(map[string]any{"pixels": string(p.Data), "image": i})
	return v, errors.Join(err, b.err)
}

// decoder makes pixels of a file's text: three bytes, each pixel.
type decoder struct{ err error }

func (d decoder) Header(f multimodal.File) (multimodal.Header, error) {
	return multimodal.Header{Width: len(f.Data) / 3, Height: 1}, d.err
}

func (d decoder) Decode(_ context.Context, f multimodal.File, dst []byte) (*multimodal.Pixels, error) {
	if string(f.Data) == "bad" {
		return nil, fault.Bad(f.Path, "broken")
	}
	n := copy(dst, bytes.ToUpper(f.Data))
	return &multimodal.Pixels{Header: multimodal.Header{Width: n / 3, Height: 1}, Data: dst[:n]}, nil
}

// TestPixels: workers that take pixels are told of them in place of URLs.
func TestPixels(t *testing.T) {
	c, b := newCourier(courier.Options{})
	r := request(nil, []uint32{0, 0}, "abcdef", "xyz")
	r.Decoder = decoder{}
	if load, err := c.Load(t.Context(), r); load != nil || err != nil {
		t.Errorf("without a way for pixels: got %+v, %v", load, err)
	}
	b = &batch{}
	opts := courier.Options{MaxPixels: 3, OpenPixels: func(_ context.Context, sizes []int) (courier.Batch, error) {
		for _, n := range sizes {
			b.mem = append(b.mem, make([]byte, n))
		}
		return b, nil
	}}
	c, _ = newCourier(opts)
	load, err := c.Load(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"image_url":[{"Decoded":{"image":0,"pixels":"ABCDEF"}},{"Decoded":{"image":1,"pixels":"XYZ"}}]}`
	if string(load.Data) != want || len(load.Args) != 0 || load.Held != multimodal.Held(b) || b.closed != 0 {
		t.Errorf("got %s, %+v", load.Data, load)
	}
	for name, urls := range map[string][]string{"broken": {"abc", "bad"}, "over 3 pixels": {"abcdef", "ghijkl"}} {
		b = &batch{}
		r := request(nil, []uint32{0, 0}, urls...)
		r.Decoder = decoder{}
		if load, err := c.Load(t.Context(), r); load != nil || fault.KindOf(err) != fault.BadRequest || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %+v, %v", name, load, err)
		}
		if b.closed != min(len(b.mem), 1) {
			t.Errorf("%s: closed %d times", name, b.closed)
		}
	}
	b = &batch{err: errors.New("no")}
	if load, err := c.Load(t.Context(), r); load != nil || err != nil || b.closed != 1 {
		t.Errorf("not describable: got %+v, %v, closed %d times", load, err, b.closed)
	}
}

// newCourier returns a Courier and the batch that it will open.
func newCourier(opts courier.Options) (*courier.Courier, *batch) {
	b := &batch{}
	if opts.Fetcher == nil {
		opts.Fetcher = files{}
	}
	if opts.Open == nil {
		opts.Open = func(_ context.Context, sizes []int) (courier.Batch, error) {
			for _, n := range sizes {
				b.mem = append(b.mem, make([]byte, n))
			}
			return b, nil
		}
	}
	opts.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	return courier.New(opts), b
}

func request(p multimodal.Processor, tokens []uint32, urls ...string) *multimodal.Request {
	r := &multimodal.Request{Model: "m", Processor: p, Tokens: tokens}
	for i, u := range urls {
		r.Sources = append(r.Sources, multimodal.Source{Kind: multimodal.ImageURL, URL: u, Path: "part" + string(rune('0'+i))})
	}
	return r
}

// TestLoad: what the worker is told, and what is in its memory.
func TestLoad(t *testing.T) {
	for _, own := range []bool{false, true} {
		c, b := newCourier(courier.Options{})
		load, err := c.Load(t.Context(), request(&processor{own: own}, []uint32{7, 0, 8, 0, 9}, "ab", "cde"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([][]byte{[]byte("AB"), []byte("CDE")}, b.mem); diff != "" {
			t.Error(diff)
		}
		got := map[string]string{}
		for _, a := range load.Args {
			got[a.Name] = string(a.Value)
		}
		want := map[string]string{
			"mm_placeholders":    "[[1,2],[4,3]]",
			"expanded_token_ids": "[7,0,0,8,0,0,0,9]",
			"mm_kwargs_test":     `{"hashes":["` + identity("ab") + `","` + identity("cde") + `"],"lengths":[2,3],"modality":"image"}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if load.RoutingTokens != nil || load.Held != multimodal.Held(b) || b.closed != 0 {
			t.Errorf("got %+v", load)
		}
	}
}

// TestRouting: where routers look at images, hashes are sent beside the items and stand in the prompt.
func TestRouting(t *testing.T) {
	c, _ := newCourier(courier.Options{})
	r := request(&processor{}, []uint32{7, 0}, "ab")
	r.Routing = true
	load, err := c.Load(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want, ok := multimodal.RoutingTokens(&multimodal.Expansion{
		Tokens: []uint32{7, 0, 0}, Placeholders: []multimodal.Placeholder{{Offset: 1, Length: 2}},
	}, []string{identity("ab")})
	if diff := cmp.Diff(want, load.RoutingTokens); diff != "" || !ok {
		t.Error(diff)
	}
	if a := load.Args[len(load.Args)-1]; a.Name != "mm_hashes" || string(a.Value) != `["`+identity("ab")+`"]` {
		t.Errorf("got %s %s", a.Name, a.Value)
	}
}

// TestNotLoaded: what isn't the client's fault leaves the URLs, and nothing held.
func TestNotLoaded(t *testing.T) {
	internal := fault.New(fault.Internal, "self-check")
	for name, tc := range map[string]struct {
		opts courier.Options
		req  *multimodal.Request
		mute error // of the batch
	}{
		"no processor":    {req: request(nil, nil, "ab")},
		"no images":       {req: request(&processor{}, []uint32{1})},
		"places":          {req: request(&processor{}, []uint32{0, 0}, "ab")},
		"full":            {req: request(&processor{}, []uint32{0}, "ab"), opts: courier.Options{Open: func(context.Context, []int) (courier.Batch, error) { return nil, errors.New("full") }}},
		"failed check":    {req: request(&processor{fail: map[string]error{"ab": internal}}, []uint32{0}, "ab")},
		"larger":          {req: request(&processor{own: true, grow: 1}, []uint32{0}, "ab")},
		"not describable": {req: request(&processor{}, []uint32{0}, "ab"), mute: errors.New("no")},
	} {
		t.Run(name, func(t *testing.T) {
			c, b := newCourier(tc.opts)
			b.err = tc.mute
			load, err := c.Load(t.Context(), tc.req)
			if load != nil || err != nil {
				t.Errorf("got %+v, %v", load, err)
			}
			if want := min(len(b.mem), 1); b.closed != want {
				t.Errorf("closed %d times, want %d", b.closed, want)
			}
		})
	}
}

// TestRefused: what the client did wrong is its to hear of, and nothing is held.
func TestRefused(t *testing.T) {
	bad := fault.Bad("part1", "broken")
	for name, tc := range map[string]struct {
		opts courier.Options
		req  *multimodal.Request
		want string
	}{
		"fetch":    {opts: courier.Options{Fetcher: files{err: bad}}, req: request(&processor{}, []uint32{0}, "ab"), want: "broken"},
		"header":   {req: request(&processor{}, []uint32{0, 0}, "ab", ""), want: "is empty"},
		"decode":   {req: request(&processor{fail: map[string]error{"cd": bad}}, []uint32{0, 0, 0}, "ab", "cd", "ef"), want: "broken"},
		"together": {opts: courier.Options{MaxPixels: 30}, req: request(&processor{}, []uint32{0, 0}, "ab", "cd"), want: "over 30 pixels"},
	} {
		t.Run(name, func(t *testing.T) {
			c, b := newCourier(tc.opts)
			load, err := c.Load(t.Context(), tc.req)
			f, ok := errors.AsType[*fault.Error](err)
			if load != nil || !ok || f.Kind != fault.BadRequest || !strings.Contains(f.Message, tc.want) {
				t.Errorf("got %+v, %v", load, err)
			}
			if want := min(len(b.mem), 1); b.closed != want {
				t.Errorf("closed %d times, want %d", b.closed, want)
			}
		})
	}
}

// TestCancel: a client that leaves ends the work, and what was taken is given back.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c, b := newCourier(courier.Options{})
	p := &processor{fail: map[string]error{"ab": errors.New("whatever")}}
	cancel()
	if load, err := c.Load(ctx, request(p, []uint32{0}, "ab")); load != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v", load, err)
	}
	if b.closed != 1 {
		t.Error("the batch stays open")
	}
}

// TestMany: no more images at once than allowed.
func TestMany(t *testing.T) {
	c, b := newCourier(courier.Options{Parallel: 2})
	p := &processor{}
	urls := strings.Split(strings.Repeat("abc ", 40)+"d", " ")
	if _, err := c.Load(t.Context(), request(p, make([]uint32, len(urls)), urls...)); err != nil {
		t.Fatal(err)
	}
	if p.most.Load() > 2 {
		t.Errorf("%d at once", p.most.Load())
	}
	for i, u := range urls {
		if string(b.mem[i]) != strings.ToUpper(u) {
			t.Errorf("image %d is %q", i, b.mem[i])
		}
	}
}

// TestKept: an image that comes again is not processed again, whatever happened to its memory since; what is kept is
// bounded, what fails isn't kept, and other settings are other images.
func TestKept(t *testing.T) {
	reg := prometheus.NewRegistry()
	mem := [][]byte{}
	c := courier.New(courier.Options{Fetcher: files{}, CacheBytes: 40, Parallel: 1, Registerer: reg, Log: slog.New(slog.DiscardHandler),
		Open: func(_ context.Context, sizes []int) (courier.Batch, error) {
			mem = nil
			for _, n := range sizes {
				mem = append(mem, bytes.Repeat([]byte{'?'}, n+3)) // slots have sizes of their own
			}
			return &batch{mem: mem}, nil
		}})
	p := &processor{fail: map[string]error{"bad": errors.New("no")}}
	load := func(p *processor, want int32, urls ...string) {
		t.Helper()
		before := p.made.Load()
		load, err := c.Load(t.Context(), request(p, make([]uint32, len(urls)), urls...))
		if err != nil || (load == nil) != (urls[0] == "bad") {
			t.Fatalf("got %+v, %v", load, err)
		}
		if made := p.made.Load() - before; made != want {
			t.Errorf("%v: %d processed, want %d", urls, made, want)
		}
		for i, u := range urls {
			if load != nil && string(mem[i]) != strings.ToUpper(u)+"???" {
				t.Errorf("%s is %q", u, mem[i])
			}
			clear(mem[i]) // what is kept is a copy
		}
		if load != nil {
			for _, a := range load.Args {
				if a.Name == "mm_kwargs_test" && !strings.Contains(string(a.Value), identity(urls[0])) {
					t.Errorf("%s has another identity: %s", urls[0], a.Value)
				}
			}
		}
	}
	load(p, 2, "abcdefgh", "ijklmnop")
	load(p, 0, "ijklmnop", "abcdefgh")
	load(p, 1, "abcdefgh", "x", "abcdefgh")
	load(p, 1, "more than ten")
	load(p, 1, "more than ten") // too large a share
	load(p, 1, "bad")
	load(p, 1, "bad")
	load(p, 3, "12345678", "23456789", "34567890")
	load(p, 0, "12345678", "abcdefgh") // 41 bytes: the least recently used one has left
	load(p, 1, "ijklmnop")
	want := `
# HELP portico_media_item_cache_bytes Bytes of processed images that are kept.
# TYPE portico_media_item_cache_bytes gauge
portico_media_item_cache_bytes 40
# HELP portico_media_items_total Images handed over as tensors: cached, or processed for it.
# TYPE portico_media_items_total counter
portico_media_items_total{result="cached"} 6
portico_media_items_total{result="processed"} 11
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "portico_media_items_total", "portico_media_item_cache_bytes"); err != nil {
		t.Error(err)
	}
}
