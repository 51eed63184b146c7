package server

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/portico-llm/portico/internal/fault"
)

// errContentType refuses a body that says it is something else. Browsers send forms across origins without asking, but
// not JSON.
var errContentType = fault.New(fault.UnsupportedMedia, "Expected request with Content-Type application/json")

// isJSON reports whether a content type is application/json or application/…+json. A missing one is not.
func isJSON(contentType string) bool {
	if contentType == "application/json" { // nearly always
		return true
	}
	// Parameters such as charset are ignored: JSON is UTF-8 (RFC 8259), and decoding mends what isn't. The +json suffix is
	// that of RFC 6839.
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return false
	}
	rest, ok := strings.CutPrefix(media, "application/")
	return ok && (rest == "json" || strings.HasSuffix(rest, "+json"))
}

// readBody reads the whole body, within the limits of size and time.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if !isJSON(r.Header.Get("Content-Type")) {
		return nil, errContentType
	}
	// Packed bodies aren't taken: a few bytes may unpack to any number. Read as they are they would be called bad JSON.
	if e := r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, fault.New(fault.UnsupportedMedia, "Content-Encoding %s is not supported; send the body as it is",
			clip(e, 64))
	}
	body, err := s.readAll(r) // before the deadline of limitBody
	if err != nil {
		return nil, err
	}
	// From now on a read only watches for the client's leaving.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return body, nil
}

// limitBody sets one deadline for the whole body, so that a trickle of bytes can't hold a connection. It is there
// whether the handler reads the body or not: net/http takes in what was left unread before it sends an answer, and
// would wait for ever. The end of the body or of the request clears it.
func (s *Server) limitBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.opts.BodyTimeout)) // not every ResponseWriter has one
}

// readAll reads a body that may be as long as it claims, or a chunked one of unknown length.
func (s *Server) readAll(r *http.Request) ([]byte, error) {
	limit := s.opts.BodyLimit
	if r.ContentLength > limit {
		if r.Header.Get("Expect") != "" { // the client asks first: reading would tell it to go on
			return nil, s.tooLarge(http.NoBody)
		}
		return nil, s.tooLarge(r.Body)
	}
	if n := r.ContentLength; n >= 0 {
		return readLength(r.Body, n)
	}
	// One byte beyond the limit tells a body that is too long from one that just fits.
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, bodyFault(err)
	}
	if int64(len(body)) > limit {
		return nil, s.tooLarge(r.Body)
	}
	return body, nil
}

// believed is how much memory a client gets on its word that so much will come.
const believed = 1 << 20

// readLength reads a body of n bytes. Most take a single allocation; for larger ones memory grows with what has
// arrived. Reading no more than n shows net/http the end of the body: from there on it watches the connection, which is
// how we learn that a client has left.
func readLength(r io.Reader, n int64) ([]byte, error) {
	body := make([]byte, min(n, believed))
	for filled := 0; ; {
		got, err := io.ReadFull(r, body[filled:])
		if err != nil {
			return nil, bodyFault(err)
		}
		filled += got
		if int64(filled) == n {
			return body, nil
		}
		grown := make([]byte, min(n, 2*int64(filled)))
		copy(grown, body)
		body = grown
	}
}

// tooLarge refuses a body. It first takes in some more of it: a client that is still sending would see its connection
// reset before it could read the answer.
func (s *Server) tooLarge(body io.Reader) error {
	_, _ = io.CopyN(io.Discard, body, 2*s.opts.BodyLimit)
	// Named in the unit of the setting, where it comes out even.
	size := fmt.Sprintf("%d bytes", s.opts.BodyLimit)
	if s.opts.BodyLimit%(1<<20) == 0 {
		size = fmt.Sprintf("%d MB", s.opts.BodyLimit>>20)
	}
	return fault.New(fault.TooLarge, "Request body exceeds the limit of %s set by %s", size, s.opts.BodyLimitName)
}

// bodyFault tells a slow client from one that left and from one that speaks no HTTP.
func bodyFault(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fault.New(fault.TooSlow, "The request body did not arrive in time").Because(err)
	case errors.Is(err, io.ErrUnexpectedEOF), isNetwork(err):
		return (&fault.Error{Kind: fault.Cancelled, Message: "The request body ended early"}).Because(err)
	}
	return fault.New(fault.BadRequest, "The request body could not be read").Because(err)
}

// isNetwork reports whether the connection itself failed, as it does when a client breaks it off.
func isNetwork(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok
}
