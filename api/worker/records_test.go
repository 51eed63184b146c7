package worker_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

func TestParseInstance(t *testing.T) {
	in, err := worker.ParseInstance([]byte(`{"type":"Endpoint","namespace":"a.b","component":"c","endpoint":"e","instance_id":18446744073709551615,
		"transport":{"tcp":"10.0.0.1:5/ff/a/c/e"},"device_type":null,"request_plane_codec":null,"future":{"x":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &worker.Instance{
		Namespace: "a.b", Component: "c", Endpoint: "e", InstanceID: 1<<64 - 1,
		Transport: worker.Transport{TCP: "10.0.0.1:5/ff/a/c/e"},
	}
	if diff := cmp.Diff(want, in); diff != "" {
		t.Errorf("instance:\n%s", diff)
	}
	if in.Codec() != worker.JSON || in.Path() != "a.b/c/e/ffffffffffffffff" {
		t.Errorf("codec %v, path %s", in.Codec(), in.Path())
	}
	for name, bad := range map[string]string{
		"not JSON":      `{`,
		"other type":    `{"type":"Model","namespace":"a","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x"}}`,
		"no namespace":  `{"component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x"}}`,
		"no transport":  `{"namespace":"a","component":"c","endpoint":"e","instance_id":1}`,
		"new transport": `{"namespace":"a","component":"c","endpoint":"e","instance_id":1,"transport":{"quic":"x"}}`,
		"two":           `{"namespace":"a","component":"c","endpoint":"e","instance_id":1,"transport":{"tcp":"x","nats_tcp":"y"}}`,
		"float id":      `{"namespace":"a","component":"c","endpoint":"e","instance_id":1.5,"transport":{"tcp":"x"}}`,
	} {
		if in, err := worker.ParseInstance([]byte(bad)); err == nil {
			t.Errorf("%s parses as %+v", name, in)
		}
	}
}

func TestParseModel(t *testing.T) {
	const head = `{"type":"Model","namespace":"n","component":"c","endpoint":"e","instance_id":1,"model_suffix":"ad","card_json":`
	m, err := worker.ParseModel([]byte(head + `{"display_name":"d","aliases":null,"model_info":null,"tokenizer":{"tik_token_model":{"path":"p","checksum":"blake3:0"}},
		"chat_template_file":{"hf_chat_template_jinja":{"is_custom":true,"file":{"path":"t","checksum":"blake3:1","size":null}}},
		"needs":null,"worker_type":null,"runtime_config":null,"lora":{"name":"ad"},"architectural_max_context_length":10,"context_length":5}}`))
	if err != nil {
		t.Fatal(err)
	}
	c := &m.Card
	want := worker.CardFile{Kind: worker.KindChatTemplate, Custom: true, File: worker.CheckedFile{Path: "t", Checksum: "blake3:1"}}
	if diff := cmp.Diff(want, c.ChatTemplate); diff != "" {
		t.Errorf("template:\n%s", diff)
	}
	if c.Tokenizer.Kind != worker.KindTiktoken || !c.ModelInfo.IsZero() || c.LoRA.Name != "ad" || m.Path() != "n/c/e/1/ad" {
		t.Errorf("model read as %+v", m)
	}
	if c.EffectiveContextLength() != 10 {
		t.Errorf("context length %d", c.EffectiveContextLength())
	}
	out, err := json.Marshal(c.ChatTemplate)
	if err != nil || string(out) != `{"hf_chat_template":{"is_custom":true,"file":{"path":"t","checksum":"blake3:1"}}}` {
		t.Errorf("template encodes to %s, %v", out, err)
	}
	for name, bad := range map[string]string{
		"no name":     head + `{}}`,
		"other type":  `{"type":"Endpoint"}`,
		"two kinds":   head + `{"display_name":"d","tokenizer":{"a":{},"b":{}}}}`,
		"file string": head + `{"display_name":"d","tokenizer":{"a":"x"}}}`,
		"not a map":   head + `{"display_name":"d","tokenizer":[]}}`,
		"no endpoint": `{"type":"Model","card_json":{"display_name":"d"}}`,
	} {
		if m, err := worker.ParseModel([]byte(bad)); err == nil {
			t.Errorf("%s parses as %+v", name, m)
		}
	}
}

func TestPaths(t *testing.T) {
	id, instance, suffix, err := worker.ParsePath("n.m/c/e/ff/lora/x")
	if err != nil || id != (worker.EndpointID{Namespace: "n.m", Component: "c", Name: "e"}) || instance != 255 || suffix != "lora/x" {
		t.Errorf("%v %v %q %v", id, instance, suffix, err)
	}
	for _, bad := range []string{"", "a/b/c", "a/b/c/xyz", "a/b/c/1ffffffffffffffff"} {
		if _, _, _, err := worker.ParsePath(bad); err == nil {
			t.Errorf("%q is a path", bad)
		}
	}
}

func TestParseEndpointID(t *testing.T) {
	for in, want := range map[string]worker.EndpointID{
		"dyn://ns.comp.ep": {Namespace: "ns", Component: "comp", Name: "ep"},
		"ns/comp/ep":       {Namespace: "ns", Component: "comp", Name: "ep"},
		"ns.comp/ep.x.y":   {Namespace: "ns", Component: "comp", Name: "ep_x_y"},
		"comp":             {Namespace: "NS", Component: "comp", Name: "E"},
		"ns.comp":          {Namespace: "ns", Component: "comp", Name: "E"},
		"":                 {Namespace: "NS", Component: "C", Name: "E"},
	} {
		if got, err := worker.ParseEndpointID(in); err != nil || got != want {
			t.Errorf("%q is %+v, %v", in, got, err)
		}
	}
	if id, err := worker.ParseEndpointID("dyn://./"); err == nil {
		t.Errorf("separators alone are %+v", id)
	}
	if got := (worker.EndpointID{Namespace: "a", Component: "b", Name: "c"}).URI(); got != "dyn://a.b.c" {
		t.Errorf("URI %s", got)
	}
}
