// The C side of tokenizer.go, fast.go and heap.go: tok.rs, words.rs, fast.rs and heap.rs in native/src.
#ifndef PORTICO_TOKENS_H
#define PORTICO_TOKENS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct { uint8_t *ptr; size_t len, cap; } portico_bytes;
typedef struct { uint32_t *ptr; size_t len, cap; } portico_ids;

void *portico_tok_load(const uint8_t *json, size_t len, portico_bytes *error);
void *portico_tok_tiktoken(const uint8_t *model, size_t model_len, const uint8_t *config, size_t config_len,
                           const uint8_t *pattern, size_t pattern_len, portico_bytes *error);
bool portico_tok_encode(void *handle, const uint8_t *text, size_t len, bool add_special, portico_ids *out,
                        portico_bytes *error);
bool portico_tok_decode(void *handle, const uint32_t *ids, size_t len, bool skip_special, portico_bytes *out,
                        portico_bytes *error);
int64_t portico_tok_token_id(void *handle, const uint8_t *text, size_t len);
uint32_t portico_tok_vocab_size(void *handle);
void portico_ids_free(portico_ids ids);
void portico_bytes_free(portico_bytes bytes);

void *portico_words_new(void *handle);
void portico_words_free(void *words);
bool portico_words_encode(const void *words, void *handle, const uint8_t *text, size_t len, bool add_special,
                          portico_ids *out, portico_bytes *error);

void *portico_fast_load(const uint8_t *json, size_t len, portico_bytes *error);
void portico_fast_free(void *tokenizer);
void *portico_fast_encoder(void *tokenizer, portico_bytes *error);
void portico_fast_encoder_free(void *encoder);
bool portico_fast_encode(void *encoder, const uint8_t *text, size_t len, bool add_special, const uint32_t **ids,
                         size_t *count, portico_bytes *error);

void portico_heap_trim(void);
size_t portico_heap_in_use(void);

#endif
