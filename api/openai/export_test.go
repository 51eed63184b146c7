package openai

// Kinds returns the JSON types each field of a request object takes, by the name of its OpenAPI schema.
func Kinds() map[string]map[string]string {
	return map[string]map[string]string{
		"ChatRequest":       kinds(chatTable),
		"CompletionRequest": kinds(completionTable),
		"ResponsesRequest":  kinds(responsesTable),
		"TextConfig":        kinds(textTable),
		"TextFormat":        kinds(textFormatTable),
		"NvExt":             kinds(nvextTable),
		"AgentHints":        kinds(hintsTable),
		"StreamOptions":     kinds(streamTable),
		"ResponseFormat":    kinds(formatTable),
		"JSONSchema":        kinds(schemaTable),
		"Thinking":          kinds(thinkingTable),
		"EmbeddingRequest":  kinds(taskTables[TaskEmbed].table),
		"RerankRequest":     kinds(taskTables[TaskRerank].table),
		"ScoreRequest":      kinds(taskTables[TaskScore].table),
		"ClassifyRequest":   kinds(taskTables[TaskClassify].table),
		"PoolingRequest":    kinds(taskTables[TaskPool].table),
		"ImageRequest":      kinds(taskTables[TaskImage].table),
		"VideoRequest":      kinds(taskTables[TaskVideo].table),
		"SpeechRequest":     kinds(taskTables[TaskSpeech].table),
	}
}

func kinds[T any](t *table[T]) map[string]string {
	out := map[string]string{}
	for name, f := range t.byName {
		out[name] = f.kind
	}
	return out
}
