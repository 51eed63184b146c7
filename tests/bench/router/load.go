package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/tests/e2e/stack"
)

// outcome is what came of one side's round.
type outcome struct {
	prompt, cached int             // tokens
	first          []time.Duration // to the first token, sorted
	failed         int
	took           time.Duration
}

// percentile returns one of the times to the first token in milliseconds.
func (o *outcome) percentile(p int) float64 {
	if len(o.first) == 0 {
		return 0
	}
	return float64(o.first[(len(o.first)-1)*p/100]) / float64(time.Millisecond)
}

// conversation is a prompt of the group's beginning, about 1,000 tokens, and an end of its own.
func conversation(salt string, group, i int) []map[string]string {
	begin := fmt.Sprintf("%s, story %d. ", salt, group) + strings.Repeat(fmt.Sprintf("The %d foxes met %d dogs by the river and talked. ", group, group*3), 60)
	return []map[string]string{
		{"role": "system", "content": begin},
		{"role": "user", "content": fmt.Sprintf("Question %d: what did fox number %d say to dog number %d?", i, i*7, i*11)},
	}
}

// load puts a round of requests on a frontend.
func load(ctx context.Context, f *stack.Frontend, s *settings, salt string) (outcome, error) {
	var mu sync.Mutex
	var o outcome
	next := 0
	g := lifecycle.New(ctx)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: s.connections}}
	defer client.CloseIdleConnections()
	began := time.Now()
	for range s.connections {
		g.Go("client", func(ctx context.Context) error {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= s.requests {
					return nil
				}
				first, u, err := ask(ctx, client, f.URL, conversation(salt, i%s.groups, i))
				if ctx.Err() != nil {
					return ctx.Err()
				}
				mu.Lock()
				if err != nil {
					o.failed++
				} else {
					o.first = append(o.first, first)
					o.prompt, o.cached = o.prompt+u.Prompt, o.cached+u.Details.Cached
				}
				mu.Unlock()
			}
		})
	}
	err := g.Wait()
	o.took = time.Since(began)
	slices.Sort(o.first)
	if err == nil && len(o.first) == 0 {
		err = fmt.Errorf("none of %d requests succeeded", s.requests)
	}
	return o, err
}

// usage is what a worker says of a request.
type usage struct {
	Prompt  int `json:"prompt_tokens"`
	Details struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// chunk is as much of a streamed chunk as is looked at.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
	NvExt struct {
		Worker struct {
			Decode uint64 `json:"decode_worker_id"`
		} `json:"worker_id"`
	} `json:"nvext"`
}

// ask streams one request.
func ask(ctx context.Context, client *http.Client, url string, messages []map[string]string) (first time.Duration, u usage, err error) {
	began := time.Now()
	err = stream(ctx, client, url, map[string]any{
		"model": modelName, "messages": messages, "max_tokens": 16, "stream": true,
		"stream_options": map[string]any{"include_usage": true},
	}, func(c *chunk) {
		if first == 0 && len(c.Choices) > 0 && c.Choices[0].Delta.Content != "" {
			first = time.Since(began)
		}
		if c.Usage != nil {
			u = *c.Usage
		}
	})
	if err == nil && (first == 0 || u.Prompt == 0) {
		err = fmt.Errorf("a stream without text or usage")
	}
	return first, u, err
}

// stream sends a request and hands on each chunk of its answer.
func stream(ctx context.Context, client *http.Client, url string, body any, f func(*chunk)) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 500))
		return fmt.Errorf("status %d: %s", res.StatusCode, text)
	}
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return err
		}
		f(&c)
	}
	return lines.Err()
}

// scatter sends prompts that share nothing, all at once and to the frontends in turn, and counts the workers they reach.
func scatter(ctx context.Context, frontends []*stack.Frontend, prompts int) (map[uint64]int, error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConnsPerHost: prompts}}
	defer client.CloseIdleConnections()
	var mu sync.Mutex
	counts := map[uint64]int{}
	g := lifecycle.New(ctx)
	for i := range prompts {
		g.Go("client", func(ctx context.Context) error {
			at := uint64(0)
			err := stream(ctx, client, frontends[i%len(frontends)].URL, map[string]any{
				"model": modelName, "messages": conversation(fmt.Sprintf("%d alone", i), i, i), "max_tokens": 64, "stream": true,
				"nvext": map[string]any{"extra_fields": []string{"worker_id"}},
			}, func(c *chunk) {
				if c.NvExt.Worker.Decode != 0 {
					at = c.NvExt.Worker.Decode
				}
			})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			counts[at]++
			return nil
		})
	}
	return counts, g.Wait()
}
