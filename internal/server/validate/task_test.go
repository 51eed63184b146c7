package validate_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/server/validate"
)

// TestTask: what a task's request may not be, and the field that is named for it; an empty one is fine.
func TestTask(t *testing.T) {
	many := "[" + strings.TrimSuffix(strings.Repeat(`"a",`, 2049), ",") + "]"
	for _, c := range []struct {
		task          openai.Task
		members, want string
	}{
		{openai.TaskEmbed, `"input":"a"`, ""},
		{openai.TaskEmbed, `"input":["a","b"],"encoding_format":"base64","dimensions":65536,"truncate_prompt_tokens":-1`, ""},
		{openai.TaskEmbed, `"input":[1,2]`, ""},
		{openai.TaskEmbed, `"input":""`, "input"},
		{openai.TaskEmbed, `"input":[]`, "input"},
		{openai.TaskEmbed, `"input":["a",""]`, "input[1]"},
		{openai.TaskEmbed, `"input":[[1],[]]`, "input[1]"},
		{openai.TaskEmbed, `"input":` + many, "input"},
		{openai.TaskEmbed, `"input":"a","encoding_format":"bytes"`, "encoding_format"},
		{openai.TaskEmbed, `"input":"a","dimensions":0`, "dimensions"},
		{openai.TaskEmbed, `"input":"a","dimensions":65537`, "dimensions"},
		{openai.TaskEmbed, `"input":"a","truncate_prompt_tokens":0`, "truncate_prompt_tokens"},
		{openai.TaskEmbed, `"input":"a","truncate_prompt_tokens":-2`, "truncate_prompt_tokens"},
		{openai.TaskPool, `"input":"a","encoding_format":"bytes"`, ""},
		{openai.TaskPool, `"input":"a","encoding_format":"hex"`, "encoding_format"},
		{openai.TaskClassify, `"input":[""]`, "input[0]"},
		{openai.TaskRerank, `"query":"q","documents":["",""],"top_n":1`, ""},
		{openai.TaskRerank, `"query":"","documents":["a"]`, "query"},
		{openai.TaskRerank, `"query":"q","documents":[]`, "documents"},
		{openai.TaskRerank, `"query":"q","documents":["a"],"top_n":0`, "top_n"},
		{openai.TaskScore, `"text_1":["a"],"text_2":["b","c"]`, ""},
		{openai.TaskScore, `"text_1":["a","b"],"text_2":["b","c"]`, ""},
		{openai.TaskScore, `"text_1":["a","b"],"text_2":["b"]`, "text_1"},
		{openai.TaskScore, `"text_1":["a","b"],"text_2":["b","c","d"]`, "text_1"},
		{openai.TaskScore, `"text_1":["a",""],"text_2":["b","c"]`, "text_1[1]"},
		{openai.TaskScore, `"text_1":[],"text_2":["b","c"]`, "text_1"},
		{openai.TaskScore, `"text_1":"","text_2":["b"]`, "text_1"},
		{openai.TaskScore, `"text_1":"a","text_2":[]`, "text_2"},
		{openai.TaskImage, `"prompt":"a","n":10,"response_format":"b64_json"`, ""},
		{openai.TaskImage, `"prompt":""`, "prompt"},
		{openai.TaskEdit, `"prompt":"a","input_reference":"data:,"`, ""},
		{openai.TaskEdit, `"prompt":"a","input_reference":""`, "input_reference"},
		{openai.TaskImage, `"prompt":"a","n":0`, "n"},
		{openai.TaskImage, `"prompt":"a","response_format":"png"`, "response_format"},
		{openai.TaskVideo, `"prompt":""`, "prompt"},
		{openai.TaskSpeech, `"input":"a","response_format":"opus","speed":4`, ""},
		{openai.TaskSpeech, `"input":""`, "input"},
		{openai.TaskSpeech, `"input":"a","speed":4.5`, "speed"},
		{openai.TaskSpeech, `"input":"a","data_source":"file"`, "data_source"},
	} {
		name := c.members
		t.Run(fmt.Sprintf("%d/%.60s", c.task, name), func(t *testing.T) {
			req, err := openai.DecodeTask(c.task, []byte(`{"model":"m",`+c.members+`}`), openai.DecodeOptions{})
			if err != nil {
				t.Fatal(err)
			}
			check(t, validate.Task(req, validate.Options{}), c.want)
		})
	}
}
