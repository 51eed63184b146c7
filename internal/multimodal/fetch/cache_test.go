package fetch_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/portico-llm/portico/internal/multimodal/fetch"
)

// counting is a server that sends what it is told to and counts full answers and confirmations by path.
type counting struct {
	mu              sync.Mutex
	full, confirmed map[string]int
}

// ServeHTTP answers by path: the last part is the body, the query the headers.
func (c *counting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, values := range r.URL.Query() {
		w.Header().Set(name, values[0])
	}
	tag, since := w.Header().Get("ETag"), w.Header().Get("Last-Modified")
	if (tag != "" && r.Header.Get("If-None-Match") == tag) || (tag == "" && since != "" && r.Header.Get("If-Modified-Since") == since) {
		c.confirmed[r.URL.Path]++
		w.WriteHeader(http.StatusNotModified)
		return
	}
	c.full[r.URL.Path]++
	_, _ = io.WriteString(w, strings.Repeat(r.URL.Path[len(r.URL.Path)-1:], 100))
}

func TestCache(t *testing.T) {
	c := &counting{full: map[string]int{}, confirmed: map[string]int{}}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true, CacheBytes: 1000})
	for _, tc := range []struct {
		path            string
		full, confirmed int // of three fetches
	}{
		{"/1/a?Cache-Control=max-age%3D60", 1, 0},
		{"/2/a?Cache-Control=public,max-age%3D0,s-maxage%3D60", 1, 0},
		{"/3/a?Cache-Control=max-age%3D60&Age=60", 3, 0},
		{"/4/a?Cache-Control=max-age%3D60,no-store&ETag=x", 3, 0},
		{"/5/a?Cache-Control=private,max-age%3D60", 3, 0},
		{"/6/a?ETag=x", 1, 2},
		{"/7/a?Last-Modified=Mon,+02+Jan+2006+15:04:05+GMT", 1, 2},
		{"/8/a?Cache-Control=max-age%3D60,no-cache&ETag=x", 1, 2},
		{"/9/a", 3, 0},
		{"/0/a?Expires=Mon,+02+Jan+2096+15:04:05+GMT", 1, 0},
		{"/x/a?Cache-Control=max-age%3Dx", 3, 0},
	} {
		t.Run(tc.path, func(t *testing.T) {
			for range 3 {
				if data, err := get(t, f, srv.URL+tc.path); err != nil || len(data) != 100 {
					t.Fatalf("got %q, %v", data, err)
				}
			}
			path, _, _ := strings.Cut(tc.path, "?")
			if c.full[path] != tc.full || c.confirmed[path] != tc.confirmed {
				t.Errorf("got %d answers and %d confirmations, want %d and %d", c.full[path], c.confirmed[path], tc.full, tc.confirmed)
			}
		})
	}
}

// TestCacheBound: equal contents count once, and the least recently used leave.
func TestCacheBound(t *testing.T) {
	c := &counting{full: map[string]int{}, confirmed: map[string]int{}}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true, CacheBytes: 300})
	fetchAll := func(paths ...string) {
		t.Helper()
		for _, p := range paths {
			if _, err := get(t, f, srv.URL+p+"?Cache-Control=max-age%3D60"); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Five URLs of three contents fit; the fourth content drives out what was used least recently.
	fetchAll("/1/a", "/2/a", "/3/b", "/4/c", "/5/c", "/1/a", "/6/d", "/1/a", "/2/a", "/4/c", "/6/d", "/3/b")
	for path, want := range map[string]int{"/1/a": 1, "/2/a": 2, "/3/b": 2, "/4/c": 1, "/6/d": 1} {
		if c.full[path] != want {
			t.Errorf("%s was fetched %d times, want %d", path, c.full[path], want)
		}
	}
}
