package main

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/prepost/msgparse"
)

// tagSettings are the settings of structural tags that are known, with the values that may be given as text.
var tagSettings = map[string][]string{
	"scope": {"", "auto", "always"}, "schema": {"", "auto", "strict"},
	"reasoning_boundary":                      {"", "auto", "structural_tag", "backend"},
	"allow_tool_calls_with_structured_output": nil, "exclude_special_tokens": nil, "tool_arguments_any_order": nil,
}

// tagNotes says which of a worker's settings of structural tags are not followed, and what is done instead.
func tagNotes(r *worker.RuntimeConfig, tools, reasoning string) []string {
	tags := r.CallTags()
	if tags == nil {
		if text := string(r.StructuralTag); text != "" && text != "null" && text != "false" {
			return []string{"structural_tag can't be read: no structural tags but those that a parser can't do without"}
		}
		return nil
	}
	notes := unknownTagSettings(r.StructuralTag)
	given := map[string]string{
		"scope": tags.Scope, "schema": tags.Schema, "reasoning_boundary": tags.Boundary,
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(tagSettings[name], given[name]) {
			notes = append(notes, name+": unknown value, taken as auto")
		}
	}
	can := msgparse.TagsOf(tools)
	if !can.Any {
		return append(notes, "the parser has no structural tags: forced calls are held to JSON, others to nothing")
	}
	note := func(wanted bool, text string) {
		if wanted {
			notes = append(notes, text)
		}
	}
	note(tags.Exclude != nil && !can.Exclude, "exclude_special_tokens: the parser has no markers to keep out of texts")
	note(tags.AnyOrder && !can.AnyOrder, "tool_arguments_any_order: the parser's required arguments come first, in order")
	note(tags.WithFormat && !can.WithFormat,
		"allow_tool_calls_with_structured_output: an answer with a response format is that format, not calls")
	note(tags.Boundary == "backend" && reasoning == "", "reasoning_boundary: the model has no reasoning parser, nothing is waited for")
	note(tags.Boundary == "structural_tag" && r.Flag(worker.FlagTagExcludesReasoning),
		"reasoning_boundary: the engine lets thoughts pass by itself, so the tags don't")
	return notes
}

// unknownTagSettings names what isn't known of a structural_tag object.
func unknownTagSettings(raw json.RawMessage) []string {
	var members map[string]json.RawMessage
	if len(raw) == 0 || json.Unmarshal(raw, &members) != nil {
		return nil
	}
	var notes []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if _, known := tagSettings[name]; !known {
			notes = append(notes, name+": unknown, has no effect")
		}
	}
	return notes
}
