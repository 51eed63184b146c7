package openai_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/portico-llm/portico/api/openai"
)

// chatOf returns a chat request of about size bytes, of several turns.
func chatOf(size int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"qwen3-32b","stream":true,"stream_options":{"include_usage":true},"temperature":0.7,` +
		`"top_p":0.95,"max_tokens":512,"messages":[{"role":"system","content":"You are a helpful assistant."}`)
	for i := 0; b.Len() < size-2; i++ {
		text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", min(20, 1+size/900))
		role := []string{"user", "assistant"}[i%2]
		fmt.Fprintf(&b, `,{"role":%q,"content":"turn %d: %s\n\"quoted\""}`, role, i, text)
	}
	b.WriteString("]}")
	return []byte(b.String())
}

func BenchmarkDecodeChat(b *testing.B) {
	for _, size := range []int{600, 20_000} {
		body := chatOf(size)
		b.Run(fmt.Sprintf("%d_bytes", size), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := openai.DecodeChat(body, openai.DecodeOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
