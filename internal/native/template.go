package native

/*
#include <stddef.h>
#include <stdint.h>

typedef struct { uint8_t *data; size_t len; size_t cap; } portico_text;

void *portico_template_new(const uint8_t *src, size_t len, uint64_t fuel, portico_text *out);
int portico_template_render(const void *t, const uint8_t *args, size_t args_len, const uint8_t *now, size_t now_len,
	uint64_t timeout_ms, portico_text *out);
void portico_template_free(void *t);
void portico_template_free_text(portico_text text);

#cgo noescape portico_template_new
#cgo nocallback portico_template_new
#cgo noescape portico_template_render
#cgo nocallback portico_template_render
#cgo nocallback portico_template_free
#cgo nocallback portico_template_free_text
*/
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"
)

// TemplateFailure says why a template gave no text.
type TemplateFailure int

// The failures of a template. The numbers are the codes of the native library.
const (
	TemplateRaised       TemplateFailure = 1 // it called raise_exception: Message is its own
	TemplateFailed       TemplateFailure = 2 // it can't be compiled, or rendered with these arguments
	TemplateOutOfFuel    TemplateFailure = 3 // it did more work than one render may do
	TemplateOutOfTime    TemplateFailure = 4 // it was still writing at the deadline
	TemplateBadArguments TemplateFailure = 5 // the arguments aren't a JSON object, or nest too deeply
	TemplatePanicked     TemplateFailure = 6 // a defect of the engine
)

// TemplateError is a failed compilation or render.
type TemplateError struct {
	Failure TemplateFailure
	Message string
}

// Error returns the message.
func (e *TemplateError) Error() string { return e.Message }

// ErrTemplateClosed is returned by a template that has been closed.
var ErrTemplateClosed = errors.New("chat template is closed")

// Template is a compiled chat template. Renders may run concurrently; Close frees it once the last of them has
// returned, and later renders fail with ErrTemplateClosed.
type Template struct {
	handle unsafe.Pointer
	refs   atomic.Int64 // running renders, and one more until Close
	closed atomic.Bool
}

// NewTemplate compiles a template. The error is a *TemplateError.
func NewTemplate(src string) (*Template, error) {
	var out C.portico_text
	handle := C.portico_template_new((*C.uint8_t)(unsafe.StringData(src)), C.size_t(len(src)), 0, &out)
	if handle == nil {
		return nil, &TemplateError{Failure: TemplateFailed, Message: takeText(out)}
	}
	t := &Template{handle: handle}
	t.refs.Store(1)
	return t, nil
}

// Render renders the template with the members of the JSON object args as variables. strftime_now sees the wall clock
// of now. A timeout of 0 sets no deadline; work is bounded by fuel either way. A failed render is a *TemplateError.
func (t *Template) Render(args []byte, now time.Time, timeout time.Duration) (string, error) {
	if !t.acquire() {
		return "", ErrTemplateClosed
	}
	defer t.release()
	var (
		clock  [32]byte
		out    C.portico_text
		millis C.uint64_t
	)
	if timeout > 0 {
		millis = C.uint64_t(max(timeout.Milliseconds(), 1))
	}
	stamp := now.AppendFormat(clock[:0], "2006-01-02T15:04:05")
	code := C.portico_template_render(t.handle,
		(*C.uint8_t)(unsafe.SliceData(args)), C.size_t(len(args)),
		(*C.uint8_t)(unsafe.SliceData(stamp)), C.size_t(len(stamp)), millis, &out)
	text := takeText(out)
	if code == 0 {
		return text, nil
	}
	return "", &TemplateError{Failure: TemplateFailure(code), Message: text}
}

// Close frees the template. It is idempotent.
func (t *Template) Close() error {
	if t.closed.CompareAndSwap(false, true) {
		t.release()
	}
	return nil
}

// acquire keeps the handle alive for one call. It fails once the template has been freed.
func (t *Template) acquire() bool {
	for {
		n := t.refs.Load()
		if n == 0 || t.closed.Load() {
			return false
		}
		if t.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (t *Template) release() {
	if t.refs.Add(-1) == 0 {
		C.portico_template_free(t.handle)
	}
}

// takeText copies what a native call returned and frees it.
func takeText(text C.portico_text) string {
	if text.data == nil {
		return ""
	}
	s := string(unsafe.Slice((*byte)(unsafe.Pointer(text.data)), int(text.len)))
	C.portico_template_free_text(text)
	return s
}

// String returns the failure's name for logs and metric labels.
func (f TemplateFailure) String() string {
	names := map[TemplateFailure]string{
		TemplateRaised: "raised", TemplateFailed: "failed", TemplateOutOfFuel: "out_of_fuel",
		TemplateOutOfTime: "out_of_time", TemplateBadArguments: "bad_arguments", TemplatePanicked: "panicked",
	}
	if name, ok := names[f]; ok {
		return name
	}
	return fmt.Sprintf("failure_%d", int(f))
}
