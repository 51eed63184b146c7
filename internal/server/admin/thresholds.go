package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/portico-llm/portico/api/worker"
)

// Thresholds are what operators may read and set while the server runs. Safe for concurrent use.
type Thresholds interface {
	// List returns the thresholds of all models that are served, as they go into the body of an answer.
	List() any
	// Of returns the thresholds of a model; ok is false when nobody serves it.
	Of(model string) (t worker.LoadThresholds, ok bool)
	// Set changes those that are there, and returns what holds then. The error is the operator's mistake.
	Set(model string, t worker.LoadThresholds) (now worker.LoadThresholds, ok bool, err error)
}

// maxThresholds bounds the body of a request that sets thresholds.
const maxThresholds = 64 << 10

// thresholdsOf is the body of a request and of its answer, in the form operators of Dynamo know.
type thresholdsOf struct {
	Model *string `json:"model"`
	worker.LoadThresholds
}

// BusyThresholds lists the thresholds of all models.
func (h *Handlers) BusyThresholds(w http.ResponseWriter, _ *http.Request) {
	write(w, http.StatusOK, struct {
		Thresholds any `json:"thresholds"`
	}{h.opts.Thresholds.List()})
}

// SetBusyThreshold sets thresholds of one model and tells what holds then. A body without thresholds only asks, also for
// models that nobody serves, whose thresholds are null.
func (h *Handlers) SetBusyThreshold(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxThresholds))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("The body may have at most %d bytes", maxThresholds))
		return
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, "The body did not arrive whole")
		return
	}
	var in thresholdsOf
	if err := json.Unmarshal(body, &in); err != nil {
		status := http.StatusBadRequest
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			status = http.StatusUnprocessableEntity
			err = fmt.Errorf("%s: a JSON %s where %s is expected", wrong.Field[strings.LastIndexByte(wrong.Field, '.')+1:], wrong.Value, expected(wrong))
		}
		refuse(w, status, "Failed to deserialize the JSON body into the target type: "+err.Error())
		return
	}
	if in.Model == nil {
		refuse(w, http.StatusUnprocessableEntity,
			"Failed to deserialize the JSON body into the target type: missing field `model`")
		return
	}
	if in.IsZero() {
		in.LoadThresholds, _ = h.opts.Thresholds.Of(*in.Model)
		write(w, http.StatusOK, in)
		return
	}
	now, ok, err := h.opts.Thresholds.Set(*in.Model, in.LoadThresholds)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, err.Error())
	case !ok:
		refuse(w, http.StatusNotFound,
			fmt.Sprintf("Model '%.256s' not found. Thresholds can only be set for discovered models.", *in.Model))
	default:
		write(w, http.StatusOK, thresholdsOf{in.Model, now})
	}
}

// expected names what a field takes.
func expected(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "uint64":
		return "an integer of at least 0"
	case "float64":
		return "a number"
	case "string":
		return "a string"
	}
	return "an object"
}

// refuse answers with a failure, in the form this endpoint has in Dynamo.
func refuse(w http.ResponseWriter, status int, message string) {
	write(w, status, struct {
		Error string `json:"error"`
	}{message})
}
