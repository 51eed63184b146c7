// Package detok turns token ids into text, whole answers and piece by piece.
//
// A Model is built once from a tokenizer.json and knows one of three ways to decode:
//
//   - byteLevel: every token is a string of bytes (GPT-2 and everything after it). A table from id to bytes decodes
//     exactly; a decoder holds back at most three bytes of an unfinished character.
//   - byteFallback: SentencePiece vocabularies with <0xNN> tokens (Llama 2, Mistral, Gemma). A table as well; a run of
//     byte tokens is text only when the whole run is valid UTF-8, so it is held back until the run ends.
//   - native: anything else goes through the reference's own decode in a small sliding window.
//
// What a decoder returns in pieces equals the decode of all ids at once. The tables make no native call.
//
// The reference is Hugging Face tokenizers 0.22: Tokenizer::decode filters ids (unknown ones, and special ones when
// asked), then runs the decoder named in tokenizer.json. A Model is immutable and safe for concurrent use; a decoder
// belongs to one goroutine.
package detok
