package fault_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/portico-llm/portico/internal/fault"
)

func TestFrom(t *testing.T) {
	cause := errors.New("socket closed")
	for _, c := range []struct {
		name   string
		err    error
		kind   fault.Kind
		origin fault.Origin
		public string
	}{
		{"bad field", fault.Bad("n", "at most %d", 8), fault.BadRequest, fault.FromRequest, "at most 8"},
		{"wrapped", fmt.Errorf("dispatch: %w", fault.Lost(cause, "worker lost")), fault.Unavailable, fault.FromTransport, "worker lost"},
		{"cancelled", fmt.Errorf("read: %w", context.Canceled), fault.Cancelled, fault.FromRequest, "Request cancelled"},
		{"deadline", context.DeadlineExceeded, fault.Timeout, fault.FromRequest, "Request deadline exceeded"},
		{"anything else tells nothing", errors.New("secret path"), fault.Internal, fault.FromRequest, "Internal server error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := fault.From(c.err)
			if e.Kind != c.kind || e.Origin != c.origin || e.Message != c.public {
				t.Errorf("got %v %v %q, want %v %v %q", e.Kind, e.Origin, e.Message, c.kind, c.origin, c.public)
			}
			if fault.KindOf(c.err) != c.kind {
				t.Errorf("KindOf %v, want %v", fault.KindOf(c.err), c.kind)
			}
		})
	}
	if fault.From(nil) != nil || fault.KindOf(nil) != fault.Internal {
		t.Error("nil is no failure")
	}
}

func TestCopiesKeepTheOriginal(t *testing.T) {
	base := fault.New(fault.NotFound, "no such model")
	cause := errors.New("not in the catalogue")
	e := base.Because(cause).WithCode("model_not_found")
	if base.Code != "" || base.Unwrap() != nil {
		t.Error("the original changed")
	}
	if e.Code != "model_not_found" || !errors.Is(e, cause) || e.Message != "no such model" {
		t.Errorf("got %+v", e)
	}
	if got := e.Error(); got != "no such model: not in the catalogue" {
		t.Errorf("Error() is %q", got)
	}
}

func TestKindNames(t *testing.T) {
	seen := map[string]bool{}
	for k := fault.Internal; k <= fault.TooSlow; k++ {
		if name := k.String(); name == "unknown" || seen[name] {
			t.Errorf("kind %d is named %q", k, name)
		} else {
			seen[name] = true
		}
	}
	if fault.Kind(200).String() != "unknown" {
		t.Error("a kind that doesn't exist has a name")
	}
}
