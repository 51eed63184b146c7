package fetch_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
	"github.com/portico-llm/portico/internal/multimodal/fetch"
)

const secret = "root:hunter2"

// site answers in every way that a picture's server shouldn't. What it says is secret.
func site(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Secret", secret)
	flush := func() { _ = http.NewResponseController(w).Flush() }
	switch r.URL.Path {
	case "/ok", "/html":
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "picture")
	case "/404":
		http.Error(w, secret, http.StatusNotFound)
	case "/500":
		http.Error(w, secret, http.StatusInternalServerError)
	case "/204":
		w.WriteHeader(http.StatusNoContent)
	case "/206":
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, secret)
	case "/empty":
	case "/nowhere":
		w.Header().Set("Location", "http://"+secret+"/")
		w.WriteHeader(http.StatusFound)
	case "/noplace":
		w.WriteHeader(http.StatusFound) // without a Location
		_, _ = io.WriteString(w, secret)
	case "/drip":
		w.WriteHeader(http.StatusOK)
		flush()
		drip(w, flush, r.Context().Done())
	case "/silent":
		<-r.Context().Done()
	case "/short": // promises more than it sends
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, secret)
	case "/large": // says so at once
		w.Header().Set("Content-Length", strconv.Itoa(1<<40))
		flush()
	case "/endless":
		for block := bytes.Repeat([]byte(secret), 1000); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	case "/full": // as much as is allowed
		_, _ = w.Write(make([]byte, 1<<20))
	case "/over": // one byte more
		_, _ = w.Write(make([]byte, 1<<20+1))
	case "/gzip", "/bomb", "/torn":
		w.Header().Set("Content-Encoding", "gzip")
		var buf bytes.Buffer
		z, _ := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
		if r.URL.Path == "/bomb" {
			_, _ = z.Write(make([]byte, 2<<20))
		} else {
			_, _ = io.WriteString(z, "picture")
		}
		_ = z.Close()
		n := buf.Len()
		if r.URL.Path == "/torn" {
			n -= 6
		}
		_, _ = w.Write(buf.Bytes()[:n])
	case "/notgzip":
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, secret)
	case "/br":
		w.Header().Set("Content-Encoding", "br")
		_, _ = io.WriteString(w, secret)
	case "/garbage":
		conn, buf, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = buf.WriteString(secret + "\r\n\r\n")
			_ = buf.Flush()
			_ = conn.Close()
		}
	case "/header":
		w.Header().Set("X-Long", strings.Repeat(secret, 10_000))
	}
}

func TestDownloads(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(site))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true, MaxBytes: 1 << 20, Timeout: 2 * time.Second})
	for path, want := range map[string]string{
		"/ok": "", "/html": "", "/full": "", "/gzip": "",
		"/404": "does not give it", "/500": "does not give it", "/204": "does not give it", "/206": "does not give it",
		"/noplace": "could not be fetched", "/nowhere": "could not be fetched", "/empty": "is empty",
		"/drip": "within 2s", "/silent": "within 2s", "/short": "breaks off",
		"/large": "larger than 1 MiB", "/endless": "larger than 1 MiB", "/over": "larger than 1 MiB",
		"/bomb": "larger than 1 MiB", "/torn": "breaks off or is damaged", "/notgzip": "breaks off or is damaged",
		"/br": "encoding", "/garbage": "could not be fetched", "/header": "could not be fetched",
	} {
		t.Run(path, func(t *testing.T) {
			begin := time.Now()
			data, err := get(t, f, srv.URL+path)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %v", took)
			}
			if want == "" {
				if err != nil || len(data) == 0 {
					t.Errorf("got %q, %v", data, err)
				}
				return
			}
			refused(t, err, want)
			if e := fault.From(err); strings.Contains(e.Message, "hunter2") || strings.Contains(e.Message, "40") &&
				path == "/404" {
				t.Errorf("the message repeats what the server said: %q", e.Message)
			}
		})
	}
}

// TestUnreachable: a port that nobody listens on.
func TestUnreachable(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(site))
	srv.Close()
	_, err := get(t, newFetcher(t, fetch.Options{AllowInternal: true}), srv.URL)
	refused(t, err, "not reachable")
}

// sources makes a source of each URL.
func sources(urls ...string) []multimodal.Source {
	out := make([]multimodal.Source, len(urls))
	for i, u := range urls {
		out[i] = multimodal.Source{Kind: multimodal.ImageURL, URL: u, Path: fmt.Sprintf("messages[0].content[%d].image_url", i)}
	}
	return out
}

// TestTogether: in order, the same URL once, and no more at once than allowed.
func TestTogether(t *testing.T) {
	var now, most, hits atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		for n := now.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
		now.Add(-1)
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true, PerRequest: 3})
	var urls []string
	for i := range 24 {
		urls = append(urls, srv.URL+"/"+strconv.Itoa(i%12))
	}
	list := sources(urls...)
	got, err := f.Fetch(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range got {
		if want := "/" + strconv.Itoa(i%12); string(c.Data) != want || c.Path != list[i].Path {
			t.Errorf("source %d: got %q of %s, want %q", i, c.Data, c.Path, want)
		}
	}
	if &got[0].Data[0] != &got[12].Data[0] || hits.Load() != 12 || most.Load() != 3 {
		t.Errorf("got %d downloads, %d at once; want 12, 3", hits.Load(), most.Load())
	}
}

// TestFirstFailure: the client is told of a part that is to blame, not of one that was given up because of it.
func TestFirstFailure(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(site))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true})
	begin := time.Now()
	_, err := f.Fetch(t.Context(), sources(srv.URL+"/silent", srv.URL+"/drip", srv.URL+"/404"))
	if e, ok := errors.AsType[*fault.Error](err); !ok || e.Param != "messages[0].content[2].image_url" {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

// TestCancel: a client that leaves is no bad request.
func TestCancel(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(site))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true})
	ctx, cancel := context.WithCancel(t.Context())
	timer := time.AfterFunc(30*time.Millisecond, cancel)
	defer timer.Stop()
	if _, err := f.Fetch(ctx, sources(srv.URL+"/silent", "data:,x")); !errors.Is(err, context.Canceled) || fault.KindOf(err) != fault.Cancelled {
		t.Errorf("got %v", err)
	}
}

// TestRequestBound: many pictures, none of them too large, are too much together.
func TestRequestBound(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(site))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true, MaxRequest: 5 << 20 / 2, PerRequest: 1})
	list := sources(srv.URL+"/full?1", srv.URL+"/full?2", srv.URL+"/full?3")
	if _, err := f.Fetch(t.Context(), list[:2]); err != nil {
		t.Fatal(err)
	}
	_, err := f.Fetch(t.Context(), list)
	if e := fault.From(err); e.Kind != fault.BadRequest || e.Param != list[2].Path || !strings.Contains(e.Message, "media over 2621440 bytes") {
		t.Errorf("got %v", err)
	}
}

// TestWaitForPlace: a full house is waited for within the request's own time.
func TestWaitForPlace(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(site))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true, AtOnce: 1, Timeout: 300 * time.Millisecond})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			_, err := f.Fetch(t.Context(), []multimodal.Source{{URL: srv.URL + "/silent", Path: part}})
			refused(t, err, "within 300ms")
		})
	}
	wg.Wait()
	if _, err := get(t, f, srv.URL+"/ok"); err != nil {
		t.Error(err)
	}
}
