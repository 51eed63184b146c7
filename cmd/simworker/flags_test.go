package main

import (
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/portico-llm/portico/api/worker"
)

// environment looks variables up in a map, as os.LookupEnv does in the process's own.
func environment(vars map[string]string) func(string) (string, bool) {
	return func(k string) (string, bool) { v, ok := vars[k]; return v, ok }
}

func TestParse(t *testing.T) {
	s, err := parse([]string{"--model-path", "models/tiny", "--itl", "5ms", "--request-plane", "tcp", "--endpoint", "a.b.c"},
		environment(map[string]string{
			"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": "/kv", "DYN_REQUEST_PLANE": "nats", "NATS_SERVER": "nats://n:1",
			"DYN_TCP_RPC_HOST": "127.0.0.9", "ETCD_ENDPOINTS": "http://a:1,http://b:2", "ETCD_LEASE_TTL": "7",
		}), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if s.backend != "file" || s.fileKV != "/kv" || s.nats != "nats://n:1" || s.host != "127.0.0.9" {
		t.Errorf("from the environment: %+v", s)
	}
	if s.plane != "tcp" || s.timing.ITL != 5*time.Millisecond || s.modelName != "tiny" || !filepath.IsAbs(s.modelPath) {
		t.Errorf("from the flags: %+v", s)
	}
	if s.endpoint != (worker.EndpointID{Namespace: "a", Component: "b", Name: "c"}) || s.codec != worker.Msgpack {
		t.Errorf("endpoint %v, codec %v", s.endpoint, s.codec)
	}
	if !slices.Equal(s.etcd.Endpoints, []string{"http://a:1", "http://b:2"}) || s.etcd.LeaseTTL != 7*time.Second {
		t.Errorf("etcd %+v", s.etcd)
	}
}

// TestParseRefuses has one mistake in each case; the error must name the flag or variable that has it.
func TestParseRefuses(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{[]string{}, nil, "--model-path"},
		{[]string{"--model-path", "m", "--discovery-backend", "zoo"}, nil, "--discovery-backend"},
		{[]string{"--model-path", "m", "--request-plane", "zoo"}, nil, "--request-plane"},
		{[]string{"--model-path", "m", "--codec", "xml"}, nil, "--codec"},
		{[]string{"--model-path", "m", "--engine", "steam"}, nil, "--engine"},
		{[]string{"--model-path", "m", "--disaggregation-mode", "half"}, nil, "--disaggregation-mode"},
		{[]string{"--model-path", "m", "--bootstrap-ports", "1"}, nil, "--bootstrap-ports"},
		{[]string{"--model-path", "m", "--disaggregation-mode", "prefill", "--bootstrap-ports", "1,2"}, nil, "--bootstrap-ports"},
		{[]string{"--model-path", "m", "--disaggregation-mode", "prefill", "--bootstrap-ports", "70000"}, nil, "--bootstrap-ports"},
		{[]string{"--model-path", "m", "--faults", "explode"}, nil, "--faults"},
		{[]string{"--model-path", "m", "--num-workers", "0"}, nil, "--num-workers"},
		{[]string{"--model-path", "m", "more"}, nil, "more"},
		{[]string{"--model-path", "m"}, map[string]string{"DYN_TCP_RPC_PORT": "x"}, "DYN_TCP_RPC_PORT"},
		{[]string{"--model-path", "m", "--num-workers", "2"}, map[string]string{"DYN_TCP_RPC_PORT": "7000"}, "DYN_TCP_RPC_PORT"},
		{[]string{"--model-path", "m"}, map[string]string{"ETCD_LEASE_TTL": "0"}, "ETCD_LEASE_TTL"},
	} {
		_, err := parse(c.args, environment(c.env), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %v: %v, want a word of %s", c.args, c.env, err, c.want)
		}
	}
}
