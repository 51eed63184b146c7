package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/portico-llm/portico/internal/multimodal/nixl"
	"github.com/portico-llm/portico/internal/multimodal/shm"
	"github.com/portico-llm/portico/internal/multimodal/slots"
)

// Batch is the memory of one request's images. It has either slots or segments.
type Batch struct {
	t        *Transfer
	slots    []*slots.Slot
	ops      []*nixl.Op // one for each slot; nil until its reader is described, and for readers that can't be
	segments []*shm.Segment
	tells    atomic.Int32 // how many workers may know where the memory is
	closed   bool
}

// Bytes returns the memory of image i, to be written to before anybody is told of it.
func (b *Batch) Bytes(i int) []byte {
	if b.segments != nil {
		return b.segments[i].Bytes()
	}
	return b.slots[i].Bytes()
}

// Way is how the batch is handed over: nixl or shm.
func (b *Batch) Way() string {
	if b.segments != nil {
		return "shm"
	}
	return "nixl"
}

// The forms in which Dynamo's workers are told of images; their names and fields are part of the protocol.
type (
	shmMetadata struct {
		Modality string    `json:"modality"`
		Items    []shmItem `json:"items"`
		Hashes   []string  `json:"mm_hashes"`
	}
	shmItem struct {
		Name string `json:"name"`
		Size int    `json:"size"`
	}
	nixlMetadata struct {
		Modality string     `json:"modality"`
		Specs    []nixlSpec `json:"tensor_specs"`
		Hashes   []string   `json:"mm_hashes"`
	}
	nixlSpec struct {
		Field   string          `json:"field_name"`
		Shape   [1]int          `json:"shape"`
		DType   string          `json:"dtype_str"`
		Request json.RawMessage `json:"serialized_request"`
	}
)

// Kwargs returns what a worker is told of the batch as processed items: a field of extra_args and its value. lengths are
// the bytes of each item, hashes their identities. Nothing may be written to the batch afterwards.
func (b *Batch) Kwargs(modality string, lengths []int, hashes []string) (field string, value json.RawMessage, err error) {
	if b.segments != nil {
		value, err = b.describeSegments(modality, lengths, hashes)
		return "mm_kwargs_shm", value, err
	}
	value, err = b.describeSlots(modality, lengths, hashes)
	return "mm_kwargs_nixl", value, err
}

func (b *Batch) describeSegments(modality string, lengths []int, hashes []string) (json.RawMessage, error) {
	m := shmMetadata{Modality: modality, Items: make([]shmItem, len(b.segments)), Hashes: hashes}
	for i, seg := range b.segments {
		if lengths[i] > seg.Size() {
			return nil, errLength
		}
		if err := seg.Seal(lengths[i]); err != nil {
			b.t.metrics.refused.Inc()
			return nil, fmt.Errorf("%w: %w", ErrNone, err)
		}
		m.Items[i] = shmItem{seg.Name(), lengths[i]}
	}
	return json.Marshal(&m)
}

func (b *Batch) describeSlots(modality string, lengths []int, hashes []string) (json.RawMessage, error) {
	m := nixlMetadata{Modality: modality, Specs: make([]nixlSpec, len(b.slots)), Hashes: hashes}
	for i, slot := range b.slots {
		mem := slot.Bytes()
		if lengths[i] > len(mem) {
			return nil, errLength
		}
		b.ops[i] = b.t.agent.Expect()
		request, err := b.ops[i].Describe(mem[:lengths[i]])
		if err != nil {
			return nil, fmt.Errorf("describe a transfer: %w", err)
		}
		// The name is what workers take a whole item by; it is no longer what it says.
		m.Specs[i] = nixlSpec{"__pickled_kwargs_item__", [1]int{lengths[i]}, "uint8", request}
	}
	return json.Marshal(&m)
}

var errLength = errors.New("an image is longer than its memory")

// Told notes that one more worker is about to be told where the memory is. Until then it can be used again at once; of
// each that was told, it has to be heard that it is done.
func (b *Batch) Told() { b.tells.Add(1) }

// Untold takes back what Told said: nobody knows of the memory.
func (b *Batch) Untold() { b.tells.Store(0) }

// Close ends the request's use of the batch. It doesn't wait, is idempotent, and has no failure that concerns the
// request: what goes wrong is logged.
func (b *Batch) Close() {
	if b == nil || b.closed {
		return
	}
	b.closed = true
	// What needs no wait takes less time here than handing it on would.
	if b.segments == nil && b.complete() {
		b.release()
		return
	}
	if !b.t.cleanups.Go("release", b.finish) {
		b.release() // the process ends
	}
}

// complete reports whether nobody was told, or every reader has said that it is done.
func (b *Batch) complete() bool {
	for i := range b.slots {
		if !b.done(i) {
			return false
		}
	}
	return true
}

// done is complete for one slot.
func (b *Batch) done(i int) bool {
	tells := int(b.tells.Load())
	return tells == 0 || b.ops[i] != nil && b.ops[i].Reads() >= tells
}

// finish waits until all readers are done, together and within the bound, and releases everything then. One whose reader
// is done waits for the others: a failure of one says nothing about them.
func (b *Batch) finish(ctx context.Context) error {
	if b.segments == nil {
		timer := time.NewTimer(b.t.opts.Cleanup)
		defer timer.Stop()
		b.wait(ctx, timer.C)
	}
	b.release()
	return nil
}

func (b *Batch) wait(ctx context.Context, timeout <-chan time.Time) {
	for i, op := range b.ops {
		// Nothing will ever be heard of one without an operation.
		for op != nil && !b.done(i) {
			select {
			case <-op.Heard():
			case <-timeout:
				return
			case <-ctx.Done():
				return
			}
		}
	}
}

// release gives up all memory; a failure with one piece doesn't keep the others from being released.
func (b *Batch) release() {
	begin := time.Now()
	late, failed := 0, 0
	for i, slot := range b.slots {
		op := b.ops[i]
		if op != nil {
			op.Forget() // from here on it is done, or never will be
		}
		if b.done(i) {
			slot.Return()
			continue
		}
		late++
		if slot.Retire() != nil { // logged
			failed++
		}
	}
	for _, seg := range b.segments {
		if err := seg.Unlink(); err != nil {
			failed++
			b.t.opts.Log.Warn("a segment in shared memory could not be taken away", "name", seg.Name(), "error", err)
		}
	}
	b.t.metrics.closed(b, late, failed, time.Since(begin))
	if late > 0 && !b.unheard() {
		b.t.opts.Log.Warn("images were not read in time: their memory is given up", "images", late, "within", b.t.opts.Cleanup)
	}
}

// unheard reports whether the batch's readers couldn't have said that they were done.
func (b *Batch) unheard() bool {
	for _, op := range b.ops {
		if op != nil {
			return false
		}
	}
	return true
}
