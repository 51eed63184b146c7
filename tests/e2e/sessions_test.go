package e2e_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// sessionFrontend starts a frontend that chooses at random and binds sessions.
func sessionFrontend(t *testing.T, s *stack.Stack, kind string) *deployment {
	t.Helper()
	env := []string{"DYN_ROUTER_SESSION_AFFINITY_TTL_SECS=60", "DYN_ROUTER_MODE=random"}
	if s.NATS != nil {
		env = append(env, "NATS_SERVER="+s.NATS.URL(), "DYN_EVENT_PLANE=nats")
	}
	f, err := s.StartFrontend(kind, env...)
	if err != nil {
		t.Fatal(err)
	}
	d := &deployment{Stack: s, frontend: f, client: newClient(t, f.URL)}
	d.waitModel(t, model, true, waitWorker)
	return d
}

// homeOf asks something as part of a session, and returns the worker that answers.
func (d *deployment) homeOf(t *testing.T, session string) string {
	t.Helper()
	b := asSession(t, d.frontend.URL, session, with(chat(model, "Hi", 2), "nvext", object{"extra_fields": []string{"worker_id"}}))
	_, id, ok := bytes.Cut(b, []byte(`"decode_worker_id":`))
	if !ok {
		t.Fatalf("no worker in %s", b)
	}
	if end := bytes.IndexAny(id, ",}"); end > 0 {
		id = id[:end]
	}
	return string(id)
}

// TestSessionsSharedWithDynamo: a session that has begun at one frontend goes on at its worker through the other, ours and
// Dynamo's alike, over both event planes. Workers are chosen at random: by chance one session in three would.
func TestSessionsSharedWithDynamo(t *testing.T) {
	dynamoDiffers(t, "it is the other frontend")
	for _, cell := range eventCells {
		t.Run(cell.events, func(t *testing.T) {
			s := kvStack(t, cell)
			for range 3 {
				startMocker(t, s)
			}
			ours, theirs := sessionFrontend(t, s, stack.Portico), sessionFrontend(t, s, stack.Dynamo)
			eventually(t, waitWorker, func() error {
				if n := ours.known(t, "backend"); n != 3 {
					return fmt.Errorf("%d workers", n)
				}
				return nil
			})
			n := 0
			for _, way := range []struct{ first, then *deployment }{{theirs, ours}, {ours, theirs}} {
				// Until they hear each other, and have each other's workers, sessions part.
				together := 0
				eventually(t, time.Minute, func() error {
					n++
					id := fmt.Sprint("session-", n)
					home := way.first.homeOf(t, id)
					time.Sleep(50 * time.Millisecond) // what is published is on its way meanwhile; a miss begins anew
					if again := way.then.homeOf(t, id); again != home {
						together = 0
						return fmt.Errorf("%s went to %s and then to %s", id, home, again)
					}
					if together++; together < 10 {
						return fmt.Errorf("%d sessions stayed together", together)
					}
					return nil
				})
			}
		})
	}
}
