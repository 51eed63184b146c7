package fetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/multimodal"
)

// refusal is what a client is told of its URL. The cause is for logs.
type refusal struct {
	reason string // follows the part's name
	cause  error  // may be nil
}

// Error returns the reason, then the cause.
func (r *refusal) Error() string {
	if r.cause != nil {
		return r.reason + ": " + r.cause.Error()
	}
	return r.reason
}

// Unwrap returns the cause.
func (r *refusal) Unwrap() error { return r.cause }

// refuse makes a refusal without a cause.
func refuse(format string, args ...any) *refusal {
	return &refusal{reason: fmt.Sprintf(format, args...)}
}

// because gives a refusal the cause that only logs show.
func (r *refusal) because(cause error) *refusal { return &refusal{reason: r.reason, cause: cause} }

// errLost is the failure of a fetch that ended without a word, which a panic does.
var errLost = fault.New(fault.Internal, "The request's media could not be fetched")

// isFollow reports whether a fetch failed only because another one had.
func isFollow(err error) bool { return errors.Is(err, context.Canceled) }

// refuse turns the failure of one source into what the client gets. It tells where the client was wrong, and nothing
// of what the other side said.
func (f *Fetcher) refuse(ctx context.Context, src *multimodal.Source, err error) error {
	r, ok := errors.AsType[*refusal](err)
	// What a fetch says that was ended from outside is about that end.
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		r = refuse("could not be fetched within %s", f.opts.Timeout)
	case ctx.Err() != nil:
		return context.Canceled // the client's leaving, or another fetch's failure
	case ok:
		err = r.cause
	default:
		r = refuse("could not be fetched")
	}
	bad := fault.Bad(src.Path, "`%s` %s", src.Path, r.reason).WithCode("invalid_image_url")
	if err != nil {
		return bad.Because(err)
	}
	return bad
}
