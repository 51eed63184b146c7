package reply

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/portico-llm/portico/internal/pipeline"
)

// Whole takes the answer of a worker that sends one JSON value. Of several the last one counts: those before it tell how
// far the work has come.
type Whole struct{ value []byte }

var _ pipeline.Sink = (*Whole)(nil)

// Start does nothing.
func (w *Whole) Start(*pipeline.Prepared) error { return nil }

// Delta keeps the value. Annotations are for streams only.
func (w *Whole) Delta(d *pipeline.Delta) error {
	if d.Raw != nil {
		w.value = append(w.value[:0], d.Raw...)
	}
	return nil
}

// Flush does nothing: the body leaves as a whole.
func (w *Whole) Flush() error { return nil }

// Value returns the worker's value. It fails when none came.
func (w *Whole) Value() (json.RawMessage, error) {
	if len(w.value) == 0 {
		return nil, errRawChunk.Because(errors.New("the answer is empty"))
	}
	return w.value, nil
}

// Embeddings are what a client asked for: Count vectors, each as numbers or packed.
type Embeddings struct {
	Model  string // as the client named it
	Count  int    // inputs
	Base64 bool   // little-endian 32-bit floats in base64, in place of an array of numbers
}

// embeddingItem is a worker's answer, in either form: workers that take text answer as OpenAI does but pack the vectors,
// whatever the client wants; those that take tokens send the packed vectors alone.
type embeddingItem struct {
	Data []struct {
		Index     *int            `json:"index"`
		Embedding json.RawMessage `json:"embedding"` // packed, or an array of numbers
	} `json:"data"`
	Model string          `json:"model"`
	Usage json.RawMessage `json:"usage"`

	Embeddings   []json.RawMessage `json:"embeddings"` // of token workers
	PromptTokens int               `json:"prompt_tokens"`
	TotalTokens  int               `json:"total_tokens"`
}

