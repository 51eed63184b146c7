package server

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/portico-llm/portico/internal/fault"
)

var errContentType = fault.New(fault.UnsupportedMedia, "Expected request with Content-Type application/json")

// isJSON reports whether a content type is application/json or application/…+json. A missing one is not.
func isJSON(contentType string) bool {
	if contentType == "application/json" { // nearly always
		return true
	}
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
	ctl := http.NewResponseController(w)
	_ = ctl.SetReadDeadline(time.Now().Add(s.opts.BodyTimeout)) // not every ResponseWriter has one
	body, err := s.readAll(r)
	if err != nil {
		return nil, err
	}
	_ = ctl.SetReadDeadline(time.Time{}) // from now on a read only watches for the client's leaving
	return body, nil
}

func (s *Server) readAll(r *http.Request) ([]byte, error) {
	limit := s.opts.BodyLimit
	if r.ContentLength > limit {
		return nil, s.tooLarge(r.Body)
	}
	// With a known length one allocation is enough, and reading exactly it shows net/http the end of the body: from there
	// on it watches the connection, which is how we learn that a client has left.
	if n := r.ContentLength; n >= 0 {
		body := make([]byte, n)
		if _, err := io.ReadFull(r.Body, body); err != nil {
			return nil, bodyFault(err)
		}
		return body, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, bodyFault(err)
	}
	if int64(len(body)) > limit {
		return nil, s.tooLarge(r.Body)
	}
	return body, nil
}

// tooLarge refuses a body. It first takes in some more of it: a client that is still sending would see its connection
// reset before it could read the answer.
func (s *Server) tooLarge(body io.Reader) error {
	_, _ = io.CopyN(io.Discard, body, 2*s.opts.BodyLimit)
	size := fmt.Sprintf("%d bytes", s.opts.BodyLimit)
	if s.opts.BodyLimit%(1<<20) == 0 {
		size = fmt.Sprintf("%d MB", s.opts.BodyLimit>>20)
	}
	return fault.New(fault.TooLarge, "Request body exceeds the limit of %s set by %s", size, s.opts.BodyLimitName)
}

func bodyFault(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return (&fault.Error{Kind: fault.Timeout, Message: "The request body did not arrive in time"}).Because(err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return (&fault.Error{Kind: fault.Cancelled, Message: "The request body ended early"}).Because(err)
	}
	return fault.New(fault.BadRequest, "The request body could not be read").Because(err)
}
