package openai

import "encoding/json"

// taskFields are the fields of one task's request.
type taskFields struct {
	table    *table[TaskRequest]
	needs    []need   // fields that have to be there, beside the model
	defaults []member // what workers expect to find, where the client left it out
	nested   bool     // unknown fields go to the worker too, in a place of their own
}

// need is a field that has to be there, and what is said when it isn't.
type need struct {
	name, allowed string
	given         func(*TaskRequest) bool
}

// member is a member of a JSON object.
type member struct{ name, value string }

// taskTables are built once and never change.
var taskTables = [tasks]taskFields{
	TaskEmbed:    {table: newTable("", inputFields(), embedFields()), needs: []need{needInput}},
	TaskRerank:   {table: newTable("", modelField(), rerankFields()), needs: needDocuments, defaults: returnDocuments},
	TaskScore:    {table: scoreTable(), needs: needTexts},
	TaskClassify: {table: newTable("", inputFields(), poolerFields()), needs: []need{needInput}, defaults: unhurried},
	TaskPool: {
		table: newTable("", inputFields(), poolerFields(), poolFields()), needs: []need{needInput},
		// Workers that serve classify and pooling tell the two apart by the format.
		defaults: append([]member{{"encoding_format", `"float"`}}, unhurried...),
	},
	TaskImage: {table: newTable("", mediaFields("prompt"), imageFields()), needs: needText("prompt"), nested: true},
	TaskEdit: {
		table: newTable("", mediaFields("prompt"), imageFields()), nested: true,
		needs: append(needText("prompt"), needReference),
	},
	TaskVideo:  {table: newTable("", mediaFields("prompt"), videoFields()), needs: needText("prompt"), nested: true},
	TaskFrames: {table: newTable("", mediaFields("prompt"), videoFields()), needs: needText("prompt"), nested: true},
	TaskSpeech: {table: newTable("", mediaFields("input"), speechFields()), needs: needText("input"), nested: true},
}

// What has to be there, and what workers expect.
var (
	needInput     = need{"input", promptKinds, func(r *TaskRequest) bool { return r.Input.Given }}
	needDocuments = []need{
		{"query", "a string", func(r *TaskRequest) bool { return r.Query != nil }},
		{"documents", "an array of strings", func(r *TaskRequest) bool { return r.Documents != nil }},
	}
	needTexts = []need{
		{"text_1", "a string", func(r *TaskRequest) bool { return r.Text1 != nil }},
		{"text_2", "a string or an array of strings", func(r *TaskRequest) bool { return r.Text2 != nil }},
	}
	needReference = need{"input_reference", "a picture's URL, or the picture itself as a data URL",
		func(r *TaskRequest) bool { return r.Reference != nil }}
	returnDocuments = []member{{"return_documents", "true"}}
	unhurried       = []member{{"priority", "0"}}
)

// needText is what media are made from, which has two names.
func needText(name string) []need {
	return []need{{name, "a string", func(r *TaskRequest) bool { return r.Text != nil }}}
}

// passed is where a value goes that only has to be of the right type: the worker gets it from the body.
func passed[T any](*TaskRequest) *T { return new(T) }

// modelField is the one field that all tasks have.
func modelField() []field[TaskRequest] {
	return []field[TaskRequest]{
		requiredText("model", func(r *TaskRequest) *string { return &r.Model }),
		textField("user", passed[*string]),
	}
}

// inputFields are those of the tasks that read texts and give numbers.
func inputFields() []field[TaskRequest] {
	return append(modelField(),
		field[TaskRequest]{name: "input", kind: "string|array", read: func(r *reader, to *TaskRequest) error {
			return readPrompt(r, &to.Input)
		}},
		intField("truncate_prompt_tokens", func(r *TaskRequest) **int64 { return &r.Truncate }),
		boolField("add_special_tokens", func(r *TaskRequest) **bool { return &r.AddSpecial }),
	)
}

// embedFields are those of embeddings alone.
func embedFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		textField("encoding_format", func(r *TaskRequest) **string { return &r.EncodingFormat }),
		intField("dimensions", func(r *TaskRequest) **int64 { return &r.Dimensions }),
		{name: "nvext", kind: "object", read: func(r *reader, to *TaskRequest) error {
			fields := nvextTable
			if r.opts.IgnoreNvExt {
				fields = saltTable
			}
			return structField("", fields, func(t *TaskRequest) **NvExt { return &t.NvExt }).read(r, to)
		}},
	}
}

