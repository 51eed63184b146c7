package images_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/courier"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/transfer"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/router"
	"github.com/portico-llm/portico/internal/router/callhome"
	"github.com/portico-llm/portico/internal/router/dispatch"
	"github.com/portico-llm/portico/internal/router/plane/tcp"
	"github.com/portico-llm/portico/internal/router/policy"
	"github.com/portico-llm/portico/internal/simworker"
	"github.com/portico-llm/portico/internal/testkit"
)

// noise is a processor whose items are noise: a file is a seed and a size, and every byte of its item follows from them.
type noise struct{ multimodal.Processor }

// noiseOf returns the item of a file; none of its bytes is zero.
func noiseOf(file string, size int) []byte {
	var seed [32]byte
	copy(seed[:], file)
	out := make([]byte, size)
	_, _ = rand.NewChaCha8(seed).Read(out)
	for i, b := range out {
		if b == 0 {
			out[i] = 1
		}
	}
	return out
}

func sizeOf(file string) int {
	_, size, _ := strings.Cut(file, ":")
	n, _ := strconv.Atoi(size)
	return n
}

func (noise) Header(f multimodal.File) (multimodal.Header, error) {
	return multimodal.Header{Width: sizeOf(string(f.Data)), Height: 1}, nil
}

func (noise) Plan(h multimodal.Header) (*multimodal.Plan, error) {
	return &multimodal.Plan{Header: h, Size: h.Width, Tokens: 4}, nil
}

func (noise) Process(_ context.Context, f multimodal.File, plan *multimodal.Plan, dst []byte) (*multimodal.Item, error) {
	copy(dst, noiseOf(string(f.Data), plan.Size))
	return &multimodal.Item{
		Plan: plan, Blob: dst[:plan.Size], Identity: multimodal.Identity(multimodal.Digest(f.Data), multimodal.ByKwargs, ""),
	}, nil
}

func (noise) Expand(tokens []uint32, plans []*multimodal.Plan) (*multimodal.Expansion, error) {
	e := &multimodal.Expansion{Tokens: append([]uint32(nil), tokens...)}
	for range plans {
		e.Placeholders = append(e.Placeholders, multimodal.Placeholder{Offset: len(e.Tokens), Length: 4})
		e.Tokens = append(e.Tokens, 9, 9, 9, 9)
	}
	return e, nil
}

// anything is a renderer that takes content of any kind.
type anything struct{}

func (anything) Render(context.Context, *prepost.ChatInput) (string, error) { return "prompt", nil }

// sink is a client that reads.
type sink struct{}

func (sink) Start(*pipeline.Prepared) error { return nil }
func (sink) Delta(*pipeline.Delta) error    { return nil }
func (sink) Flush() error                   { return nil }

// noRecords is a registrar that nobody reads.
type noRecords struct{}

func (noRecords) Put(context.Context, string, []byte) error { return nil }
func (noRecords) Remove(context.Context, string) error      { return nil }

// storm is a frontend's way from requests to workers, with workers that do all that workers may do.
type storm struct {
	t     *testing.T
	set   *catalog.Set
	pipe  *pipeline.Pipeline
	tr    *transfer.Transfer
	whole atomic.Int64 // images that were read whole
	zeros atomic.Int64 // images, or parts of them, that were zeros
	wrong atomic.Int64
	late  *lifecycle.Group
}

// seen checks what a worker has read: each byte is the image's own, or was given up and is zero.
func (s *storm) seen(req *simworker.Request, blobs [][]byte, err error) {
	if err != nil {
		return // gone: the worker takes the URL
	}
	var data struct {
		Images []struct{ Url string } `json:"image_url"`
	}
	if err := json.Unmarshal(req.Tokens.MultiModalData, &data); err != nil {
		s.t.Error(err)
		return
	}
	for i, blob := range blobs {
		file := strings.TrimPrefix(data.Images[i].Url, "data:,")
		want := noiseOf(file, sizeOf(file))
		zero := false
		for j, b := range blob {
			if b == 0 {
				zero = true
			} else if b != want[j] {
				s.wrong.Add(1)
				s.t.Errorf("image %s: byte %d is %d, want %d or zero", file, j, b, want[j])
				return
			}
		}
		switch {
		case zero:
			s.zeros.Add(1)
		case len(blob) == len(want):
			s.whole.Add(1)
		}
	}
}

// mode is what a worker does with a request: mostly what it should.
func mode(req *simworker.Request) simworker.ImageMode {
	switch (req.Ordinal*7 + req.Ordinal/10) % 10 {
	case 0:
		return simworker.NeverImages
	case 1:
		return simworker.LateImages
	case 2:
		return simworker.HalfImages
	case 3:
		return simworker.DieImages
	}
	return simworker.ReadImages
}

