package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/portico-llm/portico/api/worker"
)

// Worker types of a card.
const (
	aggregated = "aggregated" // does both prefill and decode
	prefill    = "prefill"    // reads prompts for decode workers
	decode     = "decode"     // answers, with the help of prefill workers
	encode     = "encode"     // turns media into embeddings for the others
)

// surfaces are the model types a client can ask for, and their names in the list of models.
var surfaces = []struct{ flag, name string }{
	{"Chat", "chat"},
	{"Completions", "completions"},
	{"Embedding", "embedding"},
	{"TensorBased", "tensor"},
	{"Images", "images"},
	{"Audios", "audios"},
	{"Videos", "videos"},
	{"Realtime", "realtime"},
	{"Classify", "classify"},
	{"Pooling", "pooling"},
	{"Rerank", "rerank"},
}

// offers returns the names of what the card's model can be asked for.
func offers(c *worker.Card) []string {
	var out []string
	for _, s := range surfaces {
		if c.Has(s.flag) {
			out = append(out, s.name)
		}
	}
	return out
}

// workerType returns the card's worker type. Older workers don't say: then a Prefill flag decides.
func workerType(c *worker.Card) (kind string, declared bool) {
	switch {
	case c.WorkerType != "":
		return c.WorkerType, true
	case c.Has("Prefill"):
		return prefill, false
	}
	return aggregated, false
}

// serves reports whether workers of the type answer clients; the others only work for them.
func serves(kind string) bool { return kind == aggregated || kind == decode }

// check says why a record can't be served; nil when it can. What it asks for is what the rest of the frontend relies
// on: a card that passes can be loaded, looked up and served.
func check(rec *worker.ModelRecord) error {
	c := &rec.Card
	if c.DisplayName == "" {
		return errors.New("the card has no display_name")
	}
	// The suffix is the last part of an adapter's key in discovery.
	if (rec.Suffix != "") != (c.LoRA != nil) {
		return errors.New("an adapter needs both a model_suffix and a lora object, a base model neither")
	}
	kind, _ := workerType(c)
	if !slices.Contains([]string{aggregated, prefill, decode, encode}, kind) {
		return fmt.Errorf("unknown worker_type %q", kind)
	}
	offered := offers(c)
	// Workers for other workers get tokens from them, never a client's request.
	if (kind == prefill || kind == encode && len(offered) == 0) && c.ModelInput != "Tokens" {
		return fmt.Errorf("a %s worker takes model_input Tokens, not %q", kind, c.ModelInput)
	}
	if serves(kind) && len(offered) == 0 {
		return fmt.Errorf("model_type %q offers nothing to clients", c.ModelType)
	}
	// The three forms of input, each with the surfaces that go with it.
	switch c.ModelInput {
	case "Text":
		return nil
	case "Tokens":
		if !serves(kind) || c.Has("Chat") || c.Has("Completions") || c.Has("Embedding") {
			return nil
		}
	case "Tensor":
		if c.Has("TensorBased") {
			return nil
		}
	default:
		return fmt.Errorf("unknown model_input %q", c.ModelInput)
	}
	return fmt.Errorf("model_input %s doesn't go with model_type %q", c.ModelInput, c.ModelType)
}

// needsText reports whether the frontend itself turns text into tokens for the card's workers.
func needsText(c *worker.Card) bool {
	kind, _ := workerType(c)
	return c.ModelInput == "Tokens" && serves(kind)
}

// inNamespace applies the namespace options.
func (o *Options) inNamespace(ns string) bool {
	// One namespace, or all of them; the prefix then has no say.
	if o.Namespace != "" {
		return o.Namespace == globalNamespace || ns == o.Namespace
	}
	if o.NamespacePrefix == "" || o.NamespacePrefix == globalNamespace {
		return true
	}
	rest, ok := strings.CutPrefix(ns, o.NamespacePrefix)
	if !ok || !o.PrefixStrict {
		return ok
	}
	// The suffixes are those of generations of workers, which live side by side during a rolling update.
	return rest == "" || rest == "-legacy" || len(rest) == 9 && rest[0] == '-' && isHex(rest[1:])
}

// globalNamespace stands for all namespaces: it is Dynamo's default, and a frontend with it serves every deployment.
const globalNamespace = "dynamo"

// isHex reports whether s is all lower-case hexadecimal digits.
func isHex(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
