package admin_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/server/admin"
)

func TestHandlers(t *testing.T) {
	ready, draining := false, false
	in := []*worker.Instance{
		{Namespace: "n", Component: "c", Endpoint: "e", InstanceID: 1<<64 - 1, Transport: worker.Transport{NATS: "s"}},
		{Namespace: "n", Component: "c", Endpoint: "e", InstanceID: 2, Transport: worker.Transport{TCP: "h:1/p"}},
	}
	reg := prometheus.NewRegistry()
	h, err := admin.New(admin.Options{
		Ready: func() bool { return ready }, Draining: func() bool { return draining },
		Instances: func() []*worker.Instance { return in }, Gatherer: reg, OpenAPI: []byte("openapi: 3.1.0"),
	})
	if err != nil {
		t.Fatal(err)
	}
	get := func(f http.HandlerFunc) (int, string) {
		res := httptest.NewRecorder()
		f(res, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		return res.Code, res.Body.String()
	}
	tests := []struct {
		name            string
		ready, draining bool
		handler         http.HandlerFunc
		status          int
		body            string
	}{
		{"health", false, false, h.Health, 200, `{"status":"healthy","endpoints":["dyn://n.c.e"],"instances":[` +
			`{"namespace":"n","component":"c","endpoint":"e","instance_id":18446744073709551615,"transport":{"nats_tcp":"s"}},` +
			`{"namespace":"n","component":"c","endpoint":"e","instance_id":2,"transport":{"tcp":"h:1/p"}}]}`},
		{"live", false, true, h.Live, 200, `{"status":"live","message":"Service is live"}`},
		{"not ready", false, false, h.Ready, 503, `{"status":"not_ready","message":"No model is ready to serve requests"}`},
		{"ready", true, false, h.Ready, 200, `{"status":"ready","message":"Service is ready"}`},
		{"draining", true, true, h.Ready, 503, `{"status":"draining","message":"Service is shutting down"}`},
		{"openapi", false, false, h.OpenAPI, 200, `{"openapi":"3.1.0"}`},
		{"metrics", false, false, h.Metrics, 200, ``},
	}
	for _, tt := range tests {
		ready, draining = tt.ready, tt.draining
		status, body := get(tt.handler)
		if diff := cmp.Diff(tt.body, body); diff != "" || status != tt.status {
			t.Errorf("%s: %d %s", tt.name, status, diff)
		}
	}
	draining, in = true, nil
	if status, body := get(h.Health); status != 503 || body != `{"status":"unhealthy","endpoints":[],"instances":[]}` {
		t.Errorf("%d %s", status, body)
	}
}
