package anthropic

import (
	"encoding/json"
	"time"
)

// Error is a failure in Anthropic's form. Clients choose their exceptions by the status, and show the message.
type Error struct {
	Type      string // such as invalid_request_error
	Message   string // public
	RequestID string // empty: left out
}

// AppendError appends e as {"type":"error","error":{"type":…,"message":…}}, which is also the data of an error event.
func AppendError(dst []byte, e *Error) []byte {
	type inner struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	b, err := json.Marshal(struct {
		Type      string `json:"type"`
		Error     inner  `json:"error"`
		RequestID string `json:"request_id,omitempty"`
	}{"error", inner{e.Type, e.Message}, e.RequestID})
	if err != nil { // strings always marshal
		return append(dst, `{"type":"error","error":{"type":"api_error","message":"Internal server error"}}`...)
	}
	return append(dst, b...)
}

// Model is one model in Anthropic's form.
type Model struct {
	Type        string `json:"type"` // always model
	ID          string `json:"id"`   // what requests name in model
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"` // RFC 3339
}

// NewModel returns a model that was created at a Unix time in seconds.
func NewModel(id string, created int64) Model {
	return Model{Type: "model", ID: id, DisplayName: id, CreatedAt: time.Unix(created, 0).UTC().Format(time.RFC3339)}
}

// ModelList is the answer to GET /v1/models: one page with all there is.
type ModelList struct {
	Data    []Model `json:"data"`
	HasMore bool    `json:"has_more"`
	FirstID *string `json:"first_id"` // null without models
	LastID  *string `json:"last_id"`
}

// NewModelList returns the page that holds the models.
func NewModelList(models []Model) *ModelList {
	l := &ModelList{Data: models}
	if n := len(models); n > 0 {
		l.FirstID, l.LastID = &models[0].ID, &models[n-1].ID
	} else {
		l.Data = []Model{} // an empty array, never null
	}
	return l
}
