package simworker

import (
	"context"
	"errors"

	"github.com/portico-llm/portico/api/worker"
)

// asWorkerError returns an engine's error in the protocol's form. What isn't one already is internal and private.
func asWorkerError(err error) *worker.Error {
	if e, ok := errors.AsType[*worker.Error](err); ok {
		return e
	}
	return &worker.Error{Class: "Internal", Reason: "backend.unknown", Message: err.Error()}
}

// sendError sends an error item, as a failing engine's runtime does.
func (s *session) sendError(err error) error {
	s.struck = true // the plan itself isn't changed: the reader of control messages looks at it too
	return s.Send(&worker.Item{Event: "error", Err: asWorkerError(err)})
}

// refuse writes the prologue of a request that isn't taken up, behind the handshake that is in the frame already. It
// returns err, so that the request counts as failed, after the frontend has closed or CloseWait has passed.
func (s *session) refuse(err error) error {
	if werr := s.write(worker.AppendPrologue(s.frame, asWorkerError(err))); werr != nil {
		return werr
	}
	// The frontend closes once it has read the refusal; closing first could lose it.
	ctx, cancel := context.WithTimeout(s.ctx, s.w.o.CloseWait)
	defer cancel()
	<-ctx.Done()
	return err
}