// rerankFields are those of the workers that compare texts.
func rerankFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		textField("query", func(r *TaskRequest) **string { return &r.Query }),
		textsField("documents", func(r *TaskRequest) *[]string { return &r.Documents }),
		intField("top_n", func(r *TaskRequest) **int64 { return &r.TopN }),
		boolField("return_documents", passed[*bool]),
	}
}

// scoreTable has vLLM's names for the same; workers know them as a rerank request.
func scoreTable() *table[TaskRequest] {
	first := func(name string) field[TaskRequest] {
		return textListField(name, func(r *TaskRequest) *[]string { r.Text1Name = name; return &r.Text1 })
	}
	second := func(name string) field[TaskRequest] {
		return textListField(name, func(r *TaskRequest) *[]string { r.Text2Name = name; return &r.Text2 })
	}
	return newTable("", modelField(), []field[TaskRequest]{first("text_1"), second("text_2")}).
		also("text_1", first("data_1"), first("queries")).
		also("text_2", second("data_2"), second("documents"), second("items"))
}

// textListField is one string, or an array of them.
func textListField(name string, get func(*TaskRequest) *[]string) field[TaskRequest] {
	return field[TaskRequest]{name: name, kind: "string|array", read: func(r *reader, to *TaskRequest) (err error) {
		*get(to), err = readStop(r) // the same two shapes
		return err
	}}
}

// poolerFields are the extensions that classify and pooling workers know.
func poolerFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		intField("priority", passed[*int64]),
		boolField("use_activation", passed[*bool]),
		textField("truncation_side", passed[*string]),
		textField("cache_salt", passed[*string]),
		textField("request_id", passed[*string]),
		objectField("mm_processor_kwargs", passed[json.RawMessage]),
	}
}

// poolFields are those of pooling alone.
func poolFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		textField("encoding_format", func(r *TaskRequest) **string { return &r.EncodingFormat }),
		intField("dimensions", func(r *TaskRequest) **int64 { return &r.Dimensions }),
		textField("embed_dtype", passed[*string]),
		textField("endianness", passed[*string]),
		textField("task", passed[*string]),
	}
}

// mediaFields are those of the tasks that make media; text is the name of what they are made from.
func mediaFields(text string) []field[TaskRequest] {
	return append(modelField(),
		textField(text, func(r *TaskRequest) **string { return &r.Text }),
		textField("response_format", func(r *TaskRequest) **string { return &r.Format }),
		objectField("nvext", func(r *TaskRequest) *json.RawMessage { return &r.MediaExt }),
	)
}

// imageFields are OpenAI's for images.
func imageFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		intField("n", func(r *TaskRequest) **int64 { return &r.N }),
		textField("size", passed[*string]),
		textField("quality", passed[*string]),
		textField("style", passed[*string]),
		textField("background", passed[*string]),
		textField("moderation", passed[*string]),
		textField("output_format", passed[*string]),
		intField("output_compression", passed[*int64]),
		boolField("stream", passed[*bool]),
		textField("input_reference", func(r *TaskRequest) **string { return &r.Reference }),
	}
}

// videoFields are OpenAI's for videos.
func videoFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		textField("size", passed[*string]),
		textField("output_format", passed[*string]),
		boolField("stream", passed[*bool]),
		rawField("seconds", "number|string", "a number or a string", passed[json.RawMessage], '0', '"'),
		textField("input_reference", passed[*string]),
	}
}

// speechFields are OpenAI's and vLLM's for speech.
func speechFields() []field[TaskRequest] {
	return []field[TaskRequest]{
		textField("voice", passed[*string]),
		textField("instructions", passed[*string]),
		floatField("speed", func(r *TaskRequest) **float64 { return &r.Speed }),
		textField("data_source", func(r *TaskRequest) **string { return &r.DataSource }),
		textField("task_type", passed[*string]),
		textField("language", passed[*string]),
		textField("ref_audio", passed[*string]),
		textField("ref_text", passed[*string]),
		intField("max_new_tokens", passed[*int64]),
	}
}
