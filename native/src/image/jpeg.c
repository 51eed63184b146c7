/* JPEG through libjpeg's own interface (mozjpeg), with its errors turned into return values.
 *
 * libjpeg reports an error by a call that must not return. Here it jumps back into the function that was called, so that
 * no jump ever crosses a frame of Rust. Every function returns 0, or -1 with a message in the state.
 */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jpeglib.h"
#include "jerror.h"

/* A file may come back to the same pixels scan after scan; no encoder writes more than a dozen scans. */
#define MAX_SCANS 64

typedef struct portico_jpeg {
	struct jpeg_decompress_struct info;
	struct jpeg_error_mgr errors;
	struct jpeg_source_mgr source;
	struct jpeg_progress_mgr progress;
	jmp_buf back;
	char message[JMSG_LENGTH_MAX];
	int ended;  /* the data ended before its end marker */
	int starved; /* and something was missing in it */
} portico_jpeg;

/* What is told of an opened file. Plane 0 is luma; 1 and 2 have the size chroma_width x chroma_height. */
typedef struct {
	uint32_t width, height;
	uint32_t components; /* 1: gray, 3: colour, 4: CMYK, inverted as Adobe writes it */
	uint32_t planar;     /* YCbCr planes can be had, with chroma halved as h and v tell */
	uint32_t h, v;       /* 1 or 2 */
	uint32_t rows;       /* luma rows of one portico_jpeg_planes */
} portico_jpeg_info;

static void on_error(j_common_ptr c)
{
	portico_jpeg *j = (portico_jpeg *)c->client_data;
	c->err->format_message(c, j->message);
	/* What libjpeg says when it may not have the memory. */
	if (c->err->msg_code == JERR_NO_BACKING_STORE)
		snprintf(j->message, sizeof j->message, "it takes too much memory: it isn't baseline, or has several scans");
	longjmp(j->back, 1);
}

static void fail(portico_jpeg *j, const char *message)
{
	snprintf(j->message, sizeof j->message, "%s", message);
	longjmp(j->back, 1);
}

static void on_message(j_common_ptr c, int level)
{
	portico_jpeg *j = (portico_jpeg *)c->client_data;
	if (level < 0) {
		c->err->num_warnings++;
		if (c->err->msg_code == JWRN_HIT_MARKER && j->ended) j->starved = 1;
	}
}

static void ignore(j_decompress_ptr c) { (void)c; }

/* The end of the data is taken for the end marker: a file that lacks nothing else is whole. */
static boolean on_end_of_data(j_decompress_ptr c)
{
	static const JOCTET end[2] = {0xff, JPEG_EOI};
	portico_jpeg *j = (portico_jpeg *)c->client_data;
	j->ended = 1;
	c->src->next_input_byte = end;
	c->src->bytes_in_buffer = 2;
	return TRUE;
}

static void skip(j_decompress_ptr c, long n)
{
	struct jpeg_source_mgr *s = c->src;
	if (n <= 0) return;
	if ((size_t)n > s->bytes_in_buffer) {
		on_end_of_data(c);
		return;
	}
	s->next_input_byte += n;
	s->bytes_in_buffer -= (size_t)n;
}

static void on_progress(j_common_ptr c)
{
	if (((j_decompress_ptr)c)->input_scan_number > MAX_SCANS) fail((portico_jpeg *)c->client_data, "it has too many scans");
}

void portico_jpeg_free(portico_jpeg *j)
{
	if (!j) return;
	if (!setjmp(j->back)) jpeg_destroy_decompress(&j->info);
	free(j);
}

/* Sets up a state of zeros, or one whose decompressor has been destroyed. */
static int set_up(portico_jpeg *j)
{
	j->info.err = jpeg_std_error(&j->errors);
	j->errors.error_exit = on_error;
	j->errors.emit_message = on_message;
	j->info.client_data = j;
	if (setjmp(j->back)) return -1;
	jpeg_create_decompress(&j->info);
	j->source.init_source = ignore;
	j->source.fill_input_buffer = on_end_of_data;
	j->source.skip_input_data = skip;
	j->source.resync_to_restart = jpeg_resync_to_restart;
	j->source.term_source = ignore;
	j->info.src = &j->source;
	j->progress.progress_monitor = on_progress;
	j->info.progress = &j->progress;
	return 0;
}

portico_jpeg *portico_jpeg_new(void)
{
	portico_jpeg *j = calloc(1, sizeof *j);
	if (j && set_up(j)) {
		free(j);
		j = NULL;
	}
	return j;
}

