package file

import "testing"

// TestNames: the names are those that Dynamo's own writers give.
func TestNames(t *testing.T) {
	for _, tc := range []struct{ key, name string }{
		{"dynamo/backend/generate/f751fd8f43b1a835", "dynamo%2Fbackend%2Fgenerate%2Ff751fd8f43b1a835"},
		{"dynamo/backend/worker_kv_query_source_6ff/f7", "dynamo%2Fbackend%2Fworker%5Fkv%5Fquery%5Fsource%5F6ff%2Ff7"},
		{"a-b.c/d/e/1/x~é", "a%2Db%2Ec%2Fd%2Fe%2F1%2Fx%7E%C3%A9"},
		{"plain09AZ", "plain09AZ"},
	} {
		if got := encode(tc.key); got != tc.name {
			t.Errorf("encode(%q) = %q, want %q", tc.key, got, tc.name)
		}
		if got, ok := decode(tc.name); !ok || got != tc.key {
			t.Errorf("decode(%q) = %q, %v", tc.name, got, ok)
		}
	}
	if got, ok := decode("a%2fb_c"); !ok || got != "a/b_c" {
		t.Errorf("lower-case digits and plain bytes: %q, %v", got, ok)
	}
	for _, bad := range []string{"", ".tmp_00ff", ".lock", "a%", "a%2", "a%zz", "%2"} {
		if got, ok := decode(bad); ok {
			t.Errorf("decode(%q) = %q", bad, got)
		}
	}
}

// FuzzNames: every key survives its file name, and decoding never fails on anything but by saying so.
func FuzzNames(f *testing.F) {
	f.Add("ns/c/ep/1f")
	f.Add("%2F%")
	f.Fuzz(func(t *testing.T, s string) {
		if got, ok := decode(encode(s)); s != "" && (!ok || got != s) {
			t.Errorf("%q became %q, %v", s, got, ok)
		}
		decode(s)
	})
}