// Append appends the answer to dst. A worker that sends something else than was asked for fails the request: a vector
// less would move all those behind it to other texts.
func (e *Embeddings) Append(dst, value []byte) ([]byte, error) {
	var item embeddingItem
	if err := json.Unmarshal(value, &item); err != nil {
		return dst, errRawChunk.Because(fmt.Errorf("embeddings: %w", err))
	}
	vectors, err := item.ordered(e.Count)
	if err != nil {
		return dst, errRawChunk.Because(err)
	}
	dst = append(dst, `{"object":"list","data":[`...)
	for i, v := range vectors {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"object":"embedding","index":`...)
		dst = append(strconv.AppendInt(dst, int64(i), 10), `,"embedding":`...)
		if dst, err = appendVector(dst, v, e.Base64); err != nil {
			return dst, errRawChunk.Because(fmt.Errorf("embedding %d: %w", i, err))
		}
		dst = append(dst, '}')
	}
	dst = appendString(append(dst, `],"model":`...), e.Model)
	dst = append(dst, `,"usage":`...)
	if len(item.Usage) > 0 && item.Usage[0] == '{' {
		return append(append(dst, item.Usage...), '}'), nil
	}
	dst = strconv.AppendInt(append(dst, `{"prompt_tokens":`...), int64(item.PromptTokens), 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), int64(item.TotalTokens), 10)
	return append(dst, "}}"...), nil
}

// ordered returns the vectors in the order of the inputs.
func (m *embeddingItem) ordered(count int) ([]json.RawMessage, error) {
	vectors := m.Embeddings
	if vectors == nil {
		vectors = make([]json.RawMessage, len(m.Data))
		for i, d := range m.Data {
			at := i
			if d.Index != nil {
				at = *d.Index
			}
			if at < 0 || at >= len(vectors) || vectors[at] != nil {
				return nil, fmt.Errorf("embeddings: index %d of %d is wrong", at, len(vectors))
			}
			vectors[at] = d.Embedding
		}
	}
	if len(vectors) != count {
		return nil, fmt.Errorf("embeddings: %d vectors for %d inputs", len(vectors), count)
	}
	return vectors, nil
}

// errNotFinite is a vector that JSON can't hold and no index can use.
var errNotFinite = errors.New("a number that isn't finite")

// appendVector appends a vector in the form the client wants.
func appendVector(dst []byte, v json.RawMessage, packed bool) ([]byte, error) {
	if len(v) > 0 && v[0] == '"' {
		return appendPacked(dst, v, packed)
	}
	var numbers []float32
	if err := json.Unmarshal(v, &numbers); err != nil {
		return dst, err
	}
	if numbers == nil {
		return dst, errors.New("no vector")
	}
	if packed {
		raw := make([]byte, 0, 4*len(numbers))
		for _, n := range numbers {
			raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(n))
		}
		return append(base64.StdEncoding.AppendEncode(append(dst, '"'), raw), '"'), nil
	}
	return appendNumbers(dst, numbers), nil
}

// appendPacked appends a vector that came packed.
func appendPacked(dst []byte, v json.RawMessage, packed bool) ([]byte, error) {
	var text string
	if err := json.Unmarshal(v, &text); err != nil {
		return dst, err
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return dst, err
	}
	if len(raw)%4 != 0 {
		return dst, fmt.Errorf("%d bytes are no 32-bit numbers", len(raw))
	}
	numbers := make([]float32, 0, len(raw)/4)
	for four := range slices.Chunk(raw, 4) {
		n := math.Float32frombits(binary.LittleEndian.Uint32(four))
		if f := float64(n); math.IsNaN(f) || math.IsInf(f, 0) {
			return dst, errNotFinite
		}
		numbers = append(numbers, n)
	}
	if packed {
		return appendString(dst, text), nil
	}
	return appendNumbers(dst, numbers), nil
}

// appendNumbers appends an array of numbers with as many digits as tell them from their neighbours, each with a point as
// clients in typed languages like it.
func appendNumbers(dst []byte, numbers []float32) []byte {
	dst = append(dst, '[')
	for i, n := range numbers {
		if i > 0 {
			dst = append(dst, ',')
		}
		from := len(dst)
		dst = strconv.AppendFloat(dst, float64(n), 'g', -1, 32)
		if !slices.ContainsFunc(dst[from:], func(b byte) bool { return b == '.' || b == 'e' }) {
			dst = append(dst, ".0"...)
		}
	}
	return append(dst, ']')
}

// Scores turns workers' answers to rerank requests into one to a score request: one score for each text, in the
// client's order.
type Scores struct {
	ID      string // of the answer
	Model   string // as the client named it
	Created int64  // Unix seconds

	scores []float64
	tokens int
}

// Add takes a worker's answer, which is about the next so many texts.
func (s *Scores) Add(value []byte, count int) error {
	var ranked []struct {
		Score *float64 `json:"score"`
		Index int      `json:"index"`
		Meta  struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"meta_info"`
	}
	if err := json.Unmarshal(value, &ranked); err != nil {
		return errRawChunk.Because(fmt.Errorf("scores: %w", err))
	}
	scores := make([]*float64, count)
	for _, r := range ranked {
		if r.Index < 0 || r.Index >= count || r.Score == nil || scores[r.Index] != nil {
			return errRawChunk.Because(fmt.Errorf("scores: index %d of %d is wrong", r.Index, count))
		}
		scores[r.Index] = r.Score
		s.tokens += r.Meta.PromptTokens
	}
	for _, score := range scores {
		if score == nil {
			return errRawChunk.Because(fmt.Errorf("scores: %d for %d texts", len(ranked), count))
		}
		s.scores = append(s.scores, *score)
	}
	return nil
}

// Append appends the answer to dst.
func (s *Scores) Append(dst []byte) []byte {
	dst = appendString(append(dst, `{"id":`...), s.ID)
	dst = strconv.AppendInt(append(dst, `,"object":"list","created":`...), s.Created, 10)
	dst = append(appendString(append(dst, `,"model":`...), s.Model), `,"data":[`...)
	for i, score := range s.scores {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(append(dst, `{"index":`...), int64(i), 10)
		dst = strconv.AppendFloat(append(dst, `,"object":"score","score":`...), score, 'g', -1, 64)
		dst = append(dst, '}')
	}
	dst = strconv.AppendInt(append(dst, `],"usage":{"prompt_tokens":`...), int64(s.tokens), 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), int64(s.tokens), 10)
	return append(dst, "}}"...)
}
