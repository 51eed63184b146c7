package tokenizer

import "github.com/portico-llm/portico/internal/prepost"

// LongestToken returns the number of bytes that one token stands for at most. It is 0 for vocabularies whose tokens have
// no bytes of their own, since their tokenizers may drop parts of a text. The first call looks at every token.
func (t *Tokenizer) LongestToken() int {
	t.longest.Do(func() {
		if !t.model.Table() {
			return
		}
		for id := range t.model.VocabSize() {
			if b, ok := t.model.TokenBytes(prepost.TokenID(id)); ok {
				t.longestBytes = max(t.longestBytes, len(b))
			}
		}
		for name := range t.names { // special tokens of tiktoken
			t.longestBytes = max(t.longestBytes, len(name))
		}
	})
	return t.longestBytes
}
