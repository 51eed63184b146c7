package courier

import (
	"container/list"
	"sync"
)

// items keeps processed images, by their identities: an image that comes again, as it does with every turn of a
// conversation, isn't decoded again. The least recently used ones leave first. A nil cache keeps nothing. Safe for
// concurrent use.
type items struct {
	limit int64 // of all blobs, in bytes

	mu    sync.Mutex
	byID  map[string]*list.Element
	order *list.List // of *kept, the latest first
	bytes int64
}

// kept is an item. It is never changed.
type kept struct {
	id   string
	blob []byte
}

func newItems(limit int64) *items {
	if limit <= 0 {
		return nil
	}
	return &items{limit: limit, byID: map[string]*list.Element{}, order: list.New()}
}

// get returns the blob with an identity, which is only to be read; nil: there is none.
func (c *items) get(id string) []byte {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	el, ok := c.byID[id]
	if !ok {
		return nil
	}
	c.order.MoveToFront(el)
	return el.Value.(*kept).blob
}

// put keeps a copy of a blob, unless it is so large that few others would stay.
func (c *items) put(id string, blob []byte) {
	if c == nil || int64(len(blob)) > c.limit/4 {
		return
	}
	k := &kept{id, append(make([]byte, 0, len(blob)), blob...)} // outside of the lock
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.byID[id]; ok {
		return // of a request at the same time
	}
	c.byID[id] = c.order.PushFront(k)
	c.bytes += int64(len(blob))
	for c.bytes > c.limit {
		old := c.order.Remove(c.order.Back()).(*kept)
		delete(c.byID, old.id)
		c.bytes -= int64(len(old.blob))
	}
}

// size returns how many bytes are kept.
func (c *items) size() int64 {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}
