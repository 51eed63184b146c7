package clients_test

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/portico-llm/portico/internal/prepost"
)

// turns is a template that puts each message on a line: its role, and how much it holds.
type turns struct{}

// Render implements prepost.Renderer.
func (turns) Render(_ context.Context, in *prepost.ChatInput) (string, error) {
	var messages []struct {
		Role string `json:"role"`
	}
	if err := json.Unmarshal(in.Messages, &messages); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(m.Role + "\n")
	}
	return b.String(), nil
}
