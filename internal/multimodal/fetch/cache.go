package fetch

import (
	"container/list"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// longest is how long a download is used without asking its server again, whatever the server allows.
const longest = 24 * time.Hour

// entry is a download that was kept. Entries are never changed.
type entry struct {
	key      string // the URL
	content  []byte
	hash     xxh3.Uint128 // of content
	fresh    time.Time    // until then it is used unasked
	etag     string       // with which the server is asked whether it still holds
	modified string
}

// condition asks the server to send only what has changed.
func (e *entry) condition(h http.Header) {
	switch {
	case e == nil:
	case e.etag != "":
		h.Set("If-None-Match", e.etag)
	case e.modified != "":
		h.Set("If-Modified-Since", e.modified)
	}
}

// shared is one content, and how many entries hold it.
type shared struct {
	content []byte
	entries int
}

// cache keeps downloads, the least recently used ones leaving first. Equal bytes under several URLs are kept and counted
// once. It does what HTTP asks of a shared cache: what must not be stored isn't, and what may have changed is asked for.
// A nil cache keeps nothing.
type cache struct {
	limit int64

	mu     sync.Mutex
	byURL  map[string]*list.Element
	byHash map[xxh3.Uint128]*shared
	order  *list.List // of *entry, the latest first
	bytes  int64      // of all contents
}

func newCache(limit int64) *cache {
	return &cache{
		limit: limit, byURL: map[string]*list.Element{}, byHash: map[xxh3.Uint128]*shared{}, order: list.New(),
	}
}

// get returns what is kept for a URL, or nil.
func (c *cache) get(key string) *entry {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byURL[key]
	if !ok {
		return nil
	}
	c.order.MoveToFront(el)
	return el.Value.(*entry)
}

// put keeps a download, if its headers allow that. before is the entry that the server has just confirmed, or nil: what
// the confirmation doesn't repeat still holds.
func (c *cache) put(key string, content []byte, h http.Header, before *entry) {
	if c == nil {
		return
	}
	e := &entry{key: key, content: content, etag: h.Get("ETag"), modified: h.Get("Last-Modified")}
	if before != nil && e.etag == "" && e.modified == "" {
		e.etag, e.modified = before.etag, before.modified
	}
	life, storable := lifetime(h)
	e.fresh = time.Now().Add(life)
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.byURL[key]; ok {
		c.removeLocked(el)
	}
	// Without a time and without a mark it would have to be fetched anew anyway.
	if !storable || (life <= 0 && e.etag == "" && e.modified == "") || int64(len(content)) > c.limit {
		return
	}
	e.hash = xxh3.Hash128(content)
	s := c.byHash[e.hash]
	if s == nil {
		s = &shared{content: content}
		c.byHash[e.hash] = s
		c.bytes += int64(len(content))
	}
	s.entries++
	e.content = s.content
	c.byURL[key] = c.order.PushFront(e)
	for c.bytes > c.limit {
		c.removeLocked(c.order.Back())
	}
}

// removeLocked drops an entry, and its content with the last entry that holds it.
func (c *cache) removeLocked(el *list.Element) {
	e := c.order.Remove(el).(*entry)
	delete(c.byURL, e.key)
	s := c.byHash[e.hash]
	if s.entries--; s.entries == 0 {
		delete(c.byHash, e.hash)
		c.bytes -= int64(len(e.content))
	}
}

// lifetime reads how long a download may be used unasked, and whether it may be kept at all.
func lifetime(h http.Header) (life time.Duration, storable bool) {
	var sharedAge, age, noCache bool
	for _, value := range h.Values("Cache-Control") {
		for directive := range strings.SplitSeq(value, ",") {
			name, arg, _ := strings.Cut(strings.TrimSpace(directive), "=")
			seconds, err := strconv.ParseUint(strings.Trim(arg, `"`), 10, 31)
			switch strings.ToLower(name) {
			case "no-store", "private":
				return 0, false
			case "no-cache":
				noCache = true
			case "s-maxage": // of shared caches, so it wins
				if err == nil {
					life, sharedAge = time.Duration(seconds)*time.Second, true
				}
			case "max-age":
				if err == nil && !sharedAge {
					life, age = time.Duration(seconds)*time.Second, true
				}
			}
		}
	}
	if expires, err := http.ParseTime(h.Get("Expires")); err == nil && !sharedAge && !age {
		life = time.Until(expires)
	}
	// Time it has spent in caches before this one.
	if spent, err := strconv.ParseUint(h.Get("Age"), 10, 31); err == nil {
		life -= time.Duration(spent) * time.Second
	}
	if noCache {
		life = 0
	}
	return min(max(life, 0), longest), true
}
