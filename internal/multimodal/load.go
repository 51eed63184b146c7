package multimodal

import (
	"context"
	"encoding/json"
)

// Request is the images of one request, on their way to a worker.
type Request struct {
	Model     string    // as the client named it, for logs
	Processor Processor // nil: the model's is not known, or its workers don't take what it makes
	Decoder   Decoder   // without Processor: for workers that take pixels; nil: they don't
	Sources   []Source  // all of the request's, in the order of the prompt; images alone
	Tokens    []uint32  // the prompt, with a placeholder for each image; only read
	Routing   bool      // whoever routes looks at images, too
}

// Load is what a worker, and whoever chooses it, is told of a request's images beside their URLs.
type Load struct {
	// Data is multi_modal_data with decoded images in place of URLs; empty: the URLs stay.
	Data json.RawMessage
	// Args are fields of extra_args.
	Args []Arg
	// RoutingTokens is the prompt as routers see it: each image stands as so many tokens that are its own. Nil: the
	// prompt as it is.
	RoutingTokens []uint32
	// Held is the memory that the worker is to read from. Never nil.
	Held Held
}

// Arg is one field of extra_args and its value.
type Arg struct {
	Name  string
	Value json.RawMessage
}

// Held is memory that a worker is to read from.
type Held interface {
	// Told is called each time before one more worker is told where the memory is.
	Told()
	// Untold takes back all that Told has said: nobody was told in the end.
	Untold()
	// Close ends the request's use of the memory. It doesn't wait and is idempotent.
	Close()
}

// Courier brings a request's images within a worker's reach. Safe for concurrent use.
type Courier interface {
	// Load returns nil, without an error, when the images are to travel as the URLs they are. Errors are for the client:
	// a *fault.Error, or ctx's error when that ended first. The caller closes what a load holds.
	Load(ctx context.Context, r *Request) (*Load, error)
}
