package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/testkit"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// TestOverloadedWorkers sets thresholds while the server runs and loads the mocker beyond them: requests are refused with
// a time to come again until its reports, over either event plane, say that it has room, and a second worker gets them
// all meanwhile.
func TestOverloadedWorkers(t *testing.T) {
	dynamoDiffers(t, "its answers to refused requests have no Retry-After")
	for _, cell := range eventCells {
		t.Run(cell.events, func(t *testing.T) {
			s := kvStack(t, cell)
			startMocker(t, s, "--num-gpu-blocks-override", "2000", "--block-size", "16")
			d := &deployment{Stack: s, frontend: startFrontend(t, s, s.EventEnv()...)}
			d.client = newClient(t, d.frontend.URL)
			d.waitModel(t, model, true, time.Minute)
			set := func(share float64) {
				t.Helper()
				status, b := d.client.post(t, "/busy_threshold", object{"model": model, "active_decode_blocks_threshold": share})
				if status != http.StatusOK || !bytes.Contains(b, []byte(`"active_prefill_tokens_threshold":null`)) {
					t.Fatalf("status %d: %s", status, b)
				}
			}
			set(0.001) // two blocks
			if status, b := d.client.post(t, chatPath, chat(model, "Hi", 2)); status != http.StatusOK {
				t.Fatalf("an idle worker: status %d: %s", status, b)
			}
			res := d.openStream(t, t.Context(), long())
			defer res.Body.Close()
			eventually(t, 10*time.Second, func() error {
				again, err := d.client.try(t.Context(), chatPath, chat(model, "Hi", 2))
				if err != nil {
					return err
				}
				defer again.Body.Close()
				if again.StatusCode != 529 || again.Header.Get("Retry-After") != "1" {
					return fmt.Errorf("status %d", again.StatusCode)
				}
				return nil
			})
			if n := d.metric(t, "portico_overloaded_workers", model); n != 1 {
				t.Errorf("%v overloaded workers", n)
			}
			startMocker(t, s, "--num-gpu-blocks-override", "2000", "--block-size", "16")
			eventually(t, time.Minute, func() error {
				if status, b := d.client.post(t, chatPath, chat(model, "Hi", 2)); status != http.StatusOK {
					return fmt.Errorf("status %d: %s", status, b)
				}
				return nil
			})
			set(1)
			if n := d.metric(t, "portico_overloaded_workers", model); n != 0 {
				t.Errorf("%v overloaded workers with all blocks allowed", n)
			}
		})
	}
}

// TestSessionAffinity sends the requests of several sessions to three mockers: each session's go to one of them.
func TestSessionAffinity(t *testing.T) {
	dynamoDiffers(t, "the workers of its sessions are a matter of its own")
	s := newStack(t, stack.PlaneTCP, stack.BackendFile)
	for range 3 {
		startMocker(t, s)
	}
	d := &deployment{Stack: s, frontend: startFrontend(t, s, "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS=60")}
	d.client = newClient(t, d.frontend.URL)
	d.waitModel(t, model, true, time.Minute)
	eventually(t, time.Minute, func() error {
		if n := d.known(t, "backend"); n != 3 {
			return fmt.Errorf("%d workers", n)
		}
		return nil
	})
	all := map[string]bool{}
	for session := range 6 {
		workers := map[string]bool{}
		for range 4 {
			body := with(chat(model, "Hi", 2), "nvext", object{"extra_fields": []string{"worker_id"}})
			b := asSession(t, d.frontend.URL, fmt.Sprint("session-", session), body)
			_, id, ok := bytes.Cut(b, []byte(`"decode_worker_id":`))
			if !ok {
				t.Fatalf("no worker in %s", b)
			}
			id, _, _ = bytes.Cut(id, []byte("}"))
			workers[string(id)], all[string(id)] = true, true
		}
		if len(workers) != 1 {
			t.Errorf("session %d was served by %d workers", session, len(workers))
		}
	}
	if len(all) != 3 {
		t.Errorf("%d of 3 workers were used", len(all))
	}
}

// asSession sends a chat as part of a session and returns the answer's body.
func asSession(t *testing.T, url, session string, body object) []byte {
	t.Helper()
	request, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+chatPath, bytes.NewReader(request))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Dynamo-Session-Id", session)
	res, err := testkit.Client(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", res.StatusCode, err, b)
	}
	return b
}
