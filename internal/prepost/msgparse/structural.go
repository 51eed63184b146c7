package msgparse

import (
	"encoding/json"

	"github.com/portico-llm/portico/internal/prepost"
)

// The parts of xgrammar's structural tags that are used here. The order of members is of no meaning to engines.
type (
	structuralTag struct {
		Type   string `json:"type"`
		Format any    `json:"format"`
	}
	sequenceFormat struct {
		Type     string `json:"type"`
		Elements []any  `json:"elements"`
	}
	tagFormat struct {
		Type    string `json:"type"`
		Begin   string `json:"begin"`
		Content any    `json:"content"`
		End     string `json:"end"`
	}
	tagsFormat struct {
		Type           string      `json:"type"`
		Tags           []tagFormat `json:"tags"`
		Separator      string      `json:"separator"`
		AtLeastOne     bool        `json:"at_least_one"`
		StopAfterFirst bool        `json:"stop_after_first"`
	}
	textFormat struct {
		Type     string   `json:"type"`
		Excludes []string `json:"excludes"`
	}
	schemaFormat struct {
		Type   string          `json:"type"`
		Schema json.RawMessage `json:"json_schema"`
		Style  string          `json:"style"`
	}
	constFormat struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	}
	regexFormat struct {
		Type    string `json:"type"`
		Pattern string `json:"pattern"`
	}
)

func sequence(elements ...any) sequenceFormat { return sequenceFormat{"sequence", elements} }
func constant(text string) constFormat        { return constFormat{"const_string", text} }

// kimiTag is the structural tag that holds an answer to calls in Kimi K2's own form: its engines have no other way of
// forcing a call, since the model doesn't write calls as JSON. With thought the call stands behind one. Nil: a schema
// isn't JSON, which is the engine's to complain about.
func kimiTag(q *prepost.AnswerRequest, thought bool) json.RawMessage {
	var tags []tagFormat
	for _, f := range q.Tools {
		if q.Choice == prepost.MustCallFunction && f.Name != q.Function {
			continue
		}
		schema := f.Parameters
		if len(schema) == 0 {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		tags = append(tags, tagFormat{
			Type: "tag", Begin: "<|tool_call_begin|>functions." + f.Name + ":", End: "<|tool_call_end|>",
			Content: sequence(
				regexFormat{"regex", `\d+`}, constant("<|tool_call_argument_begin|>"),
				schemaFormat{"json_schema", schema, "json"}),
		})
	}
	var calls any = tagsFormat{Type: "tags_with_separator", Tags: tags, AtLeastOne: true, StopAfterFirst: q.OneCall}
	if q.Choice == prepost.MustCallFunction && len(tags) > 0 {
		calls = tags[0]
	}
	format := sequence(constant("<|tool_calls_section_begin|>"), calls, constant("<|tool_calls_section_end|>"))
	if thought {
		format = sequence(tagFormat{
			Type: "tag", Content: textFormat{"any_text", []string{}}, End: "</think>"}, format)
	}
	tag, err := json.Marshal(structuralTag{"structural_tag", format})
	if err != nil {
		return nil
	}
	return tag
}
