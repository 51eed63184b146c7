package multimodal_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/internal/multimodal"
)

// TestRoutingTokens: images stand in the prompt as Dynamo's frontend has them; the numbers are of its own requests.
func TestRoutingTokens(t *testing.T) {
	embed := []bool{false, true, true, false}
	got, ok := multimodal.RoutingTokens(&multimodal.Expansion{
		Tokens: []uint32{1, 151655, 151655, 2, 10, 151655, 151655, 11, 3},
		Placeholders: []multimodal.Placeholder{
			{Offset: 1, Length: 2}, {Offset: 4, Length: 4, IsEmbed: embed},
		},
	}, []string{"3003c6c8fdbb48177903502dcd9bc056505c2c2c451259d3379dc999b5b6e265", "36cf087ef25172f2c834edb2e0e48474ed500a31701de5cfd455689f98247884"})
	want := []uint32{1, 1036683863, 1036683863, 2, 10, 845198642, 845198642, 11, 3}
	if diff := cmp.Diff(want, got); diff != "" || !ok {
		t.Error(diff)
	}
	var info struct {
		Tokens []uint32 `json:"routing_token_ids"`
		Blocks []any    `json:"block_mm_infos"`
		Len    int      `json:"expanded_prompt_len"`
	}
	if err := json.Unmarshal(multimodal.RoutingInfo(got), &info); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, info.Tokens); diff != "" || info.Len != 9 || info.Blocks == nil || len(info.Blocks) != 0 {
		t.Errorf("%s %+v", diff, info)
	}
	if got := string(multimodal.AppendTokens(nil, nil)); got != "[]" {
		t.Errorf("got %s", got)
	}
}

func TestRoutingRefuses(t *testing.T) {
	id := "3003c6c8fdbb4817"
	for name, tc := range map[string]struct {
		place multimodal.Placeholder
		ids   []string
	}{
		"no identity":     {multimodal.Placeholder{Length: 1}, nil},
		"short":           {multimodal.Placeholder{Length: 1}, []string{id[:15]}},
		"no digits":       {multimodal.Placeholder{Length: 1}, []string{"the first picture"}},
		"beyond the end":  {multimodal.Placeholder{Offset: 2, Length: 2}, []string{id}},
		"before the head": {multimodal.Placeholder{Offset: -1, Length: 2}, []string{id}},
		"overflow":        {multimodal.Placeholder{Offset: 1 << 62, Length: 1 << 62}, []string{id}},
	} {
		e := &multimodal.Expansion{Tokens: []uint32{1, 2, 3}, Placeholders: []multimodal.Placeholder{tc.place}}
		if got, ok := multimodal.RoutingTokens(e, tc.ids); ok {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
