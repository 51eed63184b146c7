package worker_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/worker"
)

func TestTranscodeExact(t *testing.T) {
	long := strings.Repeat("x", 70000)
	many := "[" + strings.TrimSuffix(strings.Repeat("1,", 70000), ",") + "]"
	for _, text := range []string{
		`null`, `true`, `false`, `0`, `127`, `128`, `255`, `256`, `65535`, `65536`, `4294967295`, `4294967296`,
		`9223372036854775807`, `9223372036854775808`, `18446744073709551615`,
		`-1`, `-32`, `-33`, `-128`, `-129`, `-32768`, `-32769`, `-2147483648`, `-2147483649`, `-9223372036854775808`,
		`1.5`, `-0.0`, `1.0`, `0.1`, `1e-07`, `1e+21`, `123456789012345680.0`, `2.2250738585072014e-308`,
		`""`, `"é😀\"\\\n\r\t\u0000\u001f"`, `"` + long + `"`,
		`[]`, `{}`, `[[],{}]`, `{"a":[1,{"b":[null]}],"":0}`, many,
		`[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]`,
		strings.Repeat(`[`, 600) + strings.Repeat(`]`, 600),
		strings.Repeat(`{"a":`, 600) + `1` + strings.Repeat(`}`, 600),
	} {
		packed, err := worker.AppendJSONAsMsgpack([]byte("kept"), []byte(text))
		if err != nil {
			t.Errorf("%.60s: %v", text, err)
			continue
		}
		again, err := worker.AppendMsgpackAsJSON([]byte("kept"), packed[4:])
		if err != nil || string(again) != "kept"+text {
			t.Errorf("%.60s became %.60s (%v)", text, again, err)
		}
	}
}

func TestTranscodeForms(t *testing.T) {
	for in, want := range map[string]string{
		"[1,\n 2]":                      "[1,2]",
		`"\u0041\/\ud83d\ude00"`:        `"A/😀"`,
		`"\ud800x"`:                     "\"\ufffdx\"",
		"\"\xff\"":                      "\"\ufffd\"",
		`18446744073709551616`:          `18446744073709552000.0`,
		`-9223372036854775809`:          `-9223372036854776000.0`,
		`1E2`:                           `100.0`,
		`-0`:                            `-0.0`,
		`1e999`:                         `null`,
		`{"a":1,"a":2}`:                 `{"a":1,"a":2}`,
		"{\"\\u0061\":1,\"b\":\"\\b\"}": `{"a":1,"b":"\u0008"}`,
	} {
		packed, err := worker.AppendJSONAsMsgpack(nil, []byte(in))
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		got, err := worker.AppendMsgpackAsJSON(nil, packed)
		if err != nil || string(got) != want {
			t.Errorf("%q became %s (%v), want %s", in, got, err, want)
		}
	}
	for _, bad := range []string{``, `{`, `[1`, `{"a"}`, `{"a":}`, `{1:2}`, `01`, `1.`, `.5`, `1e`, `+1`, `-`, `nul`, `"a`, `1 2`, `[,]`, strings.Repeat(`[`, 5000)} {
		if got, err := worker.AppendJSONAsMsgpack([]byte("kept"), []byte(bad)); err == nil || string(got) != "kept" {
			t.Errorf("%q became %x (%v)", bad, got, err)
		}
	}
	for _, bad := range []string{"", "\xc1", "\x91", "\xa5ab", "\xca\x00", "\xc0\xc0", "\x81\xc2\xc0", strings.Repeat("\x91", 5000)} {
		if got, err := worker.AppendMsgpackAsJSON([]byte("kept"), []byte(bad)); err == nil || string(got) != "kept" {
			t.Errorf("%x became %s (%v)", bad, got, err)
		}
	}
	nan := []byte{0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 1}
	if got, err := worker.AppendMsgpackAsJSON(nil, nan); err != nil || string(got) != "null" {
		t.Errorf("NaN became %s (%v)", got, err)
	}
}

// Nested containers must not make the work quadratic: each level's header is written once.
func TestTranscodeDeepAndLarge(t *testing.T) {
	level := `[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,`
	text := strings.Repeat(level, 500) + `"` + strings.Repeat("x", 1<<20) + `"` + strings.Repeat(`]`, 500)
	packed, err := worker.AppendJSONAsMsgpack(nil, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	again, err := worker.AppendMsgpackAsJSON(nil, packed)
	if err != nil || !bytes.Equal(again, []byte(text)) {
		t.Errorf("deep and large text changed (%v)", err)
	}
}
