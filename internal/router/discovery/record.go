package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/portico-llm/portico/api/worker"
	"github.com/portico-llm/portico/internal/router"
)

// parseInstance reads an Endpoint record. A record that belongs under another key is refused: two keys that claim one
// instance would otherwise make it two.
func parseInstance(r router.Record) (*worker.Instance, error) {
	inst, err := worker.ParseInstance(r.Value)
	if err != nil {
		return nil, err
	}
	// Path writes namespace, component, endpoint and the id in hexadecimal.
	if want := router.BucketInstances + "/" + inst.Path(); want != r.Key {
		return nil, fmt.Errorf("the record belongs under %s", want)
	}
	return inst, nil
}

// parseModel reads a Model record, with the same rule for its key.
func parseModel(r router.Record) (*worker.ModelRecord, error) {
	rec, err := worker.ParseModel(r.Value)
	if err != nil {
		return nil, err
	}
	if want := router.BucketModels + "/" + rec.Path(); want != r.Key {
		return nil, fmt.Errorf("the record belongs under %s", want)
	}
	return rec, nil
}

// parseChannel reads an EventChannel record, with the same rule for its key.
func parseChannel(r router.Record) (*worker.EventChannel, error) {
	c, err := worker.ParseEventChannel(r.Value)
	if err != nil {
		return nil, err
	}
	if want := router.BucketChannels + "/" + c.Path(); want != r.Key {
		return nil, fmt.Errorf("the record belongs under %s", want)
	}
	return c, nil
}

// parseSource reads an EventSource record, with the same rule for its key.
func parseSource(r router.Record) (*worker.EventSource, error) {
	s, err := worker.ParseEventSource(r.Value)
	if err != nil {
		return nil, err
	}
	if want := router.BucketSources + "/" + s.Path(); want != r.Key {
		return nil, fmt.Errorf("the record belongs under %s", want)
	}
	return s, nil
}

// sameCard reports whether two Model records differ in nothing but their taints, the one part of a card that may change
// while its worker lives.
func sameCard(a, b []byte) bool {
	x, errA := withoutTaints(a)
	y, errB := withoutTaints(b)
	// Compared as values: the order of keys and white space say nothing.
	return errA == nil && errB == nil && reflect.DeepEqual(x, y)
}

// withoutTaints decodes a Model record and drops card_json.runtime_config.taints.
func withoutTaints(record []byte) (map[string]any, error) {
	dec := json.NewDecoder(bytes.NewReader(record))
	// Sums and ids have 64 bits, which a float would round: two cards that differ would look alike.
	dec.UseNumber()
	var out map[string]any
	if err := dec.Decode(&out); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if card, ok := out["card_json"].(map[string]any); ok {
		if rc, ok := card["runtime_config"].(map[string]any); ok {
			delete(rc, "taints")
		}
	}
	return out, nil
}

// inBucket reports whether key stands in the bucket.
func inBucket(key, bucket string) bool {
	return len(key) > len(bucket)+1 && key[len(bucket)] == '/' && strings.HasPrefix(key, bucket)
}
