package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/portico-llm/portico/tests/e2e/stack"
)

// startMocker starts one of Dynamo's mockers in place of a worker: it makes up its tokens, tells of its cache, and says how
// many tokens it has read and written, which is what can be checked.
func (d *deployment) startMocker(i int) {
	d.t.Helper()
	p, err := d.Mocker(d.tools.Model(), model,
		"--block-size", "16", "--kv-bytes-per-token", "131072", "--speedup-ratio", "0.25")
	if err != nil {
		d.t.Fatal(err)
	}
	d.workers[i] = p
}

// learnSizes asks how many tokens prompts have, in families that begin alike: a request follows its family's cache.
func (d *deployment) learnSizes() []reference {
	d.t.Helper()
	known := make([]reference, 24)
	var wg sync.WaitGroup
	for i := range known {
		known[i].prompt = strings.Repeat(fmt.Sprintf("Story %d of the fox and the dogs. ", i%6), 20) + fmt.Sprintf("Chapter %d.", i)
		wg.Go(func() {
			a := d.send(context.Background(), 0, &known[i], request{tokens: 2})
			if a.kind != "whole" || a.usage == nil || a.usage.Prompt < 100 {
				d.t.Errorf("prompt %d: %+v", i, a)
				return
			}
			known[i].size = a.usage.Prompt
		})
	}
	wg.Wait()
	if d.t.Failed() {
		d.t.FailNow()
	}
	return known
}

// countable makes a request have exactly as many tokens as it asks for, and its stream say so.
func (d *deployment) countable(body map[string]any, q request) {
	body["ignore_eos"] = true
	if q.stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
}

// checkCounts looks at an answer whose text can't be known: its tokens are all there, however many workers it took.
func (l *load) checkCounts(r *reference, q request, a *answer) {
	if a.kind != "whole" {
		return
	}
	want := usage{Prompt: r.size, Completion: q.tokens, Total: r.size + q.tokens}
	if a.usage == nil || *a.usage != want || a.finish != "length" || a.text == "" && q.tokens > 8 {
		l.d.t.Errorf("asked %+v: finished by %q, usage %+v, want %+v", q, a.finish, a.usage, want)
	}
}

// agrees waits until the index of every frontend has as many blocks as that of a frontend that is started now, and asks
// the workers for all they hold. It returns how many that is.
func (d *deployment) agrees() (blocks float64) {
	d.t.Helper()
	const entries = "dynamo_frontend_kv_index_entries"
	f, err := d.StartFrontend(stack.Portico, append(d.EventEnv(), "DYN_ROUTER_MODE=kv")...)
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Stop(15 * time.Second)
	fresh := frontend{Frontend: f}
	look := func() error {
		told, err := d.series(fresh, "portico_kv_recoveries_total")
		if err != nil || told < workers {
			return fmt.Errorf("workers have told the fresh one %v times of their caches, %w", told, err)
		}
		if blocks, err = d.series(fresh, entries); err != nil || blocks == 0 {
			return fmt.Errorf("the fresh one has %v blocks, %w", blocks, err)
		}
		for i := range d.frontends {
			n, err := d.series(d.at(i), entries)
			if n != blocks {
				return errors.Join(fmt.Errorf("frontend %d has %v blocks in its index, a fresh one has %v", i, n, blocks), err)
			}
		}
		return nil
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		err := look()
		if err == nil {
			return blocks
		}
		if time.Now().After(until) {
			d.t.Error(err)
			return blocks
		}
	}
}
