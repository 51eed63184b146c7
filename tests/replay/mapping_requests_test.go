package replay_test

import (
	"errors"
	"testing"

	"github.com/portico-llm/portico/api/openai"
	"github.com/portico-llm/portico/internal/fault"
	"github.com/portico-llm/portico/internal/server/validate"
	"github.com/portico-llm/portico/internal/testkit"
)

// refusedFields are the fields at fault in the recorded requests that were refused with 400 while they were read and
// checked; empty: the body as a whole.
var refusedFields = map[string]string{
	"chat_bad_role": "messages[0].role", "chat_nvext": "nvext.ignore_eos", "comp_empty_prompt": "prompt",
	"comp_no_prompt": "prompt", "comp_prompt_embeds": "prompt_embeds", "err_bad_json": "messages", "err_empty_body": "",
	"err_empty_messages": "messages", "err_float_max_tokens": "max_tokens", "err_freq_pen": "frequency_penalty",
	"err_min_p": "min_p", "err_n0": "n", "err_n_200": "n", "err_neg_max_tokens": "max_tokens", "err_no_messages": "messages",
	"err_no_model": "model", "err_not_object": "", "err_pres_pen": "presence_penalty", "err_rep_pen": "repetition_penalty",
	"err_str_max_tokens": "max_tokens", "err_temp_high": "temperature", "err_temp_neg": "temperature",
	"err_temp_str": "temperature", "err_top_k": "top_k", "err_top_logprobs_25": "top_logprobs", "err_top_p": "top_p",
	"err_top_p_zero": "top_p", "err_zero_max_tokens": "max_tokens", "logit_bias_bad": "logit_bias",
	"null_content": "messages[0].content", "nvext_guided_two": "nvext.guided_regex", "rf_bad": "response_format.type",
	"stop_40": "stop", "stop_empty": "stop[0]", "stream_options_nonstream": "stream_options",
	"tool_choice_without_tools": "tools", "tools_bad_choice": "tool_choice", "tools_named_missing": "tool_choice.function.name",
	"unknown_field": "foo_bar", "unknown_nvext": "nvext.zzz",
}

// refusedLater are recorded requests that were refused for what the model's template can't take, or, in the case of the
// history, seemed unable to take.
var refusedLater = map[string]bool{"image_url": true, "image_data_url": true, "tool_history": true}

// TestRecordedRequests reads and checks the recorded requests of a client session: those that were refused for what
// stands in them are refused, with the field named, and the others pass.
func TestRecordedRequests(t *testing.T) {
	type record struct {
		Name, Path, Body string
		Status           int
	}
	refused := 0
	for c := range testkit.Records[record](t, "testdata/mapping_requests.jsonl.gz") {
		t.Run(c.Name, func(t *testing.T) {
			err := readRequest(c.Path, []byte(c.Body))
			if c.Status == 200 || refusedLater[c.Name] {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			refused++
			want, ok := refusedFields[c.Name]
			e, isFault := errors.AsType[*fault.Error](err)
			if !ok || !isFault || mappingStatus(e.Kind) != c.Status || e.Param != want {
				t.Errorf("%#v, want status %d for %q", err, c.Status, want)
			}
		})
	}
	if refused != len(refusedFields) {
		t.Errorf("%d of %d refusals seen", refused, len(refusedFields))
	}
}

func readRequest(path string, body []byte) error {
	strict := openai.DecodeOptions{Strict: true}
	if path == "/v1/completions" {
		req, err := openai.DecodeCompletion(body, strict)
		if err != nil {
			return err
		}
		return validate.Completion(req, validate.Options{})
	}
	req, err := openai.DecodeChat(body, strict)
	if err != nil {
		return err
	}
	return validate.Chat(req, validate.Options{})
}
