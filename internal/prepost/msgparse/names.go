package msgparse

import (
	"fmt"
	"slices"
	"strings"

	"github.com/portico-llm/portico/internal/prepost/reasonparse"
	"github.com/portico-llm/portico/internal/prepost/toolparse"
)

// Check reports whether the names are those of parsers; empty names are none. Reasoning parsers are checked for
// spelling only here: workers may name others, which act as basic.
func Check(toolParser, reasoningParser string) error {
	if err := CheckTools(toolParser); err != nil {
		return err
	}
	if names := reasonparse.Names(); reasoningParser != "" && !slices.Contains(names, reasoningParser) {
		return fmt.Errorf("reasoning parser %q is not known: the parsers are %s", reasoningParser, strings.Join(names, ", "))
	}
	return nil
}

// CheckTools is Check for a tool parser alone.
func CheckTools(name string) error {
	if names := toolparse.Names(); name != "" && !slices.Contains(names, name) {
		return fmt.Errorf("tool-call parser %q is not known: the parsers are %s", name, strings.Join(names, ", "))
	}
	return nil
}

// Detect tells by chat templates which parsers a model needs; empty: none. Earlier templates count before later ones.
func Detect(templates ...string) (toolParser, reasoningParser string) {
	for _, t := range templates {
		if toolParser == "" {
			toolParser, _ = toolparse.Detect(t)
		}
		if reasoningParser == "" {
			reasoningParser, _ = reasonparse.Detect(t)
		}
	}
	return toolParser, reasoningParser
}
