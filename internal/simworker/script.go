package simworker

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// Step is one step of a Script: a wait, then an item, an end, or nothing more. Of several in one step the first of die,
// hang, item, output and error counts.
type Step struct {
	DelayMS int             `json:"delay_ms,omitempty"` // before the step, in milliseconds
	Item    json.RawMessage `json:"item,omitempty"`     // an annotated item: {"data":{…}} or {"event":…}
	Output  json.RawMessage `json:"output,omitempty"`   // the data alone, such as {"token_ids":[1]}
	Error   json.RawMessage `json:"error,omitempty"`    // an error object, sent as an error item
	Die     bool            `json:"die,omitempty"`      // break off here
	Hang    bool            `json:"hang,omitempty"`     // send nothing until stopped
}

// Script is an engine that plays the same steps for every request, whatever that asks for. It reads neither prompt nor
// limits. Safe for concurrent use as long as nobody changes Steps.
type Script struct{ Steps []Step }

var _ Engine = (*Script)(nil)

// ParseScript reads a JSON array of steps. Items are not looked into: a script may well play nonsense.
func ParseScript(b []byte) (*Script, error) {
	s := &Script{}
	if err := json.Unmarshal(b, &s.Steps); err != nil {
		return nil, fmt.Errorf("simworker: script: %w", err)
	}
	return s, nil
}

// Generate implements Engine.
func (s *Script) Generate(ctx context.Context, _ *Request, out Output) error {
	var p pace
	for i := range s.Steps {
		step := &s.Steps[i]
		if err := p.wait(ctx, time.Duration(step.DelayMS)*time.Millisecond); err != nil {
			return err
		}
		if step.Die {
			return ErrDie
		}
		if step.Hang {
			<-ctx.Done()
			return ctx.Err()
		}
		if item := step.annotated(); item != nil {
			if err := out.SendJSON(item); err != nil {
				return err
			}
		}
	}
	return nil
}

// annotated returns the step's item in the form that SendJSON takes; nil when the step has none.
func (s *Step) annotated() []byte {
	// A new slice each time: many requests play one step at once.
	wrap := func(before string, v json.RawMessage) []byte {
		return append(append([]byte(before), v...), '}')
	}
	switch {
	case s.Item != nil:
		return s.Item
	case s.Output != nil:
		return wrap(`{"data":`, s.Output)
	case s.Error != nil:
		return wrap(`{"event":"error","error":`, s.Error)
	}
	return nil
}

// EngineFunc makes an Engine of a function.
type EngineFunc func(ctx context.Context, req *Request, out Output) error

// Generate implements Engine.
func (f EngineFunc) Generate(ctx context.Context, req *Request, out Output) error {
	return f(ctx, req, out)
}
