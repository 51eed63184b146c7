package fetch

import (
	"context"
	"net"
	"net/url"
)

// Connect replaces what opens connections to checked addresses.
func (f *Fetcher) Connect(c func(ctx context.Context, network, address string) (net.Conn, error)) {
	f.guard.connect = c
}

// Target parses and checks a URL as downloads do.
func (f *Fetcher) Target(raw string) (*url.URL, error) { return f.guard.target(raw) }

// Public is the check of addresses.
var Public = public
