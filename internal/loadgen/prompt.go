package loadgen

import (
	"math/rand/v2"
	"strconv"
)

// Stems and endings together give several thousand distinct words: more than any cache of common words holds, and
// close to how English breaks into tokens.
var (
	stems = []string{
		"act", "adapt", "air", "amber", "anchor", "angle", "apple", "arbor", "arch", "arrow", "ash", "aspect", "atlas", "autumn",
		"bake", "balance", "bamboo", "barn", "basin", "bay", "beacon", "bend", "berry", "bind", "birch", "blend", "bloom", "board",
		"boat", "bolt", "border", "bottle", "branch", "brass", "bread", "bridge", "bright", "brook", "brush", "bucket", "build",
		"cabin", "cable", "calm", "camp", "canal", "candle", "canvas", "carbon", "cargo", "carve", "cedar", "chalk", "chart", "cheer",
		"circle", "clay", "cliff", "climb", "cloud", "coast", "cobalt", "collect", "comet", "compass", "cool", "copper", "coral", "count",
		"craft", "crane", "create", "creek", "crisp", "cross", "crystal", "current", "curve", "dance", "dawn", "delta", "depth",
		"desert", "detail", "dew", "discover", "distant", "dream", "drift", "drum", "dusk", "eager", "earth", "east", "echo", "edge",
		"elder", "ember", "engine", "equal", "evening", "explore", "fabric", "falcon", "farm", "fern", "field", "figure", "flame",
		"flint", "float", "flow", "focus", "fold", "forest", "form", "fossil", "found", "frame", "frost", "fruit", "garden", "gather",
		"gentle", "glacier", "glass", "gleam", "globe", "gold", "grain", "granite", "grass", "gravel", "green", "grove", "guide",
		"harbor", "harvest", "hazel", "heat", "herb", "hill", "hollow", "honey", "horizon", "ice", "image", "inland", "iron", "island",
		"ivory", "jasper", "join", "journey", "jump", "kettle", "kind", "kite", "knot", "ladder", "lake", "lamp", "land", "lantern",
		"larch", "laugh", "leaf", "learn", "ledge", "lens", "level", "light", "lime", "linen", "listen", "local", "loom", "lunar",
		"maple", "marble", "march", "margin", "market", "meadow", "measure", "mellow", "metal", "mild", "mill", "mirror", "mist",
		"model", "moon", "moss", "motion", "mountain", "narrow", "native", "nectar", "needle", "nest", "noble", "north", "notice",
		"oak", "ocean", "olive", "open", "orbit", "orchard", "order", "outline", "paint", "palm", "paper", "parcel", "path", "pattern",
		"pearl", "pebble", "pepper", "petal", "pine", "plain", "planet", "plant", "plum", "polar", "pond", "poplar", "port", "prairie",
		"press", "prism", "pulse", "quartz", "quick", "quiet", "quill", "rain", "range", "rapid", "raven", "reach", "reed", "reef",
		"region", "repair", "ridge", "river", "road", "robin", "rock", "root", "rope", "rough", "round", "row", "saddle", "sail", "salt",
		"sand", "scale", "season", "seed", "shade", "shell", "shore", "signal", "silk", "silver", "sketch", "slate", "slope", "smooth",
		"snow", "soft", "soil", "solar", "sound", "south", "spark", "spiral", "spring", "spruce", "square", "stable", "star", "steam",
		"steel", "stone", "storm", "stream", "summer", "summit", "sun", "surface", "swan", "swift", "table", "teach", "tempo", "tent",
		"terrace", "thread", "tide", "timber", "tower", "trace", "trade", "trail", "travel", "tulip", "tunnel", "turn", "valley",
		"vapor", "vault", "velvet", "village", "vine", "violet", "wagon", "walk", "walnut", "warm", "watch", "water", "wave", "weave",
		"west", "wheat", "wheel", "willow", "wind", "window", "winter", "wonder", "wood", "wool", "yellow", "yield", "zenith", "zephyr",
	}
	// Empty ones are repeated, since most words have neither.
	endings  = [...]string{"", "", "", "s", "ed", "ing", "er", "ly", "ful", "ness", "less", "able", "ward", "like", "ers", "ish"}
	prefixes = [...]string{"", "", "", "", "", "", "re", "un", "over", "mid", "out", "inter"}
)

// words writes prompts. Each has its own random source, so that prompt i of a seed is always the same text, whichever
// connection sends it and when. Other texts share no long beginning with it, so that prefix caches find nothing.
type words struct{ seed uint64 }

// appendTo appends n words as sentences and paragraphs: plain ASCII that needs no JSON escaping beyond \n. The share of
// tokens to words is the same for all prompts of some length, which the measurement before a run relies on.
func (w words) appendTo(dst []byte, prompt uint64, n int) []byte {
	r := rand.New(rand.NewPCG(w.seed, prompt))
	sentence := 0
	for i := range n {
		if i > 0 {
			dst = append(dst, ' ')
		}
		at := len(dst)
		// A number now and then: tokenizers treat digits in a way of their own.
		if r.IntN(40) == 0 {
			dst = strconv.AppendInt(dst, int64(r.IntN(10000)), 10)
		} else {
			dst = append(dst, prefixes[r.IntN(len(prefixes))]...)
			dst = append(dst, stems[r.IntN(len(stems))]...)
			dst = append(dst, endings[r.IntN(len(endings))]...)
		}
		// Digits are below 'a' and stay.
		if sentence == 0 && dst[at] >= 'a' {
			dst[at] -= 'a' - 'A'
		}
		sentence++
		switch {
		case sentence > 6 && r.IntN(8) == 0:
			dst = append(dst, '.')
			sentence = 0
			if r.IntN(6) == 0 {
				// The two characters of a JSON escape.
				dst = append(dst, `\n`...)
			}
		case r.IntN(12) == 0:
			dst = append(dst, ',')
		}
	}
	return dst
}

// appendBody appends a chat request with prompt number prompt, of n words. Written by hand: encoding thousands of long
// prompts a second would take CPU time from the server on the same machine.
func (o *Options) appendBody(dst []byte, prompt uint64, n, maxTokens int, stream bool) []byte {
	dst = append(dst, `{"model":`...)
	dst = strconv.AppendQuote(dst, o.Model)
	dst = append(dst, `,"messages":[{"role":"user","content":"`...)
	dst = words{o.Seed}.appendTo(dst, prompt, n)
	dst = append(dst, `"}],"max_tokens":`...)
	dst = strconv.AppendInt(dst, int64(maxTokens), 10)
	if o.IgnoreEOS {
		dst = append(dst, `,"ignore_eos":true`...)
	}
	if stream {
		dst = append(dst, `,"stream":true`...)
		// Without streaming usage is always there.
		if !o.NoUsage {
			dst = append(dst, `,"stream_options":{"include_usage":true}`...)
		}
	}
	return append(dst, '}')
}
