// The C side of image.go: native/src/image.rs.
#ifndef PORTICO_IMAGE_H
#define PORTICO_IMAGE_H

#include "tokens.h"

typedef struct { uint32_t format, width, height, orientation; } portico_image_header_t;

typedef struct {
	int32_t kind, filter, rule, width, height, layout;
	int32_t canvas_width, canvas_height, left, top, tile_width, tile_height;
	int32_t side, merge, frames, element;
	size_t offset;
} portico_image_step;

void *portico_image_worker(void);
void portico_image_worker_free(void *worker);
int32_t portico_image_header(void *worker, const uint8_t *file, size_t len, size_t max_pixels,
                             portico_image_header_t *out, portico_bytes *error);
int32_t portico_image_run(void *worker, const uint8_t *file, size_t len, size_t max_pixels, uint32_t flags,
                          const portico_image_step *steps, size_t step_count, const uint8_t *tables, size_t tables_len,
                          uint8_t *dst, size_t dst_len, portico_image_header_t *out, portico_bytes *error);

#endif
