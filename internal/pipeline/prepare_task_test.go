package pipeline_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/catalog"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/pipeline"
	"github.com/portico-llm/portico/internal/prepost"
	"github.com/portico-llm/portico/internal/testkit"
)

// framed is a tokenizer of bytes that puts a token ahead of a text and another behind it, as BERT's does.
type framed struct{ testkit.Bytes }

const head, tail = 1, 2

func (f framed) Encode(ctx context.Context, text string, special bool) ([]prepost.TokenID, error) {
	ids, err := f.Bytes.Encode(ctx, text, special)
	if special {
		ids = append(append([]prepost.TokenID{head}, ids...), tail)
	}
	return ids, err
}

func embedSet(context uint32) *catalog.Set {
	set := testkit.TaskModel("m", "Embedding", "Tokens")
	set.Tokenizer, set.MDCSum = framed{}, "sum"
	if context > 0 {
		set.Card.ContextLength = &context
	}
	return set
}

func prepareTask(t *testing.T, set *catalog.Set, task openai.Task, body string) (*pipeline.Prepared, error) {
	t.Helper()
	req, err := openai.DecodeTask(task, []byte(body), openai.DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pipeline.New(pipeline.Options{}).PrepareTask(t.Context(), set, pipeline.Meta{RequestID: "r"}, req)
}

// TestPrepareEmbedding: what a worker that takes tokens gets.
func TestPrepareEmbedding(t *testing.T) {
	for _, c := range []struct {
		name, members string
		context       uint32
		want          string
	}{
		{"one text", `"input":"ab"`, 0,
			`{"token_ids":[[1,97,98,2]],"model":"m","dimensions":null,"mdc_sum":"sum","annotations":[]}`},
		{"texts", `"input":["a","b"],"dimensions":2,"encoding_format":"base64"`, 0,
			`{"token_ids":[[1,97,2],[1,98,2]],"model":"m","encoding_format":"base64","dimensions":2,"mdc_sum":"sum","annotations":[]}`},
		{"tokens are the client's own", `"input":[7,8]`, 0,
			`{"token_ids":[[7,8]],"model":"m","dimensions":null,"mdc_sum":"sum","annotations":[]}`},
		{"batch of tokens", `"input":[[7],[8,9]],"nvext":{"annotations":["x"]}`, 0,
			`{"token_ids":[[7],[8,9]],"model":"m","dimensions":null,"mdc_sum":"sum","annotations":["x"]}`},
		{"without special tokens", `"input":"ab","add_special_tokens":false`, 0,
			`{"token_ids":[[97,98]],"model":"m","dimensions":null,"mdc_sum":"sum","annotations":[]}`},
		{"cut between the special tokens", `"input":"abcdef","truncate_prompt_tokens":4`, 0,
			`{"token_ids":[[1,97,98,2]],"model":"m","truncate_prompt_tokens":4,"dimensions":null,"mdc_sum":"sum","annotations":[]}`},
		{"cut to what has no room for them", `"input":"abcdef","truncate_prompt_tokens":1`, 0,
			`{"token_ids":[[1]],"model":"m","truncate_prompt_tokens":1,"dimensions":null,"mdc_sum":"sum","annotations":[]}`},
		{"cut plainly", `"input":"abcdef","truncate_prompt_tokens":4,"add_special_tokens":false`, 0,
			`{"token_ids":[[97,98,99,100]],"model":"m","truncate_prompt_tokens":4,"dimensions":null,"mdc_sum":"sum","annotations":[]}`},
		{"cut to the context", `"input":["abcdef","a"],"truncate_prompt_tokens":-1`, 5,
			`{"token_ids":[[1,97,98,99,2],[1,97,2]],"model":"m","truncate_prompt_tokens":-1,"dimensions":null,"mdc_sum":"sum","annotations":[]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := prepareTask(t, embedSet(c.context), openai.TaskEmbed, `{"model":"m",`+c.members+`}`)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(p.Raw)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPrepareEmbeddingRefusals(t *testing.T) {
	for _, c := range []struct{ members, param, code string }{
		{`"input":["a","abcdef"]`, "input[1]", "context_length_exceeded"},
		{`"input":"abcdef"`, "input", "context_length_exceeded"},
		{`"input":[1,2,3,4,5,6]`, "input", "context_length_exceeded"},
		{`"input":[[1],[2,257]]`, "input[1][1]", "invalid_value"},
	} {
		_, err := prepareTask(t, embedSet(5), openai.TaskEmbed, `{"model":"m",`+c.members+`}`)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || f.Kind != fault.BadRequest || f.Param != c.param || f.Code != c.code {
			t.Errorf("%s: %v", c.members, err)
		}
	}
}

// TestPrepareTaskForText: workers that take text get the request itself, and the pin of its extensions counts.
func TestPrepareTaskForText(t *testing.T) {
	p, err := prepareTask(t, testkit.TaskModel("m", "Embedding", "Text"), openai.TaskEmbed,
		`{"model":"m","input":["a"],"nvext":{"backend_instance_id":9}}`)
	if err != nil {
		t.Fatal(err)
	}
	if p.Pin == nil || *p.Pin != 9 || p.Requests != nil || !json.Valid(p.Raw) {
		t.Errorf("%+v", p)
	}
	// Msgpack workers get the same.
	if _, err := worker.AppendJSONAsMsgpack(nil, p.Raw); err != nil {
		t.Error(err)
	}
}