func newStorm(t *testing.T, opts transfer.Options) *storm {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s := &storm{t: t, set: testkit.ByteModel("m"), tr: newTransfer(t, opts), late: lifecycle.New(context.Background())}
	s.set.Renderer, s.set.Images = anything{}, noise{}
	fetcher, err := fetch.New(fetch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var read func(context.Context, []byte, int) ([]byte, error)
	if opts.NIXL {
		read = newAgentOf(t).Read
	}
	group := lifecycle.New(context.Background())
	snap := &router.Snapshot{Version: 1, Instances: map[worker.EndpointID][]*worker.Instance{}}
	// One reads late within the time that cleanup waits, the other beyond it.
	for i, delay := range []time.Duration{50 * time.Millisecond, 600 * time.Millisecond} {
		engine := &simworker.Images{
			Encode: func(string) ([]uint32, error) { return []uint32{65, 66}, nil },
			Read:   read, Mode: mode, Delay: delay, Late: s.late, Seen: s.seen,
		}
		w, err := simworker.New(simworker.Options{
			Endpoint: s.set.Endpoint, InstanceID: uint64(i + 1), Codec: worker.Msgpack, Registrar: noRecords{},
			Engine: engine, CloseWait: time.Second, Grace: 100 * time.Millisecond, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		group.Go("worker", w.Run)
		<-w.Ready()
		snap.Instances[s.set.Endpoint] = append(snap.Instances[s.set.Endpoint], w.Instance())
	}
	home, err := callhome.Listen(callhome.Options{Host: "127.0.0.1", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	group.Go("callhome", home.Run)
	plane := tcp.New(tcp.Options{Log: log})
	choose, err := policy.New(policy.RoundRobin)
	if err != nil {
		t.Fatal(err)
	}
	s.pipe = pipeline.New(pipeline.Options{
		Dispatcher: dispatch.New(dispatch.Options{
			Snapshots: func() *router.Snapshot { return snap }, Policy: choose, TCP: plane, CallHome: home, Log: log,
			QuarantineFor: -1}), // workers that die are back at once
		Migration: pipeline.Migration{Limit: 1}, Log: log,
		Courier: courier.New(courier.Options{Fetcher: fetcher, Log: log, Open: func(ctx context.Context, sizes []int) (courier.Batch, error) {
			b, err := s.tr.Open(ctx, sizes)
			if err != nil {
				return nil, err
			}
			return b, nil
		}}),
	})
	t.Cleanup(func() {
		if err := errors.Join(plane.Close(), group.Stop(), s.late.Stop(), fetcher.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newAgentOf starts the workers' agent.
func newAgentOf(t *testing.T) *nixl.Agent {
	t.Helper()
	lib, err := nixl.Open(libraries()[0])
	if err != nil {
		t.Fatal(err)
	}
	agent, err := nixl.New(lib, nixl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := agent.Close(); err != nil {
			t.Error(err)
		}
	})
	return agent
}

// send sends n requests, sixteen at a time, of which every tenth client or so leaves early.
func (s *storm) send(n int, random *rand.Rand) {
	places := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range n {
		var parts []string
		for range 1 + random.IntN(3) {
			parts = append(parts, fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:,%d-%d:%d"}}`, i, random.Uint64(), 1+random.IntN(500_000)))
		}
		leave := time.Duration(0)
		if random.IntN(10) == 0 {
			leave = time.Duration(random.IntN(20_000)) * time.Microsecond
		}
		body := `{"model":"m","messages":[{"role":"user","content":[` + strings.Join(parts, ",") + `]}]}`
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if leave > 0 {
				ctx, cancel = context.WithTimeout(context.Background(), leave)
			}
			defer cancel()
			req, err := openai.DecodeChat([]byte(body), openai.DecodeOptions{})
			if err != nil {
				s.t.Error(err)
				return
			}
			prepared, err := s.pipe.PrepareChat(ctx, s.set, pipeline.Meta{RequestID: strconv.Itoa(n) + "-" + strconv.Itoa(i)}, req)
			if err == nil {
				err = s.pipe.Run(ctx, prepared, sink{})
			}
			_ = err // workers die and clients leave
		})
	}
	wg.Wait()
}

// rss is the process's memory in MiB.
func rss(t *testing.T) int {
	t.Helper()
	runtime.GC()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n >> 10
}

// TestStorm: a thousand requests, of which some are cancelled, some meet workers that die, read late, read half, or
// don't read at all. Afterwards everything is as it was, and nobody has seen a byte of another's image.
func TestStorm(t *testing.T) {
	n := 1000
	if testing.Short() {
		n = 200
	}
	for name, overNIXL := range map[string]bool{"nixl": true, "shm": false} {
		t.Run(name, func(t *testing.T) {
			if overNIXL {
				needNIXL(t)
			}
			const bound = 64 << 20
			s := newStorm(t, transfer.Options{NIXL: overNIXL, PoolBytes: bound, Cleanup: 300 * time.Millisecond})
			random := rand.New(rand.NewPCG(1, 2))
			quiet := func() bool {
				st := s.tr.Stats()
				return st.Slots.Taken == 0 && st.SegmentBytes == 0
			}
			s.send(100, random) // connections, threads and slots that stay are there then
			eventually(t, 10*time.Second, "the warm-up leaves nothing", quiet)
			_ = s.late.Wait()
			goroutines, memory := runtime.NumGoroutine(), rss(t)

			s.send(n, random)
			eventually(t, 10*time.Second, "all memory is free or given up", quiet)
			_ = s.late.Wait()
			eventually(t, 10*time.Second, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines+4 })
			st := s.tr.Stats().Slots
			t.Logf("%d images read whole, %d as zeros; %d free slots of %d MiB; goroutines %d, then %d; RSS %d MiB, then %d",
				s.whole.Load(), s.zeros.Load(), st.Free, st.Bytes>>20, goroutines, runtime.NumGoroutine(), memory, rss(t))
			if s.whole.Load() < int64(n)/2 || s.wrong.Load() > 0 {
				t.Errorf("%d images were read whole, %d wrongly", s.whole.Load(), s.wrong.Load())
			}
			if st.Bytes > bound {
				t.Errorf("%d bytes of slots, more than their bound", st.Bytes)
			}
			if overNIXL && s.zeros.Load() == 0 {
				t.Error("nobody came too late: the test doesn't see what it is for")
			}
			if grown := rss(t) - memory; grown > 64+30 {
				t.Errorf("memory grew by %d MiB", grown)
			}
		})
	}
}