const char *portico_jpeg_message(const portico_jpeg *j) { return j->message; }

/* Chroma that fancy upsampling takes to twice the size; libjpeg itself does all other layouts. */
static int planar(const struct jpeg_decompress_struct *c)
{
	const jpeg_component_info *k = c->comp_info;
	if (c->num_components != 3 || c->jpeg_color_space != JCS_YCbCr) return 0;
	if (k[1].h_samp_factor != 1 || k[1].v_samp_factor != 1 || k[2].h_samp_factor != 1 || k[2].v_samp_factor != 1) return 0;
	if (k[0].h_samp_factor == 1) return k[0].v_samp_factor == 1;
	return k[0].h_samp_factor == 2 && k[0].v_samp_factor <= 2 && c->image_width > 4;
}

/* Reads the header. data must stay until the last row has been read, or until the next call. */
int portico_jpeg_open(portico_jpeg *j, const uint8_t *data, size_t len, portico_jpeg_info *out)
{
	struct jpeg_decompress_struct *c = &j->info;
	/* libjpeg keeps tables from one file to the next, and one without any would be decoded with a stranger's. */
	if (setjmp(j->back)) return -1;
	jpeg_destroy_decompress(c);
	if (set_up(j)) return -1;
	if (setjmp(j->back)) return -1;
	j->ended = j->starved = 0;
	j->source.next_input_byte = data;
	j->source.bytes_in_buffer = len;
	jpeg_read_header(c, TRUE);
	out->width = c->image_width;
	out->height = c->image_height;
	out->components = (uint32_t)c->num_components;
	out->planar = (uint32_t)planar(c);
	out->h = (uint32_t)c->comp_info[0].h_samp_factor;
	out->v = (uint32_t)c->comp_info[0].v_samp_factor;
	out->rows = (uint32_t)c->max_v_samp_factor * DCTSIZE;
	return 0;
}

/* Begins decoding, to planes or to rows of gray, RGB or CMYK. room: bytes that may be taken; a file of several scans has
 * all its coefficients in memory. */
int portico_jpeg_start(portico_jpeg *j, int planes, size_t room)
{
	struct jpeg_decompress_struct *c = &j->info;
	if (setjmp(j->back)) return -1;
	c->mem->max_memory_to_use = (long)room;
	switch (c->num_components) {
	case 1: c->out_color_space = JCS_GRAYSCALE; break;
	case 3: c->out_color_space = JCS_RGB; break;
	case 4: c->out_color_space = JCS_CMYK; break;
	default: fail(j, "it has an unusual number of components");
	}
	c->raw_data_out = planes ? TRUE : FALSE;
	c->dct_method = JDCT_ISLOW;
	jpeg_start_decompress(c);
	if (j->ended && (c->progressive_mode || jpeg_has_multiple_scans(c))) fail(j, "it is truncated");
	return 0;
}

static void check_end(portico_jpeg *j)
{
	if (j->starved) fail(j, "it is truncated");
}

/* Reads the next row. */
int portico_jpeg_row(portico_jpeg *j, uint8_t *row)
{
	JSAMPROW rows[1] = {row};
	if (setjmp(j->back)) return -1;
	if (jpeg_read_scanlines(&j->info, rows, 1) != 1) fail(j, "it is truncated");
	check_end(j);
	return 0;
}

/* Reads info.rows rows of luma and as many of chroma as belong to them. Rows are stride bytes apart, and padded to whole
 * blocks; strides are at least the width rounded up to 16 for luma, to 8 for chroma. */
int portico_jpeg_planes(portico_jpeg *j, uint8_t *const plane[3], const size_t stride[3])
{
	struct jpeg_decompress_struct *c = &j->info;
	JSAMPROW rows[3][2 * DCTSIZE];
	JSAMPARRAY planes[3];
	if (setjmp(j->back)) return -1;
	for (int k = 0; k < 3; k++) {
		for (int y = 0; y < c->comp_info[k].v_samp_factor * DCTSIZE; y++) rows[k][y] = plane[k] + (size_t)y * stride[k];
		planes[k] = rows[k];
	}
	if (jpeg_read_raw_data(c, planes, (JDIMENSION)(c->max_v_samp_factor * DCTSIZE)) == 0) fail(j, "it is truncated");
	check_end(j);
	return 0;
}

/* Forgets the data. */
void portico_jpeg_close(portico_jpeg *j)
{
	if (setjmp(j->back)) return;
	jpeg_abort_decompress(&j->info);
}
