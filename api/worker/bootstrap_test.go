package worker_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/portico-llm/portico/api/worker"
)

// handoff is an id whose text shows where each byte goes.
var handoff = [16]byte{0x7c, 0xd2, 0x94, 0, 0x75, 0xa7, 0x4b, 0xf1, 0x85, 0x8e, 0xe2, 0x15, 0xea, 0x65, 0x78, 0x2d}

// TestBootstrapForms compares both codecs with what a Dynamo frontend sends: an id is text in JSON, bytes in msgpack.
func TestBootstrapForms(t *testing.T) {
	q := worker.Request{BootstrapInfo: &worker.Bootstrap{Host: "127.0.0.1", Port: 23456, Room: 3806047435520599686, Handoff: handoff}}
	body, err := q.Append(nil, worker.JSON)
	if err != nil {
		t.Fatal(err)
	}
	want := `"bootstrap_info":{"bootstrap_host":"127.0.0.1","bootstrap_port":23456,"bootstrap_room":3806047435520599686,` +
		`"handoff_id":"7cd29400-75a7-4bf1-858e-e215ea65782d"}`
	if !strings.Contains(string(body), want) {
		t.Errorf("no %s in %s", want, body)
	}
	if body, err = q.Append(nil, worker.Msgpack); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(body, append([]byte("\xaahandoff_id\xc4\x10"), handoff[:]...)) {
		t.Errorf("no bytes of the id in %q", body)
	}
	q.BootstrapInfo.Handoff = [16]byte{}
	if body, err = q.Append(nil, worker.JSON); err != nil || strings.Contains(string(body), "handoff_id") {
		t.Errorf("an id that isn't there is written: %s, %v", body, err)
	}
}

// TestBootstrapReads reads what workers may be sent by other frontends.
func TestBootstrapReads(t *testing.T) {
	for name, tc := range map[string]struct {
		json string
		want *worker.Bootstrap
		fail string // empty: it is read
	}{
		"null":         {`null`, nil, ""},
		"null id":      {`{"bootstrap_room":1,"handoff_id":null}`, &worker.Bootstrap{Room: 1}, ""},
		"more":         {`{"bootstrap_host":"h","x":[1]}`, &worker.Bootstrap{Host: "h"}, ""},
		"upper case":   {`{"handoff_id":"7CD29400-75A7-4BF1-858E-E215EA65782D"}`, &worker.Bootstrap{Handoff: handoff}, ""},
		"no hyphens":   {`{"handoff_id":"7cd2940075a74bf1858ee215ea65782d"}`, nil, "no UUID"},
		"no digit":     {`{"handoff_id":"gcd29400-75a7-4bf1-858e-e215ea65782d"}`, nil, "no UUID"},
		"large port":   {`{"bootstrap_port":65536}`, nil, "bootstrap_info"},
		"large room":   {`{"bootstrap_room":18446744073709551616}`, nil, "bootstrap_info"},
		"not a string": {`{"handoff_id":3}`, nil, "bootstrap_info"},
	} {
		t.Run(name, func(t *testing.T) {
			body := []byte(`{"token_ids":[],"bootstrap_info":` + tc.json + `}`)
			packed, err := worker.AppendJSONAsMsgpack(nil, body)
			if err != nil && tc.fail == "" {
				t.Fatal(err)
			}
			for codec, b := range map[worker.Codec][]byte{worker.JSON: body, worker.Msgpack: packed} {
				if len(b) == 0 {
					continue
				}
				q, err := worker.DecodeRequest(codec, b)
				if tc.fail != "" {
					if err == nil {
						t.Errorf("%v: read as %+v", codec, q.BootstrapInfo)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, q.BootstrapInfo); diff != "" {
					t.Errorf("%v (-want +got):\n%s", codec, diff)
				}
			}
		})
	}
	// Ids of another length.
	if _, err := worker.DecodeRequest(worker.Msgpack, []byte("\x81\xaebootstrap_info\x81\xaahandoff_id\xc4\x02ab")); err == nil {
		t.Error("an id of two bytes is read")
	}
}

func TestBootstrapAddress(t *testing.T) {
	for raw, want := range map[string]bool{
		``: false, `null`: false, `{}`: false, `[]`: false, `{"bootstrap_host":"h"}`: false, `{"bootstrap_port":1}`: false,
		`{"bootstrap_host":"h","bootstrap_port":70000}`: false, `{"bootstrap_host":"h","bootstrap_port":null}`: false,
		`{"bootstrap_host":"h","bootstrap_port":5}`: true,
	} {
		c := worker.RuntimeConfig{DisaggregatedEndpoint: []byte(raw)}
		host, port, ok := c.BootstrapAddress()
		if ok != want || (ok && (host != "h" || port != 5)) {
			t.Errorf("%s: %q, %d, %v", raw, host, port, ok)
		}
	}
}
